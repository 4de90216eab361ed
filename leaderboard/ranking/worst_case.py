"""A defense's row in a ranking: its worst case among all attacks, and beside it the best of the plain ones.

Plain attacks take a defense's honest reading alone; adaptive ones know more of it. Both choices are made on one half of
the targets and reported on the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from leakboard.leaderboard.ranking.evidence import Evidence, halves, worst
from leakboard.leaderboard.ranking.intervals import Interval, effective_trials, wilson
from leakboard.leaderboard.records.record import PRIOR
from leakboard.leaderboard.tables.table import Cell, Column

Floats = NDArray[np.float64]
Harm = Callable[[Evidence], tuple[float, ...]]
#: what the keys of the best plain attack's cells begin with
PLAIN = "plain_"
KNOWS = "adaptive: this attack knows the defense"

ATTACK = Column("attack", "worst attack", help="the attack that did most harm, chosen on the other half of the targets")
PLAIN_ATTACK = Column(
    "plain_attack", "plain attack", help="the one that did most harm among those that do not know the defense"
)


def of_plain(column: Column) -> Column:
    """The same column for the best plain attack; without a direction, since being best there means little."""
    title, words = f"plain {column.title}", "the same for the plain attack"
    return Column(
        PLAIN + column.key, title, column.unit, digits=column.digits, significant=column.significant, help=words
    )


@dataclass(frozen=True)
class RankedRow:
    """A defense's row before ranks are known: its cells, what it is compared by, and the evidence behind it."""

    defense: str
    cells: dict[str, Cell]
    order: tuple[float, ...]
    harms: dict[str, Floats]
    reported: Evidence
    plain: Evidence | None
    #: the harm of its worst attack on the choosing half: by it the worst round and batch size are chosen
    chosen: tuple[float, ...] = ()
    #: for reconstruction: the answers without attack, on the same targets
    guesses: tuple[Evidence, ...] = ()

    @property
    def strata(self) -> NDArray[np.int64]:
        """The seed of every reported item."""
        return self.reported.strata


def is_prior(evidence: Evidence) -> bool:
    """Whether this is the guess that needs no message."""
    return evidence.records[0].cell.attack.name == PRIOR


class Picked(NamedTuple):
    """The worst attack and the worst plain one on the reporting half; `chosen` is the worst on the choosing half."""

    reported: Evidence
    plain: Evidence | None
    chosen: Evidence


def worst_and_plain(found: Sequence[Evidence], harm: Harm) -> Picked | None:
    """The worst attack and the worst plain one, chosen on one half of the targets. A tie names the plain one."""
    ordered = sorted(found, key=lambda evidence: evidence.adaptive)
    picked = worst(ordered, harm)
    plain = worst([evidence for evidence in ordered if not evidence.adaptive], harm)
    if picked is None:
        return None
    reported, whole = picked
    return Picked(reported, plain[0] if plain is not None else None, whole.take(halves(whole)[0]))


def attack_cell(evidence: Evidence) -> Cell:
    """The name of an attack, with its record and a mark where it knows the defense."""
    return Cell(evidence.attack, link=evidence.records[0].key, note=KNOWS if evidence.adaptive else "")


def with_plain(cells: dict[str, Cell], plain: dict[str, Cell], columns: Sequence[Column]) -> dict[str, Cell]:
    """The worst case's cells, and of the plain attack's those that the table has a column for."""
    kept = {column.key for column in columns}
    return cells | {PLAIN + key: cell for key, cell in plain.items() if PLAIN + key in kept}


# --- cells --------------------------------------------------------------------------------------


def share(hits: Floats, size: int = 1) -> Cell:
    """The share of ones in per cent with Wilson's interval; of batches of `size`, each with its own share of ones.

    Images of one batch fall together: the interval counts as many trials as they are worth (`effective_trials`).
    """
    trials = effective_trials(hits, size)
    interval = wilson(float(hits.sum()) * (trials / len(hits)), trials)
    return Cell(100 * float(hits.sum()) / len(hits), 100 * interval.low, 100 * interval.high)


def above(cell: Cell, level: float) -> bool:
    """Whether the whole interval lies above a level."""
    return cell.low is not None and cell.low > level


def bounded(value: float, interval: Interval, text: str | None = None) -> Cell:
    """A number with its interval, where the interval is finite."""
    finite = np.isfinite(interval.low) and np.isfinite(interval.high)
    low, high = (interval.low, interval.high) if finite else (None, None)
    return Cell(value, low, high, text=text)
