"""An inverter of gradients that is learned on auxiliary images: sketch, standardise, ridge regression."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leakboard.attacks.base import Inversion, Knowledge
from leakboard.attacks.reconstruction.regression.ridge import Ridge, Scaling
from leakboard.attacks.reconstruction.regression.sketch import Sketch
from leakboard.attacks.reconstruction.regression.sources import CHUNK, Source
from leakboard.core.seeds import derive_seed
from leakboard.federation.payload import Parameters

#: with fewer examples nothing is learned
FEWEST = 8


@dataclass(frozen=True)
class Inverter:
    """Predicts a batch of images (M, C, H, W) from a gradient."""

    sketch: Sketch
    scaling: Scaling
    ridge: Ridge
    shape: torch.Size

    def __call__(self, gradient: Parameters) -> Tensor:
        """The images (M, C, H, W) behind one gradient, in [0, 1]."""
        features = self.scaling(self.sketch({n: v[None] for n, v in gradient.items()}))
        return self.ridge.predict(features).view(self.shape).clamp(0, 1)

    @property
    def unknown(self) -> Tensor:
        """What the prediction of each left-out example lacked: (N, M, C, H, W)."""
        return self.ridge.residuals.view(-1, *self.shape)


@dataclass
class Moments:
    """Running mean and mean square of gradients, value by value."""

    count: int = 0
    first: Parameters | None = None
    second: Parameters | None = None

    def add(self, gradients: Parameters) -> None:
        """Count gradients (N, *shape) in."""
        first, second = (
            {n: v.sum(0) for n, v in gradients.items()},
            {n: v.square().sum(0) for n, v in gradients.items()},
        )
        if self.first is None or self.second is None:
            self.first, self.second = first, second
        else:
            self.first = {n: v + first[n] for n, v in self.first.items()}
            self.second = {n: v + second[n] for n, v in self.second.items()}
        self.count += len(next(iter(gradients.values())))

    def deviations(self) -> Parameters:
        """The standard deviation of every value."""
        assert self.first is not None
        assert self.second is not None
        means = {n: v / self.count for n, v in self.first.items()}
        return {n: (v / self.count - means[n].square()).clamp(min=0).sqrt() for n, v in self.second.items()}


def learn(
    knowledge: Knowledge,
    source: Source,
    images: Tensor,
    sketch: Sketch,
    penalties: Sequence[float],
    seed: int,
    moments: Moments | None = None,
) -> Inverter | None:
    """An inverter from batches (N, M, C, H, W) and their gradients; from fewer if time ends, None from too few."""
    rows: list[Tensor] = []
    for number, chunk in enumerate(torch.split(images, CHUNK)):
        if knowledge.time_left() <= 0:
            break
        gradients = source.gradients(chunk, derive_seed(seed, number))
        rows.append(sketch(gradients))
        if moments is not None:
            moments.add(gradients)
    if sum(map(len, rows)) < FEWEST:
        return None
    features = torch.cat(rows)
    rows.clear()  # twice as many would not fit where the attack runs beside others
    used = torch.stack([row.isfinite().all() for row in features])
    targets = images[: len(used)][used]
    features = features if bool(used.all()) else features[used]
    if len(features) < FEWEST:
        return None
    scaling = Scaling.of(features, list(sketch.sizes.values()))
    features = scaling(features)
    ridge = Ridge.fit(features, targets.flatten(1), penalties)
    return Inverter(sketch, scaling, ridge, targets.shape[1:])


def auxiliary_batches(knowledge: Knowledge, problem: Inversion, count: int, *, flip: bool) -> Tensor:
    """At most `count` batches (N, M, C, H, W) of auxiliary images, as many images each as the problem has records.

    Single images are used once, then once mirrored if `flip` says so. The images of larger batches are drawn.
    """
    images = knowledge.auxiliary.images
    pool = torch.cat([images, images.flip(-1)]) if flip else images
    records, random = problem.gradient.records, knowledge.generator_for(problem, "batches")
    if records == 1:
        order = [start + torch.randperm(len(images), generator=random) for start in range(0, len(pool), len(images))]
        return pool[torch.cat(order)[:count]][:, None]
    return pool[torch.randint(len(pool), (count, records), generator=random)]
