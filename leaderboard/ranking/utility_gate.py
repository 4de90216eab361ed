"""The utility gate: noise alone must not win, and one picture more or less must not decide.

A defense is refused where the 95 % interval of `accuracy - gate x control's accuracy` lies below 0, and only there. A
defense that stands exactly on the gate is so refused in at most about 2.5 % of runs. Where the interval includes 0 it
is ranked, with a mark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from leakboard.leaderboard.ranking.intervals import Interval, rate_difference, wilson
from leakboard.leaderboard.records.record import Record, TrainingSummary
from leakboard.leaderboard.tables.table import Cell

Standing = Literal["above", "near", "below", "unknown"]


@dataclass(frozen=True)
class Utility:
    """Accuracies by defense, and which of them are good enough to be ranked.

    `margin` is the interval of a defense's accuracy minus the accuracy that it needs. `floors` has what a defense needs
    where that is not `needed`: the control's accuracy at the defense's own seeds counts.
    """

    control: str
    gate: float
    accuracy: Mapping[str, float]
    interval: Mapping[str, Interval]
    margin: Mapping[str, Interval] = field(default_factory=dict)
    floors: Mapping[str, float] = field(default_factory=dict)

    @property
    def needed(self) -> float | None:
        """The accuracy at which the gate stands for a defense with all seeds of the control; None without a control."""
        best = self.accuracy.get(self.control)
        return None if best is None else self.gate * best

    def needed_by(self, defense: str) -> float:
        """The accuracy that a defense needs: that of the control at the same seeds, times the gate."""
        return self.floors.get(defense, self.needed or 0.0)

    def standing(self, defense: str) -> Standing:
        """Where a defense stands by the interval of its margin; above, where there is no control or it is the control.

        The gate is never above the control, so its own interval asks nothing.
        """
        if self.needed is None or defense == self.control:
            return "above"
        if defense not in self.accuracy:
            return "unknown"
        low, high = self.margin[defense]
        return "below" if high < 0 else "above" if low > 0 else "near"

    def passes(self, defense: str) -> bool:
        """Whether the defense may be ranked: its accuracy is known, and not surely below the gate."""
        return self.standing(defense) in ("above", "near")

    def verdict(self, defense: str) -> str:
        """Why a defense is not ranked."""
        if defense not in self.accuracy:
            return "its accuracy is not known: no finished training of it with an honest server is among the records"
        return f"does not train: {self._beside(defense)} is below 0"

    def _beside(self, defense: str) -> str:
        """A defense's accuracy, the gate and the interval between them, in per cent and points."""
        shares = f"{100 * self.accuracy[defense]:.2f} % accuracy, {100 * self.needed_by(defense):.2f} % needed"
        low, high = (f"{100 * end:+.2f}".replace("-", "−") for end in self.margin[defense])
        return f"{shares}; the interval of the difference, [{low}, {high}] points,"

    def near(self, defense: str) -> str:
        """The mark of a defense that is ranked though it may be below the gate; nothing for all others."""
        return f"near the gate: {self._beside(defense)} includes 0" if self.standing(defense) == "near" else ""

    def cell(self, defense: str) -> Cell:
        """The accuracy as a table cell, with its Wilson interval, and a mark near the gate."""
        if defense not in self.accuracy:
            return Cell(None, note="its training did not finish")
        low, high = self.interval[defense]
        return Cell(100 * self.accuracy[defense], 100 * low, 100 * high, note=self.near(defense))

    @property
    def note(self) -> str:
        """The remark that stands under every ranking."""
        if self.needed is None:
            return f"There is no control ({self.control}) among the records: nothing is gated."
        floor = f"{100 * self.needed:.2f} %"
        return (
            f"The gate is at least {100 * self.gate:g} % of the accuracy of {self.control}, that is {floor}. "
            "Not ranked are those whose difference to it has a 95 % interval that lies below 0."
            + (" A row with fewer seeds is compared with the control at these seeds." if self.floors else "")
        )


def utility_of(records: Sequence[Record], control: str, gate: float) -> Utility:
    """Mean accuracy over seeds, each training counted once, with the Wilson interval over all test images.

    Trainings in which the server deviates do not count: the utility of a scheme is that of its honest run.
    """
    trained: dict[str, dict[str, tuple[int, TrainingSummary]]] = {}
    for record in records:
        spec, summary = record.cell.training, record.training
        if not spec.active and summary is not None and summary.accuracy is not None:
            trained.setdefault(spec.defense.label, {})[summary.key] = spec.seed, summary
    found = {name: sorted(mine.values(), key=lambda one: one[0]) for name, mine in trained.items()}
    counts = {name: _count(mine) for name, mine in found.items()}
    accuracy = {name: sum(s.accuracy or 0.0 for _, s in mine) / len(mine) for name, mine in found.items()}
    interval = {name: wilson(*count) for name, count in counts.items()}
    margin, floors = {}, {}
    for name, count in counts.items() if control in counts else ():
        beside = _at_the_seeds_of(found[name], found[control])
        margin[name] = rate_difference(
            *count, *_count(beside), weight=gate, correlation=_correlation(found[name], beside)
        )
        if len(beside) < len(found[control]):
            floors[name] = gate * sum(s.accuracy or 0.0 for _, s in beside) / len(beside)
    return Utility(control, gate, accuracy, interval, margin, floors)


def _at_the_seeds_of(
    row: Sequence[tuple[int, TrainingSummary]], control: Sequence[tuple[int, TrainingSummary]]
) -> Sequence[tuple[int, TrainingSummary]]:
    """The control's trainings at the seeds of a row; all of them if the control lacks one of these seeds."""
    own = {seed for seed, _ in row}
    beside = [one for one in control if one[0] in own]
    return beside if own <= {seed for seed, _ in beside} else control


def _count(trainings: Sequence[tuple[int, TrainingSummary]]) -> tuple[int, int]:
    """How many test records were right, and of how many, over all seeds."""
    right = sum((summary.accuracy or 0.0) * summary.test_records for _, summary in trainings)
    return round(right), sum(summary.test_records for _, summary in trainings)


def _correlation(first: Sequence[tuple[int, TrainingSummary]], second: Sequence[tuple[int, TrainingSummary]]) -> float:
    """The correlation of two defenses' outcomes by test record; 0 (independent: a wider interval) where unknown.

    The test records of a seed are the same for all defenses. Both must have the same seeds, and say which were right.
    """
    if [(seed, s.test_records) for seed, s in first] != [(seed, s.test_records) for seed, s in second]:
        return 0.0
    sides = [[summary.outcomes() for _, summary in side] for side in (first, second)]
    if not all(hits for side in sides for hits in side):
        return 0.0
    one, other = (np.concatenate([np.asarray(hits, float) for hits in side]) for side in sides)
    spread = float(one.std() * other.std())
    # a negative one is noise: records that are hard for one are not easy for the other
    return max(0.0, float(np.mean((one - one.mean()) * (other - other.mean()))) / spread) if spread else 0.0
