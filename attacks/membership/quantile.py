"""The quantile-regression attack: how confident would a model that never saw this record be?"""

from __future__ import annotations

import itertools
import math
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from leakboard.attacks.base import Knowledge, MembershipAnswer, MembershipAttack, MembershipTask, final_model
from leakboard.attacks.membership.building_blocks.signals import confidence_logit
from leakboard.core.errors import Unsupported
from leakboard.datasets.base import LabelledImages

#: directions of the images that the regression sees
DIRECTIONS = 64
#: share of the auxiliary records that are not fitted: one half decides when to stop, the other gives the threshold
HELD_OUT = 0.25
#: fewest auxiliary records: a quarter is held out, one half of it to choose the network, one half for the threshold
FEWEST = 8
#: the share of non-members that the decision may call members
FALSE_ALARMS = 0.05


class QuantileRegression(MembershipAttack):
    """A threshold for each record, from a regression on records that were not trained on; no shadow models.

    The confidence phi = log(p / (1 - p)) of the target on auxiliary records is regressed on the record itself: a small
    network gives the mean and the deviation of phi given image (its main directions) and label, by the Gaussian
    likelihood. The score of a candidate is z = (phi - mean(x)) / deviation(x); a score above the (1 - alpha) quantile
    of a normal variable means a member at the false-positive rate alpha. The network that is best on held-out
    auxiliary records is kept; if none is better than a constant, the constant is (the loss threshold). The quantile is
    that of other held-out records, which neither trained nor chose the network.

    The paper regresses with a ConvNeXt on 50,000 images or more and trains no shadow models either; its CIFAR-10
    figures were not available to us, so no published figure is compared (docs/attacks.md).

    Other values of `hidden`, `epochs` and `learning_rate` were no better on 4 federations (docs/attacks.md).
    """

    name: ClassVar[str] = "quantile-regression"
    citation: ClassVar[str] = (
        "Bertran et al., Scalable Membership Inference Attacks via Quantile Regression, NeurIPS 2023"
    )

    hidden: tuple[int, ...] = Field((64, 64), description="widths of the regression's hidden layers")
    epochs: int = Field(200, ge=1, le=100_000, description="passes over the auxiliary records")
    learning_rate: float = Field(3e-3, gt=0)

    def budget(self) -> dict[str, int]:
        """Passes of the regression."""
        return {"epochs": self.epochs}

    def infer(self, knowledge: Knowledge, task: MembershipTask) -> MembershipAnswer:
        """Fit on the auxiliary records, score the candidates."""
        model = final_model(knowledge)
        data = knowledge.auxiliary
        if len(data) < FEWEST:
            raise Unsupported(f"it learns from auxiliary records, of which it needs {FEWEST}; given: {len(data)}")
        known, asked = (
            confidence_logit(knowledge.task, knowledge.task.predict(model, part.images), part.labels)
            for part in (data, task.candidates)
        )
        inputs = _Inputs(data, knowledge.public.classes)
        own, other = inputs(data), inputs(task.candidates)
        random = knowledge.generator()
        order = torch.randperm(len(data), generator=random)
        held = max(2, int(HELD_OUT * len(data)))
        # residuals of the records that chose the network would be too small, so others give the threshold
        choosing, judging, fitting = order[: held // 2], order[held // 2 : held], order[held:]
        centre, spread = known.median(), known.std().clamp(min=1e-6) if len(known) > 1 else known.new_ones(())
        scaled = ((known - centre) / spread).clamp(-10, 10).float()
        fitted = self._fit(own[fitting], scaled[fitting], own[choosing], scaled[choosing], random)
        mean, log_deviation = fitted(other).T if fitted is not None else (torch.zeros(len(other)),) * 2
        scores = ((asked - centre) / spread - mean.double()) / log_deviation.double().exp()
        # the distribution is only nearly normal: the quantile is that of held-out records
        rest = fitted(own[judging]).T if fitted is not None else torch.zeros(2, len(judging))
        residuals = (scaled[judging] - rest[0]) / rest[1].exp()
        cut = float(torch.quantile(residuals.double(), 1 - FALSE_ALARMS))
        flags = () if fitted is not None else ("no regression beats a constant: this is the loss threshold",)
        return MembershipAnswer(scores, scores > cut, flags, {"threshold": cut})

    def _fit(self, x: Tensor, y: Tensor, held_x: Tensor, held_y: Tensor, random: torch.Generator) -> _Fitted | None:
        """The network with the best held-out likelihood; None if a constant is better."""
        network = _network(x.shape[1], self.hidden, random)
        optimiser = torch.optim.Adam(network.parameters(), lr=self.learning_rate, weight_decay=1e-3)
        constant = torch.stack([y.mean(), y.std().clamp(min=1e-3).log()]) if len(y) > 1 else torch.zeros(2)
        least, best = float(_unlikeliness(constant.expand(len(held_y), 2), held_y)), None
        for _ in range(self.epochs):
            for rows in torch.split(torch.randperm(len(x), generator=random), 128):
                optimiser.zero_grad()
                _unlikeliness(network(x[rows]), y[rows]).backward()  # type: ignore[no-untyped-call]
                optimiser.step()
            with torch.no_grad():
                cost = float(_unlikeliness(network(held_x), held_y))
            if cost < least:
                least, best = cost, {name: value.clone() for name, value in network.state_dict().items()}
        if best is None:
            return None
        network.load_state_dict(best)
        return _Fitted(network)


class _Fitted:
    """Mean and log deviation (N, 2) of inputs (N, d)."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network

    @torch.no_grad()
    def __call__(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.network(inputs)
        return torch.stack([found[:, 0], found[:, 1].clamp(-5, 5)], dim=1)


class _Inputs:
    """Images and labels as numbers: the main directions of the auxiliary images, and the label."""

    def __init__(self, data: LabelledImages, classes: int) -> None:
        rows = data.images.flatten(1).float()
        self.mean, self.classes = rows.mean(0), classes
        _, sizes, directions = torch.linalg.svd(rows - self.mean, full_matrices=False)
        kept = min(DIRECTIONS, len(sizes))
        self.directions = directions[:kept].T * (math.sqrt(len(rows)) / sizes[:kept].clamp(min=1e-6))

    def __call__(self, data: LabelledImages) -> Tensor:
        onehot = nn.functional.one_hot(data.labels, self.classes).float()
        return torch.cat([(data.images.flatten(1).float() - self.mean) @ self.directions, onehot], dim=1)


def _network(inputs: int, hidden: tuple[int, ...], random: torch.Generator) -> nn.Module:
    """Fully connected, with weights from the attack's own generator."""
    widths = [inputs, *hidden]
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    network = nn.Sequential(*layers, nn.Linear(widths[-1], 2))
    with torch.no_grad():
        for layer in network:
            if isinstance(layer, nn.Linear):
                layer.weight.copy_(torch.randn(layer.weight.shape, generator=random) / math.sqrt(layer.in_features))
                layer.bias.zero_()
    return network


def _unlikeliness(found: Tensor, y: Tensor) -> Tensor:
    """The mean of -log N(y; mean, deviation^2), without its constant."""
    log_deviation = found[:, 1].clamp(-5, 5)
    return (log_deviation + 0.5 * ((y - found[:, 0]) / log_deviation.exp()).square()).mean()
