"""Every place that prints a score says over which targets it is; the budget has three columns."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from leakboard.leaderboard.api.show import describe
from leakboard.leaderboard.page.cards import cards
from leakboard.leaderboard.page.charts.collect import charts
from leakboard.leaderboard.page.page import Entry, write_page
from leakboard.leaderboard.planning.run_folder import read_record_file
from leakboard.leaderboard.publishing.submit import PUBLISHED
from leakboard.leaderboard.ranking.epsilons import EXACT_NOTE
from leakboard.leaderboard.ranking.leaderboards import ranking_boards
from leakboard.leaderboard.records.record import Record
from leakboard.leaderboard.records.scope import all_targets
from leakboard.leaderboard.tables.all_cells import cell_tables
from leakboard.leaderboard.tables.formats import to_csv, to_html, to_latex, to_markdown, to_terminal
from leakboard.leaderboard.tables.table import Table
from tests.leaderboard.ranking.test_leaderboards import attacked, defended, only_table, rows
from tests.leaderboard.synthetic import audit, extraction, membership, reconstruction

HALF = "the 4 of 8 targets on which the attack was not chosen"
RECORDS = [*defended("fedsgd", 9), *defended("weak", 5)]


@pytest.mark.parametrize("render", [to_terminal, to_markdown, to_latex, to_html, lambda table: to_csv([table])])
def test_every_format_of_a_ranking_says_which_half_it_is_over(render: object) -> None:
    text = render(only_table(RECORDS))  # type: ignore[operator]
    assert HALF in " ".join(text.split())


def test_the_list_of_cells_and_show_say_that_they_are_over_all_targets() -> None:
    (listed,) = cell_tables(RECORDS)
    assert {row.cells["over"].value for row in listed.rows} == {"all 8 targets"}
    assert any("Rankings report the half" in note for note in listed.notes)
    assert "scores    over all 8 targets (rankings: over the half" in describe(RECORDS[0])


def test_cards_and_charts_say_which_half_they_are_over() -> None:
    found = [*RECORDS, attacked("fedsgd", 3), attacked("weak", 1)]
    boards = ranking_boards(found, "fedavg", 0.9)
    first = cards(boards, found, {})[0].findings
    assert first[0].score.endswith(f"over {HALF}")
    assert first[1].score.endswith("over the 100 of 200 targets on which the attack was not chosen")
    drawn = {chart.name: chart.caption for chart in charts(boards, [])}
    assert "Scores are over the 4 of 8 targets" in drawn["trade-off"] or "100 of 200" in drawn["trade-off"]
    assert HALF in drawn["threats"]
    assert "Rates are over the 100 of 200 targets on which the attack was not chosen" in drawn["roc"]


def test_the_same_cell_with_two_scores_tells_them_apart() -> None:
    record = attacked("fedsgd", 0.1)
    table = only_table([record])
    (listed,) = cell_tables([record])
    assert "the 100 of 200 targets" in table.caption
    assert listed.rows[0].cells["over"].value == "all 200 targets"


def test_the_page_names_the_targets_of_a_record_and_of_its_roc(tmp_path: Path) -> None:
    record = attacked("fedsgd", 3)
    nothing = {"originals": lambda record: None, "reconstructions": lambda record: None}
    path = write_page(tmp_path, title="x", description="", tables=[], records=[record], **nothing)  # type: ignore[arg-type]
    text = " ".join(path.read_text().split())
    assert "Scores over all 200 targets" in text
    assert re.search(r"both logarithmic, over all 200 targets", text)
    assert Entry(reconstruction(), "a").headlines[-1] == "over all 2 targets"


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (extraction(), "all 4 test records"),
        (membership(), "all 4 targets"),
        (reconstruction(status="failed"), ""),
        (audit(), ""),  # made by hand, without its trials
    ],
)
def test_words_fit_the_goal(record: Record, words: str) -> None:
    assert all_targets(record) == words


def test_one_target_is_told_to_have_no_other_half() -> None:
    table = only_table([reconstruction("fedsgd", "prior", [1.0]), reconstruction("fedsgd", "a", [9.0])])
    assert "on which the attack was also chosen" in table.caption


# --- the budget ---------------------------------------------------------------------------------


def claiming(defense: str, claims: dict[str, object]) -> list[Record]:
    found = defended(defense, 5)
    return [
        r.model_copy(update={"training": r.training.model_copy(update={"claims": claims})}) for r in found if r.training
    ]


def titles(table: Table) -> list[str]:
    return [column.title for column in table.columns if "ε" in column.title]


def test_a_ranking_has_three_columns_of_epsilon() -> None:
    new = {"epsilon_claimed": 3.0, "epsilon_per": "round", "epsilon_round_exact": 15.3, "epsilon_run_exact": 190.0}
    none = {"epsilon_claimed": 1.0, "epsilon_per": "run", "epsilon_round_exact": None, "epsilon_run_exact": None}
    none["epsilon_total_if_gaussian"] = 7.0  # a record that says it has none has none
    table = only_table([*defended("fedsgd", 9), *claiming("mp-dp", new), *claiming("laplace", none)])
    assert titles(table) == ["ε nominal", "ε exact per round", "ε exact per run"]
    keys = ("epsilon_nominal", "epsilon_round", "epsilon_run")
    shown = {name: [row.cells[key].value for key in keys] for name, row in rows(table).items()}
    assert shown == {"mp-dp": [3, 15.3, 190], "laplace": [1, None, None], "fedsgd": [None, None, None]}
    assert rows(table)["mp-dp"].cells["epsilon_nominal"].note == "per round"
    assert rows(table)["laplace"].cells["epsilon_nominal"].note == "per run"
    assert EXACT_NOTE in table.notes


def test_older_records_show_what_their_noise_composes_to_and_no_empty_column() -> None:
    old = {"epsilon_claimed": 3.0, "epsilon_total_if_gaussian": 45.2, "mode": "paper"}
    table = only_table([*defended("fedsgd", 9), *claiming("mp-dp", old)])
    assert titles(table) == ["ε nominal", "ε exact per run"]
    assert rows(table)["mp-dp"].cells["epsilon_run"].value == 45.2
    assert titles(only_table(RECORDS)) == []
    assert not any("ε exact" in note for note in only_table(RECORDS).notes)


def test_published_records_of_older_code_can_still_be_tabled() -> None:
    folder = PUBLISHED / "quick"
    found = [read_record_file(path) for path in sorted(folder.glob("*.json")) if path.name != "published.json"]
    boards = ranking_boards(found, "fedavg", 0.9)
    assert any("ε exact per run" in titles(board.table) for board in boards)
    assert all(
        not row.muted
        for board in boards
        for row in board.table.rows
        if row.cells["defense"].value in ("mp-dp", "tp-smc")
    )
