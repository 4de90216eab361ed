"""The one exception to the party rule: facts that a client cannot know but that a scheme assumes.

Under model perturbation a client sees only perturbed gradients, yet the paper clips by the true norm (decision 9.2).
The oracle computes the clipping factors. It uses the true model, or the server's secret together with the signals of
the client's own pass, which saves a second pass. No view holds its answers. The record says how often it was asked.
Measurements that no party needs go into the record only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from leakboard.federation.example_norms import clip_factors
from leakboard.federation.payload import Parameters, Payload
from leakboard.federation.task import Task

#: the norms (B,) of some examples' true gradients, from the server's state and the true model
Norms = Callable[[Payload, Parameters], Tensor]
#: a number of the sum of all clients' integers
OfSum = Callable[[NDArray[np.int64]], float]


@dataclass
class Ledger:
    """What the oracle did in a run: the number of requests, the number of clipped examples, the measurements."""

    uses: dict[str, int] = field(default_factory=dict)
    worst: dict[str, float] = field(default_factory=dict)
    clipped: int = 0
    examples: int = 0
    sums: dict[tuple[str, str], tuple[NDArray[np.int64], int]] = field(default_factory=dict)

    def keep(self, name: str, value: float) -> None:
        """Store the largest value of a measurement."""
        self.worst[name] = max(value, self.worst.get(name, 0.0))

    def count(self, name: str, value: int) -> None:
        """Add to a number that counts over the whole run."""
        self.worst[name] = self.worst.get(name, 0.0) + value


@dataclass(frozen=True)
class Oracle:
    """What one client may ask in one context; `answers` stores the answers for replay."""

    task: Task
    model: Callable[[], Parameters]
    server_state: Callable[[], Payload]
    ledger: Ledger
    observed: bool
    answers: list[Tensor] = field(default_factory=list)

    def clip_factors(self, norms: Norms, bound: float) -> Tensor:
        """c_b = min(1, bound / ||g_b||) (B,) with g_b the true gradient of example b; 0 if it is not finite.

        `norms` computes the ||g_b|| and is called here, with what only the oracle may know.
        """
        factors = clip_factors(norms(self.server_state(), self.model()), bound)
        if not self.answers:  # once per client and context, however many chunks its batch has
            self.ledger.uses["clip_factors"] = self.ledger.uses.get("clip_factors", 0) + 1
        self.note_clipping(factors)
        self.answers.append(factors.cpu())
        return factors

    def note_clipping(self, factors: Tensor) -> None:
        """Count clipped examples for the record; also used if a client knows the factors itself."""
        self.ledger.examples += len(factors)
        self.ledger.clipped += int((factors < 1).sum())

    def note(self, name: str, value: float) -> None:
        """Store the largest value of a number that a client knows itself, for the record."""
        self.ledger.keep(name, value)

    def measure_sum(self, name: str, label: str, values: NDArray[np.int64], clients: int, compute: OfSum) -> None:
        """Store the largest value of a function of all clients' sum in a context, which has this label.

        Nobody knows such a sum before it is masked and reduced. It is kept until the last of `clients` has added its
        part; if one of them is missing, nothing is measured, and the sum is dropped at the end of the context.
        """
        total, count = self.ledger.sums.get((name, label), (np.zeros_like(values), 0))
        self.ledger.sums = {(name, label): (total + values, count + 1)}  # those of former contexts are over
        if count + 1 == clients:
            self.ledger.keep(name, compute(total + values))
            self.ledger.sums = {}

    def measure(self, name: str, compute: Callable[[Payload, Parameters], float]) -> None:
        """In observed contexts, store the largest value of a function of the server's state and the true model."""
        if self.observed:
            self.ledger.keep(name, float(compute(self.server_state(), self.model())))


@dataclass(frozen=True)
class RecordedOracle:
    """Returns the recorded answers: the oracle of a replay."""

    answers: list[Tensor]

    def clip_factors(self, norms: Norms, bound: float) -> Tensor:
        """The next recorded answer."""
        return self.answers.pop(0)

    def note_clipping(self, factors: Tensor) -> None:
        """Do nothing: it was counted in the first run."""

    def note(self, name: str, value: float) -> None:
        """Do nothing: it was stored in the first run."""

    def measure_sum(self, name: str, label: str, values: NDArray[np.int64], clients: int, compute: OfSum) -> None:
        """Do nothing: it was stored in the first run."""

    def measure(self, name: str, compute: Callable[[Payload, Parameters], float]) -> None:
        """Do nothing: there is no server to measure."""
