"""A defense's row in a ranking: its worst case among all attacks, and beside it the best of the plain ones.

Plain attacks take a defense's honest reading alone; adaptive ones know more of it. Both choices are made on one half of
the targets and reported on the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leakboard.leaderboard.ranking.evidence import (
    Evidence,
    auc_draws,
    extraction_harm,
    halves,
    mean_interval,
    membership_harm,
    percentile_interval,
    reconstruction_harm,
    tpr_at,
    worst,
)
from leakboard.leaderboard.ranking.intervals import Interval, clopper_pearson, effective_trials, wilson
from leakboard.leaderboard.records.record import PRIOR
from leakboard.leaderboard.tables.table import Cell, Column

Floats = NDArray[np.float64]
Harm = Callable[[Evidence], tuple[float, ...]]
#: what the keys of the best plain attack's cells begin with
PLAIN = "plain_"
KNOWS = "adaptive: this attack knows the defense"
ONE_CLASS = "the reported half has one class only"
#: the false positive rate of the table's true positive rate
LOW_FPR = 0.01

ATTACK = Column("attack", "worst attack", help="the attack that did most harm, chosen on the other half of the targets")
PLAIN_ATTACK = Column(
    "plain_attack", "plain attack", help="the one that did most harm among those that do not know the defense"
)


def _plain(column: Column) -> Column:
    """The same column for the best plain attack; without a direction, since being best there means little."""
    title, words = f"plain {column.title}", "the same for the plain attack"
    return Column(
        PLAIN + column.key, title, column.unit, digits=column.digits, significant=column.significant, help=words
    )


_IDENTIFIED = Column(
    "identified", "identified", unit="%", digits=1, direction="lower", help="the original is nearest of all decoys"
)
_EXCESS = Column(
    "excess", "over prior", unit="dB", digits=2, direction="lower", help="PSNR above the best guess without attack"
)
_AUC = Column("auc", "AUC", digits=3, direction="lower", help="0.5 is a coin")
_TPR = Column(
    "tpr", "TPR at 1 % FPR", unit="%", digits=1, direction="lower", help="members found with 1 % of others accused"
)
_FIDELITY = Column(
    "fidelity", "fidelity", unit="%", digits=1, direction="lower", help="test records on which it agrees with the model"
)
RECONSTRUCTION = (
    ATTACK,
    _IDENTIFIED,
    Column("lpips", "LPIPS", digits=3, direction="higher"),
    _EXCESS,
)
#: columns that stand after those of the plain attack
RECONSTRUCTION_REST = (
    Column("psnr", "PSNR", unit="dB", digits=2, direction="lower"),
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
    ATTACK,
    _AUC,
    _TPR,
    Column(
        "asr", "ASR", unit="%", digits=1, direction="lower", help="balanced accuracy; the threshold never saw the truth"
    ),
)
EXTRACTION = (
    ATTACK,
    _FIDELITY,
    Column(
        "stolen_accuracy",
        "stolen accuracy",
        unit="%",
        digits=1,
        direction="lower",
        help="test accuracy of the stolen model",
    ),
    Column(
        "canonical_distance",
        "distance",
        digits=3,
        direction="higher",
        help="of the stolen weights from the true ones, rescalings that change no function taken out; over all seeds",
    ),
)
#: the columns of the best plain attack, shown where an adaptive one ran
PLAIN_COLUMNS = {
    "reconstruction": (PLAIN_ATTACK, _plain(_IDENTIFIED), _plain(_EXCESS)),
    "membership": (PLAIN_ATTACK, _plain(_AUC), _plain(_TPR)),
    "extraction": (PLAIN_ATTACK, _plain(_FIDELITY)),
}


@dataclass(frozen=True)
class RankedRow:
    """A defense's row before ranks are known: its cells, what it is compared by, and the evidence behind it."""

    defense: str
    cells: dict[str, Cell]
    order: tuple[float, ...]
    harms: dict[str, Floats]
    reported: Evidence
    plain: Evidence | None

    @property
    def strata(self) -> NDArray[np.int64]:
        """The seed of every reported item."""
        return self.reported.strata

    @property
    def beats_prior(self) -> bool:
        """Of a reconstruction: whether its PSNR is above the prior's or more images are identified than by chance."""
        return self.cells["excess"].text is None or identifies(self.reported)


def is_prior(evidence: Evidence) -> bool:
    """Whether this is the guess that needs no message."""
    return evidence.records[0].cell.attack.name == PRIOR


def worst_and_plain(found: Sequence[Evidence], harm: Harm) -> tuple[Evidence, Evidence | None] | None:
    """The worst attack and the worst plain one, both on the reporting half; of equal ones the plain one is named."""
    ordered = sorted(found, key=lambda evidence: evidence.adaptive)
    picked = worst(ordered, harm)
    plain = worst([evidence for evidence in ordered if not evidence.adaptive], harm)
    return None if picked is None else (picked[0], plain[0] if plain is not None else None)


def _attack_cell(evidence: Evidence) -> Cell:
    return Cell(evidence.attack, link=evidence.records[0].key, note=KNOWS if evidence.adaptive else "")


def _with_plain(cells: dict[str, Cell], plain: dict[str, Cell], goal: str) -> dict[str, Cell]:
    """The worst case's cells, and of the plain attack's those that the table has a column for."""
    kept = {column.key for column in PLAIN_COLUMNS[goal]}
    return cells | {PLAIN + key: cell for key, cell in plain.items() if PLAIN + key in kept}


# --- reconstruction -----------------------------------------------------------------------------


def reconstruction_row(name: str, found: list[Evidence]) -> RankedRow | None:
    """A defense's worst case among all attacks, the prior included; None without a prior to compare with."""
    picked = worst_and_plain(found, reconstruction_harm)
    priors = [evidence for evidence in found if is_prior(evidence)]
    if picked is None or not priors:
        return None
    reported, plain = picked
    prior = max(priors, key=lambda evidence: evidence.mean("psnr") or 0.0)
    _, rows = halves(prior)
    floor = prior.take(rows).values["psnr"]
    each = np.max([evidence.take(rows).values["psnr"] for evidence in found], axis=0) - floor
    cells = {**_reconstruction_cells(reported, floor), "each": Cell(float(each.mean()))}
    beside = _reconstruction_cells(plain, floor) if plain is not None else {}
    excess = reported.values["psnr"] - floor
    harms = {
        "identified": reported.values["identified"],
        "excess": excess if above(cells["excess"], 0) else np.zeros_like(excess),
    }
    if "lpips" in reported.values:
        harms["lpips"] = -reported.values["lpips"]
    order = (*reconstruction_harm(reported)[:2], float(harms["excess"].mean()))
    return RankedRow(name, _with_plain(cells, beside, "reconstruction"), order, harms, reported, plain)


def _reconstruction_cells(reported: Evidence, floor: Floats) -> dict[str, Cell]:
    excess = reported.values["psnr"] - floor
    interval = mean_interval(excess, reported.strata)
    lpips = reported.mean("lpips")
    # few targets make wide intervals: whose images are told from all decoys, that got more than the prior all the same
    nothing = interval.low <= 0 and (excess.mean() <= 0 or not identifies(reported))
    return {
        "attack": _attack_cell(reported),
        "identified": share(reported.values["identified"], reported.batch_size),
        "lpips": Cell(lpips, note="" if lpips is not None else reported.records[0].scores["lpips"].reason),
        "psnr": Cell(reported.mean("psnr"), link=reported.records[0].key),
        "excess": bounded(float(excess.mean()), interval, text="≤ prior" if nothing else None),
    }


def identifies(evidence: Evidence) -> bool:
    """Whether more originals were told from their decoys than by chance, at 2.5 % false alarms (exact interval)."""
    hits, size = evidence.values["identified"], evidence.batch_size
    trials = effective_trials(hits, size)
    chances = [r.scores["identified"].details.get("chance", 1 / (r.cell.decoys + 1)) for r in evidence.records]
    return clopper_pearson(float(hits.sum()) * (trials / len(hits)), trials).low > max(chances)


# --- membership ---------------------------------------------------------------------------------


def membership_row(name: str, found: list[Evidence]) -> RankedRow | None:
    """A defense's worst case among all membership attacks."""
    picked = worst_and_plain(found, membership_harm)
    if picked is None:
        return None
    reported, plain = picked
    draws = auc_draws(reported)
    cells = _membership_cells(reported, draws)
    beside = {} if plain is None else cells if plain.attack == reported.attack else _membership_cells(plain)
    order = membership_harm(reported)
    return RankedRow(name, _with_plain(cells, beside, "membership"), order, {"auc": draws}, reported, plain)


def _membership_cells(reported: Evidence, draws: Floats | None = None) -> dict[str, Cell]:
    (value,) = membership_harm(reported)
    member = reported.values["member"] > 0
    decided = reported.values["decision"] > 0
    both = member.any() and not member.all()
    asr = 100 * float((decided[member].mean() + (~decided[~member]).mean()) / 2) if both else None
    return {
        "attack": _attack_cell(reported),
        "auc": bounded(value, percentile_interval(auc_draws(reported) if draws is None else draws)),
        "tpr": _tpr_cell(reported),
        "asr": Cell(asr, note="" if both else ONE_CLASS),
    }


def _tpr_cell(reported: Evidence) -> Cell:
    """The mean over seeds of the true positive rate; nothing, with the reason, where a seed has too few non-members."""
    score, truth, seeds = reported.values["score"], reported.values["member"], reported.strata
    rates = [tpr_at(score[seeds == seed], truth[seeds == seed], LOW_FPR) for seed in np.unique(seeds)]
    known = [rate for rate in rates if rate is not None]
    if len(known) == len(rates):
        return Cell(100 * float(np.mean(known)))
    fewest = min(int((truth[seeds == seed] == 0).sum()) for seed in np.unique(seeds))
    needed = round(1 / LOW_FPR)
    if fewest >= needed:
        return Cell(None, note=ONE_CLASS)
    return Cell(None, note=f"the reported half has {fewest} non-members a seed, fewer than {needed}: no such rate")


# --- extraction ---------------------------------------------------------------------------------


def extraction_row(name: str, found: list[Evidence]) -> RankedRow | None:
    """A defense's worst case among all attacks that steal the model, over the reporting half of the test records."""
    picked = worst_and_plain([evidence for evidence in found if "fidelity" in evidence.values], extraction_harm)
    if picked is None:
        return None
    reported, plain = picked
    beside = _extraction_cells(plain) if plain is not None else {}
    cells = _with_plain(_extraction_cells(reported), beside, "extraction")
    harms = {"fidelity": reported.values["fidelity"]}
    return RankedRow(name, cells, extraction_harm(reported), harms, reported, plain)


def _extraction_cells(reported: Evidence) -> dict[str, Cell]:
    def whole(metric: str) -> Cell:
        """The mean over seeds of a score that has no values by item."""
        scores = [record.scores[metric] for record in reported.records if metric in record.scores]
        values = [score.value for score in scores if score.value is not None]
        reasons = [score.reason for score in scores if score.value is None]
        return Cell(float(np.mean(values)) if values else None, note="" if values else "; ".join(reasons[:1]))

    accuracy = reported.values.get("stolen_accuracy")
    return {
        "attack": _attack_cell(reported),
        "fidelity": share(reported.values["fidelity"]),
        "stolen_accuracy": share(accuracy) if accuracy is not None else Cell(None),
        "canonical_distance": whole("canonical_distance"),
    }


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
