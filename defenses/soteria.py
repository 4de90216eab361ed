"""Soteria, a heuristic that prunes the representation of one layer."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from leakboard.core.errors import UserError
from leakboard.core.randomness import Stream
from leakboard.defenses.base import Defense, Gradient, Transform
from leakboard.defenses.grad_prune import keeping_the_same
from leakboard.federation.party import Party
from leakboard.federation.payload import Parameters
from leakboard.federation.settings import Public
from leakboard.federation.task import Task, task_of


class Soteria(Defense):
    """Every client zeroes the columns of the last layer's gradient that belong to the least telling features.

    Feature r_f has the score sum_b ||d r_f / d x_b|| / (r_f + 0.1). The share `ratio` of features with the lowest
    scores loses its columns; all other layers are sent as they are. The norms are estimated: for normal v the mean of
    (d r_f / d x . v)^2 is the squared norm, and one pass gives it for all features.

    The known adaptive attack leaves that layer out of the matching (Balunovic et al. 2022). `mimic` leaves out the
    zeroed columns alone, so it matches more than that attack does.
    """

    name: ClassVar[str] = "soteria"
    citation: ClassVar[str] = "Sun et al., Soteria: Provable Defense against Privacy Leakage, CVPR 2021"
    claim: ClassVar[str] = "Reconstruction from the gradient fails (a heuristic, without a proof)."
    #: the zeroed columns are chosen for one gradient of the batch
    takes_local_steps: ClassVar[bool] = False

    ratio: float = Field(0.6, ge=0, lt=1, description="share of the last layer's features whose columns become zero")
    directions: int = Field(32, ge=1, le=10_000, description="random directions for the norms of the derivatives")

    def check(self, public: Public) -> None:
        """Refuse networks without a linear layer."""
        last_linear(task_of(public).skeleton(), self.name)

    def protect(self, me: Party, gradient: Parameters) -> Parameters:
        """Client: zero the columns of the lowest scores."""
        assert me.batch is not None
        task, model = task_of(me.public), me.expect("model")["model"]
        name, _ = last_linear(task.skeleton(), self.name)
        with me.phase("Score"):
            images = me.batch.images.to(gradient[f"{name}.weight"].dtype)
            scores = feature_scores(task, model, images, self.directions, me.stream("directions"))
        dropped = scores.argsort(stable=True)[: math.floor(self.ratio * len(scores))]
        weight = gradient[f"{name}.weight"].clone()
        weight[:, dropped] = 0
        return {**gradient, f"{name}.weight": weight}

    def mimic(self, observed: Gradient, public: Public) -> Transform | None:
        """Zero the same columns of a candidate; only those of a single client are visible."""
        return keeping_the_same(observed)


def last_linear(network: nn.Module, defense: str = "soteria") -> tuple[str, nn.Linear]:
    """The last linear layer and its name."""
    found = [(name, layer) for name, layer in network.named_modules() if isinstance(layer, nn.Linear)]
    if not found:
        raise UserError(f"The defense '{defense}' needs a network with a linear layer; given: none.")
    return found[-1]


def feature_scores(task: Task, model: Parameters, images: Tensor, directions: int, stream: Stream) -> Tensor:
    """Scores (F,) of the inputs of the last linear layer, summed over images (N, C, H, W)."""
    _, layer = last_linear(task.skeleton())
    kept: list[Tensor] = []
    given = images.detach().clone().requires_grad_()
    hook = layer.register_forward_pre_hook(lambda _, inputs: kept.append(inputs[0]))
    try:
        task.logits({name: value.detach() for name, value in model.items()}, given)
    finally:
        hook.remove()
    features = kept[0]
    # J v for all features at once: the derivative in u of u J, which is linear in u, along v
    weights = torch.zeros_like(features).requires_grad_()
    (pulled,) = torch.autograd.grad(features, given, weights, create_graph=True)
    squares = torch.zeros_like(features)
    for _ in range(directions):
        towards = torch.from_numpy(stream.normal(*images.shape)).to(images)
        (slopes,) = torch.autograd.grad(pulled, weights, towards, retain_graph=True)
        squares += slopes.square() / directions
    return (squares.sqrt() / (features.detach() + 0.1)).sum(0)
