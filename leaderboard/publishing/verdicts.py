"""How far a published record can be trusted: computed again or not, and to which depth."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from leakboard.core.errors import UserError
from leakboard.core.files import write_text
from leakboard.core.plugins import Settings
from leakboard.leaderboard.planning.run_folder import MAX_RECORD_BYTES, read_text
from leakboard.leaderboard.publishing.origins import is_older, unknown_plugins
from leakboard.leaderboard.records.known import known_metric
from leakboard.leaderboard.records.record import Provenance, Record

#: what was computed again: the attack on the replayed rounds, or the training and the attack
Depth = Literal["attack", "training"]
Badge = Literal["self-reported", "attack verified", "verified", "older code", "needs --plugin FILE"]


class Verification(Settings):
    """`<record>.verified`: a record was computed again, with this code and these results."""

    record_digest: str = Field(description="SHA-256 of the record's file")
    provenance: Provenance
    compared: dict[str, tuple[float | None, float | None]] = Field(description="score -> published, computed again")
    depth: Depth = Field("training", description="`attack`: on the replayed rounds; `training`: trained again too")


def badge(path: Path, record: Record) -> Badge:
    """How far a published record can be trusted: verified by us, reported by its sender alone, or made by older code.

    "attack verified": only the attack was computed again, on the replayed rounds of the published training.

    If a plugin's text is neither published beside the record nor loaded, nobody can tell whether it has changed.
    """
    if is_older(record):
        return "older code"
    if unknown_plugins(path.parent, record):
        return "needs --plugin FILE"
    try:
        known = Verification.model_validate_json(read_text(path.with_suffix(".verified"), MAX_RECORD_BYTES))
    except (OSError, ValidationError, UnicodeDecodeError, UserError):
        return "self-reported"
    if known.record_digest != _digest(path):
        return "self-reported"
    return "verified" if known.depth == "training" else "attack verified"


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@dataclass(frozen=True)
class Verdict:
    """A published record and the same record computed again."""

    published: Record
    again: Record
    depth: Depth = "training"

    def rows(self) -> dict[str, tuple[float | None, float | None]]:
        """Every score, and the accuracy: published, computed again."""
        names = [*self.published.scores, *(n for n in self.again.scores if n not in self.published.scores)]
        found = {name: (_value(self.published, name), _value(self.again, name)) for name in names}
        found["accuracy"] = (_accuracy(self.published), _accuracy(self.again))
        return found

    def differences(self) -> list[str]:
        """The differences that exceed the tolerance, in words."""
        found = []
        if self.published.status != self.again.status:
            found.append(f"status {self.published.status}, computed again: {self.again.status} {self.again.reason}")
        for name, (first, second) in self.rows().items():
            allowed = known_metric(name).tolerance
            if first is None and second is None:
                continue
            if first is None or second is None or abs(first - second) > allowed:
                found.append(f"{name} {_shown(first)}, computed again: {_shown(second)} (tolerance {allowed:g})")
        return found


def _shown(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"


def _value(record: Record, name: str) -> float | None:
    return record.scores[name].value if name in record.scores else None


def _accuracy(record: Record) -> float | None:
    return record.training.accuracy if record.training is not None else None


def mark_verified(path: Path, verdict: Verdict) -> Path:
    """Write beside a published record that it was computed again."""
    assert verdict.again.provenance is not None
    note = Verification(
        record_digest=_digest(path),
        provenance=verdict.again.provenance,
        compared=verdict.rows(),
        depth=verdict.depth,
    )
    target = path.with_suffix(".verified")
    write_text(target, note.model_dump_json(indent=1) + "\n")
    return target
