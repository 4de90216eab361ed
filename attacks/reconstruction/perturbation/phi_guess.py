"""Labels of a batch, and images to start from, from Psi, Phi and auxiliary records.

The view is linear in the records. A regression on the same parts of auxiliary records (each with its own clipping
factor), with weights >= 0, tells how much of each class there is and which auxiliary images resemble the batch. Psi
also tells it without images: by Euler's formula (`psi`)

    mean_b k_b alpha_b onehot(y_b) . d  =  2 (W m) . d + (b . d) mean_b k_b alpha_b - sum parameter * Psi_d

with m = mean_b k_b alpha_b h_b, summed over the weights that read the image and the hidden biases. V1 gives this
number for every class, V2 gives a single number.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakboard.attacks.base import Knowledge
from leakboard.attacks.membership.building_blocks.batch import Sketch
from leakboard.attacks.reconstruction.matching.labels import exchanged
from leakboard.attacks.reconstruction.perturbation.phi_batch import Batch, Streams, clip_factors
from leakboard.defenses.perturbation.clean import CleanParts

#: number of auxiliary records in the regression, and how many of them are held at once
REFERENCES, CHUNK = 200, 40
#: number of random combinations of V1's directions in the regression; number of values kept of each (by a sketch)
COMBINATIONS, WIDTH = 2, 16_384
#: ridge, relative to an auxiliary record's own part; number of steps of the projected gradient method
RIDGE, STEPS = 1e-2, 500
#: standard deviation of a class's weight around its count
SPREAD = 0.5
#: noise on the images to start from, so that two records of a class do not start as the same image
NOISE = 0.05


@dataclass(frozen=True)
class Guess:
    """Labels (M,) and images (restarts, M, C, H, W) of one problem."""

    labels: Tensor
    images: Tensor


class Guesser:
    """The guesses for all problems; what depends only on auxiliary records is computed once."""

    def __init__(self, knowledge: Knowledge, streams: Streams) -> None:
        self.streams, self.task = streams, knowledge.task
        some = torch.arange(min(REFERENCES, len(knowledge.auxiliary)))
        self.references = knowledge.auxiliary.select(some)

    def __call__(self, problem: int, labels: Tensor | None, random: torch.Generator, restarts: int) -> Guess:
        """One problem's guess; `labels` (M,) if they are known."""
        parts = self.streams.given[problem]
        factors = clip_factors(self.task, parts, self.references)
        weights = self._weights(problem, factors, random)
        if labels is None:
            labels = self._labels(parts, factors, weights)
        images = self._begun(labels, weights)
        noise = NOISE * torch.randn(restarts, *images.shape, generator=random)
        return Guess(labels, (images + noise).clamp(0, 1))

    def _weights(self, problem: int, factors: Tensor, random: torch.Generator) -> Tensor:
        """w >= 0 (N,): the batch as a sum of auxiliary records, by least squares on Phi and Psi together."""
        width, count = self.streams.width, COMBINATIONS if self.streams.width > 1 else 1
        signs = 2.0 * torch.randint(2, (count, width), generator=random) - 1
        made, seen = [], []
        for along in signs.to(self.streams.device) / width**0.5:
            target = torch.cat(self.streams.seen(along, torch.tensor([problem])), dim=1)
            sketch = Sketch(target.shape[1], WIDTH)
            seen.append(sketch(target.cpu().double()).flatten())
            chunks = [sketch(rows) for rows in self._rows(problem, factors, along)]
            made.append(torch.cat([rows.view(2, -1, rows.shape[1]) for rows in chunks], dim=1))
        rows = torch.cat([m.transpose(0, 1).flatten(1) for m in made], dim=1)
        return _nonnegative(rows, torch.cat(seen))

    def _rows(self, problem: int, factors: Tensor, along: Tensor) -> list[Tensor]:
        """Phi's and Psi_u's parts (2 n, values) of the auxiliary records, chunk by chunk."""
        device, found = self.streams.device, []
        for at in torch.split(torch.arange(len(factors)), CHUNK):
            one = torch.full((len(at),), problem)
            values = self.streams.values(self.references.labels[at, None].to(device), one)
            batch = Batch(
                self.references.images[at, None].float().to(device), values, factors[at, None].float().to(device)
            )
            pieces = self.streams.made(batch, along, one)
            found.append(torch.cat([piece.detach() for piece in pieces], dim=1).cpu().double())
        return found

    def _labels(self, parts: CleanParts, factors: Tensor, weights: Tensor) -> Tensor:
        """The counts nearest to the weights of the classes and to Euler's sums, each in units of its own deviation."""
        classes = parts.directions.shape[1]
        shares = torch.zeros(classes, dtype=torch.float64).index_add_(0, self.references.labels, weights)
        alpha = self.task.logits(parts.with_outputs(parts.head[None]), self.references.images.double())[:, 0]
        each = factors * alpha.detach()
        sums = parts.records * label_sums(parts) / each.mean().clamp(min=1e-300)
        # a sum of k alpha over M records, each with the deviation of auxiliary ones
        off = (each.std() / each.mean().clamp(min=1e-300)).nan_to_num(1.0)
        deviation = off * (parts.records * parts.directions.square().mean()).sqrt() + 1e-3
        of_shares = torch.eye(classes, dtype=torch.float64) / SPREAD**2
        wanted = parts.records * shares / SPREAD**2
        even = torch.bincount(torch.arange(parts.records) % classes, minlength=classes).double()
        rounded = exchanged(of_shares, wanted, even)
        of_sums = parts.directions.T / deviation**2
        counts = exchanged(of_shares + of_sums @ parts.directions, wanted + of_sums @ sums, rounded)
        return torch.arange(classes).repeat_interleave(counts.long())

    def _begun(self, labels: Tensor, weights: Tensor) -> Tensor:
        """For each record, a weighted mean of auxiliary images of its class; records of one class divide the images."""
        images = self.references.images.float()
        found = torch.empty(len(labels), *images.shape[1:])
        for label in set(labels.tolist()):
            own = (self.references.labels == label).nonzero().squeeze(1)
            if not len(own):  # the attacker has no image of this class
                own = torch.arange(len(images))
            own = own[weights[own].argsort(descending=True)]
            records = (labels == label).nonzero().squeeze(1)
            for turn, record in enumerate(records):
                mine = own[turn :: len(records)] if len(own) >= len(records) else own
                share = weights[mine].float() + 1e-12
                found[record] = torch.tensordot(share / share.sum(), images[mine], dims=1)
        return found


def label_sums(parts: CleanParts) -> Tensor:
    """mean_b k_b alpha_b onehot(y_b) . d (D,), from Psi only."""
    scaled = [n for n in parts.psi if n in parts.inputs or n.endswith("bias")]
    summed = torch.stack([(parts.psi[n] * parts.model[n]).flatten(1).sum(1) for n in scaled]).sum(0)
    offset = parts.offset[0] * (parts.directions @ parts.bias) if parts.offset is not None else 0.0
    found: Tensor = 2 * parts.directions @ (parts.weight @ parts.features) + offset - summed
    return found.nan_to_num(0, 0, 0)


def _nonnegative(rows: Tensor, target: Tensor) -> Tensor:
    """argmin over w >= 0 (N,) of ||target - w rows||^2 + ridge sum_i w_i^2 ||rows_i||^2 (FISTA)."""
    lengths = rows.norm(dim=1).clamp(min=1e-300)
    units = rows / lengths[:, None]
    gram = units @ units.T + RIDGE * torch.eye(len(rows), dtype=torch.float64)
    wanted = (units @ target).nan_to_num(0, 0, 0)
    step = 1 / torch.linalg.matrix_norm(gram, 2)
    weights = ahead = torch.zeros_like(wanted)
    momentum = 1.0
    for _ in range(STEPS):
        following = (ahead - step * (gram @ ahead - wanted)).clamp(min=0)
        faster = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
        ahead = following + (momentum - 1) / faster * (following - weights)
        weights, momentum = following, faster
    found: Tensor = weights / lengths
    return found
