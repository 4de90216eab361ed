"""Secure aggregation by masks: exact whoever drops out when, and nothing but uniform numbers on the way."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from leakboard.contract.worlds import holds
from leakboard.defenses.building_blocks.secure_sum import SecureSum
from leakboard.defenses.crypto import shamir
from leakboard.federation.settings import SERVER, Dropout, ObservedRounds, client_name
from leakboard.federation.transcript import Observation
from tests.defenses.makings import Run, create, flat
from tests.defenses.small import chi_square_fits, mean_bound, names_of_sums, quiet, small_run, sums, velocity

ROUNDING = 1e-13  # of the clients' own float64 computation; gradients here are below 1
FALSE_ALARM = 1e-6
MASKED = [name for name in names_of_sums() if isinstance(create(name), SecureSum)]
CLIENT_STEPS = [step.name for step in create("secagg").protocol() if step.role == "client"]


def drop(step: str, *clients: int, at: int = 0) -> tuple[Dropout, ...]:
    return tuple(Dropout(client=client, round=at, step=step) for client in clients)


def lost(run: Run, round_index: int) -> bool:
    """Whether a round left the model as it was, and the server without an aggregate."""
    at = run.rounds()[round_index]
    before = run.rounds()[round_index - 1] if round_index else run.rounds("setup")[0]
    same = torch.equal(flat(before.states[SERVER]["model"]), flat(at.states[SERVER]["model"]))
    return same and "aggregate" not in at.states[SERVER]


def assert_mean_of(run: Run, plain: Run, round_index: int, clients: int) -> None:
    """The server's mean is FedSGD's over so many clients, to fixed point."""
    at, expected = run.rounds()[round_index], plain.rounds()[round_index]
    assert at.states[SERVER]["aggregate"]["clients"] == clients
    assert bool(((velocity(at) - velocity(expected)).abs() <= mean_bound(run, at) + ROUNDING).all())


# --- drop-outs ---------------------------------------------------------------------------------


def test_the_steps_of_a_client() -> None:
    assert CLIENT_STEPS == ["advertise", "share", "update", "unmask"]
    assert set(MASKED) == {"secagg", "mp-dp+", "ddp", "ddp-mf", "ddg", "skellam"}


@pytest.mark.parametrize("client", [0, 2])
@pytest.mark.parametrize("step", [*CLIENT_STEPS, "relay_keys", "relay_shares", "ask"])
@pytest.mark.parametrize("name", MASKED)
def test_one_client_gone_at_any_step_leaves_the_sum_exact(name: str, step: str, client: int) -> None:
    """Who sent its update counts (gone at `ask` or `unmask`), all others do not; the model is still to learn from."""
    counts = step in ("ask", "unmask")
    plain = small_run(create("fedsgd"), clients=4, dropouts=() if counts else drop("update", client))
    run = small_run(quiet(name), clients=4, dropouts=drop(step, client))
    assert_mean_of(run, plain, 0, 4 if counts else 3)


@pytest.mark.parametrize("name", MASKED)
def test_the_next_round_has_everybody_again(name: str) -> None:
    """A tiny learning rate, so that both models are the same in the second round."""
    training: dict[str, Any] = {"clients": 4, "rounds": 2, "learning_rate": 1e-12}
    run = small_run(quiet(name), **training, dropouts=drop("update", 1))
    plain = small_run(create("fedsgd"), **training, dropouts=drop("update", 1))
    assert_mean_of(run, plain, 0, 3)
    assert_mean_of(run, plain, 1, 4)


def test_several_gone_at_different_steps() -> None:
    """K = 6, t = 4, t_bar = 3: one never shares, one never sends, one never answers; four updates count."""
    gone = (*drop("share", 0), *drop("update", 3), *drop("unmask", 5))
    run = small_run(quiet("secagg"), clients=6, dropouts=gone)
    plain = small_run(create("fedsgd"), clients=6, dropouts=drop("update", 0, 3))
    assert_mean_of(run, plain, 0, 4)


#: ddp-mf refuses such dropouts (tests/defenses/test_correlated_noise.py): its noise spans rounds
MAY_LOSE_ROUNDS = [name for name in MASKED if name != "ddp-mf"]


@pytest.mark.parametrize("step", CLIENT_STEPS)
@pytest.mark.parametrize("name", MAY_LOSE_ROUNDS)
def test_with_too_few_left_the_round_is_lost_and_the_next_is_not(name: str, step: str) -> None:
    """K = 3, t = 2, t_bar = 2: one client alone opens nothing."""
    run = small_run(sums(name), rounds=2, dropouts=drop(step, 0, 2))
    assert lost(run, 0)
    assert not lost(run, 1)


@pytest.mark.parametrize("name", [*MAY_LOSE_ROUNDS, "tp-smc"])
def test_a_single_update_is_never_opened(name: str) -> None:
    """With t = K = 3 one client could decrypt (t_bar = 1), but a sum over fewer than t is not opened."""
    run = small_run(sums(name, honest=3), rounds=2, dropouts=drop("update", 0, 2))
    assert lost(run, 0)
    assert not lost(run, 1)


def test_k_of_n_clients_aggregate_among_themselves() -> None:
    run = small_run(quiet("secagg"), clients=5, participants=3, rounds=2, learning_rate=1e-12)
    plain = small_run(create("fedsgd"), clients=5, participants=3, rounds=2, learning_rate=1e-12)
    for index in range(2):
        assert_mean_of(run, plain, index, 3)


# --- what the server gets ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wide() -> Run:
    """4,288 codes of 3 clients in 2 rounds and 2 probes."""
    observe = ObservedRounds(rounds=("first",), targets=2)
    return small_run(sums("secagg"), shape=(1, 8, 8), hidden=(64,), rounds=2, learning_rate=1e-12, observe=observe)


def masked(run: Run) -> list[NDArray[np.uint64]]:
    """All masked vectors of all clients."""
    messages = [m for at in run.rounds() + run.rounds("probe") for m in at.messages if m.kind == "update"]
    return [m.payload["masked"].numpy().view(np.uint64) for m in messages]


def is_uniform(words: NDArray[np.uint64]) -> bool:
    """Chi-square of the 256 values of each of the 8 bytes of a word; false alarm 1e-6 in all, two-sided."""
    counts = [np.bincount(column, minlength=256) for column in words.view(np.uint8).reshape(-1, 8).T]
    statistics = [float(((count - len(words) / 256) ** 2).sum() / (len(words) / 256)) for count in counts]
    return all(chi_square_fits(value, 255, FALSE_ALARM / 8) for value in statistics)


def test_masked_vectors_look_uniform(wide: Run) -> None:
    found = masked(wide)
    assert len(found) == 3 * 4
    assert all(is_uniform(words) for words in found)
    codes = found[0] % np.uint64(2**44)  # the test itself: 44-bit numbers are not uniform in 64 bits
    assert not is_uniform(codes)


def test_masks_are_fresh_in_every_round_and_probe_and_for_every_client(wide: Run) -> None:
    """Two vectors of one mask would differ by codes, 44-bit numbers; false alarm 66 x 1e-6."""
    assert all(is_uniform(first - second) for first, second in combinations(masked(wide), 2))


def test_the_sum_of_all_but_one_still_looks_uniform(wide: Run) -> None:
    """Pairwise masks cancel only in the sum of all; the clients' own masks not even there."""
    first, second, third = masked(wide)[:3]
    assert is_uniform(first + second)
    assert is_uniform(first + second + third)


def answers(at: Observation) -> dict[str, dict[int, int]]:
    """By client whose secret is shared: the shares that the server got, by who gave them (numbers from 1)."""
    found: dict[str, dict[int, int]] = {}
    for message in at.messages:
        if message.kind == "unmasking":
            number = int(message.sender.partition(":")[2]) + 1
            for name, share in message.payload["shares"].items():
                found.setdefault(name, {})[number] = int.from_bytes(share, "little")
    return found


@pytest.mark.parametrize("step", ["share", "update", "unmask"])
def test_of_each_client_the_server_gets_shares_of_one_secret_never_of_both(step: str) -> None:
    """Of the seed if the update came, else of the mask key; every t_bar of the shares give that same secret."""
    gone = 1
    run = small_run(sums("secagg"), clients=4, dropouts=drop(step, gone))
    at = run.rounds()[0]
    got = answers(at)
    sharers = {client_name(i) for i in range(4) if step != "share" or i != gone}
    assert set(got) == sharers
    for name, shares in got.items():
        own = at.states[name]["round"]
        kept = own["mask"] if (step, name) == ("update", client_name(gone)) else own["seed"]
        assert len(shares) == 3
        subsets = [dict(pair) for pair in combinations(shares.items(), 2)]
        assert {shamir.reconstruct(subset, 2) for subset in subsets} == {kept}


def test_no_view_of_the_server_holds_a_private_key_or_a_seed_of_a_client() -> None:
    run = small_run(
        sums("secagg"), clients=4, dropouts=drop("update", 1), observe=ObservedRounds(rounds=("first",), targets=1)
    )
    view = run.view("server")
    for at in run.rounds() + run.rounds("probe"):
        for name in run.public.clients:
            own = at.states[name]["round"]
            assert not any(holds(view, own[secret]) for secret in ("mask", "channel", "seed"))
            assert holds(run.view("client"), own["seed"]) == (name == "client:1")


def test_keys_and_seeds_are_fresh_in_every_round() -> None:
    run = small_run(sums("secagg"), rounds=2, observe=ObservedRounds(rounds=("first",), targets=1))
    drawn = [
        at.states[name]["round"][secret]
        for at in run.rounds() + run.rounds("probe")
        for name in run.public.clients
        for secret in ("mask", "channel", "seed")
    ]
    assert len(set(drawn)) == len(drawn) == 3 * 3 * 3
