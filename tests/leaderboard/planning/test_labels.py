"""Labels with spaces, parentheses and apostrophes survive tables, files, figures, filters and the command line."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

from leakboard.leaderboard.page.cards import cards
from leakboard.leaderboard.page.charts.collect import charts, save_charts
from leakboard.leaderboard.ranking.leaderboards import ranking_boards
from leakboard.leaderboard.records.record import Record
from leakboard.leaderboard.tables.formats import to_csv, to_html, to_latex, to_markdown, to_terminal
from tests.leaderboard.page.test_charts import a_run
from tests.leaderboard.ranking.test_leaderboards import defended, only_table, ranking
from tests.leaderboard.runs import call, write_suite

V1, FORMULA = "mp-dp (V1)", "mp-dp (paper's formula)"


def test_tables_of_every_format_show_such_labels() -> None:
    table = only_table([*defended("fedsgd", 9), *defended(V1, 5), *defended(FORMULA, 1)])
    assert ranking(table) == {FORMULA: 1, V1: 2, "fedsgd": 3}
    assert V1 in to_terminal(table)
    assert FORMULA in to_terminal(table)
    assert FORMULA in to_markdown(table)
    assert "mp-dp (paper&#x27;s formula)" in to_html(table)
    assert FORMULA in to_latex(table)
    assert [line["defense"] for line in csv.DictReader(io.StringIO(to_csv([table])))] == [FORMULA, V1, "fedsgd"]


def test_files_of_such_labels_have_names_that_no_shell_stumbles_over(tmp_path: Path) -> None:
    found: list[Record] = a_run(FORMULA)
    assert all(re.fullmatch(r"[\w.+@-]+", record.cell.slug) for record in found)
    boards = ranking_boards(found, "fedsgd", 0.9)
    assert FORMULA in [card.label for card in cards(boards, found, {})]
    drawn = save_charts(tmp_path, charts(boards, found))
    assert drawn
    assert all(re.fullmatch(r"figures/[\w.+-]+", one.light) for one in drawn)


def test_a_run_with_such_labels_can_be_cut_down_tabled_and_shown(tmp_path: Path) -> None:
    rows = ["fedsgd", {"name": "fedsgd", "label": V1}, {"name": "fedsgd", "label": FORMULA}]
    attacks = [{"name": "loss-threshold", "label": "loss (raw)", "threats": ["client"]}]
    suite, folder = write_suite(tmp_path, defenses=rows, attacks=attacks), tmp_path / "run"
    ran = call("run", "--suite", suite, "--out", folder, "--defense", V1, "--workers", 1)
    assert ran.code == 0, ran.err
    assert "2 cells" in ran.began
    assert V1 in call("table", "--out", folder).out
    (path,) = (folder / "records").glob("*mp-dp__V1_--loss__raw_*.json")
    assert f"loss (raw) on {V1}" in call("show", path).out
    assert V1 in (folder / "report" / "index.html").read_text()
    assert call("compare", folder, folder).code == 0
    wrong = call("run", "--suite", suite, "--defense", "mp-dp (V3)", "--dry-run")
    assert wrong.code == 2
    assert V1 in wrong.err
