"""What failed is shown, and what is merely not computed yet is not blamed on the suite."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from leakboard.leaderboard.page.cards import cards
from leakboard.leaderboard.page.charts.collect import charts
from leakboard.leaderboard.ranking.goal_ranking import NOT_SHOWN
from leakboard.leaderboard.ranking.leaderboards import Board, ranking_boards
from leakboard.leaderboard.ranking.scoreboard import scoreboards
from leakboard.leaderboard.ranking.silence import diverged
from leakboard.leaderboard.records.record import Record
from leakboard.leaderboard.tables.formats import to_csv, to_html, to_json, to_latex, to_markdown, to_terminal
from leakboard.leaderboard.tables.table import Table
from tests.leaderboard.ranking.test_leaderboards import attacked, defended, ranking, rows
from tests.leaderboard.runs import call, records, write_suite
from tests.leaderboard.synthetic import audit, membership, reconstruction

WHY = "its training failed: ValueError: the noise is not finite"


def untrained(record: Record, reason: str = WHY) -> Record:
    """The record that the engine writes for a cell whose training failed."""
    update: dict[str, object] = {
        "status": "failed",
        "reason": reason,
        "training": None,
        "scores": {},
        "target_indices": [],
        "cost": None,
    }
    return record.model_copy(update={**update, "members": [], "member_scores": [], "decisions": []})


def failed(defense: str = "fragile") -> list[Record]:
    return [untrained(record) for record in defended(defense, 0)]


def only(found: list[Record], waiting: list[Record] | None = None) -> Board:
    (board,) = ranking_boards(found, "fedsgd", 0.9, [record.cell for record in waiting or []])
    return board


def test_a_defense_whose_training_failed_has_a_row_with_the_reason() -> None:
    table = only([*defended("fedsgd", 9), *defended("weak", 5), *failed()]).table
    assert ranking(table) == {"weak": 1, "fedsgd": 2, "fragile": None}
    assert [row.muted for row in table.rows] == [False, False, True]
    assert rows(table)["fragile"].cells["rank"].note == WHY
    assert rows(table)["fragile"].cells["identified"].value is None


@pytest.mark.parametrize("render", [to_terminal, to_markdown, to_latex, to_html])
def test_every_format_shows_the_failed_row_and_why(render: object) -> None:
    table = only([*defended("fedsgd", 9), *failed()]).table
    text = render(table)  # type: ignore[operator]
    assert "fragile" in text
    assert "the noise is not finite" in text


def test_csv_and_json_show_the_failed_row_and_why() -> None:
    table = only([*defended("fedsgd", 9), *failed()]).table
    line = next(line for line in to_csv([table]).splitlines() if ",fragile," in line)
    assert WHY in line
    shown = json.loads(to_json([table]))["tables"][0]["rows"]
    assert [row["cells"]["rank"]["note"] for row in shown if row["cells"]["defense"]["value"] == "fragile"] == [WHY]


def test_the_card_of_a_failed_training_says_why_and_no_chart_stumbles() -> None:
    gone = [untrained(attacked("fragile", 0)), untrained(audit("fragile"))]
    found = [*defended("fedsgd", 9), attacked("fedsgd", 3), audit("fedsgd"), *failed(), *gone]
    boards = ranking_boards(found, "fedsgd", 0.9)
    (card,) = (card for card in cards(boards, found, {}) if card.label == "fragile")
    assert [(finding.verdict, finding.why) for finding in card.findings] == [(NOT_SHOWN, WHY)] * 3
    assert all("fragile" in [str(row.cells["defense"].value) for row in board.table.rows] for board in boards)
    assert charts(boards, [])
    assert charts(ranking_boards(failed("fedsgd"), "fedsgd", 0.9), []) == []


def test_a_training_that_failed_at_one_seed_unranks_and_names_it() -> None:
    good = [r for seed in (0, 1) for r in defended("fedsgd", 9, seed=seed)]
    half = [*defended("fragile", 1), *(untrained(record) for record in defended("fragile", 1, seed=1))]
    row = rows(only([*good, *half]).table)["fragile"]
    assert row.muted
    assert row.cells["rank"].note == f"{WHY} (seed 1)"
    assert row.cells["excess"].value == pytest.approx(1)


def test_a_control_whose_training_failed_is_told_so() -> None:
    table = only([*failed("fedsgd"), *defended("weak", 5)]).table
    assert any(f"it has no score: {WHY}" in note for note in table.notes)
    assert set(ranking(table).values()) == {None}


def test_who_was_never_asked_has_no_row() -> None:
    skipped = reconstruction("other", "inverting-gradients", status="skipped")
    assert list(rows(only([*defended("fedsgd", 9), skipped]).table)) == ["fedsgd"]


# --- unfinished runs ----------------------------------------------------------------------------


def notes(table: Table) -> str:
    return "\n".join(table.notes)


def test_an_unfinished_run_names_the_missing_cells_and_does_not_blame_the_suite() -> None:
    prior, attack = defended("fedsgd", 9)
    table = only([attack], [prior, *defended("weak", 5)]).table
    assert "There is no prior among the attacks" not in notes(table)
    assert (
        "3 of 4 cells of this table are not computed yet: prior on fedsgd, weak; inverting-gradients on weak."
        in notes(table)
    )
    assert "The control (fedsgd) has no score yet: its cells are not computed." in notes(table)
    assert "show nothing" not in notes(table)
    assert rows(table)["weak"].cells["rank"].note == "not computed yet: inverting-gradients, prior"


def test_nobody_is_ranked_before_all_attacks_on_it_are_there() -> None:
    later = reconstruction("weak", "phi-inversion")
    board = only([*defended("fedsgd", 9), *defended("weak", 0)], [later])
    assert ranking(board.table) == {"fedsgd": 1, "weak": None}
    (card,) = (c for c in cards([board], [*defended("fedsgd", 9), *defended("weak", 0)], {}) if c.label == "weak")
    assert (card.findings[0].verdict, card.findings[0].why) == (NOT_SHOWN, "not computed yet: phi-inversion")


def test_a_prior_that_failed_is_not_a_prior_that_the_suite_lacks() -> None:
    _, attack = defended("fedsgd", 9)
    table = only([attack, reconstruction("fedsgd", "prior", status="timeout")]).table
    assert "The prior gave no answer" in notes(table)
    assert "add it to the suite" not in notes(table)


def test_a_membership_control_of_too_few_targets_is_told_so() -> None:
    few = membership("fedsgd", scores=[1.0, 0.5, 0.4, 0.2, 0.05, 0.1] * 2, members=[True, False] * 6)
    assert "cannot be told: too few targets: AUC" in notes(only([few]).table)


FRAGILE = '''
from typing import ClassVar
from leakboard.defenses.base import Defense

class Fragile(Defense):
    """Breaks in its first round."""
    name: ClassVar[str] = "fragile"
    def protect(self, me, gradient):
        raise ValueError("the glass fell")
'''


def test_the_table_of_a_real_run_shows_the_failed_training_and_an_unfinished_one_what_is_missing(
    tmp_path: Path,
) -> None:
    plugin, folder = tmp_path / "fragile.py", tmp_path / "run"
    plugin.write_text(FRAGILE)
    suite = write_suite(tmp_path, attacks=[{"name": "prior", "threats": ["server"]}])
    ran = call("run", "--suite", suite, "--out", folder, "--plugin", plugin, "--workers", 1)
    assert ran.code == 1, ran.err
    assert all(r.training is None or r.training.outcomes() for r in records(folder).values())
    said = " ".join(call("table", "--out", folder).out.split())
    assert "fragile" in said
    assert "its training failed: ValueError: the glass fell" in said
    for path in (folder / "records").glob("*fragile*.json"):
        path.unlink()
    unfinished = call("table", "--out", folder)
    assert "2 of 4 cells of this table are not computed yet: prior on fragile" in " ".join(unfinished.out.split())
    assert "2 of 4 cells are not there yet" in unfinished.err
    for path in (folder / "records").glob("*.json"):
        path.unlink()
    assert "No cell is there yet of: Reconstruction, digits, threat server." in call("table", "--out", folder).err


def test_a_training_that_diverged_says_so_in_one_sentence() -> None:
    made = [*defended("fedsgd", 9), *defended("wild", 0, accuracy=0.1)]
    lost = [r for r in made if r.cell.training.defense.label == "wild" and r.training is not None]
    for record in lost:
        assert record.training is not None
        summary = record.training.model_copy(update={"diverged": True})
        made[made.index(record)] = record.model_copy(update={"training": summary})
    said = "its training diverged: the final model has values that are not finite (seed 0)"
    assert diverged(made) == said
    assert diverged(made[:2]) == ""
    (board,) = ranking_boards(made, "fedsgd", 0.9)
    (row,) = (row for row in board.table.rows if row.cells["defense"].value == "wild")
    assert row.cells["rank"].note == said
    (scores,) = scoreboards([board], made)
    assert next(r.unranked for r in scores.rows if r.defense == "wild") == said
