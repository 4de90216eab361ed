"""The contract of an attack: what it is given, and what it must return.

An attack gets a `Knowledge` (view, auxiliary images, a seed of its own) and a task that says what is
asked. It never gets the truth, the base seed or the run's folder. What it returns is checked by the harness
before any metric looks at it.
"""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from leakboard.attacks.building_blocks.candidate_transform import CandidateTransform, candidate_transform_of
from leakboard.core.errors import Unsupported, UserError
from leakboard.core.plugins import Plugin
from leakboard.core.seeds import derive_seed, digest_of
from leakboard.datasets.base import LabelledImages
from leakboard.defenses.base import AGGREGATE, Defense, Gradient, Reading
from leakboard.federation.party import RoundContext
from leakboard.federation.payload import Parameters, raw_bytes
from leakboard.federation.settings import VICTIM, Moment, Public
from leakboard.federation.task import Task, task_of
from leakboard.federation.transcript import Observation
from leakboard.federation.view import View

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(Plugin)  # it has no public name


#: how a flag begins that says that the clock, not the attack, ended the work: such an answer counts as a time-out
STOPPED = "stopped at its time limit"
#: the flag of an attack that knows nothing of local steps
TAKEN_FOR_GRADIENT = "local steps: the update divided by rate and steps is taken for one gradient"
#: how a flag begins that says that an adaptive attack found nothing to adapt to
NOTHING_TO_IMITATE = "nothing of the defense to imitate"


def _silent(line: str) -> None:
    """No progress line."""


@dataclass(frozen=True)
class Knowledge:
    """All that an attacker has: the view, the defense's code, images of its own, and its own seed."""

    view: View
    defense: Defense
    auxiliary: LabelledImages
    seed: int
    device: str = "cpu"
    progress: Callable[[str], None] = _silent
    #: when an answer must be there, by `time.monotonic` (one clock for all processes of a machine); None: no limit
    deadline: float | None = None

    @property
    def public(self) -> Public:
        """The public settings."""
        return self.view.public

    @property
    def task(self) -> Task:
        """Network, loss and normalisation: public knowledge."""
        return task_of(self.view.public)

    @property
    def can_simulate(self) -> bool:
        """Whether `Defense.simulate` works: it builds the network by its name in the public settings.

        Without, an attack has `Defense.mimic_records`, `mimic` and `noise_scale`.
        """
        return True

    def readings(self) -> tuple[Reading, ...]:
        """The defense's honest reading of the view."""
        return self.defense.interpret(self.view)

    def reading_key(self) -> list[Any]:
        """What decides the readings besides view and defense: part of the key of kept shadow models."""
        return []

    def generator(self) -> torch.Generator:
        """A torch generator from the attack's own seed."""
        return torch.Generator().manual_seed(self.seed)

    def generator_for(self, problem: Inversion, purpose: str) -> torch.Generator:
        """A generator from the attack's seed and a problem's own gradient, whatever else is attacked beside it."""
        values = b"".join(raw_bytes(problem.gradient.values[name]) for name in sorted(problem.gradient.values))
        return torch.Generator().manual_seed(derive_seed(self.seed, purpose, digest_of(values.hex())))

    def time_left(self) -> float:
        """Seconds until the deadline; infinite without one."""
        return math.inf if self.deadline is None else self.deadline - time.monotonic()


@dataclass(frozen=True)
class Inversion:
    """One gradient to invert: the model it was taken on, its values, whose it is.

    `labels` (records,) are given where the cell says that they are known, else None. Where clients take local steps,
    `update` is w_t - w_(t+1) as the view holds it, and `gradient` is the update divided by rate times steps: the mean
    gradient along the way, which most attacks take for a gradient at `model`. `statistics` are the buffers of a network
    with batch norm after training, where the view holds them.
    """

    model: Parameters
    gradient: Gradient
    labels: Tensor | None
    update: Gradient | None = None
    statistics: Parameters | None = None

    @classmethod
    def of(
        cls,
        public: Public,
        model: Parameters,
        sent: Gradient,
        labels: Tensor | None,
        statistics: Parameters | None = None,
    ) -> Inversion:
        """The problem of what was sent: a gradient, or the update of local steps."""
        if not public.training.is_local:
            return cls(model, sent, labels, None, statistics)
        scale = public.training.update_scale
        mean = replace(sent, values={name: value / scale for name, value in sent.values.items()})
        return cls(model, mean, labels, sent, statistics)


@dataclass(frozen=True)
class ReconstructionTask:
    """Rebuild the victim's probe records of one observed round: one problem per probe.

    `probe_batch` is how many of the victim's own records are in each problem, `sizes` how many images the
    answer to each must hold: as many as there are records behind its gradient. `first` is the number of the first
    probe: a round may have probes of other batch sizes before it, which are not in this task's view.
    """

    moment: Moment
    round_index: int
    probes: int
    probe_batch: int
    known_labels: tuple[Tensor, ...] | None
    sizes: tuple[int, ...]
    first: int = field(default=0, kw_only=True)

    def place(self, context: RoundContext) -> int | None:
        """Which problem (from 0) a run of the protocol belongs to; None where it is none of this task's probes."""
        if context.kind != "probe" or context.round != self.round_index or context.probe is None:
            return None
        place = context.probe - self.first
        return place if 0 <= place < self.probes else None

    def problems(self, knowledge: Knowledge) -> tuple[Inversion, ...]:
        """The inversion problems that the honest reading of the view offers; `Unsupported` where it has none."""
        found: dict[int, Inversion] = {}
        for reading in knowledge.readings():
            place = self.place(reading.context)
            if place is None:
                continue
            owner = VICTIM if VICTIM in reading.gradients else AGGREGATE
            gradient = reading.gradients.get(owner)
            if gradient is None or reading.model is None:
                raise Unsupported(
                    f"this view ({knowledge.view.threat}) holds neither the victim's gradient nor a mean of it"
                )
            labels = self.known_labels[place] if self.known_labels is not None else None
            labels = labels if gradient.clients == 1 else None
            statistics = reading.statistics.get(owner)
            found[place] = Inversion.of(knowledge.public, reading.model, gradient, labels, statistics)
        return tuple(found[place] for place in range(self.probes))


@dataclass(frozen=True)
class ReconstructionAnswer:
    """One tensor per problem: images (M, C, H, W) in image units, M as the task's `sizes` say, not clamped.

    `flags` are remarks for the record (not converged, gradient all zero); `diagnostics` are numbers. `labels`, if the
    attack found any, are int64 (M,) per problem, in any order. They are scored only where the attack was not told them.
    """

    images: tuple[Tensor, ...]
    flags: tuple[str, ...] = ()
    diagnostics: Mapping[str, float] = field(default_factory=dict)
    labels: tuple[Tensor, ...] | None = None


@dataclass(frozen=True)
class KnownMembership:
    """Records of which the attacker is told whether they were trained on: `members` (N,), True means member."""

    records: LabelledImages
    members: Tensor


@dataclass(frozen=True)
class MembershipTask:
    """Tell which candidates were trained on. The candidates come shuffled, members and others alike.

    `known` are other records with the answer, where the cell grants them (`known_members` in the suite), else None.
    `round_index` is None where the question is whether a record was trained on at all; else it is whether the record
    was in the batch that the victim trained on in that observed round (`about: batch` in the suite).
    """

    candidates: LabelledImages
    known: KnownMembership | None = None
    round_index: int | None = None


@dataclass(frozen=True)
class MembershipAnswer:
    """Scores (N,), higher means member, and hard decisions (N,), True means member."""

    scores: Tensor
    decisions: Tensor
    flags: tuple[str, ...] = ()
    diagnostics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ExtractionTask:
    """Rebuild the global model as it was when the first probe of an observed round ran on it.

    Only that probe counts: later ones show the same model again under fresh perturbations, which no training does.
    """

    moment: Moment
    round_index: int


@dataclass(frozen=True)
class ExtractionAnswer:
    """A model with the names and shapes of the public network's own parameters (`Task.initial`)."""

    model: Parameters
    flags: tuple[str, ...] = ()
    diagnostics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class AuditTask:
    """Tell two neighbouring worlds apart, trial by trial.

    `view` holds one probe observation a trial, in order (0, 1, ...): a run of the protocol in which the victim's batch
    was `worlds[0]` or `worlds[1]`, which differ in one record. The other clients' batches are the same in all trials,
    and are given by client as `others`: the adversary of differential privacy knows every record but one.
    """

    worlds: tuple[LabelledImages, LabelledImages]
    view: View
    others: Mapping[str, LabelledImages] = field(default_factory=dict)

    @property
    def trials(self) -> tuple[Observation, ...]:
        """The observations, one per trial."""
        return self.view.of_kind("probe")


@dataclass(frozen=True)
class AuditAnswer:
    """Scores (trials,), higher means `worlds[1]`."""

    scores: Tensor
    flags: tuple[str, ...] = ()
    diagnostics: Mapping[str, float] = field(default_factory=dict)


class AttackType(ModelMetaclass):
    """Refuses a class whose `adaptive` is no property: pydantic would complain at length, or let it hide the other."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **kwargs: Any) -> Any:
        """Look before pydantic does."""
        given = namespace.get("adaptive")
        if given is not None and not isinstance(given, property):
            raise UserError(
                f"The attack '{namespace.get('name', name)}' sets 'adaptive' as an attribute: set `can_adapt` to True "
                f"and define a property `adaptive` (docs/adding-an-attack.md); given: {given!r}."
            )
        return super().__new__(cls, name, bases, namespace, **kwargs)


class Attack(Plugin, metaclass=AttackType):
    """Base of all attacks."""

    kind: ClassVar[str] = "attack"
    goal: ClassVar[str]
    #: the threats that this attack makes sense under
    threats: ClassVar[tuple[str, ...]]
    #: whether it can use more of a defense than its honest reading; `adaptive` says whether it does
    can_adapt: ClassVar[bool] = False

    @property
    def adaptive(self) -> bool:
        """Whether, with these parameters, it uses more of a defense than its honest reading."""
        return False

    @classmethod
    def describe(cls) -> dict[str, Any]:
        """What `list --json` prints; for an attack also its goal, threats, and whether it can use the defense."""
        return {**super().describe(), "goal": cls.goal, "threats": list(cls.threats), "adaptive": cls.can_adapt}

    @classmethod
    def allows(cls, threat: str) -> bool:
        """Whether the attack makes sense under this threat (`server+clients` stands for any number of them)."""
        family = "server+clients" if threat.startswith("server+clients:") else threat
        return family in cls.threats

    def refuses(self, defense: Defense) -> str:
        """Why it cannot work on this defense, whatever a view holds; empty if it can, or if only a view can tell.

        A cell that is refused here is skipped with this reason before anything is computed for it.
        """
        return ""

    def runs(self) -> tuple[str, ...]:
        """The names of other attacks that this one runs: their code decides its answer too."""
        return ()

    def budget(self) -> dict[str, Any]:
        """Iterations, restarts and the like, for the record; equal for all defenses."""
        return {}

    def work(self, problems: int) -> tuple[float, float]:
        """For the estimate of `--dry-run`: (gradients of one probe, whole trainings) that the attack computes."""
        return 0.0, 0.0


class ReconstructionAttack(Attack):
    """Base of attacks that rebuild images."""

    goal: ClassVar[str] = "reconstruction"
    threats: ClassVar[tuple[str, ...]] = ("server", "server+keys", "server+clients", "server:active")

    @abstractmethod
    def reconstruct(self, knowledge: Knowledge, task: ReconstructionTask) -> ReconstructionAnswer:
        """Rebuild the records behind every problem of the task."""


class GradientMatching(ReconstructionAttack):
    """Base of attacks that compare the gradient of candidate images with what was observed."""

    can_adapt: ClassVar[bool] = True

    # not called `adaptive`: a field must not hide the property that every attack has
    mimic: bool = Field(False, description="adaptive: do to candidate gradients what the defense does to real ones")

    @property
    def adaptive(self) -> bool:
        """Whether the defense's own transform is applied before matching."""
        return self.mimic

    def imitations(
        self, knowledge: Knowledge, problems: tuple[Inversion, ...]
    ) -> tuple[CandidateTransform | None, ...] | None:
        """What the defense does to each problem's gradient, as far as it is deterministic; None: compare as it is."""
        if not self.mimic:
            return None
        return tuple(
            candidate_transform_of(knowledge.defense, problem.update or problem.gradient, knowledge.public)
            for problem in problems
        )

    def imitation_flags(
        self, knowledge: Knowledge, problems: tuple[Inversion, ...], *, sees_scale: bool
    ) -> tuple[str, ...]:
        """A flag where an adaptive attack is no other than the plain one: a cosine does not see a mere scale."""
        found = self.imitations(knowledge, problems)
        if found is None or any(
            i is not None and i.noticed(p.gradient.values, scale=sees_scale)
            for i, p in zip(found, problems, strict=True)
        ):
            return ()
        known = any(i is not None for i in found)
        return (NOTHING_TO_IMITATE + (": what it does is too small, or a mere scale, to be seen" if known else ""),)


def gradient_flags(problems: tuple[Inversion, ...], *, unrolled: bool = False) -> list[str]:
    """Remarks on gradients that tell nothing (all zero, or no numbers), and on updates that are taken for gradients.

    `unrolled`: the attack uses the updates as such.
    """
    flags = []
    if not unrolled and any(p.update is not None for p in problems):
        flags.append(TAKEN_FOR_GRADIENT)
    if any(not any(bool(g.any()) for g in p.gradient.values.values()) for p in problems):
        flags.append("gradient all zero")
    broken = sum(not all(bool(g.isfinite().all()) for g in p.gradient.values.values()) for p in problems)
    if broken:
        flags.append(f"gradient holds no numbers: {broken} of {len(problems)} problems")
    return flags


class MembershipAttack(Attack):
    """Base of attacks that tell members from others."""

    goal: ClassVar[str] = "membership"
    #: which question it was made for: of the whole training, or of the victim's batch in an observed round
    about: ClassVar[Literal["training", "batch"]] = "training"
    threats: ClassVar[tuple[str, ...]] = ("client", "server", "server+keys", "server+clients", "server:active")

    @classmethod
    def describe(cls) -> dict[str, Any]:
        """What `list --json` prints; for a membership attack also which question it was made for."""
        return {**super().describe(), "about": cls.about}

    @abstractmethod
    def infer(self, knowledge: Knowledge, task: MembershipTask) -> MembershipAnswer:
        """Score and decide every candidate."""


class ExtractionAttack(Attack):
    """Base of attacks that steal the global model."""

    goal: ClassVar[str] = "extraction"
    threats: ClassVar[tuple[str, ...]] = ("client",)

    @abstractmethod
    def extract(self, knowledge: Knowledge, task: ExtractionTask) -> ExtractionAnswer:
        """Rebuild the global model of an observed round."""


class AuditAttack(Attack):
    """Base of attacks that play the distinguishing game of differential privacy.

    The trials come in portions, each a task of its own. A trial must be scored by itself, whatever else is in its
    portion: the bound that the game proves is for independent trials.
    """

    goal: ClassVar[str] = "audit"
    threats: ClassVar[tuple[str, ...]] = ("server", "server+keys", "server+clients", "server:active")

    trials: int = Field(1000, ge=20, le=10_000_000, description="runs of the protocol; half of them choose a threshold")
    neighbours: Literal["drawn", "farthest"] = Field(
        "drawn", description="the records that differ: any two, or those with the most different clipped gradients"
    )

    def budget(self) -> dict[str, Any]:
        """The number of trials."""
        return {"trials": self.trials}

    @abstractmethod
    def distinguish(self, knowledge: Knowledge, task: AuditTask) -> AuditAnswer:
        """Score every trial of a portion."""


def final_model(knowledge: Knowledge) -> Parameters:
    """The last model that the view's honest reading holds; `Unsupported` where it holds none."""
    for reading in reversed(knowledge.readings()):
        if reading.model is not None:
            return reading.model
    raise Unsupported(f"this view ({knowledge.view.threat}) holds no model")
