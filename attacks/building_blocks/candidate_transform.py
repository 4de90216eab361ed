"""What an adaptive attack does to the gradients of its candidates before it compares them with the observed one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from leakboard.defenses.base import Defense, Gradient, Transform
from leakboard.federation.payload import Parameters
from leakboard.federation.settings import Public

#: a change of a gradient, relative to its size, that no attack notices
UNSEEN = 1e-3
#: clients, and records of each, on which that is tried
FEW = 4


@dataclass(frozen=True)
class CandidateTransform:
    """How the observed gradient came about from the gradients of single records, as far as nothing was drawn.

    g = mean over clients k of U(mean over its records b of T(g_kb)), with T `of_record` (clipping) and U `of_update`
    (pruning, rounding) of the defense; where one is None it is the identity. The records of a candidate are dealt to
    the clients in order, equally many to each.
    """

    clients: int
    records: int
    of_record: Transform | None
    of_update: Transform | None

    @property
    def parts(self) -> int:
        """How many gradients it takes: one a record, one a client, or the whole one."""
        if self.of_record is not None:
            return self.records
        return self.clients if self.of_update is not None else 1

    def __call__(self, gradients: Parameters) -> Parameters:
        """The one gradient (1, *shape) that comes of those of equal parts (N, *shape), N `parts` or a multiple."""
        if self.of_record is not None:
            gradients = self.of_record(gradients)
        if self.of_update is not None:
            gradients = self.of_update(_means(gradients, self.clients))
        return _means(gradients, 1)

    def noticed(self, observed: Parameters, *, scale: bool) -> bool:
        """Whether it changes random gradients about as large as the observed one; a cosine sees no mere `scale`.

        Records beyond a bound hide in a mean below it, so the parts are two, three, ... times as large. A few clients
        with a few records stand for all.
        """
        clients = min(self.clients, FEW)
        few = replace(self, clients=clients, records=clients * min(self.records // self.clients, FEW))
        generator = torch.Generator().manual_seed(0)
        sizes = 2.0 + torch.arange(few.parts, dtype=torch.float64)
        given = {}
        for name, value in observed.items():
            drawn = torch.randn(few.parts, *value.shape, generator=generator, dtype=torch.float64)
            size = float(value.double().square().mean().sqrt().nan_to_num(0, 0, 0)) or 1.0
            given[name] = drawn * size * sizes.view(-1, *[1] * value.ndim)
        before, after = (torch.cat([part[name].flatten() for name in given]) for part in (_means(given, 1), few(given)))
        if not scale:  # compare directions: the best multiple of what comes out
            after = after * (before @ after) / after.square().sum().clamp(min=1e-300)
        return float((after - before).norm()) > UNSEEN * float(before.norm())


def candidate_transform_of(defense: Defense, observed: Gradient, public: Public) -> CandidateTransform | None:
    """What this defense lets an attacker imitate of an observed gradient; None: nothing."""
    of_record, of_update = defense.mimic_records(observed, public), defense.mimic(observed, public)
    if of_record is None and of_update is None:
        return None
    return CandidateTransform(observed.clients, observed.records, of_record, of_update)


def _means(gradients: Parameters, groups: int) -> Parameters:
    """Gradients (N, *shape) to the means (groups, *shape) of consecutive ones, equally many each."""
    return {n: v.reshape(groups, -1, *v.shape[1:]).mean(1) for n, v in gradients.items()}
