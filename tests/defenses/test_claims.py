"""What the record says of budgets: as claimed, as it composes, and that neither holds."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from leakboard.defenses.mp_dp import MpDp
from leakboard.defenses.noise.calibration import composed_epsilon, gaussian_epsilon, gaussian_mu, gopa_theta
from tests.defenses.makings import create, public_of

BUDGETED = ("mp-dp", "mp-ldp", "mp-cdp", "mp-dp-naive")


def claims(name: str, training: dict[str, Any] | None = None, **settings: Any) -> dict[str, Any]:
    defense = create(name, **settings)
    return defense.claims(public_of(defense=defense, **(training or {})))


@pytest.mark.parametrize("settings", [{}, {"sensitivity": "client"}, {"epsilon": 1e6}, {"epsilon": 0.01}], ids=str)
@pytest.mark.parametrize("name", BUDGETED)
def test_claims_are_plain_json_and_say_that_privacy_does_not_hold(name: str, settings: dict[str, Any]) -> None:
    found = claims(name, **settings)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["epsilon_claimed"] == settings.get("epsilon", 3.0)
    assert found["epsilon_run_exact"] > 0
    assert found["dp_holds"] is False
    assert len(found["reason"]) > 20


def test_the_reasons_name_the_leak() -> None:
    assert "Psi and Phi are sent without noise" in claims("mp-dp")["reason"]
    assert "Psi and Phi are sent without noise" in claims("mp-ldp")["reason"]
    assert "Psi and Phi are sent without noise" in claims("mp-dp-naive")["reason"]
    assert "only if the server is trusted" in claims("mp-cdp")["reason"]


def test_mp_alone_claims_no_budget() -> None:
    assert claims("mp") == {}
    assert create("mp").parameters()["clip"] is None


@pytest.mark.parametrize("name", BUDGETED)
def test_sensitivity_and_compositions(name: str) -> None:
    """A record: 2B / batch, once per epoch. A client: B, every round (docs/decisions.md, 9.1, 9.4)."""
    training = {"rounds": 20, "batch_size": 8, "shard": 32}
    record = claims(name, training)
    assert (record["S_batch"], record["compositions"]) == (2 / 8, 5)
    client = claims(name, training, sensitivity="client", clip=0.5)
    assert (client["S_batch"], client["compositions"]) == (0.5, 20)
    assert create(name).parameters()["clip"] == 1.0


def test_local_noise_composes_by_dp_accounting() -> None:
    found = claims("mp-ldp", {"rounds": 80, "batch_size": 4, "shard": 8}, mode="paper")
    assert found["compositions"] == 40
    assert found["epsilon_run_exact"] == pytest.approx(composed_epsilon(math.sqrt(gopa_theta(3.0)), 40))


NOISY = (*BUDGETED, "mp-dp+", "ldp", "cdp", "tp-smc", "hybridalpha", "ddp", "ddg", "skellam")


@pytest.mark.parametrize("per", ["round", "run"])
@pytest.mark.parametrize("name", NOISY)
def test_epsilon_has_one_meaning_for_every_noisy_defense(name: str, per: str) -> None:
    """By default the exact epsilon of what `epsilon_per` names is the nominal one, for every defense."""
    found = claims(name, {"clients": 6, "rounds": 80, "batch_size": 4, "shard": 8}, epsilon=2.0, epsilon_per=per)
    assert (found["epsilon_claimed"], found["epsilon_per"], found["compositions"]) == (2.0, per, 40)
    assert found[f"epsilon_{per}_exact"] == pytest.approx(2.0, rel=1e-3)
    assert found["epsilon_round_exact"] < found["epsilon_run_exact"]


@pytest.mark.parametrize("name", ["mp-dp", "mp-ldp", "mp-dp-naive", "mp-cdp"])
def test_mode_changes_the_formula_and_never_the_unit(name: str) -> None:
    """With either formula a budget for the run is one for the round of the epsilon that composes to it."""
    training = {"clients": 6, "rounds": 80, "batch_size": 4, "shard": 8}
    share = gaussian_epsilon(gaussian_mu(3.0) / math.sqrt(40))
    for mode in ("paper", "corrected"):
        run, one = (
            claims(name, training, epsilon_per="run", mode=mode),
            claims(name, training, mode=mode, epsilon=share),
        )
        assert run["epsilon_round_exact"] == pytest.approx(one["epsilon_round_exact"])
        assert (run["epsilon_claimed"], run["mode"]) == (3.0, mode)
    assert claims(name, training, mode="paper")["epsilon_round_exact"] != pytest.approx(3.0, rel=1e-2)


@pytest.mark.parametrize("neighbours", [None, 2])
def test_the_corrected_formula_is_exact_on_every_graph(neighbours: int | None) -> None:
    found = claims("mp-dp", {"clients": 6}, neighbours=neighbours, epsilon=2.0)
    assert found["epsilon_round_exact"] == pytest.approx(2.0, rel=1e-6)


@pytest.mark.parametrize(
    ("epsilon", "clients", "neighbours", "exact", "off"),
    [(3.0, 5, None, 2.55, 0.005), (3.0, 100, None, 15.3, 0.05), (3.0, 100, 5, 29.8, 1.5), (100.0, 5, None, 17_409, 1)],
)
def test_the_papers_formula_is_exact_nowhere(
    epsilon: float, clients: int, neighbours: int | None, exact: float, off: float
) -> None:
    """The formula without squares: what a round costs exactly where it says epsilon, if the noise were Gaussian.

    A random graph (n = 5) differs a little from draw to draw.
    """
    found = claims("mp-dp", {"clients": clients}, mode="paper", epsilon=epsilon, neighbours=neighbours)
    assert found["epsilon_round_exact"] == pytest.approx(exact, abs=off)
    assert found["epsilon_claimed"] == epsilon


def test_dwork_and_roths_formula_is_not_valid_above_one() -> None:
    """mp-cdp in the paper's mode: at a large epsilon it spends more than it says; the corrected one never does."""
    assert claims("mp-cdp", mode="paper", epsilon=100.0)["epsilon_round_exact"] > 150
    assert claims("mp-cdp", epsilon=100.0)["epsilon_round_exact"] == pytest.approx(100.0)


def test_random_graphs_are_flagged() -> None:
    assert "graph" not in claims("mp-dp", {"clients": 6})
    assert "graph" not in claims("mp-dp", {"clients": 6}, neighbours=5)  # that is the complete one
    assert "complete-graph formula" in claims("mp-dp", {"clients": 6}, neighbours=2, mode="paper")["graph"]
    assert "exact theta" in claims("mp-dp", {"clients": 6}, neighbours=2)["graph"]


def test_a_sparse_graph_of_the_same_sigmas_protects_less() -> None:
    whole, sparse = (claims("mp-dp", {"clients": 20}, mode="paper", neighbours=n) for n in (None, 1))
    assert sparse["sigma_eta"] == whole["sigma_eta"]
    assert sparse["epsilon_round_exact"] > whole["epsilon_round_exact"]


def test_probe_noise_is_recalibrated_to_the_probe() -> None:
    """The same epsilon with S = 2B / probe_batch."""
    defense = create("mp-dp")
    assert isinstance(defense, MpDp)
    public = public_of(defense=defense)
    batch, probe = (defense.sigmas(public, 3, [(0, 1), (0, 2), (1, 2)], size) for size in (4, 1))
    assert probe.own == pytest.approx(4 * batch.own)
    assert probe.pairwise == pytest.approx(4 * batch.pairwise)
