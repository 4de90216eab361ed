"""The one exception to the party rule: facts that a client could not know, which a scheme nevertheless assumes.

Under model perturbation a client sees only perturbed gradients, yet the paper clips by the true norm (decision 9.2).
The oracle computes the clipping factors from the true model. Its answers enter no view, the record
lists that it was used, and what it merely measures is returned to nobody but the record.
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
    """What the oracle did in a run: how often it was asked what, how many examples it clipped, what it measured."""

    uses: dict[str, int] = field(default_factory=dict)
    worst: dict[str, float] = field(default_factory=dict)
    clipped: int = 0
    examples: int = 0


@dataclass(frozen=True)
class Oracle:
    """What one client may ask in one context; `answers` keeps what it was told, for replay."""

    task: Task
    model: Callable[[], Parameters]
    server_state: Callable[[], Payload]
    ledger: Ledger
    observed: bool
    answers: list[Tensor] = field(default_factory=list)

    def clip_factors(self, images: Tensor, labels: Tensor, bound: float) -> Tensor:
        """c_b = min(1, bound / ||g_b||) (B,) with g_b the true gradient of example b; 0 where it is not finite."""
        factors = clip_factors(loss_norms(self.task, self.model(), images, labels), bound)
        self.ledger.uses["clip_factors"] = self.ledger.uses.get("clip_factors", 0) + 1
        self.note_clipping(factors)
        self.answers.append(factors)
        return factors

    def note_clipping(self, factors: Tensor) -> None:
        """Count for the record how many examples were clipped; also where a client knows the factors itself."""
        self.ledger.examples += len(factors)
        self.ledger.clipped += int((factors < 1).sum())

    def note(self, name: str, value: float) -> None:
        """Note the worst of a number that a client knows itself, for the record."""
        self.ledger.worst[name] = max(value, self.ledger.worst.get(name, 0.0))

    def measure(self, name: str, compute: Callable[[Payload, Parameters], float]) -> None:
        """In observed contexts, note the worst of a function of the server's state and the true model; tell nobody."""
        if self.observed:
            value = float(compute(self.server_state(), self.model()))
            self.ledger.worst[name] = max(value, self.ledger.worst.get(name, 0.0))


@dataclass(frozen=True)
class RecordedOracle:
    """Gives the answers that were given the first time: the oracle of a replay."""

    answers: list[Tensor]

    def clip_factors(self, images: Tensor, labels: Tensor, bound: float) -> Tensor:
        """The next recorded answer."""
        return self.answers.pop(0)

    def note_clipping(self, factors: Tensor) -> None:
        """Counted the first time."""

    def note(self, name: str, value: float) -> None:
        """Noted the first time."""

    def measure(self, name: str, compute: Callable[[Payload, Parameters], float]) -> None:
        """Nothing to measure without the server."""
