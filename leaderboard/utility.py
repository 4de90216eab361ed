"""The utility gate: noise alone must not win."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from leaderboard.record import Record
from leaderboard.statistics import Interval, wilson
from leaderboard.table import Cell


@dataclass(frozen=True)
class Utility:
    """Accuracies by defense, and which of them are good enough to be ranked."""

    control: str
    gate: float
    accuracy: Mapping[str, float]
    interval: Mapping[str, Interval]

    @property
    def needed(self) -> float | None:
        """The accuracy that a ranked defense must have; None without a control."""
        best = self.accuracy.get(self.control)
        return None if best is None else self.gate * best

    def passes(self, defense: str) -> bool:
        """Whether the defense is accurate enough to be ranked (everyone is, where there is no control)."""
        # the hair is for rounding: 0.72 is 90 % of 0.8, though 0.9 * 0.8 is a little more in floats
        return self.needed is None or self.accuracy.get(defense, 0.0) >= self.needed - 1e-9

    def verdict(self, defense: str) -> str:
        """Why a defense is not ranked."""
        if defense not in self.accuracy:
            return "its accuracy is not known: no finished training of it with an honest server is among the records"
        needed = 100 * (self.needed or 0.0)
        return f"does not train: {100 * self.accuracy[defense]:.2f} % accuracy, {needed:.2f} % needed"

    def cell(self, defense: str) -> Cell:
        """The accuracy as a table cell, with its Wilson interval."""
        if defense not in self.accuracy:
            return Cell(None, note="its training did not finish")
        low, high = self.interval[defense]
        return Cell(100 * self.accuracy[defense], 100 * low, 100 * high)

    @property
    def note(self) -> str:
        """The remark that stands under every ranking."""
        if self.needed is None:
            return f"There is no control ({self.control}) among the records: nothing is gated."
        floor = f"{100 * self.needed:.2f} %"
        return (
            f"Ranked are those with at least {100 * self.gate:g} % of the accuracy of {self.control}, that is {floor}."
        )


def utility_of(records: Sequence[Record], control: str, gate: float) -> Utility:
    """Mean accuracy over seeds, each training counted once, with the Wilson interval over all test images.

    Trainings in which the server deviates do not count: the utility of a scheme is that of its honest run.
    """
    hits: dict[str, dict[str, tuple[float, int]]] = {}
    for record in records:
        if record.cell.training.active:
            continue
        if record.training is not None and record.training.accuracy is not None:
            found = hits.setdefault(record.cell.training.defense.label, {})
            found[record.training.key] = (record.training.accuracy, record.training.test_records)
    accuracy = {name: sum(a for a, _ in found.values()) / len(found) for name, found in hits.items()}
    interval = {
        name: wilson(round(sum(a * n for a, n in found.values())), sum(n for _, n in found.values()))
        for name, found in hits.items()
    }
    return Utility(control, gate, accuracy, interval)
