"""The charts of the page: what stands in them, and that their files are there, safe and shown."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from leakboard.leaderboard.page.charts.collect import charts
from leakboard.leaderboard.page.charts.epsilon import Budgets
from leakboard.leaderboard.page.charts.roc import Roc, roc_line
from leakboard.leaderboard.page.charts.threats import Matrix
from leakboard.leaderboard.page.charts.trade_off import TradeOff
from leakboard.leaderboard.page.page import write_page
from leakboard.leaderboard.page.roc import roc_at
from leakboard.leaderboard.ranking.evidence import gather, halves, tpr_at
from leakboard.leaderboard.ranking.leaderboards import Board, ranking_boards
from leakboard.leaderboard.records.record import Record
from leakboard.metrics.tpr_at_fpr import tpr_at_fpr
from tests.leaderboard.page.test_page import HOSTILE, Page, check
from tests.leaderboard.ranking.test_leaderboards import attacked, defended
from tests.leaderboard.ranking.test_worst_case import gapped, knowing, stolen
from tests.leaderboard.synthetic import audit, extraction, membership


def a_run(name: str = "mp-dp") -> list[Record]:
    """Every goal, a control, a defense that an adaptive attack breaks, and one that does not train."""
    return [
        *defended("fedsgd", 9),
        *defended(name, 1),
        knowing(name, 7),
        *defended("noise", 0, accuracy=0.3),
        attacked("fedsgd", 3),
        attacked(name, 0.5),
        stolen("fedsgd", 1),
        stolen(name, 0.5),
        audit("fedsgd", audited=6.0, details={"ceiling": 6.5, "trials": 2000}),
        audit(name, audited=5.0),
    ]


def boards(records: list[Record]) -> list[Board]:
    return ranking_boards(records, "fedsgd", 0.9)


def write(folder: Path, records: list[Record]) -> Page:
    path = write_page(
        folder,
        title="Quick",
        description="",
        boards=boards(records),
        tables=[],
        records=records,
        originals=lambda _: None,
        reconstructions=lambda _: None,
    )
    return Page(path)


def test_the_trade_off_shows_the_worst_case_the_plain_one_and_the_front() -> None:
    chart = charts(boards(a_run()), [])[0]
    assert isinstance(chart, TradeOff)
    (plane,) = chart.planes
    spots = {spot.defense: spot for spot in plane.spots}
    assert {name: spot.ranked for name, spot in spots.items()} == {"fedsgd": True, "mp-dp": True, "noise": False}
    assert not spots["noise"].front  # it leaks nothing, but noise alone must not win
    assert spots["mp-dp"].plain is not None
    assert spots["fedsgd"].plain is None  # its worst attack is the plain one
    assert all(spot.harm.low is not None and spot.accuracy.low is not None for spot in plane.spots)


def test_the_matrix_has_a_column_a_threat_and_no_colour_where_nothing_is_ranked() -> None:
    records = [r for r in a_run() if r.cell.goal != "membership"]
    records += [gapped("fedsgd", 3, 0.9, 0.9), gapped("mp-dp", 3, 0.9, 0.9)]
    (chart,) = [chart for chart in charts(boards(records), []) if isinstance(chart, Matrix)]
    assert [column.split("\n")[0] for column in chart.columns] == [
        "reconstruction",
        "membership",
        "extraction",
        "audit",
    ]
    rows = dict(zip(chart.rows, chart.colour, strict=True))
    assert np.isnan([row[1] for row in rows.values()]).all()
    assert rows["fedsgd"][2] == 1
    assert rows["fedsgd"][3] == pytest.approx(np.tanh(3))
    assert np.isnan(rows["noise"][2])  # not attacked
    assert chart.text[chart.rows.index("noise")][2] == "–"


def test_budgets_carry_the_verdict() -> None:
    (chart,) = [chart for chart in charts(boards(a_run()), []) if isinstance(chart, Budgets)]
    found = {budget.defense: budget for budget in chart.budgets}
    assert found["mp-dp"][1:] == (3.0, 40.0, 5.0, 6.5, True)
    assert found["fedsgd"][1:] == (None, None, 6.0, 6.5, False)


def test_the_roc_agrees_with_the_metric_at_every_level() -> None:
    random = np.random.default_rng(0)
    members = random.random(300) < 0.4
    scores = np.round(random.normal(size=300) + members, 1)  # with ties
    levels = np.array([0.0, 0.01, 0.05, 0.3, 0.999, 1.0])
    ours = roc_at(scores, members.astype(float), levels)
    theirs = [tpr_at_fpr(torch.tensor(scores), torch.tensor(members), float(level)) for level in levels]
    assert ours.tolist() == pytest.approx(theirs)
    assert ours[2] == pytest.approx(tpr_at(scores, members.astype(float), 0.05))


def test_the_band_of_several_seeds_runs_from_the_least_to_the_largest() -> None:
    perfect, useless = [3.0, 2.0, 1.0, 0.0], [0.0, 1.0, 2.0, 3.0]
    records = [membership(scores=scores, seed=seed) for seed, scores in enumerate((perfect, useless))]
    line = roc_line("fedsgd", gather(records)[0], plain=False)
    assert line is not None
    assert (line.fpr[0], line.low[0], line.tpr[0], line.high[0]) == (0.5, 0.0, 0.5, 1.0)


def test_the_band_of_one_seed_is_that_of_resamples_and_the_caption_says_which() -> None:
    line = roc_line("fedsgd", gather([attacked("fedsgd", 1)])[0], plain=False)
    assert line is not None
    assert (line.low <= line.high).all()
    assert (line.high - line.low).max() > 0.05
    inside = (line.low <= line.tpr + 1e-12) & (line.tpr <= line.high + 1e-12)
    assert inside.mean() > 0.9
    one = charts(boards([attacked("fedsgd", 3)]), [])[-1]
    more = charts(boards([attacked("fedsgd", 3), membership(seed=1)]), [])[-1]
    assert isinstance(one, Roc)
    assert "from one seed; its band is the central 95 %" in one.caption
    assert "the mean over 2 seeds; its band runs from the least to the largest" in more.caption
    assert roc_line("x", gather([membership(members=[True] * 4)])[0], plain=False) is None


def test_the_roc_is_of_the_reported_half_with_the_plain_attack_dashed() -> None:
    adaptive = membership("fedsgd", "strip", [9.0 * m for m in (1, 0) * 100], [True, False] * 100, adaptive=True)
    (board,) = boards([attacked("fedsgd", 1), adaptive])
    chart = charts([board], [])[-1]
    assert isinstance(chart, Roc)
    assert [(line.attack, line.plain) for line in chart.lines] == [("strip", False), ("shadow", True)]
    reported = board.rows[0].reported
    assert len(reported.strata) == len(halves(gather([adaptive])[0])[1]) == 100
    assert chart.lines[0].fpr[0] == 1 / int((reported.values["member"] == 0).sum())


def test_every_chart_has_a_file_a_theme_and_stands_on_the_page(tmp_path: Path) -> None:
    page = write(tmp_path, a_run())
    check(page, tmp_path)
    kinds = ["trade-off", "trade-off", "trade-off", "threats", "epsilon", "roc", "phases"]
    for theme, name in (("light", "by-day"), ("dark", "by-night")):
        shown = page.all("img", name)
        assert [re.findall(r"chart-(trade-off|[a-z]+)-", image["src"])[0] for image in shown] == kinds
        assert all(image["src"].endswith(f"-{theme}.svg") for image in shown)
    files = {f"figures/{path.name}" for path in (tmp_path / "figures").glob("*.svg")}
    assert files == {image["src"] for image in page.all("img") if "chart" in image["src"]}
    light, dark = (page.all("img", name)[0]["src"] for name in ("by-day", "by-night"))
    assert (tmp_path / light).read_bytes() != (tmp_path / dark).read_bytes()
    assert "mp-dp 90.0 %, 0.0 %" in page.all("img", "by-day")[0]["alt"]  # told in words as well


def test_the_same_records_give_the_same_files_and_nothing_of_an_earlier_page_stays(tmp_path: Path) -> None:
    def files() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (tmp_path / "figures").glob("*.svg")}

    write(tmp_path, [audit("fedsgd")])
    first = files()
    write(tmp_path, [extraction()])
    assert {name.split("-")[1] for name in files()} == {"trade", "threats", "phases"}
    write(tmp_path, [audit("fedsgd")])
    assert files() == first


@pytest.mark.parametrize("text", [HOSTILE[1], HOSTILE[7], "$\\frac{ ../../x"])
def test_no_label_breaks_a_chart_or_its_name(text: str, tmp_path: Path) -> None:
    records = [r for r in a_run(text) if r.cell.goal in ("membership", "audit")]
    page = write(tmp_path, records)
    check(page, tmp_path)
    files = list((tmp_path / "figures").glob("*.svg"))
    assert files
    for path in files:
        root = ElementTree.fromstring(path.read_text())
        assert not [e for e in root.iter() if e.tag.split("}")[-1] in ("script", "image", "a", "foreignObject")]
        assert "mathdefault" not in path.read_text()  # no formula on an axis, which would be printed as it stands
