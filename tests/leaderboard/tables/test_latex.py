"""The LaTeX of every kind of table, by the one judge that counts: pdflatex."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from leakboard.leaderboard.tables.all_cells import cell_tables
from leakboard.leaderboard.tables.formats import find_format, to_latex
from leakboard.leaderboard.tables.formats.latex import PACKAGES
from leakboard.leaderboard.tables.paper_tables import paper_tables
from leakboard.leaderboard.tables.phase_times import phase_tables
from leakboard.leaderboard.tables.table import Cell, Column, Row, Table
from tests.leaderboard.page.test_charts import a_run, boards
from tests.leaderboard.runs import HANG
from tests.leaderboard.tables.test_formats import HOSTILE, TABLE, poisoned

SIGNS = (
    r"ε ± ≤ ≥ ≈ × · ∞ √ ° ↑ ↓ → … – — − ¹ ² ½ 漢 🙂 é "
    r"& % _ $ # { } ~ ^ \ | < > [ ] * ` ' \input{x} \end{table} %% --a ``b'' ε ±"
)
LETTERS = "".join(char for char in map(chr, range(0x80, 0x250)) if char.isprintable())
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("pdflatex") is None, reason="there is no pdflatex on this machine"),
]


def compiled(folder: Path, tables: list[Table], encoding: str = "", more: str = "") -> str:
    """The log of pdflatex over a document of these tables, which ends at the first error; the document is there."""
    body = "\n\\clearpage\n".join([*map(to_latex, tables), more])
    text = f"\\documentclass{{article}}\n{encoding}\n{PACKAGES}\n\\begin{{document}}\n{body}\n\\end{{document}}\n"
    (folder / "tables.tex").write_text(text)
    call = ["pdflatex", "-halt-on-error", "-no-shell-escape", "-interaction=nonstopmode", "tables.tex"]
    done = subprocess.run(call, cwd=folder, capture_output=True, timeout=HANG)
    assert done.returncode == 0, done.stdout.decode(errors="replace")[-1500:]
    assert (folder / "tables.pdf").read_bytes().startswith(b"%PDF")
    return done.stdout.decode(errors="replace")


def every_kind(name: str) -> list[Table]:
    """Rankings and audits, phases, the paper's and the lists of cells of one run."""
    records = a_run(name)
    return [board.table for board in boards(records)] + [
        *phase_tables(records),
        *paper_tables(records),
        *cell_tables(records),
    ]


def test_every_kind_of_table_compiles(tmp_path: Path) -> None:
    tables = every_kind("mp-dp")
    log = compiled(tmp_path, [TABLE, *tables])
    assert f"({len(tables) + 1} pages" in log  # each on one page: none is lost


@pytest.mark.parametrize("encoding", ["", r"\usepackage[T1]{fontenc}"])
def test_no_name_and_no_sign_stops_it(encoding: str, tmp_path: Path) -> None:
    hostile = [poisoned(text) for text in (HOSTILE, SIGNS, LETTERS, *SIGNS.split())]
    compiled(tmp_path, [*hostile, *every_kind(SIGNS)], encoding)


def test_a_wide_table_is_made_to_fit(tmp_path: Path) -> None:
    log = compiled(tmp_path, every_kind("mp-dp"))
    assert "Overfull \\hbox" not in log


@pytest.mark.parametrize("sections", [0, 1, 7, 30])
@pytest.mark.parametrize("notes", [0, 3, 200])
def test_a_long_table_goes_over_several_pages(sections: int, notes: int, tmp_path: Path) -> None:
    """Rows stay in their order, none is lost, and no page runs over."""
    rows = tuple(
        Row(
            {TABLE.columns[0].key: Cell(f"row-{n}-", note=f"note {n % notes}: " + "x " * 60 if notes else "")},
            section=f"section {n * sections // 150}" if sections else "",
            muted=n % 50 > 40,
        )
        for n in range(150)
    )
    long = replace(TABLE, title="Long", rows=rows)
    log = compiled(tmp_path, [long])
    assert "Float too large" not in log
    text = to_latex(long)
    shown = [row.cells[TABLE.columns[0].key].value for group in long.groups() for row in (*group.ranked, *group.muted)]
    assert re.findall(r"row-\d+-", text) == shown
    assert "Long (2 of " in text


def test_small_numbers_are_powers_of_ten(tmp_path: Path) -> None:
    column = Column("feat", "Feat-MSE", significant=2)
    table = Table("T", (column,), (Row({"feat": Cell(4.7e-5, low=4e-5, high=9e-5)}),))
    assert r"4.7 \cdot {10^{-5}}" in to_latex(table)
    assert not re.search(r"\de[+-]\d", to_latex(table))
    compiled(tmp_path, [table])


def test_what_is_not_latex_is_seen_here(tmp_path: Path) -> None:
    broken = Table("T", TABLE.columns, TABLE.rows)
    (tmp_path / "x").mkdir()
    compiled(tmp_path, [broken])
    with pytest.raises(AssertionError, match="Undefined control sequence"):
        compiled(tmp_path / "x", [broken], r"\nosuchcommand")


def test_every_table_has_a_label_of_its_own_that_the_text_can_refer_to(tmp_path: Path) -> None:
    tables = every_kind("mp-dp")
    text = find_format("latex").render([*tables, tables[0]])
    labels = re.findall(r"\\label\{(.*?)\}", text)
    assert len(labels) == len(set(labels)) == text.count(r"\begin{table}")
    assert all(re.fullmatch("tab:[a-z0-9-]+", label) for label in labels)
    referred = "".join(rf"\ref{{{label}}} " for label in labels)
    log = ""
    for _ in range(2):  # LaTeX reads labels of its last run
        log = compiled(tmp_path, [], more=text + referred)
    assert "undefined references" not in log
    assert "multiply" not in log


def test_a_table_with_intervals_says_that_they_are_of_95_percent() -> None:
    column = Column("auc", "AUC")
    with_interval = Table("one", (column,), (Row({"auc": Cell(0.5, 0.4, 0.6)}),))
    without = Table("one", (column,), (Row({"auc": Cell(0.5)}),))
    assert r"95 \% intervals" in to_latex(with_interval)
    assert r"95 \% intervals" not in to_latex(without)
