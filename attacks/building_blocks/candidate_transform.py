"""How an adaptive attack transforms the gradients of its candidates before it compares them with the observed one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from leakboard.defenses.base import Defense, Gradient, Transform
from leakboard.federation.payload import Parameters
from leakboard.federation.settings import Public

#: a relative change of a gradient that is too small for any attack to notice
UNSEEN = 1e-3
#: the number of clients, and of records per client, on which the change is measured
FEW = 4


@dataclass(frozen=True)
class CandidateTransform:
    """How the observed gradient follows from the gradients of single records, random draws excluded.

    g = mean over clients k of U(mean over its records b of T(g_kb)), where T is the defense's `of_record` (clipping)
    and U its `of_update` (pruning, rounding). None stands for the identity. The records of a candidate are assigned to
    the clients in order, the same number to each client.
    """

    clients: int
    records: int
    of_record: Transform | None
    of_update: Transform | None

    @property
    def parts(self) -> int:
        """How many gradients it takes: one per record, one per client, or one for the whole batch."""
        if self.of_record is not None:
            return self.records
        return self.clients if self.of_update is not None else 1

    def __call__(self, gradients: Parameters) -> Parameters:
        """Combine the gradients (N, *shape) of equal parts into one (1, *shape); N is `parts` or a multiple of it."""
        if self.of_record is not None:
            gradients = self.of_record(gradients)
        if self.of_update is not None:
            gradients = self.of_update(_means(gradients, self.clients))
        return _means(gradients, 1)

    def noticed(self, observed: Parameters, *, scale: bool) -> bool:
        """Whether it changes random gradients about as large as the observed one.

        Without `scale` a mere rescaling does not count, because a cosine does not see it. The mean of several records
        can be below a bound that the records exceed, so the parts are made two, three, ... times as large. The test
        uses only a few clients with a few records each.
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
        if not scale:  # compare directions: scale the output to fit best
            after = after * (before @ after) / after.square().sum().clamp(min=1e-300)
        return float((after - before).norm()) > UNSEEN * float(before.norm())


def candidate_transform_of(defense: Defense, observed: Gradient, public: Public) -> CandidateTransform | None:
    """What an attacker can imitate of this defense for an observed gradient; None if there is nothing."""
    of_record, of_update = defense.mimic_records(observed, public), defense.mimic(observed, public)
    if of_record is None and of_update is None:
        return None
    if of_update is not None and public.training.is_local:
        of_update = _of_updates(of_update, public.training.update_scale)
    return CandidateTransform(observed.clients, observed.records, of_record, of_update)


def _of_updates(transform: Transform, scale: float) -> Transform:
    """What is done to updates, as a function of mean gradients along the way: `scale` is rate times local steps."""

    def scaled(gradients: Parameters) -> Parameters:
        changed = transform({name: value * scale for name, value in gradients.items()})
        return {name: value / scale for name, value in changed.items()}

    return scaled


def _means(gradients: Parameters, groups: int) -> Parameters:
    """Average consecutive gradients (N, *shape) in groups of equal size; returns (groups, *shape)."""
    return {n: v.reshape(groups, -1, *v.shape[1:]).mean(1) for n, v in gradients.items()}
