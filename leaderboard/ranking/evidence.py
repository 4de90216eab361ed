"""The protocol's ranking: the worst attack, chosen on one half of the targets and reported on the other, and ties.

A target is a batch of the victim's records, the unit of halves, intervals and ties.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cmp_to_key

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from leakboard.leaderboard.ranking.intervals import Interval, bootstrap_mean, split_halves
from leakboard.leaderboard.records.record import Record

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
#: seed of all bootstrap draws: tables of the same records are the same
STATISTICS_SEED = 2022
#: fewer targets than this get Student's interval
FEW = 20
#: so many resamples are worked on at once
PORTION = 100


@dataclass(frozen=True)
class Evidence:
    """What one attack achieved on one defense: per-item values by metric, over all seeds.

    For reconstruction an item is a batch: the records behind one gradient, whose values are averaged, because one
    gradient must not serve both to choose an attack and to report it. For extraction an item is a test record; `strata`
    tells its seed. For membership the values are the attack's scores under `score`, and `member` is the truth.
    """

    attack: str
    moment: str | None
    values: Mapping[str, Floats]
    strata: Ints
    records: tuple[Record, ...]

    def take(self, rows: Ints) -> Evidence:
        """The same evidence on some of the items."""
        values = {name: column[rows] for name, column in self.values.items()}
        return Evidence(self.attack, self.moment, values, self.strata[rows], self.records)

    @property
    def adaptive(self) -> bool:
        """Whether the attack knows more of the defense than its honest reading."""
        return self.records[0].cell.adaptive

    @property
    def batch_size(self) -> int:
        """How many images are behind each item of a reconstruction; 1 for other goals."""
        return self.records[0].cell.batch_size

    def mean(self, metric: str) -> float | None:
        """The mean of a per-item metric, None where it could not be had."""
        return float(self.values[metric].mean()) if metric in self.values else None


def gather(records: Sequence[Record]) -> list[Evidence]:
    """The evidence of one defense under one threat, one entry per attack, observed round and batch size.

    Only of cells that worked.
    """
    groups: dict[tuple[str, str | None, int], list[Record]] = {}
    for record in records:
        if record.status == "ok":
            cell = record.cell
            groups.setdefault((cell.attack.label, cell.moment, cell.batch_size), []).append(record)
    return [_evidence(label, moment, group) for (label, moment, _), group in groups.items()]


def _evidence(label: str, moment: str | None, group: list[Record]) -> Evidence:
    group = sorted(group, key=lambda record: record.cell.training.seed)
    sizes, batch = [len(record.target_indices) for record in group], group[0].cell.batch_size
    items = [size // batch for size in sizes]
    strata = np.repeat([record.cell.training.seed for record in group], items).astype(np.int64)
    values: dict[str, Floats] = {}
    columns: dict[str, Sequence[Sequence[float]]] = {
        "score": [record.member_scores for record in group],
        "member": [record.members for record in group],
        "decision": [record.decisions for record in group],
    }
    for name in group[0].scores:
        per_item = [record.scores[name].per_item if name in record.scores else [] for record in group]
        columns.setdefault(name, per_item)  # a metric of somebody's own must not take the place of those above
    for name, column in columns.items():
        if [len(part) for part in column] == sizes:
            flat = np.concatenate([np.asarray(part, float) for part in column])
            values[name] = flat.reshape(-1, batch).mean(axis=1)
    return Evidence(label, moment, values, strata, tuple(group))


def aligned(found: Sequence[Evidence]) -> list[Evidence]:
    """The same attacks, as `gather` gives them, on the targets of those seeds that all of them have.

    An attack that was told half of the members is asked about the rest alone, so the others count there alone too.
    """
    if not found:
        return []
    items = [_items(evidence) for evidence in found]
    common = set.intersection(*(set(mine) for mine in items))
    rows = [np.array([i for i, item in enumerate(mine) if item in common], dtype=np.int64) for mine in items]
    return [evidence.take(kept) for evidence, kept in zip(found, rows, strict=True)] if common else []


def _items(evidence: Evidence) -> list[tuple[int, int]]:
    """Seed and data set index of every item of whole evidence, in its order; of a batch that of its first record."""
    targets = [target for record in evidence.records for target in record.target_indices[:: evidence.batch_size]]
    return list(zip(evidence.strata.tolist(), targets, strict=True))


def halves(evidence: Evidence) -> tuple[Ints, Ints]:
    """The items on which the worst attack is chosen, and those on which it is reported, half of each seed's.

    A batch is one item, so all its images are in the same half.
    """
    choose, report = [], []
    for seed in np.unique(evidence.strata):
        rows = np.flatnonzero(evidence.strata == seed)
        first, second = split_halves(len(rows), STATISTICS_SEED)
        choose.append(rows[first])
        report.append(rows[second])
    return np.concatenate(choose), np.concatenate(report)


def auc(scores: Floats, members: Floats) -> float:
    """Mann-Whitney AUC with mid-ranks for ties; 0.5 where a class is missing."""
    positive = int(members.sum())
    negative = len(members) - positive
    if not positive or not negative:
        return 0.5
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return float((ranks[members > 0].sum() - positive * (positive + 1) / 2) / (positive * negative))


def mean_auc(evidence: Evidence) -> float:
    """The mean over seeds of the AUC."""
    found = []
    for seed in np.unique(evidence.strata):
        rows = evidence.strata == seed
        found.append(auc(evidence.values["score"][rows], evidence.values["member"][rows]))
    return float(np.mean(found))


def auc_draws(evidence: Evidence, draws: int = 1000) -> Floats:
    """Bootstrap draws of the mean AUC: items resampled within each seed and class, the same rows for equal strata.

    Two attacks on the same candidates get the same resamples, so differences of draws are paired.
    """
    generator = np.random.default_rng(STATISTICS_SEED)
    groups: list[Ints] = []  # of each seed the non-members, then the members, as places among its sorted scores
    for seed in np.unique(evidence.strata):
        rows = evidence.strata == seed
        places = np.unique(evidence.values["score"][rows], return_inverse=True)[1]
        groups += [places[evidence.values["member"][rows] == member] for member in (0.0, 1.0)]
    found = np.empty((draws, len(groups) // 2))
    for first in range(0, draws, PORTION):
        part = found[first : first + PORTION]
        picked = [[g[generator.integers(len(g), size=len(g))] if len(g) else g for g in groups] for _ in part]
        by_group = [np.array(resamples) for resamples in zip(*picked, strict=True)]
        for column, (others, members) in enumerate(zip(by_group[::2], by_group[1::2], strict=True)):
            part[:, column] = _areas(others, members)
    means: Floats = found.mean(axis=1)
    return means


def _areas(others: Ints, members: Ints) -> Floats | float:
    """Row by row what `auc` says of the members' places among those of the others."""
    if not others.size or not members.size:
        return 0.5
    most = int(max(others.max(), members.max())) + 1
    rows = np.arange(len(others))[:, None]
    counts = np.bincount((others + most * rows).ravel(), minlength=most * len(others)).reshape(-1, most)
    below = np.cumsum(counts, axis=1) - counts / 2  # half of those at the same place
    areas: Floats = np.take_along_axis(below, members, axis=1).sum(axis=1) / (others.shape[1] * members.shape[1])
    return areas


def percentile_interval(draws: Floats, confidence: float = 0.95) -> Interval:
    """The central interval of bootstrap draws."""
    low, high = np.quantile(draws, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(low), float(high))


def worst(
    candidates: Sequence[Evidence], harm: Callable[[Evidence], tuple[float, ...]]
) -> tuple[Evidence, Evidence] | None:
    """The attack that did most harm on the choosing half: (on the reporting half, on all items)."""
    if not candidates:
        return None
    choose, report = halves(candidates[0])
    chosen = max(candidates, key=lambda evidence: harm(evidence.take(choose)))
    return chosen.take(report), chosen


def mean_interval(values: Floats, strata: Ints) -> Interval:
    """95 % interval of a mean over targets: bootstrap stratified by seed; Student's t below `FEW` targets.

    The percentile bootstrap of a handful of values is too narrow (8.8 % false alarms for 2.5 % at four).
    """
    if len(values) >= FEW or len(values) < 2:
        return bootstrap_mean(values, strata.tolist(), seed=STATISTICS_SEED)
    groups = [values[strata == seed] for seed in np.unique(strata)]
    if min(len(group) for group in groups) < 2:  # one value tells nothing of the spread within its seed
        groups = [values]
    freedom = len(values) - len(groups)
    spread = math.sqrt(sum(float(((group - group.mean()) ** 2).sum()) for group in groups) / freedom)
    half = float(stdtrit(freedom, 0.975)) * spread / math.sqrt(len(values))
    return Interval(float(values.mean()) - half, float(values.mean()) + half)


def compare(first: Mapping[str, Floats], second: Mapping[str, Floats], strata: Ints, criteria: Sequence[str]) -> int:
    """-1 or 1 where the first leaks less or more than the second, 0 for a tie.

    The criteria are walked in their order, the values being harms on the same targets; the first whose paired interval
    leaves out 0 decides, and only it.
    """
    for name in criteria:
        if name in first and name in second:
            interval = mean_interval(first[name] - second[name], strata)
            if not interval.low <= 0 <= interval.high:
                return -1 if interval.high < 0 else 1
    return 0


def ranks(names: Sequence[str], order: Callable[[str, str], int]) -> dict[str, int]:
    """Competition ranks (1, 1, 3), least harm first; names must come roughly sorted.

    A name shares the rank of its group's first where `order` is 0 between them.

    >>> ranks(["b", "a", "c"], lambda x, y: 0 if {x, y} == {"a", "b"} else -1 if x < y else 1)
    {'b': 1, 'a': 1, 'c': 3}
    """
    found: dict[str, int] = {}
    leader = None
    for position, name in enumerate(sorted(names, key=cmp_to_key(order))):
        if leader is None or order(leader, name) != 0:
            leader = name
            found[name] = position + 1
        else:
            found[name] = found[leader]
    return found


def tpr_at(scores: Floats, members: Floats, level: float) -> float | None:
    """Highest true positive rate with at most `level` false positives; None with too few non-members, or no member.

    >>> tpr_at(np.r_[np.zeros(100), np.ones(10)], np.r_[np.zeros(100), np.ones(10)], 0.01)
    1.0
    """
    others = np.sort(scores[members == 0])[::-1]
    if len(others) * level < 1 or len(others) == len(scores):
        return None
    allowed = int(len(others) * level)
    threshold = others[allowed]  # only scores above it are flagged, so at most `allowed` others are
    return float((scores[members == 1] > threshold).mean())
