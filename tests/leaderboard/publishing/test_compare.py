"""`compare` puts like beside like, and names what is not alike."""

from __future__ import annotations

from typing import Any

import pytest

from leakboard.leaderboard.publishing.compare import OTHER_CODE, SAME, comparison
from leakboard.leaderboard.records.record import Provenance, Record
from leakboard.leaderboard.tables.formats import to_csv, to_terminal
from leakboard.leaderboard.tables.table import Table
from tests.leaderboard.synthetic import membership, reconstruction

BASE: dict[str, Any] = {
    "training": {"rounds": 30, "batch_size": 64, "clients": 5},
    "observe": {"targets": 8, "probe_batch": 1, "rounds": ["first"]},
}
PLACE = Provenance(
    created="", commit=None, dirty=None, versions={}, platform="", processor="", device="cpu", data_digest="d" * 64
)


def made(record: Record | None = None, **changes: Any) -> Record:
    """A record with settings; `training__rounds=15` reaches inside of the training's spec."""
    record = record or reconstruction("mp-dp", "dlg", [10.0] * 8)
    spec = record.cell.training.model_dump(mode="json") | {name: dict(part) for name, part in BASE.items()}
    for name, value in changes.items():
        *outer, last = name.split("__")
        place = spec
        for key in outer:
            place = place[key]
        place[last] = value
    training = type(record.cell.training).model_validate(spec)
    return record.model_copy(
        update={"cell": record.cell.model_copy(update={"training": training}), "provenance": PLACE}
    )


def titles(tables: list[Table]) -> list[str]:
    return [table.title.split(":")[0] for table in tables]


def differing(tables: list[Table]) -> dict[object, tuple[object, object]]:
    assert tables[0].title.startswith("What differs")
    return {row.cells["setting"].value: (row.cells["a"].value, row.cells["b"].value) for row in tables[0].rows}


def test_15_rounds_do_not_stand_beside_30() -> None:
    worse = reconstruction("mp-dp", "dlg", [12.0] * 8)
    tables = comparison([made(training__rounds=15)], [made(worse)])
    assert differing(tables) == {"training.rounds": ("15", "30")}
    assert tables[1].rows == ()
    assert any("1 of the common cells have other settings" in note for note in tables[1].notes)
    psnr = [row.cells for row in tables[2].rows if row.cells["score"].value == "psnr"]
    shown = [(cells["run"].value, cells["settings"].value, cells["value"].value) for cells in psnr]
    assert shown == [("A", "training.rounds 15", 10), ("B", "training.rounds 30", 12)]
    assert "difference" not in {column.key for column in tables[2].columns}


def test_4_targets_do_not_stand_beside_8() -> None:
    few = made(reconstruction("mp-dp", "dlg", [12.0] * 4), observe__targets=4)
    tables = comparison([few], [made()])
    found = differing(tables)
    assert found["observe.targets"] == ("4", "8")
    assert found["number of targets"] == ("4", "8")
    assert {row.cells["over"].value for row in tables[2].rows} == {"all 4 targets", "all 8 targets"}
    text = to_terminal(tables[2])
    assert "observe.targets 4" in text
    assert "all 8 targets" in to_csv(tables)


@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        ({"training__clients": 100}, "training.clients"),
        ({"training__batch_size": 8}, "training.batch_size"),
        ({"model__name": "convnet"}, "model"),
        ({"model__parameters": {"width": 32}}, "model.width"),
        ({"defense__parameters": {"epsilon": 1}}, "defense.epsilon"),
        ({"dataset__parameters": {"label_noise": 0.5}}, "dataset.label_noise"),
        ({"keys": "fresh"}, "keys"),
    ],
)
def test_every_setting_that_differs_is_named(changes: dict[str, Any], setting: str) -> None:
    tables = comparison([made()], [made(**changes)])
    assert list(differing(tables)) == [setting]
    assert titles(tables)[-1] == "Cells with different settings"


def test_batches_of_other_sizes_are_other_cells_and_named() -> None:
    tables = comparison([made()], [made(observe__probe_batch=4)])
    assert differing(tables) == {"batch sizes": ("1", "4")}
    assert tables[1].notes[0] == "0 cells are in both runs, 1 only in A, 1 only in B."
    both = made(observe__probe_batch=[1, 4])
    one = both.model_copy(update={"cell": both.cell.model_copy(update={"probe_batch": 1})})
    (table,) = comparison([made()], [one])  # the same cell of a run with more sizes
    assert table.rows == ()


def test_parameters_of_the_attack_and_other_data_are_named() -> None:
    one = made()
    attack = one.cell.attack.model_copy(update={"parameters": {"iterations": 100}})
    two = one.model_copy(update={"cell": one.cell.model_copy(update={"attack": attack})})
    assert differing(comparison([one], [two])) == {"attack.iterations": ("null", "100")}
    other = one.model_copy(update={"provenance": PLACE.model_copy(update={"data_digest": "e" * 64})})
    assert differing(comparison([one], [other])) == {"data digest": ("d" * 12, "e" * 12)}
    moved = one.model_copy(update={"target_indices": list(range(8, 16))})
    assert list(differing(comparison([one], [moved]))) == ["which targets (digest)"]


def test_other_code_is_named_and_its_scores_still_stand_side_by_side() -> None:
    def by(digest: str, psnr: float) -> Record:
        modules = {
            "training": {"modules": {"leakboard.leaderboard.cells.train": digest}, "versions": {"torch": digest[:3]}}
        }
        return made(reconstruction("mp-dp", "dlg", [psnr] * 8)).model_copy(update={"ingredients": modules})

    tables = comparison([by("1" * 64, 10)], [by("2" * 64, 11)])
    assert differing(tables) == {
        "leakboard.leaderboard.cells.train": ("1" * 12, "2" * 12),
        "version of torch": ("111", "222"),
    }
    (row,) = tables[1].rows
    assert (row.section, row.cells["difference"].value) == (OTHER_CODE, 1)
    assert len(tables) == 2


def test_equal_settings_stand_side_by_side_and_say_over_what() -> None:
    one = made(membership("dp", scores=[2, 1, 0, -1]))
    two = made(membership("dp", scores=[2, 1, 0, -1], accuracy=0.8))
    (table,) = comparison([one], [two])
    (row,) = table.rows
    assert (row.section, row.cells["score"].value) == (SAME, "accuracy")
    assert row.cells["difference"].value == pytest.approx(-0.1)
    assert row.cells["over"].value == "all 4 targets"
    (equal,) = comparison([one], [one])
    assert "Every score of every common cell is equal." in equal.notes


def test_seeds_and_attacks_of_one_run_alone_are_named() -> None:
    tables = comparison([made(), made(reconstruction("mp-dp", "dlg", seed=3))], [made(), made(membership("mp-dp"))])
    found = differing(tables)
    assert found["seeds"] == ("3", None)
    assert found["attacks"] == (None, "shadow")
    assert tables[1].notes[0] == "1 cells are in both runs, 1 only in A, 1 only in B."


def test_a_cell_that_failed_in_one_run_is_still_told() -> None:
    (table,) = comparison([made()], [made(reconstruction("mp-dp", "dlg", status="timeout"))])
    assert ("status", "ok", "timeout") in [
        (row.cells["score"].value, row.cells["a"].value, row.cells["b"].value) for row in table.rows
    ]
