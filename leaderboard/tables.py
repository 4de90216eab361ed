"""From records to tables: one ranking a data set, goal and threat, and the list of all cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from attacks.base import NOTHING_TO_IMITATE
from core.seeds import natural_order
from leaderboard.ranking import (
    Evidence,
    aligned,
    auc_draws,
    compare,
    gather,
    halves,
    mean_interval,
    membership_harm,
    percentile_interval,
    ranks,
    reconstruction_harm,
    tpr_at,
    worst,
)
from leaderboard.record import Record
from leaderboard.scoring import PRIOR
from leaderboard.statistics import Interval, wilson
from leaderboard.table import Cell, Column, Row, Table
from leaderboard.utility import Utility, utility_of

TOO_FEW = "the reported half has fewer than 100 non-members"
COMMON = (
    Column("rank", "rank", digits=0, direction="lower", help="1 leaks least; equal ranks are ties"),
    Column("defense", "defense"),
    Column("accuracy", "accuracy", unit="%", digits=1, direction="higher", help="test accuracy of the global model"),
    Column("attack", "worst attack", help="the attack that did most harm, chosen on the other half of the targets"),
)
RECONSTRUCTION = (
    *COMMON,
    Column(
        "identified",
        "identified",
        unit="%",
        digits=1,
        direction="lower",
        help="the original is nearest of all decoys",
    ),
    Column("lpips", "LPIPS", digits=3, direction="higher"),
    Column("psnr", "PSNR", unit="dB", digits=2, direction="lower"),
    Column(
        "excess", "over prior", unit="dB", digits=2, direction="lower", help="PSNR above the best guess without attack"
    ),
    Column(
        "each",
        "per-target worst",
        unit="dB",
        digits=2,
        direction="lower",
        help="best attack for each target, over prior",
    ),
)
MEMBERSHIP = (
    *COMMON,
    Column("auc", "AUC", digits=3, direction="lower"),
    Column("tpr", "TPR at 1 % FPR", unit="%", digits=1, direction="lower"),
    Column(
        "asr", "ASR", unit="%", digits=1, direction="lower", help="balanced accuracy; the threshold never saw the truth"
    ),
)


@dataclass(frozen=True)
class RankedRow:
    """A defense's row before ranks are known: its cells, and what it is compared by."""

    defense: str
    cells: dict[str, Cell]
    order: tuple[float, ...]
    harms: dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]]
    strata: np.ndarray[tuple[int], np.dtype[np.int64]]


def ranking_tables(records: Sequence[Record], control: str, gate: float) -> list[Table]:
    """One table a data set, goal, threat and question, in a fixed order."""
    groups: dict[tuple[str, str, str, str], list[Record]] = {}
    for record in records:
        cell = record.cell
        groups.setdefault((cell.training.dataset.label, cell.goal, cell.threat, cell.about), []).append(record)
    order = {"reconstruction": 0, "membership": 1, "extraction": 2, "audit": 3}
    tables = []
    for (dataset, goal, threat, _), group in sorted(
        groups.items(), key=lambda item: (item[0][0], order[item[0][1]], item[0][2], item[0][3] == "batch")
    ):
        build = {"reconstruction": _reconstruction_table, "membership": _membership_table}.get(goal)
        if build is not None:
            # of all goals and threats: a training is the same for all of them, but for those of an active server
            trained = [record for record in records if record.cell.training.dataset.label == dataset]
            tables.append(build(dataset, threat, group, utility_of(trained, control, gate)))
    return tables


def _by_defense(records: Sequence[Record]) -> dict[str, list[Record]]:
    names = natural_order({record.cell.training.defense.label for record in records})
    return {name: [r for r in records if r.cell.training.defense.label == name] for name in names}


def _reconstruction_table(dataset: str, threat: str, records: list[Record], utility: Utility) -> Table:
    groups = {name: gather(group) for name, group in _by_defense(records).items()}
    everything = [evidence for found in groups.values() for evidence in found]
    moment = _ranking_moment(groups.get(utility.control) or everything, reconstruction_harm)
    rows, notes = [], []
    for name, found in groups.items():
        here = aligned([evidence for evidence in found if evidence.moment == moment])
        row = _reconstruction_row(name, here)
        if row is not None:
            rows.append(row)
    valid = any(row.defense == utility.control and row.cells["excess"].text is None for row in rows)
    if not valid:
        known = any(row.defense == utility.control for row in rows)
        notes.append(_invalid(utility.control, "its PSNR is not above the prior" if known else "it has no score"))
    if everything and not any(_is_prior(evidence) for evidence in everything):
        notes.append("There is no prior among the attacks, so there is nothing to compare with: add it to the suite.")
    title = f"Reconstruction, {dataset}, threat {threat}" + (f", {moment} round" if moment else "")
    return _finish(title, RECONSTRUCTION, rows, notes, records, utility, valid)


def _ranking_moment(control: list[Evidence], harm: Callable[[Evidence], tuple[float, ...]]) -> str | None:
    """The observed round in which the control breaks most (anybody, where the control has no score at all)."""
    attacks = [evidence for evidence in control if not _is_prior(evidence)] or control
    return max(attacks, key=harm).moment if attacks else None


def _is_prior(evidence: Evidence) -> bool:
    return evidence.records[0].cell.attack.name == PRIOR


def _best_prior(found: list[Evidence]) -> Evidence | None:
    priors = [evidence for evidence in found if _is_prior(evidence)]
    return max(priors, key=lambda evidence: evidence.mean("psnr") or 0.0) if priors else None


def _reconstruction_row(name: str, found: list[Evidence]) -> RankedRow | None:
    """A defense's worst case among all attacks, the prior included, on the reporting half."""
    picked = worst(found, reconstruction_harm)
    prior = _best_prior(found)
    if picked is None or prior is None:
        return None
    reported, _ = picked
    _, rows = halves(prior)
    floor = prior.take(rows).values["psnr"]
    excess = reported.values["psnr"] - floor
    each = np.max([evidence.take(rows).values["psnr"] for evidence in found], axis=0) - floor
    interval = mean_interval(excess, reported.strata)
    hits = reported.values["identified"]
    below = interval.low <= 0
    lpips = reported.mean("lpips")
    link = reported.records[0].key
    cells = {
        "attack": Cell(reported.attack, link=link),
        "identified": _share(int(hits.sum()), len(hits)),
        "lpips": Cell(lpips, note="" if lpips is not None else reported.records[0].scores["lpips"].reason),
        "psnr": Cell(reported.mean("psnr"), link=link),
        "excess": _bounded(float(excess.mean()), interval, text="≤ prior" if below else None),
        "each": Cell(float(each.mean())),
    }
    harms = {"identified": hits, "excess": np.zeros_like(excess) if below else excess}
    if lpips is not None:
        harms["lpips"] = -reported.values["lpips"]
    order = (float(hits.mean()), -(lpips or 0.0), float(harms["excess"].mean()))
    return RankedRow(name, cells, order, harms, reported.strata)


def _membership_table(dataset: str, threat: str, records: list[Record], utility: Utility) -> Table:
    groups = {name: gather(group) for name, group in _by_defense(records).items()}
    everything = [evidence for found in groups.values() for evidence in found]
    moment = _ranking_moment(groups.get(utility.control) or everything, membership_harm)  # None: the whole training
    rows = []
    for name, found in groups.items():
        row = _membership_row(name, aligned([evidence for evidence in found if evidence.moment == moment]))
        if row is not None:
            rows.append(row)
    control = [row for row in rows if row.defense == utility.control]
    valid = any(row.cells["auc"].low is not None and row.cells["auc"].low > 0.5 for row in control)
    why = "its AUC interval is not above 0.5" if control else "it has no score"
    notes = [] if valid else [_invalid(utility.control, why)]
    batch = records[0].cell.about == "batch"
    title = f"Membership{' in the batch' if batch else ''}, {dataset}, threat {threat}"
    title += f", {moment} round" if moment else ""
    return _finish(title, MEMBERSHIP, rows, notes, records, utility, valid)


def _membership_row(name: str, found: list[Evidence]) -> RankedRow | None:
    """A defense's worst case among all membership attacks, on the reporting half of the candidates."""
    picked = worst(found, membership_harm)
    if picked is None:
        return None
    reported, _ = picked
    draws = auc_draws(reported)
    (value,) = membership_harm(reported)
    member = reported.values["member"] > 0
    decided = reported.values["decision"] > 0
    asr = (decided[member].mean() + (~decided[~member]).mean()) / 2
    score, truth, seeds = reported.values["score"], reported.values["member"], reported.strata
    rates = [tpr_at(score[seeds == seed], truth[seeds == seed], 0.01) for seed in np.unique(seeds)]
    known = [rate for rate in rates if rate is not None]
    cells = {
        "attack": Cell(reported.attack, link=reported.records[0].key),
        "auc": _bounded(value, percentile_interval(draws)),
        "tpr": Cell(100 * float(np.mean(known)) if known else None, note="" if known else TOO_FEW),
        "asr": Cell(100 * float(asr)),
    }
    return RankedRow(name, cells, (value,), {"auc": draws}, reported.strata)


def _finish(
    title: str,
    columns: Sequence[Column],
    rows: list[RankedRow],
    notes: list[str],
    records: list[Record],
    utility: Utility,
    valid: bool,
) -> Table:
    """Ranks, the utility gate and the remarks that every ranking has."""
    by_name = {row.defense: row for row in rows}
    why = {name: _why_not(name, utility, records) for name in by_name}
    ranked = sorted((row for row in rows if not why[row.defense]), key=lambda row: row.order)
    names = [row.defense for row in ranked]
    order = ranks(names, lambda a, b: _compare(by_name[a], by_name[b])) if valid else dict.fromkeys(names, None)
    done = []
    for name in [*order, *(name for name in by_name if why[name])]:
        rank = Cell(order.get(name), note=why[name])
        common = {"rank": rank, "defense": Cell(name), "accuracy": utility.cell(name)}
        done.append(Row({**common, **by_name[name].cells}, muted=bool(why[name])))
    broken = [record for record in records if record.status != "ok"]
    if broken:
        notes = [*notes, f"{len(broken)} of {len(records)} cells did not give a score; see the list of cells."]
    if not any(_is_adaptive(record) for record in records):
        notes = [
            *notes,
            "Only plain attacks ran here: none of them knows the defense. A good rank shows no more than that.",
        ]
    if rows:
        notes = [*notes, f"Scores are over {len(rows[0].strata)} targets, the half on which the attack was not chosen."]
    notes = [*notes, utility.note]
    table = Table(title, tuple(columns), tuple(done), tuple(notes))
    return table.mark_best() if len(ranked) > 1 else table


def _is_adaptive(record: Record) -> bool:
    """Whether the attack gave an answer and really used what it knows of the defense."""
    plain = any(flag.startswith(NOTHING_TO_IMITATE) for flag in record.flags)
    return record.cell.adaptive and record.status == "ok" and not plain


def _why_not(name: str, utility: Utility, records: Sequence[Record]) -> str:
    """Why a defense is not ranked: it does not train, or an attack on it gave no answer (which must not be a win)."""
    if not utility.passes(name):
        return utility.verdict(name)
    mine = [record for record in records if record.cell.training.defense.label == name]
    broken = sorted({record.cell.attack.label for record in mine if record.status in ("failed", "timeout", "crashed")})
    return f"incomplete: {', '.join(broken)} gave no answer" if broken else ""


def _compare(first: RankedRow, second: RankedRow) -> int:
    """-1 or 1 where the first leaks less or more, 0 for a tie; all rows that are no better than the prior tie."""
    if "auc" in first.harms:  # bootstrap draws with the same resamples: their differences are paired
        interval = percentile_interval(first.harms["auc"] - second.harms["auc"])
        return 0 if interval.low <= 0 <= interval.high else -1 if interval.high < 0 else 1
    if first.cells["excess"].text and second.cells["excess"].text:
        return 0
    common = np.intersect1d(first.strata, second.strata)
    if not len(common):
        return 0  # no seed worked for both: nothing tells them apart
    left, right = np.isin(first.strata, common), np.isin(second.strata, common)
    return compare(
        {name: values[left] for name, values in first.harms.items()},
        {name: values[right] for name, values in second.harms.items()},
        first.strata[left],
    )


def _invalid(control: str, why: str) -> str:
    return f"The control ({control}) does not break here: {why}. The attacks show nothing, and nobody is ranked."


def _share(hits: int, count: int) -> Cell:
    interval = wilson(hits, count)
    return Cell(100 * hits / count, 100 * interval.low, 100 * interval.high)


def _bounded(value: float, interval: Interval, text: str | None = None) -> Cell:
    finite = np.isfinite(interval.low) and np.isfinite(interval.high)
    low, high = (interval.low, interval.high) if finite else (None, None)
    return Cell(value, low, high, text=text)
