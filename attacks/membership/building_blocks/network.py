"""The attack network: a perceptron that learns to recognise members from records whose membership is known."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor, nn

from leakboard.attacks.base import MembershipAttack

#: larger features (of a model that diverged) are clipped to this
LIMIT = 1e6


class NetworkAttack(MembershipAttack):
    """Base of attacks that train a network, with its parameters."""

    hidden: tuple[int, ...] = Field((128, 64), description="widths of the attack network's hidden layers")
    epochs: int = Field(100, ge=1, le=100_000, description="passes over the larger of the two known sets")
    batch: int = Field(50, ge=1, description="members per batch; the batch holds the same number of non-members")
    learning_rate: float = Field(1e-3, gt=0, description="of Adam")
    weight_decay: float = Field(1e-2, ge=0, description="of Adam (decoupled)")
    validation: float = Field(
        0.2, ge=0, lt=1, description="share of the known records that picks the epoch; 0: take the last epoch"
    )
    standardise: bool = Field(True, description="scale features to mean 0 and deviation 1 of the known records")

    def judged(self, features: Tensor, members: Tensor, asked: Tensor, seed: int) -> tuple[Tensor, float]:
        """Scores (M,) of `asked` (M, F) after training on features (N, F) with `members` (N,); and the training fit.

        The network is F-hidden-1 with tanh, trained with binary cross-entropy and Adam. Every batch holds as many
        members as non-members, drawn without replacement until a set is used up, so 0 is the threshold for even odds.
        With `validation` a share of the known records is held out, and the network of the epoch with the lowest loss on
        them is taken, because attack networks overfit easily. The score is the network's output before the sigmoid. The
        fit is the balanced accuracy on all known records.
        """
        features, asked = features.float().clamp(-LIMIT, LIMIT), asked.float().clamp(-LIMIT, LIMIT)
        if self.standardise:
            mean, spread = features.mean(0), features.std(0).clamp(min=1e-6)
            features, asked = (features - mean) / spread, (asked - mean) / spread
        network = self._train(features, members, seed)
        with torch.no_grad():
            right = (network(features).squeeze(1) >= 0) == members
            scores = network(asked).squeeze(1).double()
        fit = float(right[members].double().mean() + right[~members].double().mean()) / 2
        return torch.nan_to_num(scores, nan=0.0, posinf=LIMIT, neginf=-LIMIT), fit

    def _train(self, features: Tensor, members: Tensor, seed: int) -> nn.Module:
        random = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = perceptron((features.shape[1], *self.hidden, 1))
        optimiser = torch.optim.AdamW(network.parameters(), lr=self.learning_rate, weight_decay=self.weight_decay)
        parts = [self._split(kind.nonzero().squeeze(1), random) for kind in (members, ~members)]
        size = min(self.batch, *(len(learned) for learned, _ in parts))
        steps = max(1, max(len(learned) for learned, _ in parts) // size)
        batches = zip(*(_batches(learned, size, random) for learned, _ in parts), strict=True)
        checked = [features[held] for _, held in parts]
        best, kept = math.inf, None
        for _ in range(self.epochs):
            for rows in itertools.islice(batches, steps):
                optimiser.zero_grad()
                torch.autograd.backward(_loss(network, [features[kind] for kind in rows]))
                optimiser.step()
            if not all(len(held) for held in checked):
                continue  # no records to pick the epoch: the last one is taken
            with torch.no_grad():
                loss = float(_loss(network, checked))
            if loss < best:
                best, kept = loss, copy.deepcopy(network.state_dict())
        if kept is not None:
            network.load_state_dict(kept)
        return network

    def _split(self, rows: Tensor, random: torch.Generator) -> tuple[Tensor, Tensor]:
        """Rows to learn from (always at least one), and rows that pick the epoch."""
        rows = rows[torch.randperm(len(rows), generator=random)]
        held = min(round(self.validation * len(rows)), len(rows) - 1)
        return rows[held:], rows[:held]


def _loss(network: nn.Module, kinds: Sequence[Tensor]) -> Tensor:
    """Binary cross-entropy on members and on non-members, with equal weight."""
    inside, outside = (network(features).squeeze(1) for features in kinds)
    return (nn.functional.softplus(-inside).mean() + nn.functional.softplus(outside).mean()) / 2


def perceptron(widths: tuple[int, ...]) -> nn.Sequential:
    """Linear layers of these widths with tanh between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def _batches(rows: Tensor, size: int, random: torch.Generator) -> itertools.chain[Tensor]:
    """Endless batches of these rows, in a new order in each pass; rows that do not fill a batch are left out."""

    def round_of() -> tuple[Tensor, ...]:
        order = rows[torch.randperm(len(rows), generator=random)]
        return torch.split(order[: len(order) // size * size], size)

    return itertools.chain.from_iterable(round_of() for _ in itertools.count())
