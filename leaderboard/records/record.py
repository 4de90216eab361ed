"""The record: the scored outcome of one cell as JSON, validated and versioned.

Stability: a field never changes its meaning; new fields are optional; a metric whose definition
changes gets a new version. Two records are "the same" if they are equal in everything
except `cost`, `provenance` and the training's seconds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, JsonValue

from leakboard.core.names import file_part
from leakboard.core.plugins import Settings
from leakboard.core.seeds import digest_of
from leakboard.leaderboard.records.known import goals

SCHEMA_VERSION = 1
#: the attack that guesses without any message; other attacks are compared with it
#: what the reason of a cell begins with whose training failed
NO_TRAINING = "its training failed"
PRIOR = "prior"
SCHEMA_FILE = Path(__file__).with_name("record.schema.json")
Status = Literal["ok", "failed", "timeout", "crashed", "skipped"]


class PluginSpec(Settings):
    """A plugin with all its validated parameters, under the label that the suite gave it."""

    label: str
    name: str
    parameters: dict[str, JsonValue]


class TrainingSpec(Settings):
    """What defines one training run."""

    dataset: PluginSpec
    model: PluginSpec
    defense: PluginSpec
    training: dict[str, JsonValue]
    observe: dict[str, JsonValue]
    seed: int
    keys: Literal["seeded", "fresh"] = "seeded"
    active: bool = Field(False, description="whether the server deviates to its own advantage (threat server:active)")


class CellSpec(Settings):
    """What defines one cell: a training, and an attack on it under a threat model."""

    training: TrainingSpec
    attack: PluginSpec
    goal: str
    threat: str
    moment: str | None = Field(description="observed round (first, middle, last); null where the whole run is attacked")
    known_labels: bool = False
    known_members: float = Field(
        0, description="share of members and non-members that the attack was told; these are not evaluated"
    )
    about: Literal["training", "batch"] = Field(
        "training",
        description="membership in the whole training, or in the victim's batch of the observed round (`moment`)",
    )
    pool_share: float = Field(
        1,
        description="`about: batch`: share of the victim's batch among the candidates; the attack knew the batch's "
        "size, but not which records were missing",
    )
    decoys: int = 999
    adaptive: bool = Field(
        False, description="whether the attack knows more about the defense than an honest party's `read` gives"
    )
    probe_batch: int | None = Field(
        None, ge=1, description="reconstruction: records per probe; null: the only size that `observe` names"
    )

    @property
    def batch_size(self) -> int:
        """How many records of the victim are behind one gradient; 1 where the goal has no cells per batch size."""
        goal = goals().get(self.goal)
        if goal is None or not goal.per_batch_size:
            return 1
        given = self.probe_batch if self.probe_batch is not None else self.training.observe.get("probe_batch", 1)
        only = given[0] if isinstance(given, list) and len(given) == 1 else given
        return only if isinstance(only, int) and only > 0 else 1

    @property
    def share_of_batch(self) -> float | None:
        """Batch membership: the share of the victim's batch that was among the candidates; None for all else."""
        return self.pool_share if self.about == "batch" else None

    @property
    def slug(self) -> str:
        """A readable name for files: dataset, defense, attack, threat, moment, batch size above 1, seed."""
        t = self.training
        size = [f"b{self.batch_size}"] if self.batch_size > 1 else []
        parts = [t.dataset.label, t.defense.label, self.attack.label, self.threat, self.moment or "run", *size]
        return "--".join(file_part(part) for part in [*parts, f"s{t.seed}"])


class ScoreRecord(Settings):
    """The outcome of one metric. `value` is null, with the reason, if it could not be computed."""

    value: float | None
    unit: str = ""
    version: int = 1
    reason: str = ""
    per_item: list[float] = Field(default_factory=list, description="one value per image or record")
    details: dict[str, float] = Field(default_factory=dict)


class TrainingSummary(Settings):
    """Summary of a training: utility, time by phase, bytes by message kind."""

    key: str
    accuracy: float | None = Field(description="test accuracy of the final global model, 0 to 1")
    test_records: int = Field(description="number of test images behind the accuracy")
    test_correct: str = Field(
        "",
        description="test records that the final model classified correctly: one bit each in the split's order, as hex",
    )
    train_accuracy: float | None = Field(description="accuracy on the members, 0 to 1")
    train_records: int = Field(description="number of members behind the train accuracy")
    accuracy_by_round: dict[int, float] = Field(
        default_factory=dict,
        description="finished rounds -> test accuracy, at the end of about 20 epochs and of the run",
    )
    curve_records: int | None = Field(
        None,
        description="number of test images behind accuracy_by_round before the last round, the first in the split's "
        "order; null: all, as at the end",
    )
    rounds: int
    client_rounds: int = Field(description="sum over rounds of the number of participating clients")
    parameters: int = Field(description="number of trained values")
    diverged: bool = Field(description="whether the final model contains a non-finite value")
    observed: dict[str, int] = Field(description="moment -> round index")
    bytes_by_kind: dict[str, int] = Field(description="bytes sent in all training rounds, by message kind")
    claims: dict[str, JsonValue] = Field(default_factory=dict, description="the defense's claims, in numbers")
    oracle: dict[str, int] = Field(
        default_factory=dict, description="facts that the scheme assumes but no client could know: name -> times asked"
    )
    clipped_share: float | None = Field(None, description="share of training and probe examples that were clipped")
    measured: dict[str, float] = Field(
        default_factory=dict, description="values that the harness measured, the worst over observed rounds"
    )
    seconds: dict[str, float] = Field(description="wall seconds by role/phase, sum over training rounds and set-up")
    cpu_seconds: dict[str, float] = Field(description="CPU seconds by role/phase")
    extrapolated_seconds: dict[str, float] = Field(
        default_factory=dict,
        description="sampled cryptography: CPU seconds of skipped work by role/phase (median sample x count)",
    )
    wall_seconds: float = Field(description="wall seconds of the whole training")

    def curve_note(self) -> str:
        """What `accuracy_by_round` was measured on, if not on all test images; for every table or chart that uses it.

        Empty if all values are of all test images.
        """
        if self.curve_records is None or self.curve_records >= self.test_records:
            return ""
        few, all_of_them = f"{self.curve_records:,}", f"{self.test_records:,}"
        return f"accuracy before the end is that of {few} of {all_of_them} test images"

    def outcomes(self) -> list[bool]:
        """For each test record, whether the final model was right; empty if the record does not say."""
        return bits_of(self.test_correct, self.test_records)


def hex_of(bits: Sequence[bool]) -> str:
    """Bits as hex digits, the first bit highest; `bits_of` is the inverse.

    >>> hex_of([True, False, False, False, True])
    '11'
    """
    return f"{int(''.join('1' if bit else '0' for bit in bits), 2):0{-(-len(bits) // 4)}x}" if bits else ""


def bits_of(text: str, count: int) -> list[bool]:
    """`count` bits from hex digits; none if the text does not hold exactly that many.

    >>> bits_of("11", 5), bits_of("11", 4), bits_of("no", 5)
    ([True, False, False, False, True], [], [])
    """
    if not text or len(text) != -(-count // 4) or not all(digit in "0123456789abcdef" for digit in text):
        return []
    digits = f"{int(text, 16):0{count}b}"
    return [digit == "1" for digit in digits] if len(digits) == count else []


class Cost(Settings):
    """The cost of the attack."""

    wall_seconds: float
    cpu_seconds: float
    peak_memory_mib: float


class Provenance(Settings):
    """Where and with which versions the record was made."""

    created: str
    commit: str | None
    dirty: bool | None
    versions: dict[str, str]
    platform: str
    processor: str
    device: str
    data_digest: str = Field(description="SHA-256 over decoded pixels and labels in index order")


class Record(Settings):
    """The scored outcome of one cell. There is no NaN: a missing value is null, with a status or reason."""

    schema_version: int = Field(SCHEMA_VERSION, ge=1, le=SCHEMA_VERSION, description="newer versions are refused")
    key: str = Field(description="SHA-256 of the ingredients")
    ingredients: dict[str, JsonValue]
    cell: CellSpec
    status: Status
    reason: str = ""
    traceback: str = ""
    scores: dict[str, ScoreRecord] = Field(default_factory=dict)
    target_indices: list[int] = Field(
        default_factory=list, description="dataset indices of the attacked records, in order"
    )
    members: list[bool] = Field(
        default_factory=list,
        description="membership: the truth, in the order of target_indices; audit: the trials that were in world 1",
    )
    member_scores: list[float] = Field(
        default_factory=list,
        description="the attack's scores: one per record for membership, one per trial for an audit",
    )
    decisions: list[bool] = Field(default_factory=list, description="membership: the attack's decisions")
    reconstructions: str = Field("", description="file with the reconstructed images, in the same folder as the record")
    flags: list[str] = Field(default_factory=list)
    diagnostics: dict[str, float] = Field(default_factory=dict)
    budget: dict[str, JsonValue] = Field(default_factory=dict)
    training: TrainingSummary | None = None
    cost: Cost | None = None
    provenance: Provenance | None = None

    def comparable(self) -> dict[str, Any]:
        """The record without time, memory and provenance: equal for equal runs."""
        data = self.model_dump(mode="json", exclude={"cost", "provenance", "traceback"})
        if data["training"]:
            for field in ("seconds", "cpu_seconds", "extrapolated_seconds", "wall_seconds"):
                del data["training"][field]
        return data

    def to_json(self) -> str:
        """The text of the record's file."""
        return json.dumps(self.model_dump(mode="json"), indent=1, allow_nan=False) + "\n"


def key_of(ingredients: dict[str, Any]) -> str:
    """The key of a training or a cell: the hash of its ingredients."""
    return digest_of("key", SCHEMA_VERSION, ingredients)


def schema_text() -> str:
    """The published JSON Schema of a record."""
    return json.dumps(Record.model_json_schema(), indent=1, sort_keys=True) + "\n"
