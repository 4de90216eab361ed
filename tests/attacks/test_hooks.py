"""Attacks ask a defense by its documented hooks, and guess nothing from the names of its fields (issue 17, 8)."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from pydantic import Field

from leakboard.attacks.base import Knowledge, MembershipTask, ReconstructionTask
from leakboard.attacks.membership.building_blocks.batch import BatchMembership
from leakboard.attacks.membership.building_blocks.signals import joined
from leakboard.attacks.membership.gradient_membership import GradientMembership
from leakboard.attacks.membership.update_inference import UpdateInference
from leakboard.attacks.reconstruction.noise_aware import NoiseAware
from leakboard.core import registry
from leakboard.core.errors import UserError
from leakboard.core.registry import ROOT
from leakboard.datasets.base import LabelledImages
from leakboard.defenses.base import Defense, Gradient, Noise, Transform, even_noise
from leakboard.defenses.noise.budget import clipping
from leakboard.federation.party import Party
from leakboard.federation.payload import Parameters
from leakboard.federation.settings import VICTIM, ObservedRounds, Public
from leakboard.federation.transcript import Observation
from tests.defenses.small import CLASSES, SHAPE, batches, small_run

WATCH = ObservedRounds(rounds=("first",), targets=2)


class WholeUpdate(Defense):
    """Somebody's defense: `clip` bounds a client's whole gradient, as in docs/adding-a-defense.md; no noise."""

    name: ClassVar[str] = "whole-update"
    clip: float = Field(0.05, gt=0)

    def protect(self, me: Party, gradient: Parameters) -> Parameters:
        clipped = self.mimic(Gradient(gradient, 1, 1), me.public)({name: g[None] for name, g in gradient.items()})
        return {name: value[0] for name, value in clipped.items()}

    def mimic(self, observed: Gradient, public: Public) -> Transform:
        return clipping(self.clip)


class EveryValue(Defense):
    """Somebody's defense: `clip` bounds every single value, and noise of a known law is on top."""

    name: ClassVar[str] = "every-value"
    clip: float = Field(0.01, gt=0)

    def protect(self, me: Party, gradient: Parameters) -> Parameters:
        clamped = self.mimic(Gradient(gradient, 1, 1), me.public)(gradient)
        return {n: g + 1e-3 * torch.from_numpy(me.stream("noise").normal(*g.shape)).to(g) for n, g in clamped.items()}

    def mimic(self, observed: Gradient, public: Public) -> Transform:
        return lambda gradients: {name: value.clamp(-self.clip, self.clip) for name, value in gradients.items()}

    def noise_scale(self, observation: Observation, public: Public) -> Mapping[str, Noise]:
        return {n: even_noise(g.values, 1e-3) for n, g in self.read(observation, public).gradients.items()}


def others(count: int, seed: int) -> LabelledImages:
    generator = torch.Generator().manual_seed(seed)
    return LabelledImages(
        torch.rand(count, *SHAPE, generator=generator), torch.randint(0, CLASSES, (count,), generator=generator)
    )


@pytest.mark.parametrize(
    ("attack", "threat"),
    [(GradientMembership(ridge=1e-9), "server"), (UpdateInference(ridge=1e-9), "client")],
    ids=["gradient-membership", "update-inference"],
)
def test_a_clip_of_the_whole_update_is_not_taken_for_one_of_every_record(attack: BatchMembership, threat: str) -> None:
    """All members' gradients enter the mean alike: coefficients are equal, unless each were clipped."""
    made = small_run(WholeUpdate(), hidden=(40,), shard=24, batch_size=24, clients=2, observe=WATCH)
    (context,) = (o.context for o in made.rounds() if o.context.round == 0)
    members = batches(made, context)[VICTIM]
    known = Knowledge(made.view(threat), made.defense, others(20, seed=7), 5)
    scores = attack.infer(known, MembershipTask(joined(members, others(24, seed=99)), round_index=0)).scores
    assert float(scores[:24].min()) > 0
    assert float(scores[:24].std() / scores[:24].mean()) < 1e-2
    assert float(scores[24:].abs().max() / scores[:24].mean()) < 1e-2


def test_a_clip_of_every_value_is_not_taken_for_one_of_the_norm() -> None:
    made = small_run(EveryValue(), hidden=(20,), observe=WATCH)
    known = Knowledge(made.view("server"), made.defense, others(20, seed=7), 5)
    task = ReconstructionTask("first", 0, 2, 1, None, (1, 1))
    laws = NoiseAware()._laws(known, task, task.problems(known))
    assert laws is not None
    row = torch.randn(3, len(laws[0].observed), generator=torch.Generator().manual_seed(0))
    assert torch.equal(laws[0].sent(row), row.clamp(-0.01, 0.01))


# --- the code of all attacks -----------------------------------------------------------------------

#: the surface of a defense that everybody may use
DOCUMENTED = set(dir(Defense))


def guesses(source: str) -> list[str]:
    """Expressions that look into a defense by a field's name: getattr and the like, or an undocumented attribute.

    Attributes of a defense whose class an attack has asked for (isinstance) are checked by mypy.
    """
    return [ast.unparse(node) for node in ast.walk(ast.parse(source)) if _guesses(node)]


def _guesses(node: ast.AST) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
        return node.func.id in ("getattr", "hasattr", "vars") and "defense" in ast.unparse(node.args[0])
    if not isinstance(node, ast.Attribute):
        return False
    owner = ast.unparse(node.value)
    fields = node.attr in ("model_fields", "__dict__") and "defense" in owner
    return fields or (owner == "knowledge.defense" and node.attr not in DOCUMENTED)


FILES = sorted(
    str(p.relative_to(ROOT))
    for p in (*(ROOT / "attacks").rglob("*.py"), *(ROOT / "leaderboard" / "goals").rglob("*.py"))
)


@pytest.mark.parametrize("path", FILES)
def test_no_attack_guesses_a_field_of_a_defense(path: str) -> None:
    assert guesses((ROOT / path).read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        'getattr(knowledge.defense, "clip", None)',
        'hasattr(self.defense, "clip")',
        "knowledge.defense.clip",
        "type(defense).model_fields",
        "vars(defense)",
    ],
)
def test_the_search_finds_a_guess(source: str) -> None:
    assert guesses(source)
    assert not guesses("knowledge.defense.mimic_records(gradient, public)")


# --- `adaptive` ------------------------------------------------------------------------------------

SLY = '''
from typing import ClassVar
from leakboard.attacks.base import MembershipAttack

class Sly(MembershipAttack):
    """Sly."""
    name: ClassVar[str] = "sly"
    {line}
    def infer(self, knowledge, task): ...
'''


@pytest.mark.parametrize(
    "line", ["adaptive = True", "adaptive: bool = True", "adaptive: ClassVar[bool] = True", "adaptive: bool = False"]
)
def test_adaptive_as_an_attribute_is_refused_in_one_sentence(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_loaded_files", {})
    file = tmp_path / "sly.py"
    file.write_text(SLY.format(line=line))
    with pytest.raises(UserError) as caught:
        registry.load_file(file)
    said = str(caught.value)
    assert "The attack 'sly' sets 'adaptive' as an attribute: set `can_adapt` to True and define a property" in said
    assert "\n" not in said


def test_what_the_document_says_of_adaptive_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_loaded_files", {})
    text = (ROOT / "docs" / "adding-an-attack.md").read_text()
    assert "set `adaptive = True`" not in text
    shown = text[text.index("      can_adapt: ClassVar[bool] = True\n") :].split("\n\n  `adaptive")[0]
    file = tmp_path / "sly.py"
    file.write_text(SLY.format(line=shown.replace("\n      ", "\n    ").strip()))
    (entry,) = registry.load_file(file)
    assert entry["adaptive"] is True
    assert registry.create("attack", "sly").adaptive is True  # type: ignore[attr-defined]
