"""What batch norm in train mode tells about images: the running statistics that a client sends after training.

A layer's running mean and variance move by s' = (1 - m) s + m b, with b the mean and the unbiased variance of the
batch at that layer. Who holds s and s' compares them with those of candidate images (Yin et al. 2021, GradInversion).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from leakboard.attacks.base import Inversion
from leakboard.attacks.reconstruction.matching.gradients import Slopes
from leakboard.federation.payload import Parameters
from leakboard.federation.task import Task

#: the layers whose statistics are known
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


@contextmanager
def watched_statistics(task: Task, before: Parameters) -> Iterator[Parameters]:
    """In this block, one pass in train mode fills the dict with the statistics after it; differentiable in the images.

    torch's own update of the buffers is not differentiable. `before` are the buffers that the pass starts from.
    """
    found: Parameters = {}

    def hook(path: str, layer: nn.BatchNorm1d | nn.BatchNorm2d) -> torch.utils.hooks.RemovableHandle:
        def note(_: nn.Module, given: tuple[Tensor, ...]) -> None:
            dims = [0, *range(2, given[0].ndim)]
            momentum = layer.momentum
            if momentum is None:  # a plain mean over all batches so far
                momentum = 1.0 / (1 + int(before[f"{path}.num_batches_tracked"]))
            for name, value in (("mean", given[0].mean(dims)), ("var", given[0].var(dims))):
                old = before[f"{path}.running_{name}"].to(value)
                found[f"{path}.running_{name}"] = (1 - momentum) * old + momentum * value

        return layer.register_forward_pre_hook(note)

    layers = [(path, layer) for path, layer in task.skeleton().named_modules() if isinstance(layer, NORMS)]
    handles = [hook(path, layer) for path, layer in layers if layer.track_running_stats]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def statistics_misfit(made: Parameters, sent: Parameters, before: Parameters) -> Tensor:
    """The mean over layers of ||s(x) - s'||^2 / ||s - s'||^2, for means and variances alike; 0 without any."""
    parts = []
    for name, value in made.items():
        aim, start = sent[name].to(value), before[name].to(value)
        parts.append((value - aim).square().sum() / (start - aim).square().sum().clamp(min=1e-12))
    return torch.stack(parts).mean() if parts else torch.zeros(())


class WithStatistics:
    """A matching cost plus `weight` times the misfit of the statistics, which costs one more pass per problem.

    For problems whose images all went through the network at once; of a mean over clients, each client's records did.
    """

    def __init__(
        self, inner: Slopes, task: Task, problems: tuple[Inversion, ...], restarts: int, weight: float, device: str
    ) -> None:
        self.inner, self.task, self.weight = inner, task, weight
        self.problems = problems * restarts
        self.models = [
            {n: v.float().to(device) if v.is_floating_point() else v.to(device) for n, v in p.model.items()}
            for p in problems
        ] * restarts

    def slopes(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Costs (P,) and their gradients in the images (P, M, C, H, W)."""
        costs, slopes = self.inner.slopes(images)
        both = [self._one(index, own) for index, own in enumerate(images)]
        more = torch.stack([cost for cost, _ in both]).to(costs), torch.stack([slope for _, slope in both])
        return costs + self.weight * more[0], slopes + self.weight * more[1].nan_to_num(0, 0, 0)

    def _one(self, index: int, images: Tensor) -> tuple[Tensor, Tensor]:
        problem, model = self.problems[index], self.models[index]
        if not problem.statistics:
            return images.new_zeros(()), torch.zeros_like(images)
        candidates = images.detach().requires_grad_()
        seen: list[Parameters] = []
        for piece in candidates.chunk(problem.gradient.clients):
            buffers = {name: model[name].clone() for name in self.task.buffer_names}
            with watched_statistics(self.task, model) as found:
                self.task.logits({**model, **buffers}, piece, train=True)
            seen.append(found)
        made = {name: torch.stack([one[name] for one in seen]).mean(0) for name in seen[0]}
        cost = statistics_misfit(made, problem.statistics, model)
        if not cost.requires_grad:
            return cost, torch.zeros_like(images)
        return cost.detach(), torch.autograd.grad(cost, candidates)[0]
