"""What the record says of budgets: as claimed, as it composes, and that neither holds."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from defenses.mp_dp import MpDp
from defenses.noise.calibration import composed_epsilon, gopa_theta
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
    assert (found["epsilon_total_if_gaussian"] > 0) == (settings.get("epsilon") != 0.01 or name != "mp-dp")
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
    """A record: 2B / batch, once an epoch. A client: B, every round (docs/decisions.md, 9.1, 9.4)."""
    training = {"rounds": 20, "batch_size": 8, "shard": 32}
    record = claims(name, training)
    assert (record["S_batch"], record["compositions"]) == (2 / 8, 5)
    client = claims(name, training, sensitivity="client", clip=0.5)
    assert (client["S_batch"], client["compositions"]) == (0.5, 20)
    assert create(name).parameters()["clip"] == 1.0


def test_local_noise_composes_by_dp_accounting() -> None:
    found = claims("mp-ldp", {"rounds": 80, "batch_size": 4, "shard": 8})
    assert found["compositions"] == 40
    assert found["epsilon_total_if_gaussian"] == pytest.approx(composed_epsilon(math.sqrt(gopa_theta(3.0)), 40))


@pytest.mark.parametrize("neighbours", [None, 2])
def test_corrected_mode_spends_the_total_that_was_asked(neighbours: int | None) -> None:
    training = {"clients": 6, "rounds": 80, "batch_size": 4, "shard": 8}
    found = claims("mp-dp", training, mode="corrected", neighbours=neighbours, epsilon=2.0)
    assert found["mode"] == "corrected"
    assert found["epsilon_total_if_gaussian"] == pytest.approx(2.0, rel=1e-3)
    assert found["epsilon_round_if_gaussian"] < 1.0


def test_paper_mode_takes_epsilon_a_round() -> None:
    """K = 100: the formula without squares gives a true 15.3 a round where it says 3."""
    found = claims("mp-dp", {"clients": 100, "rounds": 2})
    assert found["mode"] == "paper"
    assert found["epsilon_round_if_gaussian"] == pytest.approx(15.3, abs=0.05)
    assert found["epsilon_total_if_gaussian"] >= found["epsilon_round_if_gaussian"] - 0.01


def test_random_graphs_are_flagged() -> None:
    assert "graph" not in claims("mp-dp", {"clients": 6})
    assert "graph" not in claims("mp-dp", {"clients": 6}, neighbours=5)  # that is the complete one
    assert "complete-graph formula" in claims("mp-dp", {"clients": 6}, neighbours=2)["graph"]
    assert "exact theta" in claims("mp-dp", {"clients": 6}, neighbours=2, mode="corrected")["graph"]


def test_a_sparse_graph_of_the_same_sigmas_protects_less() -> None:
    whole, sparse = claims("mp-dp", {"clients": 20}), claims("mp-dp", {"clients": 20}, neighbours=1)
    assert sparse["sigma_eta"] == whole["sigma_eta"]
    assert sparse["epsilon_round_if_gaussian"] > whole["epsilon_round_if_gaussian"]


def test_probe_noise_is_recalibrated_to_the_probe() -> None:
    """The same epsilon with S = 2B / probe_batch."""
    defense = create("mp-dp")
    assert isinstance(defense, MpDp)
    public = public_of(defense=defense)
    batch, probe = (defense.sigmas(public, 3, [(0, 1), (0, 2), (1, 2)], size) for size in (4, 1))
    assert probe.own == pytest.approx(4 * batch.own)
    assert probe.pairwise == pytest.approx(4 * batch.pairwise)
