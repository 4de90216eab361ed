"""Who holds what where the server learns a sum: no single update, unless enough keys are on its side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from leakboard.contract.worlds import holds
from leakboard.core import registry
from leakboard.defenses.base import AGGREGATE, Gradient, Reading
from leakboard.defenses.building_blocks import secure_sum as _secure_sum
from leakboard.defenses.building_blocks.summed_codes import SummedCodes, SummedGradient
from leakboard.defenses.crypto.fixed_point import Integers
from leakboard.federation.settings import SERVER, VICTIM, ObservedRounds
from leakboard.federation.view import View
from tests.defenses.makings import Run, create, flat, relative, true_gradient
from tests.defenses.small import KEYS, batches, names_of_sums, quiet, sent_codes, small_run, sums

WATCH = ObservedRounds(rounds=("first",), targets=1)
KEYED = ("tp-smc", "hybridalpha", "pile")
MADE: dict[str, Run] = {}


def finished(name: str, crypto: str | None = None, **training: Any) -> Run:
    """A run with its noise, observed in the first round; made once."""
    title = repr((name, crypto, training))
    if title not in MADE:
        settings = {"crypto": crypto} if crypto else {}
        MADE[title] = small_run(
            sums(name, **settings), observe=WATCH, **{"shape": (1, 2, 2), "hidden": (2,), **training}
        )
    return MADE[title]


def readings(run: Run, threat: str) -> list[Reading]:
    found = run.defense.interpret(run.view(threat))
    chosen = [reading for reading in found if reading.context.kind in ("train", "probe")]
    assert chosen
    return chosen


def traces(run: Run, client: str = VICTIM) -> Iterator[bytes]:
    """Forms in which a view could hold the victim's update: four codes or values of it in a row."""
    assert isinstance(run.defense, SummedCodes)
    for at in run.rounds() + run.rounds("probe"):
        codes = sent_codes(run, at)[client]
        values = flat(run.defense.decoded(run.public, at.context, codes, 1)["gradient"]).numpy()
        forms: list[NDArray[Any]] = [codes, codes.astype(np.uint32), values, values.astype(np.float32)]
        for start in (0, len(values) - 4):
            yield from (form[start : start + 4].tobytes() for form in forms)


def leaks(run: Run, view: View) -> bool:
    return any(holds(view, trace) for trace in traces(run))


# --- the server alone --------------------------------------------------------------------------


@pytest.mark.parametrize("crypto", ["real", "sampled"])
@pytest.mark.parametrize("name", names_of_sums())
def test_the_server_reads_the_mean_and_no_single_update(name: str, crypto: str) -> None:
    run = finished(name, crypto if name in KEYED else None)
    for reading in readings(run, "server"):
        assert set(reading.gradients) == {AGGREGATE}
        found = reading.gradients[AGGREGATE]
        assert (found.clients, found.records) == (3, 3 * reading.context.batch_size)
    assert not leaks(run, run.view("server"))


@pytest.mark.parametrize("name", names_of_sums())
def test_the_mean_that_it_reads_is_that_of_the_clients_codes(name: str) -> None:
    run = finished(name)
    assert isinstance(run.defense, SummedCodes)
    for at, reading in zip(run.rounds() + run.rounds("probe"), readings(run, "server"), strict=True):
        total: Integers = sum(sent_codes(run, at).values(), start=np.zeros(1, dtype=np.int64))
        update = run.defense.decoded(run.public, at.context, total, 3)
        expected = run.defense.gradient_of(update, at.states[SERVER], run.public)
        assert all(torch.equal(value, expected[key]) for key, value in reading.gradients[AGGREGATE].values.items())


def test_the_search_finds_codes_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Secure aggregation whose masks are all zero."""
    monkeypatch.setattr(_secure_sum, "_words", lambda seed, count: np.zeros(count, dtype=np.uint64))
    run = small_run(sums("secagg"), observe=WATCH)
    assert leaks(run, run.view("server"))


@pytest.mark.parametrize("keys", ["shared", "per-slot"])
def test_reused_slot_keys_show_an_update_up_to_a_constant(keys: str) -> None:
    """What mix-and-match gives the server of hybridalpha (docs/decisions.md, 3.3), in the stand-in cipher."""
    run = small_run(sums("hybridalpha", keys=keys))
    at = run.rounds()[0]
    sealed = next(m.payload["sealed"] for m in at.messages if m.kind == "update" and m.sender == VICTIM).numpy()
    codes = sent_codes(run, at)[VICTIM]
    assert np.array_equal(sealed - sealed[0], codes - codes[0]) == (keys == "shared")


# --- with keys ---------------------------------------------------------------------------------


def equals_codes(run: Run, gradient: Gradient, at_index: int, client: str) -> bool:
    """Whether a read gradient is exactly what the client's codes decode to."""
    assert isinstance(run.defense, SummedCodes)
    at = (run.rounds() + run.rounds("probe"))[at_index]
    update = run.defense.decoded(run.public, at.context, sent_codes(run, at)[client], 1)
    expected = run.defense.gradient_of(update, at.states[SERVER], run.public)
    same = all(torch.equal(value, expected[key]) for key, value in gradient.values.items())
    return same and (gradient.clients, gradient.records) == (1, at.context.batch_size)


@pytest.mark.parametrize("crypto", ["real", "sampled"])
@pytest.mark.parametrize("name", KEYED)
def test_all_keys_open_every_single_update_exactly(name: str, crypto: str) -> None:
    run = finished(name, crypto)
    for index, reading in enumerate(readings(run, "server+keys")):
        assert set(reading.gradients) == {AGGREGATE, *run.public.clients}
        assert all(equals_codes(run, reading.gradients[name], index, name) for name in run.public.clients)


def test_what_keys_open_of_pile_is_the_true_gradient() -> None:
    """Noise-free, so a probe of one record is the gradient of that record up to fixed point."""
    run = small_run(quiet("pile"), observe=WATCH)
    (probe,) = run.rounds("probe")
    batch = batches(run, probe.context)[VICTIM]
    true = true_gradient(run, probe.states[SERVER]["distributed"], batch)
    found = readings(run, "server+keys")[-1].gradients[VICTIM].values
    assert relative(flat({key: found[key] for key in true}), flat(true)) < 1e-5


@pytest.mark.parametrize("name", sorted(set(names_of_sums()) - set(KEYED)))
def test_masks_leave_no_keys_to_get(name: str) -> None:
    run = finished(name)
    assert all(set(reading.gradients) == {AGGREGATE} for reading in readings(run, "server+keys"))
    assert not leaks(run, run.view("server+keys"))


# --- with clients ------------------------------------------------------------------------------

FIVE: dict[str, Any] = {"clients": 5, "shape": (1, 2, 2), "hidden": (1,)}


@pytest.mark.parametrize(
    ("name", "crypto"),
    [
        ("tp-smc", "real"),
        ("tp-smc", "sampled"),
        ("pile", "real"),
        ("pile", "sampled"),
        ("secagg", None),
        ("mp-dp+", None),
    ],
)
def test_t_bar_clients_and_the_server_read_the_victim_s_update_and_fewer_do_not(name: str, crypto: str | None) -> None:
    """K = 5, t = 3, t_bar = 3."""
    run = finished(name, crypto, **FIVE)
    assert isinstance(run.defense, SummedCodes)
    assert run.defense.needed(run.public) == 3
    for colluders in (1, 2):
        threat = f"server+clients:{colluders}"
        assert all(VICTIM not in reading.gradients for reading in readings(run, threat))
        assert not leaks(run, run.view(threat))
    for index, reading in enumerate(readings(run, "server+clients:3")):
        assert equals_codes(run, reading.gradients[VICTIM], index, VICTIM)


def test_clients_of_hybridalpha_hold_no_key_to_others() -> None:
    run = finished("hybridalpha", **FIVE)
    for colluders in (1, 2, 3):
        threat = f"server+clients:{colluders}"
        assert all(VICTIM not in reading.gradients for reading in readings(run, threat))
        assert not leaks(run, run.view(threat))


def subtracts(run: Run, colluders: int) -> bool:
    """Whether the server and so many clients read the mean over the others, and no other client's own gradient."""
    assert isinstance(run.defense, SummedCodes)
    clients = run.public.clients
    known, others = set(clients[1 : 1 + colluders]), [VICTIM, *clients[1 + colluders :]]
    right = []
    threat = f"server+clients:{colluders}"
    for at, reading in zip(run.rounds() + run.rounds("probe"), readings(run, threat), strict=True):
        codes = sent_codes(run, at)
        total: Integers = sum((codes[name] for name in others), start=np.zeros(1, dtype=np.int64))
        update = run.defense.decoded(run.public, at.context, total, len(others))
        expected = flat(run.defense.gradient_of(update, at.states[SERVER], run.public))
        found = reading.gradients[AGGREGATE if len(others) > 1 else VICTIM]
        right.append(set(reading.gradients) == {AGGREGATE, *known, *(others if len(others) == 1 else ())})
        right.append((found.clients, found.records) == (len(others), len(others) * at.context.batch_size))
        right.append(bool((flat(found.values) - expected).abs().max() < 1e-6 * expected.abs().max()))
    return all(right)


@pytest.mark.parametrize(
    ("name", "crypto"),
    [("tp-smc", "sampled"), ("pile", "sampled"), ("secagg", None), ("mp-dp+", None), ("hybridalpha", "real")],
)
def test_colluders_take_their_own_updates_out_of_the_sum(name: str, crypto: str | None) -> None:
    """K = 5: with 1 and 2 colluders the mean over 4 and 3 is left."""
    run = finished(name, crypto, **FIVE)
    assert subtracts(run, 1)
    assert subtracts(run, 2)


def test_no_key_hides_the_last_honest_client() -> None:
    """hybridalpha has no threshold, and secagg with t = 2 none below K - 1: what all others did not send is left."""
    assert subtracts(finished("hybridalpha", **FIVE), 3)
    assert subtracts(finished("hybridalpha", **FIVE), 4)
    strict = small_run(sums("secagg", honest=2), observe=WATCH, **FIVE)
    assert subtracts(strict, 3)
    for index, reading in enumerate(readings(strict, "server+clients:4")):
        assert equals_codes(strict, reading.gradients[VICTIM], index, VICTIM)


# --- clients and the model ---------------------------------------------------------------------

HIDDEN = {"mp", "mp-cdp", "mp-dp", "mp-dp+", "mp-dp-naive", "mp-ldp", "pile"}


@pytest.mark.parametrize("name", registry.entries("defense"))
def test_clients_see_the_plain_model_unless_it_is_perturbed(name: str) -> None:
    run = small_run(create(name, **KEYS.get(name, {})), shape=(1, 2, 2), hidden=(2,), observe=WATCH)
    view = run.view("client")
    last = run.defense.interpret(view)[-1]
    assert last.context.kind == "final"
    assert last.model is not None
    assert all(set(reading.gradients) <= {"client:1"} for reading in run.defense.interpret(view))
    far = relative(flat({key: last.model[key] for key in run.outcome.model}), flat(run.outcome.model))
    assert (far > 0.1) == (name in HIDDEN)
    assert far == 0.0 or name in HIDDEN


@pytest.mark.parametrize("name", ["tp-smc", "hybridalpha", "secagg"])
def test_a_client_alone_learns_no_other_update(name: str) -> None:
    run = finished(name)
    assert isinstance(run.defense, SummedGradient)
    assert not leaks(run, run.view("client"))
