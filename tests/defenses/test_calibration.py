"""From epsilon to sigma and back, against docs/decisions.md 5, the closed forms and dp-accounting."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from leakboard.defenses.noise.calibration import (
    DELTA,
    KAPPA,
    Edge,
    Sigmas,
    composed_epsilon,
    corrected_sigmas,
    exact_theta,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
    gopa_sigmas,
    gopa_theta,
    local_sigma,
    paper_sigmas,
)
from leakboard.defenses.noise.graph import choose_neighbours, complete_edges, union_edges
from tests.defenses.makings import key

epsilons = st.floats(0.05, 50.0)


def three_digits(value: float) -> float:
    return float(f"{value:.3g}")


def n_out(clients: int, n: int, seed: int = 0) -> list[Edge]:
    stream = key("graph", clients, n, seed)
    return union_edges({own: choose_neighbours(stream, own, range(clients), n) for own in range(clients)})


def closed_form(sigmas: Sigmas, n: int) -> float:
    """theta on the complete graph (docs/decisions.md, 5)."""
    return 1 / (n * sigmas.own**2) + (1 - 1 / n) / (sigmas.own**2 + n * sigmas.pairwise**2)


@pytest.mark.parametrize(
    ("epsilon", "theta", "five", "hundred"),
    [
        (1.0, 0.0424, (2.28, 7.20), (0.509, 1.61)),
        (3.0, 0.353, (0.789, 2.50), (0.176, 0.558)),
        (8.0, 2.13, (0.321, 1.02), (0.0719, 0.227)),
    ],
)
def test_the_numbers_of_section_5_3(
    epsilon: float, theta: float, five: tuple[float, float], hundred: tuple[float, float]
) -> None:
    assert three_digits(gopa_theta(epsilon)) == theta
    for clients, expected in ((5, five), (100, hundred)):
        found = gopa_sigmas(epsilon, clients)
        assert (three_digits(found.own), three_digits(found.pairwise)) == expected


def test_the_tight_sigma_without_a_bound_on_the_pairwise_noise() -> None:
    assert three_digits(1 / (math.sqrt(5) * gaussian_mu(3.0))) == 0.622
    assert three_digits(1 / (math.sqrt(100) * gaussian_mu(3.0))) == 0.139


def test_the_papers_formula_lost_its_squares() -> None:
    """.037 instead of .176 at K = 100 and epsilon 3, whose true epsilon is 15.3."""
    found = paper_sigmas(3.0, 100)
    assert found.own == pytest.approx(0.0373, abs=5e-5)
    assert found.pairwise == pytest.approx(math.sqrt(KAPPA) * found.own)
    theta = (1 / found.own + 1 / found.pairwise) / 100
    assert theta == pytest.approx(gopa_theta(3.0))
    assert gaussian_epsilon(math.sqrt(closed_form(found, 100))) == pytest.approx(15.3, abs=0.05)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0, 8.0, 50.0])
def test_both_of_gopas_conditions_hold_and_one_is_tight(epsilon: float) -> None:
    theta = gopa_theta(epsilon)
    first = epsilon - theta / 2 - math.sqrt(theta)
    second = (epsilon - theta / 2) ** 2 - 2 * math.log(2 / (DELTA * math.sqrt(2 * math.pi))) * theta
    assert first > -1e-9
    assert second > -1e-9
    assert min(abs(first), abs(second)) < 1e-6


# --- theta on a graph -----------------------------------------------------------------------


def test_the_example_of_section_5_1() -> None:
    sigmas = Sigmas(0.7, 7.0)
    assert exact_theta(sigmas, 5, complete_edges(range(5))) == pytest.approx(0.411422, abs=5e-7)
    assert closed_form(sigmas, 5) == pytest.approx(0.411422, abs=5e-7)
    assert pytest.approx(0.412245, abs=5e-7) == (1 / 0.7**2 + 1 / 7.0**2) / 5


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 30), own=st.floats(0.01, 10), pairwise=st.floats(0.01, 100))
def test_complete_graphs_have_the_closed_form_below_gopas_bound(n: int, own: float, pairwise: float) -> None:
    sigmas = Sigmas(own, pairwise)
    theta = exact_theta(sigmas, n, complete_edges(range(n)))
    assert theta == pytest.approx(closed_form(sigmas, n), rel=1e-6)
    assert theta <= (1 / own**2 + 1 / pairwise**2) / n * (1 + 1e-6) or n == 1


@settings(max_examples=40, deadline=None)
@given(n=st.integers(2, 12), choices=st.integers(1, 3), seed=st.integers(0, 1000), own=st.floats(0.05, 5))
def test_exact_theta_is_the_worst_entry_of_the_inverse(n: int, choices: int, seed: int, own: float) -> None:
    """Against e_k^T Sigma^{-1} e_k with Sigma built from the noise that the clients add, not from a Laplacian."""
    edges = n_out(n, min(choices, n - 1), seed)
    incidence = np.zeros((n, len(edges)))
    for column, (a, b) in enumerate(edges):
        incidence[a, column], incidence[b, column] = 1.0, -1.0
    covariance = own**2 * np.eye(n) + (3 * own) ** 2 * incidence @ incidence.T
    worst = max(float(np.linalg.solve(covariance, unit)[k]) for k, unit in enumerate(np.eye(n)))
    assert exact_theta(Sigmas(own, 3 * own), n, edges) == pytest.approx(worst, rel=1e-8)


@pytest.mark.parametrize(("colluders", "expected"), [(0, 2.39), (1, 2.70), (2, 3.17), (3, 3.96), (4, 5.77)])
def test_colluding_neighbours(colluders: int, expected: float) -> None:
    honest = 5 - colluders
    theta = exact_theta(gopa_sigmas(3.0, 5), honest, complete_edges(range(honest)))
    assert gaussian_epsilon(math.sqrt(theta)) == pytest.approx(expected, abs=0.005)


@pytest.mark.parametrize(("n", "low", "high"), [(5, 4.0, 4.6), (10, 3.1, 3.4), (20, 2.6, 2.8)])
def test_sparse_graphs_protect_less(n: int, low: float, high: float) -> None:
    """K = 100 with the complete graph's sigmas (docs/decisions.md, 5, a random graph: hence a range)."""
    theta = exact_theta(gopa_sigmas(3.0, 100), 100, n_out(100, n))
    assert low < gaussian_epsilon(math.sqrt(theta)) < high


@settings(max_examples=40, deadline=None)
@given(clients=st.integers(2, 40), n=st.integers(1, 6), seed=st.integers(0, 1000))
def test_a_random_graph_gives_everybody_at_least_n_neighbours(clients: int, n: int, seed: int) -> None:
    n = min(n, clients - 1)
    edges = n_out(clients, n, seed)
    degree = [sum(own in edge for edge in edges) for own in range(clients)]
    assert min(degree) >= n
    assert all(a < b for a, b in edges)
    assert len(set(edges)) == len(edges) <= n * clients
    assert n < clients - 1 or edges == complete_edges(range(clients))


# --- epsilon --------------------------------------------------------------------------------


def test_the_analytic_gaussian_mechanism_against_its_published_value_and_an_integral() -> None:
    assert 1 / gaussian_mu(1.0, 1e-5) == pytest.approx(3.730632, abs=1e-5)  # Balle and Wang's own code
    for mu, epsilon in ((0.3, 0.1), (1.0, 1.0), (2.5, 6.0)):
        start = epsilon / mu + mu / 2  # where the likelihood ratio exceeds e^epsilon
        integral, _ = quad(lambda x, m=mu, e=epsilon: norm.pdf(x - m) - math.exp(e) * norm.pdf(x), start, start + 40)
        assert gaussian_delta(mu, epsilon) == pytest.approx(integral, rel=1e-6)


@pytest.mark.parametrize(("times", "expected", "digits"), [(10, 9.3, 0.05), (100, 42.0, 0.5), (3900, 846.0, 0.5)])
def test_composition_of_epsilon_3(times: int, expected: float, digits: float) -> None:
    mu = math.sqrt(gopa_theta(3.0))
    found = composed_epsilon(mu, times)
    assert found == pytest.approx(expected, abs=digits)
    assert found == pytest.approx(gaussian_epsilon(mu * math.sqrt(times)), rel=1e-3)


def test_dp_accounting_composes_rounds_to_the_same_epsilon() -> None:
    """The shortcut (T rounds are one Gaussian of sqrt(T) mu) against the accountant's own composition."""
    import dp_accounting
    from dp_accounting import pld

    accountant = pld.PLDAccountant()
    accountant.compose(dp_accounting.GaussianDpEvent(1 / 0.2), 30)
    assert composed_epsilon(0.2, 30) == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-3)


def test_nothing_costs_nothing() -> None:
    assert composed_epsilon(0.0, 10) == 0.0
    assert composed_epsilon(1.0, 0) == 0.0
    assert gaussian_epsilon(0.0) == 0.0
    assert gaussian_epsilon(1e-7) == 0.0
    assert gaussian_epsilon(math.inf) == math.inf


@pytest.mark.parametrize(("times", "expected"), [(100, 0.238), (3900, 0.032)])
def test_a_total_of_3_leaves_this_much_a_round(times: int, expected: float) -> None:
    assert gaussian_epsilon(gaussian_mu(3.0) / math.sqrt(times)) == pytest.approx(expected, abs=5e-4)


@pytest.mark.parametrize("edges", [complete_edges(range(6)), n_out(6, 2)], ids=["complete", "2-out"])
@pytest.mark.parametrize(("epsilon", "times"), [(1.0, 1), (3.0, 100), (8.0, 7)])
def test_corrected_sigmas_spend_exactly_what_was_asked(epsilon: float, times: int, edges: list[Edge]) -> None:
    sigmas = corrected_sigmas(gaussian_mu(epsilon) / math.sqrt(times), 6, edges)
    theta = exact_theta(sigmas, 6, edges)
    assert composed_epsilon(math.sqrt(theta), times) == pytest.approx(epsilon, rel=1e-3)
    assert sigmas.pairwise == pytest.approx(math.sqrt(KAPPA) * sigmas.own)


@settings(max_examples=40, deadline=None)
@given(epsilon=epsilons, more=st.floats(1.01, 5.0), clients=st.integers(2, 100))
def test_noise_shrinks_with_epsilon_and_with_clients(epsilon: float, more: float, clients: int) -> None:
    small = complete_edges(range(min(clients, 8)))
    size = min(clients, 8)
    assert gopa_sigmas(epsilon, clients).own > gopa_sigmas(more * epsilon, clients).own
    assert paper_sigmas(epsilon, clients).own > paper_sigmas(more * epsilon, clients).own
    assert local_sigma(epsilon) > local_sigma(more * epsilon)
    assert gopa_sigmas(epsilon, clients + 1).own < gopa_sigmas(epsilon, clients).own < local_sigma(epsilon) * 1.05
    mu = gaussian_mu(epsilon)
    assert corrected_sigmas(more * mu, size, small).own == pytest.approx(corrected_sigmas(mu, size, small).own / more)


@settings(max_examples=60, deadline=None)
@given(epsilon=st.floats(0.01, 1e4), delta=st.floats(1e-9, 0.1))
def test_mu_and_epsilon_are_inverse(epsilon: float, delta: float) -> None:
    assert gaussian_epsilon(gaussian_mu(epsilon, delta), delta) == pytest.approx(epsilon, rel=1e-6, abs=1e-8)


@given(factor=st.floats(1e-3, 1e3))
def test_sensitivity_scales_both_sigmas(factor: float) -> None:
    scaled = Sigmas(0.5, 2.0).times(factor)
    assert (scaled.own, scaled.pairwise) == (0.5 * factor, 2.0 * factor)
