"""Records: the published schema, never a NaN, what "the same" means, and keys that miss nothing."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from leakboard.leaderboard.records.record import SCHEMA_FILE, Cost, Record, ScoreRecord, key_of, schema_text
from tests.leaderboard.synthetic import membership, reconstruction

INGREDIENTS: dict[str, Any] = {
    "kind": "cell",
    "schema": 1,
    "answer": {"modules": {"leakboard.attacks.base": "aa"}, "cell": {"threat": "server", "known_labels": False}},
    "training": {
        "modules": {"leakboard.core.seeds": "bb"},
        "torch": "2.0",
        "device": "cpu",
        "spec": {"seed": 0},
        "data": "cc",
    },
    "metrics": {"leakboard.metrics.psnr": "dd"},
    "decoys": 999,
    "lpips": False,
}
NON_NUMBERS = [math.nan, math.inf, -math.inf]


def paths(tree: dict[str, Any], before: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for name, value in tree.items():
        found += paths(value, (*before, name)) if isinstance(value, dict) else [(*before, name)]
    return found


def test_the_published_schema_is_up_to_date() -> None:
    assert SCHEMA_FILE.read_text() == schema_text(), (
        "write leakboard.leaderboard.records.record.schema_text() into record.schema.json"
    )


def test_the_schema_names_every_field_and_refuses_others() -> None:
    schema = json.loads(schema_text())
    assert set(schema["properties"]) == set(Record.model_fields)
    assert schema["additionalProperties"] is False


@pytest.mark.parametrize("value", NON_NUMBERS)
def test_a_record_never_holds_a_number_that_is_none(value: float) -> None:
    good = reconstruction().model_dump(mode="json")
    for broken in (
        {"diagnostics": {"x": value}},
        {"member_scores": [value]},
        {"scores": {"psnr": {"value": value}}},
        {"scores": {"psnr": {"value": 1.0, "per_item": [value]}}},
        {"scores": {"psnr": {"value": 1.0, "details": {"x": value}}}},
        {"cost": {"wall_seconds": value, "cpu_seconds": 1, "peak_memory_mib": 1}},
    ):
        with pytest.raises(ValidationError):
            Record.model_validate({**good, **broken})


@pytest.mark.parametrize("value", NON_NUMBERS)
@pytest.mark.parametrize("field", ["budget", "ingredients"])
def test_no_file_holds_a_number_that_is_none(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=r"JSON|finite|valid"):
        Record.model_validate({**reconstruction().model_dump(mode="json"), field: {"x": value}}).to_json()


@given(psnr=st.lists(st.floats(0, 60), min_size=1, max_size=5), flag=st.text(max_size=20))
def test_a_record_survives_its_file(psnr: list[float], flag: str) -> None:
    record = reconstruction(psnr=psnr).model_copy(update={"flags": [flag]})
    assert Record.model_validate_json(record.to_json()) == record


def test_comparable_drops_time_memory_and_provenance() -> None:
    record = membership()
    assert record.training is not None
    slower = record.training.model_copy(
        update={"seconds": {"client/Train": 9.0}, "cpu_seconds": {}, "wall_seconds": 9.0}
    )
    cost = Cost(wall_seconds=9, cpu_seconds=9, peak_memory_mib=9)
    other = record.model_copy(update={"training": slower, "cost": cost, "provenance": None, "traceback": "x"})
    assert other.comparable() == record.comparable()


@pytest.mark.parametrize(
    "change",
    [
        {"status": "failed"},
        {"reason": "x"},
        {"flags": ["x"]},
        {"key": "x"},
        {"scores": {}},
        {"member_scores": [0.0]},
        {"diagnostics": {"x": 1.0}},
        {"training": None},
    ],
)
def test_comparable_keeps_everything_else(change: dict[str, Any]) -> None:
    record = membership()
    assert record.model_copy(update=change).comparable() != record.comparable()


def test_the_key_changes_with_each_ingredient() -> None:
    keys = {key_of(INGREDIENTS)}
    every = paths(INGREDIENTS)
    for path in every:
        changed = json.loads(json.dumps(INGREDIENTS))
        place = changed
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] = "changed"
        keys.add(key_of(changed))
    assert len(keys) == 1 + len(every)


def test_the_key_does_not_depend_on_the_order_of_ingredients() -> None:
    assert key_of(dict(reversed(INGREDIENTS.items()))) == key_of(INGREDIENTS)


def test_an_unknown_field_and_a_newer_version_are_refused() -> None:
    good = reconstruction().model_dump(mode="json")
    for change in ({"schema_version": 2}, {"schema_version": 0}, {"new": 1}):
        with pytest.raises(ValidationError):
            Record.model_validate({**good, **change})


def test_a_record_is_frozen() -> None:
    with pytest.raises(ValidationError):
        reconstruction().status = "failed"  # type: ignore[misc]


def test_a_slug_is_safe_as_a_file_name() -> None:
    record = reconstruction(defense="../a b/ü", attack="x:y")
    assert record.cell.slug == "digits--.._a_b_ü--x_y--server--first--s0"
    assert ScoreRecord(value=None, reason="why").value is None
