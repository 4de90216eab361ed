"""LeakBoard: what does a federated-learning defense really leak?

    import leakboard as lb

    run = lb.evaluate("my_defense.py", suite="quick")
    run.scoreboard()

Importing the package loads nothing else: each name below is loaded when it is first used (docs/api.md).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leakboard.attacks.base import (
        Attack,
        AuditAnswer,
        AuditAttack,
        AuditTask,
        ExtractionAnswer,
        ExtractionAttack,
        ExtractionTask,
        Knowledge,
        MembershipAnswer,
        MembershipAttack,
        MembershipTask,
        ReconstructionAnswer,
        ReconstructionAttack,
        ReconstructionTask,
    )
    from leakboard.core.errors import Unsupported, UserError
    from leakboard.datasets.base import Dataset
    from leakboard.defenses.base import Defense, Reading
    from leakboard.federation.models.base import Model
    from leakboard.federation.party import Party
    from leakboard.federation.view import View
    from leakboard.leaderboard.api.attack import AttackResult, attack
    from leakboard.leaderboard.api.catalogue import plugins
    from leakboard.leaderboard.api.evaluate import evaluate, prepare
    from leakboard.leaderboard.api.published import compare, published, results, submit, verify
    from leakboard.leaderboard.api.run import Run, open_run
    from leakboard.leaderboard.api.scaffold import new_plugin
    from leakboard.leaderboard.api.show import show
    from leakboard.leaderboard.api.site import site
    from leakboard.leaderboard.api.views import load_view
    from leakboard.metrics.base import (
        AuditMetric,
        ExtractionMetric,
        MembershipMetric,
        Metric,
        ReconstructionMetric,
        Score,
    )

#: module -> the names that it gives the package
_MODULES = {
    "attacks.base": (
        "Attack AuditAnswer AuditAttack AuditTask ExtractionAnswer ExtractionAttack ExtractionTask Knowledge "
        "MembershipAnswer MembershipAttack MembershipTask ReconstructionAnswer ReconstructionAttack ReconstructionTask"
    ),
    "core.errors": "Unsupported UserError",
    "datasets.base": "Dataset",
    "defenses.base": "Defense Reading",
    "federation.models.base": "Model",
    "federation.party": "Party",
    "federation.view": "View",
    "leaderboard.api.attack": "AttackResult attack",
    "leaderboard.api.catalogue": "plugins",
    "leaderboard.api.evaluate": "evaluate prepare",
    "leaderboard.api.published": "compare published results submit verify",
    "leaderboard.api.run": "Run open_run",
    "leaderboard.api.scaffold": "new_plugin",
    "leaderboard.api.show": "show",
    "leaderboard.api.site": "site",
    "leaderboard.api.views": "load_view",
    "metrics.base": "AuditMetric ExtractionMetric MembershipMetric Metric ReconstructionMetric Score",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = [
    "Attack",
    "AttackResult",
    "AuditAnswer",
    "AuditAttack",
    "AuditMetric",
    "AuditTask",
    "Dataset",
    "Defense",
    "ExtractionAnswer",
    "ExtractionAttack",
    "ExtractionMetric",
    "ExtractionTask",
    "Knowledge",
    "MembershipAnswer",
    "MembershipAttack",
    "MembershipMetric",
    "MembershipTask",
    "Metric",
    "Model",
    "Party",
    "Reading",
    "ReconstructionAnswer",
    "ReconstructionAttack",
    "ReconstructionMetric",
    "ReconstructionTask",
    "Run",
    "Score",
    "Unsupported",
    "UserError",
    "View",
    "attack",
    "compare",
    "evaluate",
    "load_view",
    "new_plugin",
    "open_run",
    "plugins",
    "prepare",
    "published",
    "results",
    "show",
    "site",
    "submit",
    "verify",
]


if not TYPE_CHECKING:  # a type checker knows the names above, and no others

    def __getattr__(name: str) -> Any:
        """Load a public name when it is first used."""
        if name not in _HOMES:
            raise AttributeError(f"module 'leakboard' has no attribute '{name}'")
        value = getattr(import_module(f"leakboard.{_HOMES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted({*globals(), *_HOMES})
