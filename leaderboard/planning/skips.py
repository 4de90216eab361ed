"""Cells of which it is known before any work that they will be skipped."""

from __future__ import annotations

from collections.abc import Iterable

from leakboard.core.errors import UserError
from leakboard.federation.settings import Training
from leakboard.federation.view import parse_threat
from leakboard.leaderboard.planning.jobs import Job


def sure_skip(job: Job) -> str:
    """Why a cell will be skipped whatever its training gives; empty where only the attack can tell from its view."""
    assert job.cell is not None
    attack, threat = job.make_attack(), job.cell.threat
    if not attack.allows(threat):
        return f"the attack works under {', '.join(attack.threats)}, not under {threat}"
    clients = Training.model_validate(job.training.training).clients
    if parse_threat(threat, clients).active and not job.training.active:
        return f"the defense {job.training.defense.name} has no strategy of an active server on this network"
    return attack.refuses(job.make_defense())


def refuse_only_skips(cells: Iterable[Job]) -> None:
    """Refuse cells of which no attack can run: that would train everything and measure nothing."""
    reasons: dict[str, None] = {}
    for job in cells:
        assert job.cell is not None
        reason = sure_skip(job)
        if not reason:
            return
        reasons[f"{job.cell.attack.label}: {reason}."] = None
    raise UserError("Every cell of this run would be skipped, so nothing is trained; the reasons follow.", *reasons)
