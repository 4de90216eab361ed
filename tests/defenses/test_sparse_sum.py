"""Secure aggregation with few neighbours: degrees as published, sums exact with and without dropouts."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from leakboard.defenses.base import AGGREGATE
from leakboard.defenses.building_blocks.secure_sum import SecureSum
from leakboard.defenses.crypto.sparse_graph import Degree, _hypergeometric, degree, ring_neighbours
from leakboard.federation.settings import SERVER, Dropout, client_name
from tests.defenses.makings import Run, create, flat, public_of
from tests.defenses.small import mean_bound, quiet, small_run, sums, velocity

ROUNDING = 1e-13
CLIENTS = 30
#: shares of colluders and dropouts -> (k, t) for 100, 1,000 and 10,000 clients, of an honest and of a lying server
PUBLISHED = {
    (0.05, 0.05): ([(12, 6), (30, 17), (34, 20)], [(16, 11), (52, 37), (62, 44)]),
    (0.33, 0.05): ([(34, 29), (78, 60), (92, 70)], [(42, 37), (132, 109), (178, 146)]),
    (0.05, 0.33): ([(28, 6), (72, 24), (86, 29)], [(72, 39), (398, 223), (746, 420)]),
}


@pytest.mark.parametrize("malicious", [False, True])
@pytest.mark.parametrize("shares", PUBLISHED, ids=str)
def test_degrees_and_thresholds_are_those_of_the_published_code(shares: tuple[float, float], malicious: bool) -> None:
    """The test vectors of the authors' implementation, for 40 bits of security and 20 of correctness."""
    found = [degree(clients, *shares, malicious=malicious) for clients in (100, 1000, 10_000)]
    assert found == [Degree(*pair) for pair in PUBLISHED[shares][malicious]]


def test_few_clients_have_only_the_complete_graph() -> None:
    assert degree(5, 0.4, 0.05) is None
    defense = create("secagg", graph="sparse")
    assert isinstance(defense, SecureSum)
    assert defense.threshold(public_of(clients=5)) == defense.needed(public_of(clients=5)) == 3
    assert degree(1000, 0.9, 0.3) is None  # more colluders and dropouts than clients


@pytest.mark.parametrize(("clients", "chosen", "neighbours"), [(20, 3, 8), (20, 18, 8), (1000, 330, 78), (9, 0, 4)])
def test_the_law_of_neighbours_is_hypergeometric(clients: int, chosen: int, neighbours: int) -> None:
    expected = stats.hypergeom.pmf(np.arange(neighbours + 1), clients, chosen, neighbours)
    assert np.allclose(_hypergeometric(clients, chosen, neighbours), expected, rtol=1e-8, atol=1e-300)


@pytest.mark.parametrize(("count", "neighbours"), [(10, 4), (11, 2), (5, 4), (4, 6)])
def test_the_ring_is_symmetric_and_regular(count: int, neighbours: int) -> None:
    names = [client_name(i) for i in range(count)]
    near = {name: ring_neighbours(names, place, neighbours) for place, name in enumerate(names)}
    assert {len(set(others)) for others in near.values()} == {min(neighbours, count - 1)}
    assert all(name in near[other] and other != name for name, others in near.items() for other in others)


# --- a round ---------------------------------------------------------------------------------------


def sparse(name: str, **training: Any) -> Run:
    given = {"graph": "sparse", "honest": CLIENTS - 1, "missing": 0.1}
    return small_run(quiet(name, **given), clients=CLIENTS, shard=4, **training)


def drop(step: str, *clients: int) -> tuple[Dropout, ...]:
    return tuple(Dropout(client=client, round=0, step=step) for client in clients)


def near_of(run: Run) -> dict[str, set[str]]:
    """Who got whose keys."""
    return {m.receiver: set(m.payload["keys"]) for m in run.rounds()[0].messages if m.kind == "all_keys"}


@pytest.mark.parametrize("name", ["secagg", "mp-dp+", "ddp", "ddg", "skellam"])
def test_the_sum_is_exact_and_everybody_has_few_neighbours(name: str) -> None:
    run, plain = sparse(name), small_run(create("fedsgd"), clients=CLIENTS, shard=4)
    at = run.rounds()[0]
    assert bool(((velocity(at) - velocity(plain.rounds()[0])).abs() <= mean_bound(run, at) + ROUNDING).all())
    assert isinstance(run.defense, SecureSum)
    found = run.defense.ring_degree(run.public)
    assert found is not None
    assert {len(others) for others in near_of(run).values()} == {found.neighbours}
    assert found.neighbours < CLIENTS - 1
    claims = run.defense.graph_claims(run.public)
    assert claims == {"clients_to_unmask": found.threshold, "neighbours": found.neighbours}


@pytest.mark.parametrize("name", ["secagg", "skellam"])  # rings of 64 and of 16 bits
@pytest.mark.parametrize("step", ["advertise", "share", "update", "unmask"])
def test_the_sum_is_exact_whoever_drops_out(step: str, name: str) -> None:
    """Two neighbours on the ring and one elsewhere; who sent its update counts."""
    counts = step == "unmask"
    order = sparse(name).rounds()[0].states[SERVER]["round"]["order"]
    gone = [int(client.partition(":")[2]) for client in (order[0], order[1], order[12])]
    run = sparse(name, dropouts=drop(step, *gone))
    plain = small_run(create("fedsgd"), clients=CLIENTS, shard=4, dropouts=() if counts else drop("update", *gone))
    if step in ("advertise", "share", "update"):
        assert "aggregate" not in run.rounds()[0].states[SERVER]  # honest: 29 of 30, so 27 updates are too few
        defense = quiet(name, graph="sparse", honest=20, missing=0.1)
        run = small_run(defense, clients=CLIENTS, shard=4, dropouts=drop(step, *gone))
    at = run.rounds()[0]
    assert at.states[SERVER]["aggregate"]["clients"] == (CLIENTS if counts else CLIENTS - 3)
    assert bool(((velocity(at) - velocity(plain.rounds()[0])).abs() <= mean_bound(run, at) + ROUNDING).all())


def test_messages_of_a_client_do_not_grow_with_the_number_of_clients() -> None:
    """Keys, shares and answers are those of its neighbours; the complete graph has all of them."""
    sizes: dict[str, Counter[str]] = {}
    for graph in ("sparse", "complete"):
        defense = sums("secagg", graph=graph, honest=CLIENTS - 1, missing=0.1)
        run = small_run(defense, clients=CLIENTS, shard=4)
        sizes[graph] = Counter()
        for message in run.rounds()[0].messages:
            sizes[graph][message.kind] = max(sizes[graph][message.kind], message.size)
    for kind in ("all_keys", "shares", "shares_for_you", "unmasking", "survivors"):
        assert sizes["sparse"][kind] < 0.6 * sizes["complete"][kind], kind
    assert sizes["sparse"]["update"] == sizes["complete"]["update"]


def test_the_ring_is_drawn_anew_in_every_round() -> None:
    run = sparse("secagg", rounds=2)
    first, second = (at.states[SERVER]["round"]["order"] for at in run.rounds())
    assert sorted(first) == sorted(second)
    assert first != second


# --- who can open what ---------------------------------------------------------------------------------


def test_colluders_open_a_client_only_if_enough_of_its_neighbours_are_among_them() -> None:
    """With t of its neighbours, not with t - 1 and any number of others; the secrets are those that it drew."""
    run = sparse("secagg")
    at, near = run.rounds()[0], near_of(run)
    assert isinstance(run.defense, SecureSum)
    needed = run.defense.threshold(run.public)
    victim = "client:0"
    others = sorted(set(near) - near[victim] - {victim})
    for neighbours, opens in ((needed, True), (needed - 1, False)):
        held = [*sorted(near[victim])[:neighbours], *others]
        states = {name: at.states[name] for name in (SERVER, *held)}
        seen = type(at)(at.context, at.messages, states, {}, {})
        found = run.defense.opened(seen, run.public)
        assert (victim in found) is opens
        if opens:
            expected = flat(run.defense.decoded(run.public, at.context, found[victim], 1)["gradient"])
            own = run.defense.own_codes(type(at)(at.context, at.messages, at.states, {}, {}), run.public)[victim]
            assert torch.equal(expected, flat(run.defense.decoded(run.public, at.context, own, 1)["gradient"]))


def test_the_server_reads_the_sum_alone_and_masks_do_not_cancel_in_parts() -> None:
    run = sparse("secagg")
    seen = run.defense.read(run.view("server").of_kind("train")[0], run.public).gradients
    assert set(seen) == {AGGREGATE}
    masked = {m.sender: m.payload["masked"].numpy() for m in run.rounds()[0].messages if m.kind == "update"}
    largest = 2.0**62  # a sum of codes of 44 bits is far below; one under a mask is below by chance alone
    for pair in list(combinations(sorted(masked), 2))[:20]:
        total = sum((masked[name] for name in pair), start=np.zeros(1, dtype=np.int64))
        assert float(np.abs(total.astype(float)).max()) > largest / 4
