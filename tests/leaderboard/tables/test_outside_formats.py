"""A format is one file: one that is written outside the tree is a choice of `table --format`."""

from __future__ import annotations

from pathlib import Path

import pytest

from leakboard.core import registry
from leakboard.leaderboard.cli.main import main
from leakboard.leaderboard.publishing.submit import PUBLISHED
from leakboard.leaderboard.tables.formats import formats
from tests.core.test_registry import install
from tests.leaderboard.tables.test_formats import TABLE

FORMAT = '''
"""Tables as reStructuredText."""
from leakboard.leaderboard.tables.formats.base import Format


class Rst(Format):
    """reStructuredText."""

    name = "rst"
    comment = ".. "

    def render(self, tables):
        """A list-table per table."""
        return "".join(f".. list-table:: {table.title}\\n" + "".join(map(self.line, table.rows)) for table in tables)

    def line(self, row):
        first, *others = (cell.value for cell in row.cells.values())
        return f"\\n   * - {first}\\n" + "".join(f"     - {value}\\n" for value in others)
'''
ARGUMENTS = ["table", "--out", str(PUBLISHED / "quick"), "--format", "rst"]


@pytest.fixture(autouse=True)
def _no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_loaded_files", {})


@pytest.fixture
def rst(tmp_path: Path) -> Path:
    file = tmp_path / "rst_format.py"
    file.write_text(FORMAT)
    return file


def test_our_formats_are_found_by_name() -> None:
    assert list(formats()) == ["csv", "html", "json", "latex", "md"]
    assert all("mp" in one.render([TABLE, TABLE]) for one in formats().values())


def test_a_format_from_a_plugin_file_prints_tables(rst: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ARGUMENTS, "--plugin", str(rst)]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith(".. ")  # the board's warning, as a comment
    assert any(line.startswith(".. list-table:: Reconstruction") for line in lines)
    assert formats()["rst"].render([TABLE]).startswith(".. list-table:: Who is in?\n\n   * - mp_dp\n")


def test_a_format_from_an_installed_package_prints_tables_and_stands_in_the_help(
    rst: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(tmp_path, "rst-package", rst.stem, group="leakboard.formats")
    monkeypatch.syspath_prepend(tmp_path)
    assert main(ARGUMENTS) == 0
    assert ".. list-table:: Reconstruction" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["table", "--help"])
    assert "csv, html, json, latex, md, rst" in " ".join(capsys.readouterr().out.split())


def test_a_format_that_is_not_there_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(ARGUMENTS) == 2
    assert capsys.readouterr().err.strip() == (
        "run_benchmark.py: There is no format 'rst': Known: csv, html, json, latex, md."
    )
