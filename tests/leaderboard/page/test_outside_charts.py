"""A chart is one file: one that is written outside the tree stands on the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from leakboard.core import registry
from leakboard.core.errors import UserError
from leakboard.leaderboard.page.charts.collect import chart_classes
from tests.core.test_registry import install
from tests.leaderboard.page.test_charts import write
from tests.leaderboard.synthetic import audit

CHART = '''
"""Rounds per training."""
from dataclasses import dataclass

from matplotlib.figure import Figure

from leakboard.leaderboard.page.charts.base import Chart


@dataclass(frozen=True)
class Rounds(Chart):
    """Rounds per defense."""

    name = "rounds"
    shows = "How many rounds each defense was trained for."

    rounds: dict[str, int]

    @classmethod
    def numbers(cls, boards, records):
        dataset = records[0].cell.training.dataset.label
        rounds = {r.cell.training.defense.label: r.training.rounds for r in records if r.training is not None}
        return [cls((dataset,), f"Rounds: {dataset}", "Longer bars are more rounds.", rounds, description=str(rounds))]

    def draw(self, look):
        paper = Figure(figsize=(4, 2))
        paper.add_subplot().barh(list(self.rounds), list(self.rounds.values()), color=look.accent)
        return paper
'''


@pytest.fixture(autouse=True)
def _no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_loaded_files", {})


@pytest.fixture
def chart(tmp_path: Path) -> Path:
    file = tmp_path / "rounds_chart.py"
    file.write_text(CHART)
    return file


def check_page(folder: Path) -> None:
    page = write(folder, [audit("fedsgd", audited=6.0)])
    shown = page.all("img", "by-day")[-1]
    assert shown["src"] == "figures/chart-rounds-digits-light.svg"
    assert "fedsgd" in shown["alt"]
    assert (folder / shown["src"]).is_file()
    assert "was trained for. Longer bars are more rounds." in (folder / "index.html").read_text()


def test_a_chart_from_a_plugin_file_is_on_the_page(tmp_path: Path, chart: Path) -> None:
    before = chart_classes()
    assert registry.load_file(chart) == []  # a chart is no plugin that a suite could name
    assert [one.name for one in chart_classes() if one not in before] == ["rounds"]
    check_page(tmp_path / "page")


def test_a_chart_from_an_installed_package_is_on_the_page(
    tmp_path: Path, chart: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "rounds-package", chart.stem, group="leakboard.charts")
    monkeypatch.syspath_prepend(tmp_path)
    check_page(tmp_path / "page")


def test_every_chart_of_ours_is_found_and_says_what_it_shows() -> None:
    found = {one.name: one for one in chart_classes()}
    expected = ["trade-off", "batches", "threats", "epsilon", "roc", "budget", "phases"]
    assert list(found) == expected  # the order of the page
    assert all(one.shows.endswith(".") and one.shows.count(". ") == 0 for one in found.values())


@pytest.mark.parametrize(
    ("name", "message"),
    [("roc", "Two charts are called 'roc'"), ("../x", r"A chart is called '\.\./x': a name consists of letters")],
)
def test_a_name_that_is_taken_or_odd_is_refused(chart: Path, name: str, message: str) -> None:
    chart.write_text(CHART.replace('"rounds"', repr(name)))
    registry.load_file(chart)
    with pytest.raises(UserError, match=message):
        chart_classes()
