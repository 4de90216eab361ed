"""Reconstruction in tables: identified images first, then LPIPS, then PSNR above the best guess."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from leakboard.leaderboard.ranking.evidence import FEW, Evidence, halves, mean_interval
from leakboard.leaderboard.ranking.goal_ranking import TOO_FEW, GoalRanking, Question
from leakboard.leaderboard.ranking.intervals import Interval, clopper_pearson, effective_trials
from leakboard.leaderboard.ranking.worst_case import (
    ATTACK,
    PLAIN_ATTACK,
    RankedRow,
    above,
    attack_cell,
    bounded,
    is_prior,
    of_plain,
    share,
    with_plain,
    worst_and_plain,
)
from leakboard.leaderboard.records.record import PRIOR, CellSpec, Record
from leakboard.leaderboard.tables.table import Cell, Column

Floats = NDArray[np.float64]
IDENTIFIED = Column(
    "identified", "identified", unit="%", digits=1, direction="lower", help="the original is nearest of all decoys"
)
EXCESS = Column(
    "excess", "over prior", unit="dB", digits=2, direction="lower", help="PSNR above the best guess without attack"
)
LPIPS = Column("lpips", "LPIPS", digits=3, direction="higher")
PSNR = Column("psnr", "PSNR", unit="dB", digits=2, direction="lower")
EACH = Column(
    "each", "per-target worst", unit="dB", digits=2, direction="lower", help="best attack for each target, over prior"
)


def reconstruction_harm(evidence: Evidence) -> tuple[float, float, float]:
    """Harm in the protocol's order: identified, then LPIPS (less is worse), then PSNR."""
    lpips = evidence.mean("lpips")
    return evidence.mean("identified") or 0.0, -(lpips if lpips is not None else 0.0), evidence.mean("psnr") or 0.0


def guessed_share(evidence: Evidence, guesses: Sequence[Evidence]) -> float:
    """The largest share of originals that an answer without any knowledge of them may identify.

    One guess is nearest to an original among D decoys with probability 1 / (D + 1). Each original is compared with the
    guess that fits it best, so with M guesses the share is at most M / (D + 1): M images for each client of the round,
    because a sum holds them all. What guesses reach on the same targets may prove less (the upper end of its exact
    interval, of 97.5 %, for the best of `guesses`).
    """
    one, most = 0.0, 0.0
    for record in evidence.records:
        chance = float(record.scores["identified"].details.get("chance", 1 / (record.cell.decoys + 1)))
        training = record.cell.training.training
        clients = training.get("participants") or training.get("clients") or 1
        one, most = max(one, chance), max(most, chance * evidence.batch_size * int(cast(int, clients)))
    reached = [_exact(guess).high for guess in guesses]
    return max(one, min([1.0, most, *([max(reached)] if reached else [])]))


def identifies(evidence: Evidence, guesses: Sequence[Evidence]) -> bool:
    """Whether more originals were identified than by guessing: at most 5 % false alarms, 2.5 % for each interval."""
    return not is_prior(evidence) and _exact(evidence).low > guessed_share(evidence, guesses)


def _exact(evidence: Evidence) -> Interval:
    """The exact interval of the identified share; images that share a gradient count as fewer."""
    hits = evidence.values["identified"]
    trials = effective_trials(hits, evidence.batch_size)
    return clopper_pearson(float(hits.sum()) * (trials / len(hits)), trials)


class ReconstructionRanking(GoalRanking):
    """Ranks by the images that were identified, then by LPIPS, then by PSNR above the prior."""

    name: ClassVar[str] = "reconstruction"
    primary: ClassVar[str] = "identified"
    criteria: ClassVar[tuple[str, ...]] = ("identified", "lpips", "excess")

    def columns(self) -> tuple[Column, ...]:
        """Identified, LPIPS and PSNR above the prior."""
        return ATTACK, IDENTIFIED, LPIPS, EXCESS

    def plain_columns(self) -> tuple[Column, ...]:
        """Identified and PSNR above the prior."""
        return PLAIN_ATTACK, of_plain(IDENTIFIED), of_plain(EXCESS)

    def last_columns(self) -> tuple[Column, ...]:
        """PSNR, and the best attack for each target."""
        return PSNR, EACH

    def harm(self, evidence: Evidence) -> tuple[float, ...]:
        """In the protocol's order."""
        return reconstruction_harm(evidence)

    def row(self, defense: str, found: list[Evidence]) -> RankedRow | None:
        """A defense's worst case among all attacks, the prior included; None without a prior to compare with."""
        picked = worst_and_plain(found, reconstruction_harm)
        priors = [evidence for evidence in found if is_prior(evidence)]
        if picked is None or not priors:
            return None
        reported, plain, chosen = picked
        prior = max(priors, key=lambda evidence: evidence.mean("psnr") or 0.0)
        others, rows = halves(prior)
        floor, guesses = prior.take(rows).values["psnr"], [evidence.take(rows) for evidence in priors]
        each = np.max([evidence.take(rows).values["psnr"] for evidence in found], axis=0) - floor
        cells = {**_cells(reported, floor, guesses), "each": Cell(float(each.mean()))}
        beside = _cells(plain, floor, guesses) if plain is not None else {}
        excess = reported.values["psnr"] - floor
        harms = {
            "identified": reported.values["identified"],
            "excess": excess if above(cells["excess"], 0) else np.zeros_like(excess),
        }
        if "lpips" in reported.values:
            harms["lpips"] = -reported.values["lpips"]
        order = (*reconstruction_harm(reported)[:2], float(harms["excess"].mean()))
        # rounds and batch sizes have other targets: PSNR is compared with what a guess reaches on the same ones
        gained = float((chosen.values["psnr"] - prior.take(others).values["psnr"]).mean())
        worst = (*reconstruction_harm(chosen)[:2], gained)
        shown = with_plain(cells, beside, self.plain_columns())
        return RankedRow(defense, shown, order, harms, reported, plain, worst, tuple(guesses))

    def compare(self, first: RankedRow, second: RankedRow) -> int:
        """All rows tie whose attacks are no better than the prior and identify no more images than guessing does."""
        return super().compare(first, second) if self.leaks(first) or self.leaks(second) else 0

    def leaks(self, row: RankedRow) -> bool:
        """Whether an attack's PSNR is above the prior's or more images are identified than by guessing."""
        if is_prior(row.reported):
            return False
        return row.cells["excess"].text is None or identifies(row.reported, row.guesses)

    def why_control_holds(self, control: RankedRow) -> str:
        """Why reconstructions of the control show nothing; "" where PSNR is above the prior or images are identified.

        One of both is enough: each leaves out what a guess gives, with false alarms of 2.5 % (PSNR) and at most 5 %.
        """
        better = above(control.cells["excess"], 0) or identifies(control.reported, control.guesses)
        if better and not is_prior(control.reported):
            return ""
        hits, excess = control.reported.values["identified"], float(control.cells["excess"].value or 0)
        if len(hits) < FEW and (excess > 0 or hits.any()):  # the unit is the batch, the words count images
            size = control.reported.batch_size
            found = f"{round(float(hits.sum()) * size)} of {len(hits) * size} identified"
            return f"{TOO_FEW}: {found}, {excess:.2f} dB over the prior"
        return "its PSNR is not above the prior, nor are more images identified than by guessing"

    def notes(self, found: Sequence[Evidence], records: Sequence[Record], waiting: Sequence[CellSpec]) -> list[str]:
        """Why there is no prior to compare with, where that is not merely to come."""
        if not found or any(map(is_prior, found)) or any(cell.attack.name == PRIOR for cell in waiting):
            return []
        if any(record.cell.attack.name == PRIOR for record in records):
            return ["The prior gave no answer, so there is nothing to compare with."]
        return ["There is no prior among the attacks, so there is nothing to compare with: add it to the suite."]

    def caption(self, records: Sequence[Record], batch_size: int) -> str:
        """What a reader must know of the gradients: of how many records, among how many clients."""
        found = sorted({n for r in records if isinstance(n := r.cell.training.training.get("clients"), int)})
        clients = f"; {' or '.join(map(str, found))} clients" if found else ""
        records_in_it = "1 record" if batch_size == 1 else f"{batch_size} records"
        return f"Batch size {batch_size}: {records_in_it} per gradient{clients}."

    def question(self, about: str) -> Question:
        """How many images are recovered: identified among the decoys."""
        return Question("images recovered", "images recovered")

    def answer(self, cells: Mapping[str, Cell]) -> Cell:
        """The identified share; where that is nothing, but the PSNR is above the prior, the decibels beside it."""
        cell, excess = super().answer(cells), cells["excess"]
        if cell.value == 0 and isinstance(excess.value, (int, float)) and excess.text is None:
            return replace(cell, text=f"{cell.text}, {excess.value:+.1f} dB")
        return cell

    def told(self, record: Record) -> str:
        """How many images were identified."""
        hits = record.scores["identified"].per_item if "identified" in record.scores else []
        return f"recovers {round(sum(hits))} of {len(hits)} images" if hits else ""

    def colour(self, value: float) -> float:
        """Shares as they are."""
        return value / 100


def _cells(reported: Evidence, floor: Floats, guesses: Sequence[Evidence]) -> dict[str, Cell]:
    excess = reported.values["psnr"] - floor
    interval = mean_interval(excess, reported.strata)
    lpips = reported.mean("lpips")
    # few targets make wide intervals: identified images count as more than the prior
    nothing = interval.low <= 0 and (excess.mean() <= 0 or not identifies(reported, guesses))
    return {
        "attack": attack_cell(reported),
        "identified": share(reported.values["identified"], reported.batch_size),
        "lpips": Cell(lpips, note="" if lpips is not None else reported.records[0].scores["lpips"].reason),
        "psnr": Cell(reported.mean("psnr"), link=reported.records[0].key),
        "excess": bounded(float(excess.mean()), interval, text="≤ prior" if nothing else None),
    }
