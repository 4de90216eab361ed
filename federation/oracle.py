"""The one exception to the party rule: facts that a client cannot know but that a scheme assumes.

Under model perturbation a client sees only perturbed gradients, yet the paper clips by the true norm (decision 9.2).
The oracle computes the clipping factors from the true model. Its answers are in no view. The record says that it was
used, and what it only measures goes to the record and to no party.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from leakboard.federation.example_norms import clip_factors, loss_norms
from leakboard.federation.payload import Parameters, Payload
from leakboard.federation.task import Task


@dataclass
class Ledger:
    """What the oracle did in a run: the number of requests, the number of clipped examples, the measurements."""

    uses: dict[str, int] = field(default_factory=dict)
    worst: dict[str, float] = field(default_factory=dict)
    clipped: int = 0
    examples: int = 0


@dataclass(frozen=True)
class Oracle:
    """What one client may ask in one context; `answers` stores the answers for replay."""

    task: Task
    model: Callable[[], Parameters]
    server_state: Callable[[], Payload]
    ledger: Ledger
    observed: bool
    answers: list[Tensor] = field(default_factory=list)

    def clip_factors(self, images: Tensor, labels: Tensor, bound: float) -> Tensor:
        """c_b = min(1, bound / ||g_b||) (B,) with g_b the true gradient of example b; 0 if it is not finite."""
        factors = clip_factors(loss_norms(self.task, self.model(), images, labels), bound)
        self.ledger.uses["clip_factors"] = self.ledger.uses.get("clip_factors", 0) + 1
        self.note_clipping(factors)
        self.answers.append(factors)
        return factors

    def note_clipping(self, factors: Tensor) -> None:
        """Count clipped examples for the record; also used if a client knows the factors itself."""
        self.ledger.examples += len(factors)
        self.ledger.clipped += int((factors < 1).sum())

    def note(self, name: str, value: float) -> None:
        """Store the largest value of a number that a client knows itself, for the record."""
        self.ledger.worst[name] = max(value, self.ledger.worst.get(name, 0.0))

    def measure(self, name: str, compute: Callable[[Payload, Parameters], float]) -> None:
        """In observed contexts, store the largest value of a function of the server's state and the true model."""
        if self.observed:
            value = float(compute(self.server_state(), self.model()))
            self.ledger.worst[name] = max(value, self.ledger.worst.get(name, 0.0))


@dataclass(frozen=True)
class RecordedOracle:
    """Returns the recorded answers: the oracle of a replay."""

    answers: list[Tensor]

    def clip_factors(self, images: Tensor, labels: Tensor, bound: float) -> Tensor:
        """The next recorded answer."""
        return self.answers.pop(0)

    def note_clipping(self, factors: Tensor) -> None:
        """Do nothing: it was counted in the first run."""

    def note(self, name: str, value: float) -> None:
        """Do nothing: it was stored in the first run."""

    def measure(self, name: str, compute: Callable[[Payload, Parameters], float]) -> None:
        """Do nothing: there is no server to measure."""
