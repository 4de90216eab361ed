"""Accuracy against budget and time by phase: what stands in these charts, and when there is none."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from leakboard.leaderboard.page.charts.base import Chart
from leakboard.leaderboard.page.charts.budget import Spending
from leakboard.leaderboard.page.charts.collect import charts
from leakboard.leaderboard.page.charts.drawing import DARK, LIGHT, to_svg
from leakboard.leaderboard.page.charts.phases import PhaseBars
from leakboard.leaderboard.records.record import Record
from tests.leaderboard.page.test_charts import boards
from tests.leaderboard.synthetic import reconstruction
from tests.leaderboard.tables.test_phase_times import LATER, MEASURED, SAMPLED, timed


def spending(
    name: str, epsilon: float | None, accuracy: float, *, seed: int = 0, active: bool = False, **parameters: Any
) -> Record:
    """A record of a defense that claims this epsilon; the suite's label tells its budgets and settings apart."""
    label = "-".join([name, f"{epsilon:g}" if epsilon else "off", *map(str, parameters.values())])
    record = reconstruction(
        label, "prior", accuracy=accuracy, seed=seed, threat="server:active" if active else "server"
    )
    assert record.training is not None
    spec = record.cell.training.defense.model_copy(update={"name": name, "parameters": {"epsilon": 9, **parameters}})
    place = record.cell.training.model_copy(update={"defense": spec, "active": active})
    training = record.training.model_copy(
        update={"claims": {"epsilon_claimed": epsilon}, "key": f"{label}{seed}{active}"}
    )
    return record.model_copy(update={"cell": record.cell.model_copy(update={"training": place}), "training": training})


def charts_of(records: list[Record], kind: type[Chart]) -> list[Any]:
    return [chart for chart in charts(boards(records), records) if isinstance(chart, kind)]


CONTROL = reconstruction("fedsgd", "prior", accuracy=0.95)


def test_accuracy_against_budget_is_a_line_a_defense_with_intervals() -> None:
    records = [CONTROL, *(spending("mp-dp", e, a) for e, a in ((10, 0.8), (1, 0.3), (100, 0.9)))]
    (chart,) = charts_of([*records, spending("mp-cdp", 3, 0.7)], Spending)
    assert [curve.name for curve in chart.curves] == ["mp-cdp", "mp-dp"]
    points = chart.curves[1].points
    assert [point.epsilon for point in points] == [1, 10, 100]
    assert [point.accuracy.value for point in points] == pytest.approx([30, 80, 90])
    assert all(point.accuracy.low < point.accuracy.value < point.accuracy.high for point in points)
    assert (chart.control, chart.level.value) == ("fedsgd", pytest.approx(95))
    assert "mp-dp: 30.0 % at ε = 1, 80.0 % at ε = 10" in chart.description


def test_settings_of_one_defense_are_lines_of_their_own() -> None:
    runs = [("paper", 1, 0.3), ("paper", 10, 0.8), ("corrected", 1, 0.2), ("corrected", 10, 0.6)]
    (chart,) = charts_of([CONTROL, *(spending("mp-dp", e, a, mode=mode) for mode, e, a in runs)], Spending)
    assert [curve.name for curve in chart.curves] == ["mp-dp (mode corrected)", "mp-dp (mode paper)"]
    assert [len(curve.points) for curve in chart.curves] == [2, 2]


def test_seeds_are_averaged_and_a_deviating_server_s_training_does_not_count() -> None:
    records = [CONTROL, spending("mp-dp", 1, 0.2), spending("mp-dp", 1, 0.4, seed=1), spending("mp-dp", 10, 0.8)]
    (chart,) = charts_of([*records, spending("mp-dp", 10, 0.1, active=True)], Spending)
    assert [point.accuracy.value for point in chart.curves[0].points] == pytest.approx([30, 80])


@pytest.mark.parametrize(
    "records",
    [
        [CONTROL],
        [CONTROL, spending("mp-dp", 3, 0.5), spending("ldp", 10, 0.7)],  # one budget each
        [CONTROL, spending("mp-dp", 3, 0.5), spending("mp-dp", None, 0.7)],  # its noise is off: no budget
    ],
)
def test_there_is_no_chart_without_two_budgets_of_one_defense(records: list[Record]) -> None:
    assert charts_of(records, Spending) == []


def test_bars_hold_every_phase_s_share_and_the_total_of_the_table() -> None:
    (chart,) = charts_of([timed("tp-smc", MEASURED), timed("pile", SAMPLED, LATER)], PhaseBars)
    bars = {bar.defense: bar for bar in chart.bars}
    whole = bars["tp-smc"]
    # 4 rounds of 3 clients
    assert whole.measured == pytest.approx(
        {"client/Train": 0.1, "client/Grad_Enc": 0.5, "server/Agg": 0.1, "server/Grad_Dec": 0.5, "keys/Key_Gen": 2.0}
    )
    assert whole.total == pytest.approx(sum(whole.measured.values()))
    sampled = bars["pile"]
    assert sampled.extrapolated["client/Grad_Enc"] == pytest.approx(1.0)
    assert sampled.total == pytest.approx(sum(sampled.measured.values()) + sum(sampled.extrapolated.values()))
    names = [name for _, name in chart.phases]
    assert names == [
        "server Agg",
        "server Grad_Dec",
        "Key_Gen",
        *(f"client {p}" for p in ("Train", "Grad_Enc", "DP", "Grad_Dec")),
    ]


def test_what_was_not_timed_has_no_total_and_an_unknown_phase_is_shown() -> None:
    left_out = timed("sampled", SAMPLED, claims={"crypto": "sampled"})
    (chart,) = charts_of([left_out, timed("new", {"client/Train": 1.2, "server/Prove": 0.4})], PhaseBars)
    bars = {bar.defense: bar for bar in chart.bars}
    assert bars["sampled"].total is None
    assert "neither done nor timed" in chart.caption
    assert bars["new"].measured["other"] == pytest.approx(0.1)
    assert bars["new"].total == pytest.approx(0.2)
    assert chart.phases[-1] == ("other", "other")


def test_both_are_drawn_in_both_looks_with_plain_numbers() -> None:
    records = [CONTROL, *(spending("mp-dp", 10.0**power, 0.1 * power) for power in range(10))]
    times = [
        timed("a", MEASURED),
        timed("b", SAMPLED, LATER),
        timed("c", {}),
        timed("d", SAMPLED, claims={"crypto": "sampled"}),
    ]
    for chart in (*charts_of(records, Spending), *charts_of(times, PhaseBars)):
        light, dark = (to_svg(chart, look) for look in (LIGHT, DARK))
        assert light[0] != dark[0]
        assert light == to_svg(chart, LIGHT)  # the same numbers always give the same file
        assert light[1][0] > 300
        ElementTree.fromstring(light[0])
        assert b"mathdefault" not in light[0]


def exactly(record: Record, epsilon: float | None) -> Record:
    """The same record with an exact epsilon of a round."""
    assert record.training is not None
    claims = {**record.training.claims, "epsilon_round_exact": epsilon, "epsilon_per": "round"}
    return record.model_copy(update={"training": record.training.model_copy(update={"claims": claims})})


def test_the_axis_of_budgets_is_the_exact_epsilon_of_a_round_where_records_have_it() -> None:
    mine = [exactly(spending("mp-dp", claimed, 0.5), exact) for claimed, exact in ((3, 15.3), (100, 17409))]
    others = [exactly(spending("laplace", epsilon, 0.6), None) for epsilon in (3, 100)]
    (chart,) = charts_of([CONTROL, *mine, *others], Spending)
    assert chart.axis == "ε exact per round"
    assert [(curve.name, [p.epsilon for p in curve.points]) for curve in chart.curves] == [("mp-dp", [15.3, 17409])]
    assert "Not drawn, because they have no exact ε: laplace-3, laplace-100." in chart.caption
    (old,) = charts_of([CONTROL, spending("mp-dp", 3, 0.5), spending("mp-dp", 10, 0.5)], Spending)
    assert old.axis == "ε claimed"
