"""The power of an audit: what it could have shown with its number of trials."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from leakboard.defenses.noise.calibration import gaussian_mu
from leakboard.metrics.base import AuditMetric, AuditTruth, Score
from leakboard.metrics.epsilon_lower import epsilon_lower
from leakboard.metrics.mu import exceeds

#: simulated games of each kind, and how many trials they have together at most (fewer games of very many trials)
GAMES, DRAWS = 200, 10_000_000


@dataclass(frozen=True)
class Power:
    """The results of audits of a Gaussian mechanism, by simulation.

    `provable` is the median bound if the mechanism spends exactly the claimed epsilon. `bound_2x`, `bound_4x` are the
    shares of audits whose bound exceeds the claim if the noise is 2 and 4 times too small. `estimate_1x`,
    `estimate_2x`, `estimate_4x` are the shares whose interval of mu lies above the claimed mu (1x: false alarms). mu is
    computed from the odd trials only, as in a table of several attacks.
    """

    provable: float
    bound_2x: float
    bound_4x: float
    estimate_1x: float
    estimate_2x: float
    estimate_4x: float


def audit_power(trials: int, epsilon: float, delta: float = 1e-5) -> Power:
    """What audits with this many trials find about a Gaussian mechanism that claims (epsilon, delta), by simulation.

    The scores are N(0, 1) and N(f mu, 1), where mu is the shift at which a Gaussian mechanism spends exactly epsilon at
    delta, and f = 1, 2, 4 for noise that is too small by that factor. Worlds are fair coins. These are the best scores
    that any attack could have. `GAMES` games of each kind are drawn from a fixed seed, so shares are known to within
    0.04 (one standard deviation).

    Shapes: none; `trials` counts both worlds together.
    Citation: Balle and Wang 2018 (mu); Jagielski et al. 2020 (the audit).

    >>> found = audit_power(700, 3.0)
    >>> 0.3 < found.provable < 0.45, found.bound_2x < 0.05, found.estimate_2x
    (True, True, 1.0)
    """
    return simulated(trials, epsilon, delta)


@lru_cache(maxsize=64)
def simulated(trials: int, epsilon: float, delta: float) -> Power:
    """The games of `audit_power`, cached for the tables, which request the same ones repeatedly."""
    mu = gaussian_mu(epsilon, delta)
    games = max(10, min(GAMES, DRAWS // (3 * trials)))
    bounds, above = {}, {}
    for times in (1, 2, 4):
        random = np.random.default_rng(times)
        found = [_game(random, trials, times * mu) for _ in range(games)]
        bounds[times] = np.array([epsilon_lower(*game, delta).epsilon for game in found])
        above[times] = float(np.mean([exceeds(scores[1::2], worlds[1::2], mu) for scores, worlds in found]))
    shares = {times: float(np.mean(bounds[times] > epsilon)) for times in (2, 4)}
    return Power(float(np.median(bounds[1])), shares[2], shares[4], above[1], above[2], above[4])


def _game(random: np.random.Generator, trials: int, mu: float) -> tuple[Tensor, Tensor]:
    """The scores and worlds of one simulated game."""
    worlds = random.random(trials) < 0.5
    for half in (worlds[::2], worlds[1::2]):  # both worlds are in both halves: else there is no audit
        half[:2] = True, False
    return torch.from_numpy(random.normal(size=trials) + mu * worlds), torch.from_numpy(worlds)


class AuditPower(AuditMetric):
    """The bound that this many trials would prove for a Gaussian mechanism that spends exactly the claimed epsilon.

    The details say how often noise that is 2 or 4 times too small is refuted: by the bound, and by the interval of mu.
    That is how much a claim that is not refuted is worth. Definition: `metrics.audit_power.audit_power`.
    """

    name: ClassVar[str] = "audit_power"
    title: ClassVar[str] = "provable of the claim"
    hint: ClassVar[str] = "ε audited if exactly the claim is spent (median)"
    tolerance: ClassVar[float] = 0.1
    citation: ClassVar[str] = "Definition: the median bound of simulated audits of a Gaussian mechanism"
    higher_is_better: ClassVar[bool] = True
    bounds: ClassVar[tuple[float | None, float | None]] = (0.0, None)

    def score(self, truth: AuditTruth) -> Score:
        """The median bound; None if no epsilon is claimed."""
        if truth.claimed is None or not math.isfinite(truth.claimed):
            return Score(None, reason="no epsilon is claimed against this threat")
        found = audit_power(len(truth.scores), truth.claimed, truth.delta)
        return Score(found.provable, details={name: v for name, v in vars(found).items() if name != "provable"})
