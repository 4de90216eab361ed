"""Matching of standardised gradients with a Gaussian image prior and a ReLU whose mask has a derivative."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leakboard.attacks.base import Knowledge
from leakboard.attacks.reconstruction.matching.grouped import Network
from leakboard.attacks.reconstruction.regression.sources import KnownResidual
from leakboard.federation.payload import Parameters

#: a value's deviation counts at least as this share of the mean deviation in its tensor
FLOOR = 0.1
#: the bend of the ReLU shrinks geometrically between these widths, in deviations of the pre-activations
WIDEST, NARROWEST = 1.0, 0.2
#: steps over which the learning rate grows
WARM_UP = 10


class GaussianImages:
    """Auxiliary images as x = mean + U S z with z ~ N(0, I): the directions U (D, D) and deviations S (D,) of a PCA.

    N images of D > N pixels span at most N directions. The others all have the same deviation, that of the floor, so
    any basis of them will do. U is then a product of N reflections, and the covariance (D, D) is never built: for
    64 x 64 pixels in colour its eigenvectors alone would take minutes and 600 MB. The largest deviations come last.
    """

    def __init__(self, images: Tensor, floor: float = 1e-3) -> None:
        data = images.flatten(1)
        self.shape, self.mean = images.shape[1:], data.mean(0)
        count, size = data.shape
        if count < size:
            _, spread, directions = torch.linalg.svd(data - self.mean, full_matrices=False)
            values = torch.cat([spread.square() / (count - 1), data.new_zeros(size - count)]).flip(0)
            self._reflections: tuple[Tensor, Tensor] | None = torch.geqrf(directions.T)
        else:
            values, self._directions = torch.linalg.eigh(torch.cov(data.T))
            self._reflections = None
        self.deviations = (values.clamp(min=0) + floor * values.clamp(min=0).mean()).sqrt()

    def image(self, z: Tensor) -> Tensor:
        """Latent (D,) to image (C, H, W)."""
        scaled = self.deviations * z
        along = self._directions @ scaled if self._reflections is None else self._reflected(scaled.flip(0))
        return (self.mean + along).view(self.shape)

    def coordinates(self, change: Tensor) -> Tensor:
        """U^T applied to a change of an image (C, H, W): its lengths (D,) along the directions."""
        flat = change.flatten()
        if self._reflections is not None:
            return self._reflected(flat, transpose=True).flip(0)
        found: Tensor = self._directions.T @ flat
        return found

    def latent(self, image: Tensor) -> Tensor:
        """Image (C, H, W) to latent (D,)."""
        return self.coordinates(image - self.mean.view(self.shape)) / self.deviations

    def _reflected(self, vector: Tensor, *, transpose: bool = False) -> Tensor:
        """U, its largest deviations first, or its transpose, applied to a vector (D,): a product of reflections."""
        assert self._reflections is not None
        found: Tensor = torch.ormqr(*self._reflections, vector[:, None], transpose=transpose)
        return found[:, 0]


@dataclass(frozen=True)
class Standardised:
    """The misfit of a candidate's gradient: the mean over tensors of mean_i ((g_i(x) - g_i) / sigma_i)^2.

    sigma is the deviation over auxiliary images, so a candidate that tells nothing about the record has a misfit of
    about 2, the mean image one of about 1 or more, the record itself 0.
    """

    source: KnownResidual
    target: Parameters
    inverse: Parameters

    @staticmethod
    def of(source: KnownResidual, target: Parameters, deviations: Parameters) -> Standardised:
        """From the deviations of auxiliary gradients."""
        inverse = {n: 1 / torch.maximum(v, FLOOR * v.mean()).clamp(min=1e-30) for n, v in deviations.items()}
        return Standardised(source, {n: v.float() for n, v in target.items()}, inverse)

    def misfits(self, gradients: Parameters) -> Tensor:
        """Misfits (N,) of gradients (N, *shape); differentiable."""
        parts = [((gradients[n] - t) * self.inverse[n]).square().flatten(1).mean(1) for n, t in self.target.items()]
        return torch.stack(parts).mean(0)

    def misfit(self, image: Tensor) -> float:
        """The misfit of one image (C, H, W)."""
        return float(self.misfits(self.source.gradients(image[None, None]))[0])

    def slope(self, image: Tensor, bend: float) -> tuple[float, Tensor]:
        """The misfit of an image (C, H, W) and its derivative, with a ReLU of this bend."""
        task, r = self.source.task, self.source.residual.float()
        network = Network(task, self.source.model, 1, 1, bend=bend)
        candidate = image[None, None].detach().requires_grad_()
        with torch.enable_grad():
            found = network.slopes(candidate, lambda out: (out * r).sum())
            cost = self.misfits(dict(zip(task.parameter_names, found, strict=True))).sum()
        return float(cost.detach()), torch.autograd.grad(cost, candidate)[0][0, 0]


def matched(
    knowledge: Knowledge,
    misfit: Standardised,
    prior: GaussianImages,
    start: Tensor,
    *,
    iterations: int,
    learning_rate: float,
    weight: float = 0.03,
    bent: bool = True,
) -> tuple[Tensor, int]:
    """The image (C, H, W) that minimises misfit + weight * mean z^2 by Adam on z, and the iterations done.

    The learning rate grows over the first steps and then falls as a cosine.
    """
    z = prior.latent(start)
    first, second, best, least = torch.zeros_like(z), torch.zeros_like(z), z, math.inf
    step = 0
    for step in range(1, iterations + 1):
        if knowledge.time_left() <= 0:
            return prior.image(best).clamp(0, 1), step - 1
        done = step / iterations
        bend = WIDEST * (NARROWEST / WIDEST) ** done if bent else 0.0
        cost, along = misfit.slope(prior.image(z), bend)
        objective = cost + weight * float(z.square().mean())
        if objective < least:
            best, least = z, objective
        slope = prior.deviations * prior.coordinates(along) + 2 * weight / len(z) * z
        if not bool(slope.isfinite().all()):
            break
        first, second = 0.9 * first + 0.1 * slope, 0.99 * second + 0.01 * slope.square()
        rate = learning_rate * min(1.0, step / WARM_UP) * 0.5 * (1 + math.cos(math.pi * done))
        z = z - rate * (first / (1 - 0.9**step)) / ((second / (1 - 0.99**step)).sqrt() + 1e-12)
    return prior.image(best).clamp(0, 1), step
