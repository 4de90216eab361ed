from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakboard.core.errors import UserError
from leakboard.federation.settings import ObservedRounds, Training
from tests.federation.makings import public_of


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "give either rounds or epochs"),
        ({"rounds": 1, "epochs": 1}, "give either rounds or epochs"),
        ({"rounds": 0}, "'rounds' is wrong: it must be greater than or equal to 1; given: 0."),
        ({"rounds": 1, "participants": 6}, "participants (6) must be at most clients (5)"),
        ({"rounds": 1, "momentum": 1}, "'momentum' is wrong: it must be less than 1; given: 1."),
        ({"rounds": 1, "learning_rate": 0}, "'learning_rate' is wrong"),
        ({"rounds": 1, "loss": "l1"}, "'loss' is wrong: it must be 'mse' or 'ce'; given: 'l1'."),
        ({"rounds": 1, "dropouts": [{"client": 0, "round": -1, "step": "update"}]}, "'dropouts.0.round' is wrong"),
        ({"rounds": 1, "dropouts": [{"client": 5, "round": 0, "step": "update"}]}, "no client 5 among 5"),
        ({"round": 1}, "has no setting 'round': did you mean 'rounds'?"),
    ],
)
def test_wrong_training_is_one_sentence(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        Training.parse(given, "training")
    assert message in str(caught.value)
    assert str(caught.value).startswith("training")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"probe_batch": 0}, "'probe_batch' is wrong: it must be a whole number of at least 1"),
        ({"probe_batch": "two"}, "'probe_batch' is wrong"),
        ({"probe_batch": []}, "'probe_batch' is wrong"),
        ({"probe_batch": [4, 1, 4]}, "or a list of different ones; given: [4, 1, 4]."),
        ({"probe_batch": [1, 2], "targets": 7}, "with several batch sizes targets must be at least 8"),
        ({"rounds": ["second"]}, "'first', 'middle' or 'last'; given: 'second'."),
        ({"targets": 0}, "'targets' is wrong"),
    ],
)
def test_wrong_watch_is_one_sentence(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        ObservedRounds.parse(given, "observe")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("total", "expected"),
    [
        (1, {0: "first"}),
        (2, {0: "first", 1: "middle"}),
        (3, {0: "first", 1: "middle", 2: "last"}),
        (10, {0: "first", 5: "middle", 9: "last"}),
    ],
)
def test_observed_rounds(total: int, expected: dict[int, str]) -> None:
    assert ObservedRounds().indices(total) == expected


def test_the_order_given_decides_a_tie() -> None:
    assert ObservedRounds(rounds=("last", "first")).indices(1) == {0: "last"}


@given(st.integers(1, 10_000), st.lists(st.sampled_from(["first", "middle", "last"]), min_size=1, max_size=3))
def test_observed_rounds_exist(total: int, rounds: list[Any]) -> None:
    found = ObservedRounds(rounds=tuple(rounds)).indices(total)
    assert found
    assert all(0 <= index < total for index in found)
    assert set(found.values()) <= set(rounds)


def test_a_batch_larger_than_a_shard_is_refused() -> None:
    training = Training(rounds=1, batch_size=8, clients=3)
    training.check_shards([8, 9, 8])
    with pytest.raises(UserError) as caught:
        training.check_shards([9, 7, 5])
    assert str(caught.value) == (
        "batch_size 8 is larger than the shard of client 2: at most 5 is possible with 3 clients."
    )


def test_more_targets_than_records_are_refused() -> None:
    ObservedRounds(targets=8).check_targets(8)
    ObservedRounds(targets=8, rounds=()).check_targets(7)  # nothing is observed, so nothing is a target
    with pytest.raises(UserError, match=r"targets \(8\) must be at most the victim's records; given: 7\."):
        ObservedRounds(targets=8).check_targets(7)


def test_rounds_and_epochs() -> None:
    assert Training(rounds=7).total_rounds(1000) == 7
    assert Training(epochs=3, batch_size=32).total_rounds(100) == 9
    assert Training(epochs=3, batch_size=32).total_rounds(5) == 3
    assert Training(rounds=1, clients=4).per_round == 4
    assert Training(rounds=1, clients=4, participants=2).per_round == 2


def test_the_public_settings_read_back_from_json() -> None:
    public = public_of(dropouts=[{"client": 1, "round": 0, "step": "update"}])
    assert type(public).model_validate_json(public.model_dump_json()) == public
    assert public.clients == ("client:0", "client:1")


# --- batch sizes --------------------------------------------------------------------------------


def test_sizes_come_smallest_first_and_share_neither_numbers_nor_records() -> None:
    observe = ObservedRounds(probe_batch=(4, 1, 2), targets=8)
    assert observe.sizes == (1, 2, 4)
    numbers = [number for size in observe.sizes for number in observe.probes(size)]
    assert numbers == list(range(24))
    assert [observe.size_of(number) for number in numbers] == [1] * 8 + [2] * 8 + [4] * 8
    places = [place for size in observe.sizes for place in observe.records(size)]
    assert places == list(range(8 * 7))
    covered = [observe.start(n) + i for n in numbers for i in range(observe.size_of(n))]
    assert covered == places


def test_a_single_size_takes_the_records_that_it_always_took() -> None:
    observe = ObservedRounds(probe_batch=3, targets=5)
    assert [observe.start(number) for number in observe.probes(3)] == [0, 3, 6, 9, 12]


@pytest.mark.parametrize("size", [1, 4, (2,), (1, 2, 4)])
def test_what_is_stored_is_read_back(size: int | tuple[int, ...]) -> None:
    observe = ObservedRounds(probe_batch=size, targets=8)
    stored = observe.model_dump(mode="json")
    again = ObservedRounds.of_record(stored)
    assert (again.sizes, again.targets) == (observe.sizes, 8)
    assert again.model_dump(mode="json") == stored == ObservedRounds.model_validate(stored).model_dump(mode="json")


def test_older_records_count_targets_in_records() -> None:
    """One record per probe is stored as ever; a larger whole number is from before, when `targets` were records."""
    assert ObservedRounds().model_dump(mode="json") == {
        "rounds": ["first", "middle", "last"],
        "probe_batch": 1,
        "targets": 8,
    }
    old = ObservedRounds.of_record({"rounds": ["first"], "probe_batch": 4, "targets": 8})
    assert (old.sizes, old.targets, list(old.records(4))) == ((4,), 2, list(range(8)))


def test_too_few_records_for_all_sizes_are_one_sentence() -> None:
    observe = ObservedRounds(probe_batch=(1, 2), targets=8)
    observe.check_targets(24)
    with pytest.raises(UserError, match=r"8\) batches of 1, 2 records need 24 records of the victim.*; it has 23\."):
        observe.check_targets(23)
    ObservedRounds(rounds=(), probe_batch=(1, 2), targets=8).check_targets(1)
