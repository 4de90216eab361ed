"""The generalisation gap of the control: without one, membership in the training cannot rank defenses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from leakboard.leaderboard.ranking.intervals import Interval, rate_difference
from leakboard.leaderboard.records.record import Record


@dataclass(frozen=True)
class Gap:
    """Train accuracy minus test accuracy, with its 95 % interval, as shares."""

    value: float
    interval: Interval

    @property
    def is_there(self) -> bool:
        """Whether the interval tells the gap from 0; the other way round (test above train) is no gap either."""
        return self.interval.low > 0

    @property
    def note(self) -> str:
        """What the table says where there is none."""
        low, high = (100 * end for end in self.interval)
        return (
            f"No generalisation gap: it cannot rank defenses. The control's train accuracy exceeds its test accuracy "
            f"by {100 * self.value:.1f} points [{low:.1f}, {high:.1f}], an interval that touches 0; nobody is ranked."
        )


def gap_of(records: Sequence[Record], control: str) -> Gap | None:
    """The control's gap, pooled over its trainings, each counted once; None where its train accuracy is not known."""
    found: dict[str, tuple[float, int, float, int]] = {}
    for record in records:
        summary = record.training
        if record.cell.training.defense.label != control or summary is None:
            continue
        members = summary.train_records
        if summary.accuracy is not None and summary.train_accuracy is not None and members:
            found[summary.key] = (summary.train_accuracy, members, summary.accuracy, summary.test_records)
    if not found:
        return None
    inside, outside = sum(n for _, n, _, _ in found.values()), sum(n for _, _, _, n in found.values())
    right = round(math.fsum(share * n for share, n, _, _ in found.values()))
    also = round(math.fsum(share * n for _, _, share, n in found.values()))
    return Gap(right / inside - also / outside, rate_difference(right, inside, also, outside))
