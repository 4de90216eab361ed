"""Rows of tuned suites have the point of the grid that was most accurate, and nothing else decided."""

from __future__ import annotations

import pytest

from leakboard.core import registry
from leakboard.suites import suite_files
from leakboard.suites.schema import FurtherTuning, Suite, Tuning, load_suite

MAIN = ("quick", "adaptive", "cifar10-small")
#: a suite whose grid was not run yet has the grid alone
TUNED = [name for name in suite_files() if (tuning := load_suite(name).tuning) is not None and tuning.accuracy]


@pytest.fixture(params=TUNED)
def suite(request: pytest.FixtureRequest) -> Suite:
    return load_suite(request.param)


def test_the_main_suites_are_tuned() -> None:
    assert set(MAIN) <= set(TUNED)


def test_every_row_has_the_most_accurate_point_of_the_grid(suite: Suite) -> None:
    assert suite.tuning is not None
    for row in suite.defenses:
        clip, rate = suite.tuning.best(row.title)
        made = registry.create("defense", row.name, row.params)
        assert made.parameters().get("clip") == clip, row.title
        assert {**suite.training.model_dump(), **row.training}["learning_rate"] == rate, row.title


def test_rows_have_the_most_accurate_point_of_their_further_grid(suite: Suite) -> None:
    assert suite.tuning is not None
    rows = {row.title: row for row in suite.defenses}
    trained = {title: grid for title, grid in suite.tuning.further.items() if grid.accuracy}
    for title, grid in trained.items():
        made = registry.create("defense", rows[title].name, rows[title].params).parameters()
        made["learning_rate"] = {**suite.training.model_dump(), **rows[title].training}["learning_rate"]
        assert {name: made[name] for name in grid.params} == grid.best(), title


def test_the_grid_is_whole_and_the_same_for_all(suite: Suite) -> None:
    assert suite.tuning is not None
    for row, values in suite.tuning.accuracy.items():
        assert len(values) == len(suite.tuning.learning_rate), row
        assert {len(own) for own in values} in ({1}, {len(suite.tuning.clip)}), row
    assert suite.tuning.clip == (0.5, 1, 2, 5, 10)
    assert len(suite.tuning.learning_rate) == 2


@pytest.mark.parametrize("name", MAIN)
def test_clipping_without_noise_stands_beside_the_noisy_rows(name: str) -> None:
    """So that a reader can tell what clipping costs from what noise does."""
    assert "clip" in [row.name for row in load_suite(name).defenses]


@pytest.mark.parametrize("name", ["adaptive", "audit", "cifar10-small"])
def test_both_readings_of_r_and_the_papers_formula_are_rows(name: str) -> None:
    entries = [row for row in load_suite(name).defenses if row.name == "mp-dp"]
    rows = [registry.create("defense", row.name, row.params) for row in entries]
    shown = {(row.parameters()["variant"], row.parameters()["mode"]) for row in rows}
    assert shown == {("V1", "corrected"), ("V2", "corrected"), ("V2", "paper")}


def test_quick_names_the_one_reading_that_it_shows() -> None:
    (row,) = (row for row in load_suite("quick").defenses if row.name == "mp-dp")
    assert row.params["variant"] in row.title


def test_of_equal_points_the_first_counts_and_rows_may_share_one() -> None:
    tuning = Tuning(
        seed=9,
        clip=(1, 2),
        learning_rate=(0.1, 0.2),
        same_as={"b": "a"},
        accuracy={"a": ((5, 7), (7, 1)), "c": ((3,), (4,))},
    )
    assert tuning.best("a") == tuning.best("b") == (2, 0.1)
    assert tuning.best("c") == (None, 0.2)


def test_a_further_grid_lists_its_points_with_the_last_parameter_fastest() -> None:
    grid = FurtherTuning(params={"a": (1, 2), "b": (3, 4)}, accuracy=(5, 7, 7, 6))
    assert grid.combinations() == [{"a": a, "b": b} for a in (1, 2) for b in (3, 4)]
    assert grid.best() == {"a": 1, "b": 4}
    common = {"seed": 9, "clip": (1,), "learning_rate": (0.1,), "accuracy": {"a": ((5,),)}}
    rates = FurtherTuning(params={"learning_rate": (0.01, 0.02)}, accuracy=(6, 7))
    assert Tuning.model_validate({**common, "further": {"a": rates}}).best("a") == (None, 0.02)
    assert Tuning.model_validate({**common, "further": {"a": grid}}).best("a") == (None, 0.1)
    with pytest.raises(ValueError, match="one value per combination of params, 2; given: 1"):
        FurtherTuning(params={"a": (1, 2)}, accuracy=(5,))


def test_the_seed_of_the_tuning_is_not_reported(suite: Suite) -> None:
    assert suite.tuning is not None
    assert suite.tuning.seed not in suite.seeds
    given = suite.model_dump(mode="json")
    given["seeds"] = [0, suite.tuning.seed]
    with pytest.raises(Exception, match="must not be among the seeds that are reported"):
        Suite.parse(given, "the suite")
