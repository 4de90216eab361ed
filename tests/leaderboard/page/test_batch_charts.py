"""Reconstruction against batch size: one line per defense, and no chart of a single size."""

from __future__ import annotations

from leakboard.leaderboard.page.charts.batches import BatchSizes
from leakboard.leaderboard.page.charts.collect import charts
from leakboard.leaderboard.page.charts.drawing import DARK, LIGHT, to_svg
from leakboard.leaderboard.page.charts.trade_off import TradeOff
from leakboard.leaderboard.ranking.leaderboards import ranking_boards
from leakboard.leaderboard.records.record import Record
from tests.leaderboard.ranking.test_leaderboards import PRIOR, plus
from tests.leaderboard.synthetic import reconstruction


def at(size: int, defense: str, excess: float) -> list[Record]:
    """The prior and one attack on batches of this size, so many dB above it."""
    found = plus(excess)
    return [
        reconstruction(defense, "prior", PRIOR * size, batch_size=size, accuracy=0.9),
        reconstruction(defense, "inverting-gradients", list(found) * size, batch_size=size, accuracy=0.9),
    ]


def drawn(records: list[Record]) -> list[BatchSizes]:
    return [c for c in charts(ranking_boards(records, "fedsgd", 0.9), records) if isinstance(c, BatchSizes)]


def test_each_defense_has_a_line_over_its_batch_sizes() -> None:
    records = [*at(2, "fedsgd", 9), *at(4, "fedsgd", 3), *at(8, "fedsgd", 0.5), *at(2, "mp", 2), *at(8, "mp", 1)]
    (chart,) = drawn(records)
    lines = {line.defense: {p.size: round(float(p.excess.value or 0), 6) for p in line.points} for line in chart.lines}
    assert lines == {"fedsgd": {2: 9, 4: 3, 8: 0.5}, "mp": {2: 2, 8: 1}}
    assert "9.0 dB over the prior at 2" in chart.description
    assert to_svg(chart, LIGHT)[0] != to_svg(chart, DARK)[0]
    # other charts go on to show the smallest batch alone
    others = charts(ranking_boards(records, "fedsgd", 0.9), records)
    assert len([one for one in others if isinstance(one, TradeOff)]) == 1


def test_the_prior_has_its_own_share_of_identified_images_at_each_size() -> None:
    hits = [1.0] + 7 * [0.0]
    guess = reconstruction("fedsgd", "prior", PRIOR * 4, identified=hits * 4, batch_size=4, accuracy=0.9)
    (chart,) = drawn([*at(2, "fedsgd", 9), *at(4, "fedsgd", 3)[1:], guess])
    assert chart.prior == ((2, 0.0), (4, 12.5))


def test_one_batch_size_makes_no_chart() -> None:
    assert drawn([*at(2, "fedsgd", 9), *at(2, "mp", 2)]) == []
