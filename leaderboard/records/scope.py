"""Over which targets a score is, in words: a cell's scores are over all of them, a ranking's over one half.

The worst attack is chosen on one half of the targets and reported on the other, so the same cell has two scores. No
score is printed without these words.
"""

from __future__ import annotations

from collections.abc import Iterable

from leakboard.leaderboard.records.known import goals
from leakboard.leaderboard.records.record import Record


def all_targets(record: Record) -> str:
    """The scope of the scores of a record: all that its attack was asked about.

    An audit's are over all its trials, of which one half chose the threshold.
    """
    goal = goals().get(record.cell.goal)  # `show` opens records of any goal
    count = len(record.member_scores if goal is not None and goal.is_game else record.target_indices)
    items = "targets" if goal is None else goal.items
    size = f" in batches of {record.cell.batch_size}" if record.cell.batch_size > 1 else ""
    return f"all {count} {items}{size}" if count else ""


def reported_half(reported: Iterable[int], whole: Iterable[int], items: str) -> str:
    """The scope of a ranking, from the numbers of reported and of all items of each row.

    >>> reported_half([8, 8], [16, 16], "targets")
    'the 8 of 16 targets on which the attack was not chosen'
    >>> reported_half([1], [1], "targets")
    'all 1 targets, on which the attack was also chosen: there is no other half'
    """
    told, asked = sorted(set(reported)), sorted(set(whole))
    if not told:
        return ""
    if told == asked:
        return f"all {_range(asked)} {items}, on which the attack was also chosen: there is no other half"
    return f"the {_range(told)} of {_range(asked)} {items} on which the attack was not chosen"


def _range(counts: list[int]) -> str:
    return f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
