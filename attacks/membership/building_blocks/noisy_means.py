"""What a view says about the noisy means of all rounds, and the best estimate of one of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from leakboard.attacks.base import Knowledge
from leakboard.defenses.base import AGGREGATE
from leakboard.federation.payload import Parameters

#: relative variance that no estimate goes below: models and messages are in float32
ROUNDING = 1e-8


@dataclass(frozen=True)
class Seen:
    """One linear combination sum_s a_s y_s of the noisy means y_s = g_s + n_s, as the view holds it.

    `weights` (rounds + 1,) are the a_s, `noise` (draws,) the coefficients of the independent draws in sum_s a_s n_s,
    and `values` (D,) the combination itself. Round `rounds` stands for the round after the last. `probes` counts the
    means of probes in it, whose records are in no round.
    """

    weights: Tensor
    noise: Tensor
    values: Tensor
    probes: float = 0.0


def combinations(knowledge: Knowledge) -> Iterator[Seen]:
    """All that the view says about the noisy means: sums that it holds, and steps between the models that it holds."""
    public, defense = knowledge.public, knowledge.defense
    training, rounds = public.training, public.total_rounds
    names, models = knowledge.task.parameter_names, dict[int, Parameters]()
    for reading in knowledge.readings():
        context = reading.context
        if context.kind not in ("train", "probe") or (context.probe or 0) > 0:
            continue
        at = context.round + (context.kind == "probe")
        if reading.model is not None:
            models[at] = reading.model
        mean = reading.gradients.get(AGGREGATE)
        # a probe stands for the round that comes next: only after the last one is there no real one
        real = context.kind == "train" or at == rounds
        if mean is not None and real and mean.clients == training.per_round:
            mixing = defense.noise_over_rounds(public, context.batch_size)
            assert mixing is not None
            weights = torch.zeros(rounds + 1, dtype=torch.float64)
            # a probe has other records, so its mean is of no round: only its noise is that of the next one
            weights[at] = float(context.kind == "train")
            noise = mixing.double()[at]
            yield Seen(weights, noise, _vector(mean.values, names), float(context.kind == "probe"))
    mixing = defense.noise_over_rounds(public, training.batch_size)
    assert mixing is not None
    lags = torch.arange(rounds + 1, dtype=torch.float64)
    held = sorted(models)
    for first, second in pairwise(held):
        # w_b - w_a = -eta sum_{a <= r < b} v_r with v_r = sum_{s <= r} mu^(r - s) y_s
        ways = [torch.where(lags <= r, training.momentum ** (r - lags).clamp(min=0), 0.0) for r in range(first, second)]
        weights = torch.stack(ways).sum(0)
        step = _vector(models[first], names) - _vector(models[second], names)
        yield Seen(weights, weights @ mixing.double(), step / training.learning_rate)


def estimate(seen: Sequence[Seen], round_index: int, tau: float, of_probe: float = 0.0) -> tuple[Tensor, float, float]:
    """g_t (D,), the deviation of its error, and that of the best single combination.

    `tau` is the size of a value of another round's mean, `of_probe` that of a probe's.

    >>> one = torch.eye(2, dtype=torch.float64)
    >>> noise = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)  # the second round takes the noise back
    >>> values = torch.tensor([[3.0], [-2.0]], dtype=torch.float64)  # g = (1, 0), z = 2
    >>> found, left, plain = estimate([Seen(*row) for row in zip(one, noise, values)], 0, 1e-3)
    >>> found.round(decimals=3), round(left, 3), round(plain, 3)
    (tensor([1.], dtype=torch.float64), 0.001, 1.0)
    """
    weights, noise = (torch.stack([getattr(one, part) for one in seen]) for part in ("weights", "noise"))
    others = weights.clone()
    others[:, round_index] = 0
    shared = others.sum(1)
    nuisance = tau**2 / 2 * (others @ others.T + shared[:, None] * shared)
    probes = torch.tensor([one.probes for one in seen], dtype=torch.float64)
    covariance = noise @ noise.T + nuisance + of_probe**2 * torch.diag(probes.square())
    covariance += torch.diag(ROUNDING * covariance.diagonal().clamp(min=1e-12))
    target = weights[:, round_index]
    solved = torch.linalg.solve(covariance, target)
    precision = float(target @ solved)
    single = (target.square() / covariance.diagonal()).max()
    values = solved @ torch.stack([one.values for one in seen]) / precision
    return values, precision**-0.5, float(single) ** -0.5


def _vector(values: Parameters, names: tuple[str, ...]) -> Tensor:
    return torch.cat([values[name].double().flatten() for name in names])
