"""What a metric is: a pure function with a unit, a direction and bounds."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from leakboard.core.plugins import Plugin
from leakboard.federation.payload import Parameters

#: how a metric's value follows from its values per item
Aggregate = Literal["mean", "share", "whole"]


@dataclass(frozen=True)
class Score:
    """A metric's result: the mean and one value per item (image or record); None with a reason, never NaN."""

    value: float | None
    per_item: tuple[float, ...] = ()
    reason: str = ""
    details: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ReconstructionTruth:
    """The input of reconstruction metrics: all tensors are matched, row i of one belongs to row i of the other.

    `reconstruction` (N, C, H, W) in image units, not clamped; `original` (N, C, H, W) in [0, 1];
    `mean`, `std` per channel: the normalisation that the model sees; `reconstruction_logits` and
    `original_logits` (N, classes): the true model of the attacked round, in eval mode, on the
    clamped images (None if there is no model); `decoys` (D, C, H, W) in [0, 1]: other images. `labels` and
    `recovered_labels`, one (B,) per batch: the true ones, and what the attack says; None where it may not be scored,
    with the reason in `no_labels`.
    """

    reconstruction: Tensor
    original: Tensor
    mean: tuple[float, ...]
    std: tuple[float, ...]
    reconstruction_logits: Tensor | None = None
    original_logits: Tensor | None = None
    decoys: Tensor | None = None
    labels: tuple[Tensor, ...] | None = None
    recovered_labels: tuple[Tensor, ...] | None = None
    no_labels: str = ""


@dataclass(frozen=True)
class MembershipTruth:
    """Input of membership metrics: `scores` (N,), higher means member; `decisions` (N,) bool; `members` (N,) bool."""

    scores: Tensor
    decisions: Tensor
    members: Tensor


@dataclass(frozen=True)
class ExtractionTruth:
    """The input of extraction metrics: the stolen and the true model of the attacked round, and their test outputs.

    `network` is the architecture (its own weights have no meaning); `stolen_logits` and `true_logits` (N, classes) are
    computed in eval mode on the test images, whose labels are `labels` (N,).
    """

    stolen: Parameters
    true: Parameters
    network: nn.Module
    stolen_logits: Tensor
    true_logits: Tensor
    labels: Tensor


@dataclass(frozen=True)
class AuditTruth:
    """The input of audit metrics: `scores` (N,), higher means world 1; `worlds` (N,) bool, True for world 1; delta.

    `claimed` is the epsilon of a round that the defense claims against the threat at this delta; None if it claims
    none.
    """

    scores: Tensor
    worlds: Tensor
    delta: float
    claimed: float | None = None


@dataclass(frozen=True)
class TrainingTruth:
    """What metrics of a training get: what the final model says of the test, `logits` (N, classes), `labels` (N,)."""

    logits: Tensor
    labels: Tensor


class Metric(Plugin):
    """Base of all metrics; `version` increases whenever the definition changes.

    What a table shows of a metric is declared here, once: a metric from a plugin file gets a column like any other.
    """

    kind: ClassVar[str] = "metric"
    #: the name of the goal whose cells it scores; "training": the utility of the model
    goal: ClassVar[str]
    version: ClassVar[int] = 1
    #: the head of its column; empty: its name
    title: ClassVar[str] = ""
    unit: ClassVar[str] = ""
    #: decimal places in tables; where a value would show none of them, so many significant digits instead
    digits: ClassVar[int] = 3
    significant: ClassVar[int | None] = None
    #: a few words that explain the column
    hint: ClassVar[str] = ""
    #: whether a larger value means that the attack did better (more harm)
    higher_is_better: ClassVar[bool]
    bounds: ClassVar[tuple[float | None, float | None]] = (None, None)
    #: how `value` follows from `per_item`: "mean" of them, the same of values in [0, 1] ("share"), or "whole": not
    aggregate: ClassVar[Aggregate] = "whole"
    #: how far a value that is computed again on another machine may be from the published one
    tolerance: ClassVar[float] = 0.05

    @classmethod
    def describe(cls) -> dict[str, Any]:
        """What `list --json` prints; for a metric also its goal, unit, version, direction, bounds and column."""
        names = ("goal", "unit", "version", "digits", "significant", "hint", "aggregate", "tolerance")
        own = {name: getattr(cls, name) for name in names}
        own |= {"bounds": list(cls.bounds), "title": cls.title or cls.name, "higher_is_better": cls.higher_is_better}
        return {**super().describe(), **own}

    @abstractmethod
    def score(self, truth: Any) -> Score:
        """Score an answer; `truth` is what the goal's `truth` returns."""


class ReconstructionMetric(Metric):
    """A metric on reconstructed images."""

    goal: ClassVar[str] = "reconstruction"

    @abstractmethod
    def score(self, truth: ReconstructionTruth) -> Score:
        """Score matched reconstructions."""


class MembershipMetric(Metric):
    """A metric on membership scores and decisions."""

    goal: ClassVar[str] = "membership"

    @abstractmethod
    def score(self, truth: MembershipTruth) -> Score:
        """Score membership decisions."""


class ExtractionMetric(Metric):
    """A metric on a stolen model."""

    goal: ClassVar[str] = "extraction"

    @abstractmethod
    def score(self, truth: ExtractionTruth) -> Score:
        """Score a stolen model."""


class AuditMetric(Metric):
    """A metric on the scores of a distinguishing game."""

    goal: ClassVar[str] = "audit"

    @abstractmethod
    def score(self, truth: AuditTruth) -> Score:
        """Score a game."""
