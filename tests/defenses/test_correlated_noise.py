"""mf: factors, sensitivity and noise of a run are those of the definition, and a band of 1 is cdp."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from scipy.linalg import toeplitz

from leakboard.core.errors import UserError
from leakboard.defenses.base import AGGREGATE
from leakboard.defenses.ddp_mf import DdpMf
from leakboard.defenses.mf import Mf
from leakboard.defenses.noise import correlated
from leakboard.defenses.noise.calibration import gaussian_epsilon, gaussian_mu
from leakboard.federation.settings import SERVER, Dropout, ObservedRounds
from tests.defenses.makings import Run, create, flat, key, public_of
from tests.defenses.small import chi_square_fits, small_run, velocity

FALSE_ALARM = 1e-6
WIDE: dict[str, Any] = {"shape": (1, 8, 8), "hidden": (64,), "learning_rate": 1e-12, "shard": 16}


def mf(**parameters: Any) -> Mf:
    made = create("mf", **parameters)
    assert isinstance(made, Mf)
    return made


def lower(band: correlated.Floats, count: int) -> correlated.Floats:
    """The lower triangular Toeplitz matrix of a band."""
    column = np.zeros(count)
    column[: min(len(band), count)] = band[:count]
    found: correlated.Floats = toeplitz(column, np.zeros(count))
    return found


# --- the factors ---------------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_the_factor_is_the_square_root_of_the_workload(momentum: float) -> None:
    """A[t, s] = 1 + beta + ... + beta^(t - s): how SGD with momentum adds up its gradients."""
    root = lower(correlated.square_root(12, momentum), 12)
    steps = lower(np.power(momentum, np.arange(12), dtype=np.float64), 12)
    assert np.allclose(root @ root, lower(np.ones(12), 12) @ steps, atol=1e-12)
    assert np.allclose(lower(correlated.workload(12, momentum), 12), lower(np.ones(12), 12) @ steps)
    band = correlated.square_root(60, momentum)
    assert bool((np.diff(band) < 0).all())  # what the bound on the sensitivity needs
    assert float(band.min()) > 0


@pytest.mark.parametrize(
    ("rounds", "epoch", "width"), [(8, 4, 1), (8, 4, 2), (8, 4, 4), (9, 3, 3), (10, 5, 3), (7, 3, 2)]
)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_no_participation_moves_more_than_the_sensitivity(rounds: int, epoch: int, width: int, momentum: float) -> None:
    """Every way to be in one round of each epoch, by brute force; the bound is met but for the end of the run."""
    band = correlated.square_root(width, momentum)
    times = math.ceil(rounds / epoch)
    bound = correlated.sensitivity(band, rounds, times, epoch)
    matrix = lower(band, rounds)
    blocks = [range(start, min(start + epoch, rounds)) for start in range(0, rounds, epoch)]
    found = max(float(np.linalg.norm(matrix[:, list(rows)].sum(1))) for rows in product(*blocks))
    assert found <= bound + 1e-12
    assert found > 0.8 * bound
    if width == 1:
        assert bound == pytest.approx(math.sqrt(times))


def test_signs_and_directions_do_not_help() -> None:
    """A neighbour may move each round in another direction: with coefficients that are not negative, one is worst."""
    matrix = lower(correlated.square_root(4), 8)[:, [3, 4]]
    bound = correlated.sensitivity(correlated.square_root(4), 8, 2, 4)
    for index in range(200):
        moved = key("directions", index).normal(2, 5)
        moved /= np.linalg.norm(moved, axis=1, keepdims=True)
        assert float(np.linalg.norm(matrix @ moved)) <= bound + 1e-12


def test_a_client_in_every_round() -> None:
    band = correlated.square_root(3)
    assert correlated.sensitivity_in_every_round(band, 7) == pytest.approx(
        float(np.linalg.norm(lower(band, 7) @ np.ones(7)))
    )


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_accumulated_noise_is_that_of_the_matrices(momentum: float) -> None:
    band = correlated.square_root(4, momentum)
    whole = lower(correlated.workload(9, momentum), 9) @ np.linalg.inv(lower(band, 9))
    assert correlated.accumulated(band, 9, momentum) == pytest.approx(float(np.linalg.norm(whole[-1])))


def test_a_band_longer_than_an_epoch_is_not_covered() -> None:
    with pytest.raises(ValueError, match="at most 3 coefficients are covered; given: 4"):
        correlated.sensitivity(correlated.square_root(4), 9, 3, 3)


# --- in a run -------------------------------------------------------------------------------------


def noises(run: Run, clean: Run) -> torch.Tensor:
    """What was added to the mean of each round (rounds, D), in units of z."""
    defense = run.defense
    assert isinstance(defense, Mf)
    sigma = defense.sigma(run.public, 4) / 3
    pairs = zip(run.rounds(), clean.rounds(), strict=True)
    return torch.stack([(velocity(noisy) - velocity(bare)) / sigma for noisy, bare in pairs])


def test_the_noise_of_a_run_becomes_independent_when_the_band_is_applied() -> None:
    """C n = z: independent, of deviation 1, in every round; n itself is anticorrelated from round to round."""
    run, clean = (small_run(mf(band=3, noise=noise), rounds=6, **WIDE) for noise in (True, False))
    found = noises(run, clean)
    assert isinstance(run.defense, Mf)
    white = torch.from_numpy(lower(run.defense.coefficients(run.public), 6)) @ found
    for row in white:
        assert chi_square_fits(float(row.square().sum()), len(row), FALSE_ALARM)
    apart = torch.corrcoef(white) - torch.eye(6)
    assert float(apart.abs().max()) < 6 / math.sqrt(found.shape[1])
    assert float(torch.corrcoef(found)[0, 1]) < -0.3
    assert len(run.rounds()[-1].states[SERVER]["noise"]) == 2


def test_a_band_of_one_is_cdp_of_the_same_run() -> None:
    """The same stream and the same deviation; the kept noise is float32."""
    run, plain = (small_run(create(name, **given), rounds=3) for name, given in (("mf", {"band": 1}), ("cdp", {})))
    for one, two in zip(run.rounds(), plain.rounds(), strict=True):
        assert torch.allclose(velocity(one), velocity(two), atol=1e-6)
    assert run.rounds()[-1].states[SERVER]["noise"] == []


def test_probes_leave_the_noise_of_the_next_round_alone() -> None:
    watched = small_run(mf(), rounds=3, observe=ObservedRounds(rounds=("first", "middle"), targets=2))
    assert torch.equal(flat(watched.outcome.model), flat(small_run(mf(), rounds=3).outcome.model))


def test_a_dropout_makes_the_mean_noisier_and_breaks_nothing() -> None:
    gone = (Dropout(client=2, round=0, step="update"),)
    run, clean = (small_run(mf(band=2, noise=noise), rounds=2, dropouts=gone, **WIDE) for noise in (True, False))
    assert isinstance(run.defense, Mf)
    first = (velocity(run.rounds()[0]) - velocity(clean.rounds()[0])) / (run.defense.sigma(run.public, 4) / 2)
    assert chi_square_fits(float(first.square().sum()), len(first), FALSE_ALARM)


def test_a_lost_round_takes_its_noise_with_it() -> None:
    """Batches go on in a lost round, so the noise must: round 2 cancels part of the noise of round 1, which was lost.

    C without its row of the lost round is what remains of one mechanism; noise that waits would move a record by more.
    """
    lost = tuple(Dropout(client=client, round=1, step="update") for client in range(3))
    run, clean = (small_run(mf(band=2, noise=noise), rounds=3, dropouts=lost, **WIDE) for noise in (True, False))
    whole = noises(*(small_run(mf(band=2, noise=noise), rounds=3, **WIDE) for noise in (True, False)))
    assert isinstance(run.defense, Mf)
    sigma = run.defense.sigma(run.public, 4) / 3
    for index in (0, 2):
        found = (velocity(run.rounds()[index]) - velocity(clean.rounds()[index])) / sigma
        assert torch.allclose(found, whole[index], atol=1e-5)


def test_noise_that_waits_for_a_lost_round_would_need_more() -> None:
    """Why: on the axis of such noise three uses of a record fit into one epoch, which the bound excludes."""
    band = correlated.square_root(4)
    bound = correlated.sensitivity(band, 12, 3, 4)
    kept = [index for index in range(12) if index not in (5, 6, 7)]  # rounds 5 to 7 are lost
    uses = [kept.index(index) for index in (3, 4, 8)]  # one round of each epoch
    assert float(np.linalg.norm(lower(band, 12)[:, uses].sum(1))) > bound
    assert float(np.linalg.norm(lower(band, 12)[:, [3, 4, 8]].sum(1))) <= bound


# --- in shares ------------------------------------------------------------------------------------


def shared(**parameters: Any) -> DdpMf:
    made = create("ddp-mf", **parameters)
    assert isinstance(made, DdpMf)
    return made


def test_shares_of_correlated_noise_add_up_to_correlated_noise() -> None:
    """C applied to the noise of the sums gives independent noise of K shares; `deviations` is that of each round."""
    run, clean = (small_run(shared(band=3, noise=noise), rounds=6, **WIDE) for noise in (True, False))
    share = shared(band=3).share_sigma(run.public, 4) / math.sqrt(3)
    pairs = zip(run.rounds(), clean.rounds(), strict=True)
    found = torch.stack([(velocity(noisy) - velocity(bare)) / share for noisy, bare in pairs])
    band = shared(band=3).coefficients(run.public)
    for row in torch.from_numpy(lower(band, 6)) @ found:
        assert chi_square_fits(float(row.square().sum()), len(row), FALSE_ALARM)
    for row, deviation in zip(found, correlated.deviations(band, 6), strict=True):
        assert chi_square_fits(float(row.square().sum()) / deviation**2, len(row), FALSE_ALARM)
    assert float(torch.corrcoef(found)[0, 1]) < -0.3
    assert run.outcome.ledger.worst["saturated_share"] == 0


def test_the_noise_of_a_probe_is_that_of_the_next_round() -> None:
    """Probes run after the training step; the last one has one round more than the training."""
    seen = ObservedRounds(rounds=("first", "last"), targets=1)
    run, clean = (small_run(shared(band=2, noise=noise), rounds=2, observe=seen, **WIDE) for noise in (True, False))
    for kind in ("train", "probe"):
        assert len(run.rounds(kind)) == 2
        for noisy, bare in zip(run.rounds(kind), clean.rounds(kind), strict=True):
            added, nothing = (
                flat(r.defense.read(o, r.public).gradients[AGGREGATE].values) for r, o in ((run, noisy), (clean, bare))
            )
            scale = flat(run.defense.noise_scale(noisy, run.public)[AGGREGATE].deviation)
            whole = float(((added - nothing) / scale).square().sum())
            assert chi_square_fits(whole, len(scale), FALSE_ALARM), (kind, noisy.context.round)


def test_a_band_of_one_is_ddp() -> None:
    run, plain = (small_run(create(name, **given), rounds=2) for name, given in (("ddp-mf", {"band": 1}), ("ddp", {})))
    assert torch.allclose(flat(run.outcome.model), flat(plain.outcome.model), atol=1e-6)


def test_shares_cost_over_the_run_what_ddp_costs_against_every_threat() -> None:
    training: dict[str, Any] = {"clients": 5, "rounds": 40, "batch_size": 4, "shard": 40}
    found, plain = (create(name).claims(public_of(defense=create(name), **training)) for name in ("ddp-mf", "ddp"))
    assert found["epsilon_total_by_threat"] == pytest.approx(plain["epsilon_total_by_threat"])
    assert found["epsilon_run_exact"] == pytest.approx(plain["epsilon_run_exact"])
    assert found["epsilon_round_exact"] < plain["epsilon_round_exact"] == pytest.approx(3.0)
    assert found["dp_holds"] is True
    assert found["final_noise_over_independent"] < 0.6


def test_clients_that_come_and_go_are_refused() -> None:
    with pytest.raises(UserError, match=r"needs all 5 clients in every round.*given: participants 3\.$"):
        shared().check(public_of(clients=5, participants=3))
    gone = [{"client": client, "round": client, "step": "update"} for client in (0, 1)]
    with pytest.raises(UserError, match=r"lets one client drop out at most; given: 2\.$"):
        shared().check(public_of(clients=5, dropouts=gone))
    same_round = [{**one, "round": 0} for one in gone]  # it would be lost, and the two would be a round behind
    with pytest.raises(UserError, match=r"lets one client drop out at most; given: 2\.$"):
        shared().check(public_of(clients=5, dropouts=same_round))
    with pytest.raises(UserError, match=r"lets no client drop out where it takes all 5.*given: client 0 drops out\.$"):
        shared(honest=5).check(public_of(clients=5, dropouts=gone[:1]))
    shared().check(public_of(clients=5, dropouts=gone[:1]))
    shared().check(public_of(clients=5, dropouts=[{**one, "step": "unmask"} for one in gone]))


# --- claims ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("per", ["round", "run"])
def test_the_run_costs_what_cdp_s_costs_and_the_final_noise_is_smaller(per: str) -> None:
    """100 rounds of 10 epochs, momentum 0.9: half of the accumulated noise at the same exact epsilon."""
    training: dict[str, Any] = {"clients": 5, "rounds": 100, "batch_size": 4, "shard": 40}
    found, plain = (
        create(name, epsilon_per=per).claims(public_of(defense=create(name), **training)) for name in ("mf", "cdp")
    )
    assert found["epsilon_run_exact"] == pytest.approx(plain["epsilon_run_exact"])
    assert found["epsilon_round_exact"] < plain["epsilon_round_exact"]
    assert found["final_noise_over_independent"] == pytest.approx(0.498, abs=0.001)
    assert (found["dp_holds"], found["epsilon_against"]) == (False, ["client"])  # the server is trusted, as in cdp


def test_the_noise_is_one_gaussian_mechanism_for_the_run() -> None:
    defense = mf(epsilon_per="run", band=4)
    public = public_of(defense=defense, clients=5, rounds=40, batch_size=4, shard=40)
    multiplier = defense.sigma(public, 4) / defense.size(4) / defense.moves(public)
    assert multiplier == pytest.approx(1 / gaussian_mu(3.0))
    assert gaussian_epsilon(1 / multiplier) == pytest.approx(3.0)


def test_the_band_is_at_most_an_epoch() -> None:
    """Else a record's uses in three epochs would overlap, and the bound would not hold."""
    assert len(mf(band=50).coefficients(public_of(batch_size=4, shard=40, rounds=100))) == 10
    assert len(mf(band=50).coefficients(public_of(batch_size=4, shard=40, rounds=3))) == 3
    assert len(mf(band=50, sensitivity="client").coefficients(public_of(batch_size=4, shard=40, rounds=100))) == 50
