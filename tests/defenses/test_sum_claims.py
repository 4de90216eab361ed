"""What the new defenses claim in numbers, and what they refuse, each in one sentence."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from leakboard.core.errors import Unsupported, UserError
from leakboard.defenses.building_blocks.clipped import Clipped
from leakboard.defenses.noise.calibration import composed_epsilon, gaussian_epsilon, gaussian_mu
from tests.defenses.makings import create, public_of
from tests.defenses.small import names_of_sums

MU = gaussian_mu(3.0, 1e-5)
GAUSSIAN = ("ldp", "cdp", "tp-smc", "hybridalpha", "ddp")


def claims(name: str, training: dict[str, Any] | None = None, **settings: Any) -> dict[str, Any]:
    defense = create(name, **settings)
    return defense.claims(public_of(defense=defense, **{"clients": 5, **(training or {})}))


@pytest.mark.parametrize("settings", [{}, {"sensitivity": "client"}, {"epsilon": 0.01}, {"clip": None}], ids=str)
@pytest.mark.parametrize("name", GAUSSIAN)
def test_claims_are_plain_json(name: str, settings: dict[str, Any]) -> None:
    found = claims(name, **settings)
    assert json.loads(json.dumps(found, allow_nan=False)) == found


@pytest.mark.parametrize("name", ["pile", "secagg", "mp-dp+", "ddg", "skellam"])
def test_claims_of_the_others_are_plain_json(name: str) -> None:
    found = claims(name)
    assert json.loads(json.dumps(found, allow_nan=False)) == found


@pytest.mark.parametrize(
    ("name", "holds"),
    [
        ("ldp", True),
        ("cdp", False),
        ("tp-smc", True),
        ("hybridalpha", True),
        ("pile", False),
        ("secagg", False),
        ("ddp", True),
    ],
)
def test_who_claims_differential_privacy(name: str, holds: bool) -> None:
    found = claims(name)
    assert found["dp_holds"] is holds
    assert holds or len(found["reason"]) > 20


@pytest.mark.parametrize("name", GAUSSIAN)
def test_without_noise_or_without_clipping_nothing_holds(name: str) -> None:
    assert claims(name, noise=False) | {"dp_holds": False, "reason": "all noise is switched off"} == claims(
        name, noise=False
    )
    unclipped = claims(name, clip=None)
    assert unclipped["dp_holds"] is False
    assert unclipped["epsilon_claimed"] is None


@pytest.mark.parametrize("name", GAUSSIAN)
def test_the_noise_is_that_of_the_analytic_mechanism_and_composes(name: str) -> None:
    """S = 2 B / batch, sigma = S / mu; a record takes part once per epoch: 20 rounds of 4 batches make 5 times."""
    found = claims(name, {"rounds": 20, "batch_size": 8, "shard": 32})
    assert (found["S_batch"], found["compositions"], found["epsilon_claimed"]) == (2 / 8, 5, 3.0)
    assert found["epsilon_run_exact"] == pytest.approx(composed_epsilon(MU, 5, 1e-5))
    defense = create(name)
    assert isinstance(defense, Clipped)
    assert defense.sigma(public_of(defense=defense), 8) == pytest.approx(2 / 8 / MU)
    assert gaussian_epsilon(MU, 1e-5) == pytest.approx(3.0)


def test_local_noise_is_k_times_the_central_one() -> None:
    assert claims("ldp")["sigma_local"] == pytest.approx(5 * claims("cdp")["sigma_central"])


@pytest.mark.parametrize("name", ["tp-smc", "hybridalpha"])
def test_what_a_noisy_share_gives_against_each_threat(name: str) -> None:
    """K = 5, t = 3: the server alone faces 5/2 of the variance that is claimed, with all keys only half of it."""
    found = claims(name)
    by_threat = found["epsilon_round_by_threat"]
    assert by_threat["server"] < found["epsilon_claimed"] < by_threat["server+keys"]
    assert by_threat["server"] == pytest.approx(gaussian_epsilon(MU / math.sqrt(5 / 2), 1e-5))
    assert by_threat["server+keys"] == pytest.approx(gaussian_epsilon(MU * math.sqrt(2), 1e-5))
    assert found["sigma_share"] == pytest.approx(2 / 4 / MU / math.sqrt(2))


@pytest.mark.parametrize("name", ["tp-smc", "hybridalpha", "ddp", "ddp-mf", "mp-dp+", "ddg", "skellam"])
def test_who_drops_out_before_its_update_adds_no_noise_against_any_threat(name: str) -> None:
    """K = 5, t = 3: one missing client leaves 4 of 5 noises; a second one loses the round; one that sent is there."""

    def against(*steps: str) -> dict[str, float]:
        gone = [{"client": client, "round": 1, "step": step} for client, step in enumerate(steps)]
        found = claims(name, {"rounds": 3, "dropouts": gone})
        return {span: found[f"epsilon_{span}_by_threat"]["server"] for span in ("round", "total")}

    nobody, one = against(), against("update")
    assert one["round"] > nobody["round"]
    assert one["total"] > nobody["total"]
    assert against("aggregate", "aggregate") == nobody
    assert against("update", "update") == one
    if name in ("tp-smc", "hybridalpha", "ddp", "mp-dp+"):
        assert one["round"] == pytest.approx(gaussian_epsilon(MU / math.sqrt(4 / 2), 1e-5))


@pytest.mark.parametrize(
    ("clients", "honest", "t", "t_bar"),
    [(2, None, 2, 1), (3, None, 2, 2), (5, None, 3, 3), (100, None, 51, 50), (5, 2, 2, 4), (5, 5, 5, 1)],
)
def test_how_many_are_honest_and_how_many_decrypt(clients: int, honest: int | None, t: int, t_bar: int) -> None:
    """t = floor(K/2) + 1 unless told, t_bar = K - t + 1 (docs/decisions.md, 2.1)."""
    training = {"clients": clients}
    assert claims("tp-smc", training, honest=honest)["honest_clients"] == t
    assert claims("tp-smc", training, honest=honest)["clients_to_decrypt"] == t_bar
    assert claims("pile", training, honest=honest)["clients_to_decrypt"] == t_bar
    assert claims("secagg", training, honest=honest)["clients_to_unmask"] == t_bar


def test_sizes_of_the_cryptography_are_claimed() -> None:
    for name in ("tp-smc", "pile"):
        assert {"key_bits": 2048, "crypto": "sampled"}.items() <= claims(name).items()
        assert claims(name, key_bits=1024, crypto="real")["key_bits"] == 1024
    found = claims("hybridalpha", keys="shared", crypto="real")
    assert {"group_bits": 2048, "keys": "shared", "crypto": "real"}.items() <= found.items()


@pytest.mark.parametrize("span", ["round", "total"])
def test_hybridalpha_with_shared_keys_counts_single_updates_as_open_to_the_server(span: str) -> None:
    """`mix-and-match` takes them apart: one client's noise is all that protects it, in a round and over all of them."""
    found = {keys: claims("hybridalpha", keys=keys) for keys in ("shared", "per-slot")}
    by_threat = {keys: claim[f"epsilon_{span}_by_threat"] for keys, claim in found.items()}
    assert by_threat["shared"]["server"] == by_threat["shared"]["server+keys"]
    assert by_threat["per-slot"]["server"] < by_threat["per-slot"]["server+keys"]


# --- bad input ---------------------------------------------------------------------------------


def refusal(name: str, settings: dict[str, Any], model: dict[str, Any] | None = None, **training: Any) -> str:
    """The sentence by which a defense is refused, made or checked."""
    with pytest.raises(UserError) as caught:
        create(name, **settings).check(public_of(**(model or {}), **training))
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("name", names_of_sums())
def test_a_wrong_number_of_honest_clients(name: str) -> None:
    assert f"'{name}' needs at least 4 clients per round; given: 3." in refusal(name, {"honest": 4}, clients=3)
    assert "needs at least 3 clients per round; given: 2." in refusal(name, {"honest": 3}, clients=9, participants=2)
    assert "needs at least 2 clients per round; given: 1." in refusal(name, {}, clients=1)
    assert "'honest' is wrong: it must be greater than or equal to 2; given: 1." in refusal(name, {"honest": 1})
    create(name, honest=3).check(public_of(clients=3))


@pytest.mark.parametrize("name", ["tp-smc", "pile"])
@pytest.mark.parametrize(
    ("bits", "reason"),
    [(255, "a multiple of 8"), (120, "greater than or equal to 128"), (8200, "less than or equal to 8192")],
)
def test_a_wrong_key_size(name: str, bits: int, reason: str) -> None:
    found = refusal(name, {"key_bits": bits})
    assert f"'key_bits' is wrong: it must be {reason}; given: {bits}." in found


@pytest.mark.parametrize("name", [*(name for name in names_of_sums() if name != "secagg"), "ldp", "cdp"])
def test_batch_norm_is_refused_without_local_steps(name: str) -> None:
    model: dict[str, Any] = {"model": "convnet", "parameters": {"norm": "batch"}, "shape": (1, 16, 16)}
    with pytest.raises((UserError, Unsupported), match=r"batch norm|BatchNorm") as caught:
        create(name).check(public_of(**model))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["pile", "mp-dp+"])
def test_cross_entropy_cannot_be_perturbed(name: str) -> None:
    assert "needs loss 'mse'" in refusal(name, {}, loss="ce")


@pytest.mark.parametrize("name", ["tp-smc", "hybridalpha", "secagg", "ldp", "cdp", "grad-prune"])
def test_the_others_train_with_cross_entropy(name: str) -> None:
    create(name).check(public_of(loss="ce"))


def test_other_wrong_settings() -> None:
    assert "'keys' is wrong" in refusal("hybridalpha", {"keys": "improved"})
    assert "'crypto' is wrong" in refusal("pile", {"crypto": "none"})
    assert "'ratio' is wrong" in refusal("grad-prune", {"ratio": 1.0})
    assert "'gamma' is wrong" in refusal("mp-dp+", {"gamma": 0})
    assert "'sample_values' is wrong" in refusal("tp-smc", {"sample_values": -1})
    assert "'value_range' is wrong" in refusal("secagg", {"value_range": 0})
