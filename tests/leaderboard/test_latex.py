"""The LaTeX of every kind of table, by the one judge that counts: pdflatex."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from leaderboard.listing import cell_tables
from leaderboard.paper_tables import paper_tables
from leaderboard.phases import phase_tables
from leaderboard.render import to_latex
from leaderboard.render.latex import PACKAGES
from leaderboard.table import Cell, Row, Table
from tests.leaderboard.test_charts import a_run, boards
from tests.leaderboard.test_render import HOSTILE, TABLE, poisoned

SIGNS = (
    r"ε ± ≤ ≥ ≈ × · ∞ √ ° ↑ ↓ → … – — − ¹ ² ½ 漢 🙂 é "
    r"& % _ $ # { } ~ ^ \ | < > [ ] * ` ' \input{x} \end{table} %% --a ``b'' ε ±"
)
LETTERS = "".join(char for char in map(chr, range(0x80, 0x250)) if char.isprintable())
pytestmark = pytest.mark.skipif(shutil.which("pdflatex") is None, reason="there is no pdflatex on this machine")


def compiled(folder: Path, tables: list[Table], encoding: str = "") -> str:
    """The log of pdflatex over a document of these tables, which ends at the first error; the document is there."""
    body = "\n\\clearpage\n".join(map(to_latex, tables))
    text = f"\\documentclass{{article}}\n{encoding}\n{PACKAGES}\n\\begin{{document}}\n{body}\n\\end{{document}}\n"
    (folder / "tables.tex").write_text(text)
    call = ["pdflatex", "-halt-on-error", "-no-shell-escape", "-interaction=nonstopmode", "tables.tex"]
    done = subprocess.run(call, cwd=folder, capture_output=True, timeout=120)
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


def test_a_long_table_goes_over_several_pages(tmp_path: Path) -> None:
    """And no row is lost: 100 rows are 40, 40 and 20."""
    rows = tuple(Row({TABLE.columns[0].key: Cell(f"row-{n}-")}) for n in range(100))
    long = replace(TABLE, title="Long", rows=rows)
    log = compiled(tmp_path, [long])
    assert "(3 pages" in log
    assert "Float too large" not in log
    text = to_latex(long)
    assert [text.count(f"row-{n}-") for n in range(100)] == [1] * 100
    assert "Long (3 of 3)" in text


def test_what_is_not_latex_is_seen_here(tmp_path: Path) -> None:
    broken = Table("T", TABLE.columns, TABLE.rows)
    (tmp_path / "x").mkdir()
    compiled(tmp_path, [broken])
    with pytest.raises(AssertionError, match="Undefined control sequence"):
        compiled(tmp_path / "x", [broken], r"\nosuchcommand")
