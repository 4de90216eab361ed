"""The matching step of a single problem as a flat list of tensor operations.

For one small image most of an iteration's time is not arithmetic but the bookkeeping of automatic differentiation. So
after a few iterations the whole step (gradient, cost, its gradient in the image) is recorded once, with images,
labels, weights and targets as its inputs. It is then replayed: the same operations on the same numbers.
benchmarks/inversion.py measures the speed-up.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from leakboard.federation.task import Task

#: a step (image (1, M, C, H, W), label probabilities, ...) to costs (1,) and slopes (1, M, C, H, W)
Step = Callable[..., tuple[Tensor, Tensor]]
#: steps that run normally before one is recorded, which costs about as much as fifty steps of a ResNet20
WARM_UP = 20


class Recorded:
    """A step that is recorded after it has run often enough; a step that cannot be recorded stays unchanged."""

    def __init__(self) -> None:
        self.left = WARM_UP
        self.replay: Step | None = None

    def __call__(self, step: Step, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """The result of the step for its inputs, which must be complete."""
        if self.replay is not None:
            with torch.no_grad():
                return self.replay(*inputs)
        found = step(*inputs)
        self.left -= 1
        if self.left == 0:
            self.replay = _recorded(step, inputs, found)
        return found


@lru_cache(maxsize=4)
def recording(task: Task, images: torch.Size, labels: torch.Size, device: torch.device, dtype: torch.dtype) -> Recorded:
    """The recording of the steps on images and labels of these shapes; one for all problems of a task."""
    return Recorded()


def _recorded(step: Step, inputs: tuple[Tensor, ...], expected: tuple[Tensor, Tensor]) -> Step | None:
    """The step as a list of operations if that gives exactly the same; None if control depends on values."""
    try:
        graph = make_fx(step)(*inputs)
        for node in list(graph.graph.nodes):
            if node.target is torch.ops.aten.detach.default:  # has no effect without automatic differentiation
                node.replace_all_uses_with(node.args[0])
        graph.graph.eliminate_dead_code()
        graph.recompile()
        with torch.no_grad():
            found = graph(*inputs)
    except Exception:  # a user's network may do things that cannot be recorded
        return None
    same = all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    return cast(Any, graph) if same else None
