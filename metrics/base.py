"""What a metric is: a pure function with a unit, a direction and bounds."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from leakboard.core.plugins import Plugin
from leakboard.federation.payload import Parameters

Goal = Literal["reconstruction", "membership", "extraction", "audit", "training"]


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
    clamped images (None if there is no model); `decoys` (D, C, H, W) in [0, 1]: other images.
    """

    reconstruction: Tensor
    original: Tensor
    mean: tuple[float, ...]
    std: tuple[float, ...]
    reconstruction_logits: Tensor | None = None
    original_logits: Tensor | None = None
    decoys: Tensor | None = None


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


class Metric(Plugin):
    """Base of all metrics; `version` increases whenever the definition changes."""

    kind: ClassVar[str] = "metric"
    goal: ClassVar[Goal]
    version: ClassVar[int] = 1
    unit: ClassVar[str] = ""
    #: whether a larger value means that the attack did better (more harm)
    higher_is_better: ClassVar[bool]
    bounds: ClassVar[tuple[float | None, float | None]] = (None, None)

    @classmethod
    def describe(cls) -> dict[str, Any]:
        """What `list --json` prints; for a metric also its goal, unit, version, direction and bounds."""
        own = {"goal": cls.goal, "unit": cls.unit, "version": cls.version, "bounds": list(cls.bounds)}
        return {**super().describe(), **own, "higher_is_better": cls.higher_is_better}


class ReconstructionMetric(Metric):
    """A metric on reconstructed images."""

    goal: ClassVar[Goal] = "reconstruction"

    @abstractmethod
    def score(self, truth: ReconstructionTruth) -> Score:
        """Score matched reconstructions."""


class MembershipMetric(Metric):
    """A metric on membership scores and decisions."""

    goal: ClassVar[Goal] = "membership"

    @abstractmethod
    def score(self, truth: MembershipTruth) -> Score:
        """Score membership decisions."""


class ExtractionMetric(Metric):
    """A metric on a stolen model."""

    goal: ClassVar[Goal] = "extraction"

    @abstractmethod
    def score(self, truth: ExtractionTruth) -> Score:
        """Score a stolen model."""


class AuditMetric(Metric):
    """A metric on the scores of a distinguishing game."""

    goal: ClassVar[Goal] = "audit"

    @abstractmethod
    def score(self, truth: AuditTruth) -> Score:
        """Score a game."""
