"""What a number of trials could have shown, compared with games that are played by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from leakboard.defenses.noise.calibration import gaussian_mu
from leakboard.metrics.audit_power import AuditPower, audit_power, simulated
from leakboard.metrics.base import AuditTruth
from leakboard.metrics.epsilon_lower import epsilon_lower
from tests.metrics.test_epsilon_lower import gaussian_game


def test_an_exact_mechanism_proves_what_the_power_says() -> None:
    """Epsilon 3, 700 trials: about 0.36, far below the claim; medians of 200 games each, within 5 deviations (0.1)."""
    power = audit_power(700, 3.0)
    played = [epsilon_lower(*gaussian_game(gaussian_mu(3.0), 700, seed)).epsilon for seed in range(200)]
    assert power.provable == pytest.approx(float(np.median(played)), abs=0.1)
    assert 0.2 < power.provable < 0.5
    quarter = [epsilon_lower(*gaussian_game(4 * gaussian_mu(3.0), 700, seed)).epsilon > 3 for seed in range(200)]
    assert power.bound_4x == pytest.approx(float(np.mean(quarter)), abs=0.2)  # 4 deviations of a difference of shares


def test_the_bound_has_little_power_where_the_estimate_has_all() -> None:
    power = audit_power(700, 3.0)
    assert power.bound_2x < 0.05 < 0.15 < power.bound_4x < 0.55
    assert power.estimate_2x == power.estimate_4x == 1.0
    assert power.estimate_1x < 0.1  # 2.5 % false alarms: 20 of 200 would be 1e-6 of cases
    assert audit_power(20_000, 3.0).bound_4x == 1.0


def test_it_is_the_same_every_time() -> None:
    first = audit_power(300, 1.0, 1e-4)
    torch.manual_seed(7)
    assert simulated.__wrapped__(300, 1.0, 1e-4) == first


def test_the_metric_needs_a_claim() -> None:
    scores, worlds = gaussian_game(1.0, 700, 0)
    assert "no epsilon is claimed" in AuditPower().score(AuditTruth(scores, worlds, 1e-5)).reason
    score = AuditPower().score(AuditTruth(scores, worlds, 1e-5, claimed=3.0))
    assert score.value == audit_power(700, 3.0).provable
    assert set(score.details) == {"bound_2x", "bound_4x", "estimate_1x", "estimate_2x", "estimate_4x"}
