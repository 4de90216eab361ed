"""ddg and skellam: the rotation, the rounding, the noise, its budget, and what the server sees."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting.pld import privacy_loss_distribution
from scipy import stats

from leakboard.contract.worlds import blobs
from leakboard.core.errors import UserError
from leakboard.defenses.base import AGGREGATE
from leakboard.defenses.building_blocks import rotation
from leakboard.defenses.building_blocks.integer_share import IntegerShare, Lattice, Law, calibrated, centred
from leakboard.defenses.noise import integers
from leakboard.defenses.noise.calibration import gaussian_epsilon
from leakboard.federation.party import Party, RoundContext
from leakboard.federation.settings import SERVER, VICTIM
from tests.defenses.makings import create, flat, key, public_of
from tests.defenses.small import chi_square_fits, sent_codes, small_run, velocity

NAMES = ("ddg", "skellam")
WIDE: dict[str, Any] = {"shape": (1, 8, 8), "hidden": (64,)}  # 4,288 values, 8,192 when padded
FALSE_ALARM = 1e-6


def made(name: str, **parameters: Any) -> IntegerShare:
    defense = create(name, **parameters)
    assert isinstance(defense, IntegerShare)
    return defense


# --- the rotation --------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 255, 256, 257, 3000])
def test_rotating_back_is_the_identity(count: int) -> None:
    values = key("rotation", count).normal(count)
    turned = rotation.rotate(values, "train/0/")
    assert len(turned) == rotation.padded_size(count)
    assert np.linalg.norm(turned) == pytest.approx(np.linalg.norm(values), rel=1e-12)
    assert np.allclose(rotation.unrotate(turned, "train/0/", count), values, atol=1e-12)


def test_the_transform_is_that_of_the_definition() -> None:
    """H_{2n} = [[H_n, H_n], [H_n, -H_n]], also beyond one block."""
    size, whole = 1024, np.ones((1, 1))
    while len(whole) < size:
        whole = np.block([[whole, whole], [whole, -whole]])
    values = key("transform").normal(size)
    assert np.allclose(rotation.walsh_hadamard(values), whole @ values / math.sqrt(size), atol=1e-12)


def test_the_signs_spread_any_vector_and_differ_between_rounds() -> None:
    """One large value and a constant vector both become coordinates of about 1 / sqrt(d)."""
    for values in (np.eye(1, 4096)[0], np.full(4096, 1 / 64)):
        assert float(np.abs(rotation.rotate(values, "train/0/")).max()) < 6 / 64
    first, second = (rotation.rotate(np.full(4096, 1 / 64), label) for label in ("train/0/", "train/1/"))
    assert abs(float(first @ second)) < 6 / 64  # two directions that have nothing in common


# --- rounding and noise -----------------------------------------------------------------------------


def test_the_rounding_has_no_bias_and_coupled_roundings_differ_by_the_rounding_of_the_difference() -> None:
    """floor(x + u) - floor(x' + u) is floor(x - x') or one more, with the mean x - x': what the accounting rests on."""
    u = key("rounding").uniform(200_000)
    for x, other in ((0.3, -0.45), (2.0, 1.25), (-7.9, -7.95)):
        rounded, second = np.floor(x + u), np.floor(other + u)
        assert abs(float(rounded.mean()) - x) < 6 * 0.5 / math.sqrt(len(u))
        difference = rounded - second
        assert set(np.unique(difference)) <= {math.floor(x - other), math.floor(x - other) + 1}
        assert abs(float(difference.mean()) - (x - other)) < 6 * 0.5 / math.sqrt(len(u))


@pytest.mark.parametrize(("x", "beta"), [(0.0, 0.1), (5.0, 0.5), (300.0, 0.01)])
def test_rounded_norms_stay_within_their_bound_as_often_as_it_says(x: float, beta: float) -> None:
    size, stream = 256, key("norms", int(x))
    vectors = stream.normal(400, size)
    vectors *= x / np.linalg.norm(vectors, axis=1, keepdims=True)
    rounded = np.floor(vectors + stream.uniform(400, size))
    one, two = integers.rounded_size(x, size, beta)
    assert float(np.mean(np.linalg.norm(rounded, axis=1) > two)) <= beta
    inside = rounded[np.linalg.norm(rounded, axis=1) <= two]
    assert float(np.abs(inside).sum(1).max()) <= one


@pytest.mark.parametrize("sigma", [0.6, 3.0, 2000.0])
def test_discrete_gaussian_draws_have_their_law(sigma: float) -> None:
    drawn = integers.discrete_gaussian(key("gaussian", int(10 * sigma)), sigma, 40_000)
    support = np.arange(-12 * math.ceil(sigma), 12 * math.ceil(sigma) + 1)
    weights = np.exp(-np.square(support) / (2 * sigma**2))
    assert _fits(drawn, support, weights / weights.sum())


@pytest.mark.parametrize("variance", [0.4, 9.0, 4e6])
def test_skellam_draws_have_their_law(variance: float) -> None:
    drawn = integers.skellam(key("skellam", int(10 * variance)), variance, 40_000)
    most = 12 * math.ceil(math.sqrt(variance)) + 10
    support = np.arange(-most, most + 1)
    if variance > 1e6:  # scipy's mass loses digits there; the law is then Gaussian to 1e-4
        weights = np.exp(-np.square(support) / (2 * variance))
    else:
        weights = stats.skellam.pmf(support, variance / 2, variance / 2)
    assert _fits(drawn, support, weights / weights.sum())


def _fits(drawn: integers.Integers, support: integers.Integers, law: integers.Floats) -> bool:
    """Chi-square over 20 to 40 cells of about the same probability; false alarm 1e-6."""
    edges = np.searchsorted(np.cumsum(law), np.arange(1, 40) / 40)
    cuts = np.unique(support[edges])
    cells = np.searchsorted(cuts, support, side="right")
    expected = np.bincount(cells, weights=law) * len(drawn)
    found = np.bincount(np.searchsorted(cuts, drawn, side="right"), minlength=len(expected))
    keep = expected > 5
    return chi_square_fits(
        float((np.square(found - expected)[keep] / expected[keep]).sum()), int(keep.sum()) - 1, FALSE_ALARM
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("clients", "honest"), [(3, None), (5, 5)])
def test_the_mean_has_no_bias_and_the_variance_that_was_calibrated(name: str, clients: int, honest: int) -> None:
    """sigma^2 / K per coordinate of the mean, plus at most gamma^2 / 4 / K of rounding, which is 1e-7 of it here."""
    noisy, clean = (small_run(made(name, honest=honest, noise=n), clients=clients, **WIDE) for n in (True, False))
    difference = velocity(noisy.rounds()[0]) - velocity(clean.rounds()[0])
    defense = made(name, honest=honest)
    sigma = defense.share_sigma(noisy.public, 4) / math.sqrt(clients)
    assert chi_square_fits(float(difference.square().sum()) / sigma**2, len(difference), FALSE_ALARM)
    assert abs(float(difference.mean())) < 6 * sigma / math.sqrt(len(difference))
    assert noisy.outcome.ledger.worst["wrapped_share"] == 0


def test_wrapped_sums_are_counted() -> None:
    """One deviation of the sum in half of the range: a third of the values wrap around, and the record says so."""
    run = small_run(made("skellam", deviations=1.0, bits=24), **WIDE)
    expected = run.defense.claims(run.public)["wrapped_share_expected"]
    assert expected == pytest.approx(2 * stats.norm.sf(1))
    assert run.outcome.ledger.worst["wrapped_share"] == pytest.approx(expected, abs=0.03)
    at = run.rounds()[0]
    totals = sum(sent_codes(run, at).values())
    assert not isinstance(totals, int)
    assert float(np.mean(totals != centred(24, totals))) == run.outcome.ledger.worst["wrapped_share"]


# --- the budget ---------------------------------------------------------------------------------------


def lattice(law: Law, **changes: Any) -> Lattice:
    plain = Lattice("Skellam", 4096, 5, 2, 1.0, 0.0625, 16, 6.0, 1e-8)
    return replace(plain, law=law, **changes)


@pytest.mark.parametrize("law", ["discrete Gaussian", "Skellam"])
def test_with_many_bits_the_cost_is_that_of_gaussian_noise(law: Law) -> None:
    """gamma -> 0: Renyi divergence a S^2 / (2 n sigma^2); with 8 bits it is far more."""
    found = {bits: lattice(law, bits=bits).rdp(0.07) for bits in (8, 16, 40)}
    gaussian = integers.ORDERS * 0.0625**2 / (2 * 2 * 0.07**2)
    assert np.allclose(found[40], gaussian, rtol=1e-6)
    assert np.allclose(found[16], gaussian, rtol=5e-3)
    assert not np.allclose(found[8], gaussian, rtol=2e-1)


@pytest.mark.parametrize("law", ["discrete Gaussian", "Skellam"])
@pytest.mark.parametrize(("epsilon", "times"), [(0.3, 1), (3.0, 1), (3.0, 50), (100.0, 10)])
def test_calibration_spends_the_budget_and_never_less_noise_than_exact_gaussian(
    law: Law, epsilon: float, times: int
) -> None:
    given = lattice(law)
    sigma = calibrated(given, epsilon, times, 1e-5)
    assert sigma is not None
    assert integers.epsilon_of(given.rdp(sigma), times, 1e-5) == pytest.approx(epsilon, rel=1e-6)
    mu = math.sqrt(times) * given.moves / (math.sqrt(2) * sigma)
    assert gaussian_epsilon(mu, 1e-5) < epsilon  # what a Gaussian of the same size really costs
    assert gaussian_epsilon(1.35 * mu, 1e-5) > epsilon  # and the bound is not far above it


@pytest.mark.parametrize(("sigma", "shift"), [(1.0, 1), (4.0, 3), (20.0, 25)])
def test_the_discrete_gaussian_costs_no_less_than_dp_accounting_says(sigma: float, shift: int) -> None:
    """One value, one share: the accountant's privacy loss is exact; ours is an upper bound within 25 % of it."""
    exact = privacy_loss_distribution.from_discrete_gaussian_mechanism(sigma, sensitivity=shift)
    bound = integers.epsilon_of(integers.gaussian_sum_rdp(shift, shift, sigma, 1, 1), 1, 1e-5)
    assert exact.get_epsilon_for_delta(1e-5) <= bound <= 1.25 * exact.get_epsilon_for_delta(1e-5)


@pytest.mark.parametrize(("sigma", "shift", "shares"), [(2.0, 1, 2), (3.0, 2, 4)])
def test_sums_of_discrete_gaussians_and_skellam_cost_no_less_than_their_exact_laws(
    sigma: float, shift: int, shares: int
) -> None:
    """The laws by convolution, the smallest epsilon by their hockey-stick divergence."""
    support = np.arange(-60, 61)
    one = np.exp(-np.square(support) / (2 * sigma**2))
    summed = one / one.sum()
    for _ in range(shares - 1):
        summed = np.convolve(summed, one / one.sum())
    variance = shares * sigma**2
    pairs = [
        (summed, integers.gaussian_sum_rdp(shift, shift, sigma, shares, 1)),
        (
            stats.skellam.pmf(np.arange(-200, 201), variance / 2, variance / 2),
            integers.skellam_rdp(shift, shift, variance),
        ),
    ]
    for law, rdp in pairs:
        bound = integers.epsilon_of(rdp, 1, 1e-5)
        moved = np.roll(law, shift)
        assert float(np.maximum(law - math.exp(bound) * moved, 0).sum()) <= 1e-5
        assert float(np.maximum(law - math.exp(0.6 * bound) * moved, 0).sum()) > 1e-5  # the bound says something


@pytest.mark.parametrize("name", NAMES)
def test_threats_and_sensitivities(name: str) -> None:
    """K = 5, t = 3: the claim counts two shares; the server alone faces five. A client's own part needs no delta."""
    defense = made(name)
    found = defense.claims(public_of(defense=defense, clients=5))
    by_threat = found["epsilon_round_by_threat"]
    assert by_threat["server"] < by_threat["client"] < found["epsilon_round_exact"] == pytest.approx(3.0)
    assert found["dp_holds"] is True
    assert 1.0 < found["noise_over_exact_gaussian"] < 1.15
    whole = made(name, sensitivity="client")
    claims = whole.claims(public_of(defense=whole, clients=5))
    assert claims["epsilon_round_exact"] == pytest.approx(3.0)
    assert claims["dp_holds"] is False
    assert claims["sigma_share"] > 1.9 * found["sigma_share"]  # S = B against 2 B / 4


def test_client_level_rounding_is_drawn_again_until_it_is_short_enough() -> None:
    """Kairouz et al.'s conditional rounding; without the condition one in fifty of these vectors is too long."""
    values = np.full(64, 0.5)
    longest = integers.rounded_size(float(np.linalg.norm(values)), 64, math.exp(-0.5))[1]
    free, bounded = (
        [float(np.linalg.norm(integers.rounded(key("again", i), values, most))) for i in range(400)]
        for most in (math.inf, longest)
    )
    assert max(bounded) <= longest < max(free)


def test_only_client_level_rounding_has_a_condition() -> None:
    """Conditions on each of two neighbours would break the coupling that the record level rests on."""
    party = Party(VICTIM, public_of(clients=5), bytes(32))
    assert made("ddg")._longest(party) == math.inf
    party.context = RoundContext(0, None, "train", party.public.clients, 4)
    defense = made("ddg", sensitivity="client")
    scale = defense.scale(party.public, 4)
    assert scale < defense._longest(party) < scale + math.sqrt(defense.code_count(party.public))


@pytest.mark.parametrize("name", NAMES)
def test_too_few_bits_are_refused_in_one_sentence(name: str) -> None:
    with pytest.raises(UserError, match=r"needs more bits for epsilon 0\.01 in 256 dimensions; given: bits 8\.$"):
        made(name, bits=8, epsilon=0.01).check(public_of("mlp", {"hidden": [2]}, clients=5))
    with pytest.raises(UserError, match=r"needs more bits for 500 clients; given: bits 8\.$"):
        made(name, bits=8).check(public_of("mlp", {"hidden": [2]}, clients=500))


# --- the view ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_server_never_sees_an_integer_without_noise(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a client's rounded values, nor their sum without noise, nor the noise of any client, in any form."""
    run = small_run(made(name))
    noisy = sent_codes(run, run.rounds()[0])
    monkeypatch.setattr(type(run.defense), "integer_noise", lambda self, stream, sigma, count: np.zeros(count, int))
    quiet = sent_codes(run, run.rounds()[0])
    total = sum(quiet.values())
    assert not isinstance(total, int)
    hidden = [*quiet.values(), *noisy.values(), *(noisy[n] - quiet[n] for n in quiet), total]
    view = list(blobs(run.view("server")))
    for codes in hidden:
        for kind in (np.int16, np.int32, np.int64, np.float64):
            assert not any(codes[:6].astype(kind).tobytes() in blob for blob in view)
    assert run.rounds()[0].messages[-1].payload.keys() == {"shares"}
    seen = run.defense.read(run.view("server").of_kind("train")[0], run.public).gradients
    assert set(seen) == {AGGREGATE}


@pytest.mark.parametrize(("bits", "kind"), [(12, torch.int16), (16, torch.int16), (17, torch.int32)])
def test_masked_values_use_the_ring_of_b_bits(bits: int, kind: torch.dtype) -> None:
    run = small_run(made("skellam", bits=bits))
    masked = [m.payload["masked"] for m in run.rounds()[0].messages if m.kind == "update"]
    assert {value.dtype for value in masked} == {kind}
    words = np.concatenate([value.numpy().astype(np.int64) for value in masked]) & (2**32 - 1)
    assert bits == 16 or int(words.max()) < 2**bits
    sums: torch.Tensor = run.rounds()[0].states[SERVER]["round"]["sum"]
    assert sums.dtype == kind


@pytest.mark.parametrize("name", NAMES)
def test_colluders_that_hold_enough_shares_open_a_single_update(name: str) -> None:
    """K = 3, t_bar = 2: two colluders and the server read the victim's own noisy integers."""
    run = small_run(made(name))
    at = run.view("server+clients:2").of_kind("train")[0]
    assert isinstance(run.defense, IntegerShare)
    read = run.defense.read(at, run.public).gradients[VICTIM]
    codes = sent_codes(run, run.rounds()[0])[VICTIM]
    expected = run.defense.decoded(run.public, at.context, codes, 1)["gradient"]
    assert torch.equal(flat(read.values), flat(expected))
