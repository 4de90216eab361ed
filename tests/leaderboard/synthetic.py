"""Records made by hand, for the tests of rankings and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import JsonValue

from leakboard.leaderboard.goals.audit import promised
from leakboard.leaderboard.records.record import (
    CellSpec,
    Cost,
    PluginSpec,
    Record,
    ScoreRecord,
    Status,
    TrainingSpec,
    TrainingSummary,
)


def cell(
    defense: str,
    attack: str,
    goal: str,
    threat: str,
    moment: str | None,
    seed: int,
    adaptive: bool = False,
    about: Literal["training", "batch"] = "training",
    batch_size: int = 1,
) -> CellSpec:
    def plugin(label: str) -> PluginSpec:
        name = "prior" if label.startswith("prior") else label
        return PluginSpec(label=label, name=name, parameters={})

    observe: dict[str, JsonValue] = {} if batch_size == 1 else {"probe_batch": batch_size}
    training = TrainingSpec(
        dataset=plugin("digits"), model=plugin("mlp"), defense=plugin(defense), training={}, observe=observe, seed=seed
    )
    return CellSpec(
        training=training,
        attack=plugin(attack),
        goal=goal,
        threat=threat,
        moment=moment,
        adaptive=adaptive,
        about=about,
    )


def summary(defense: str, seed: int, accuracy: float | None, train_accuracy: float | None = None) -> TrainingSummary:
    return TrainingSummary(
        key=f"{defense}-{seed}",
        accuracy=accuracy,
        test_records=1000,
        train_accuracy=train_accuracy,
        train_records=1000,
        rounds=4,
        client_rounds=12,
        parameters=10,
        diverged=False,
        observed={"first": 0},
        bytes_by_kind={"update": 1},
        seconds={"client/Train": 0.1},
        cpu_seconds={"client/Train": 0.1},
        wall_seconds=0.2,
    )


def reconstruction(
    defense: str = "fedsgd",
    attack: str = "inverting-gradients",
    psnr: Sequence[float] = (10.0, 12.0),
    *,
    identified: Sequence[float] | None = None,
    lpips: Sequence[float] | None = None,
    moment: str = "first",
    seed: int = 0,
    accuracy: float | None = 0.9,
    status: Status = "ok",
    adaptive: bool = False,
    threat: str = "server",
    batch_size: int = 1,
) -> Record:
    """A record of a reconstruction with these values an image."""

    def score(values: Sequence[float] | None) -> ScoreRecord:
        if values is None:
            return ScoreRecord(value=None, reason="no weights")
        return ScoreRecord(value=sum(values) / len(values), per_item=list(values))

    hits = identified if identified is not None else [0.0] * len(psnr)
    scores = {"psnr": score(psnr), "identified": score(hits), "lpips": score(lpips)}
    place = cell(defense, attack, "reconstruction", threat, moment, seed, adaptive, batch_size=batch_size)
    return Record(
        key=place.slug,
        ingredients={},
        cell=place,
        status=status,
        reason="" if status == "ok" else "broken",
        scores=scores if status == "ok" else {},
        target_indices=list(range(len(psnr))) if status == "ok" else [],
        training=summary(defense, seed, accuracy),
        cost=Cost(wall_seconds=1, cpu_seconds=1, peak_memory_mib=1),
    )


def membership(
    defense: str = "fedsgd",
    attack: str = "shadow",
    scores: Sequence[float] = (2.0, 1.0, 0.0, -1.0),
    members: Sequence[bool] = (True, True, False, False),
    *,
    seed: int = 0,
    accuracy: float | None = 0.9,
    train_accuracy: float | None = None,
    status: Status = "ok",
    adaptive: bool = False,
    about: Literal["training", "batch"] = "training",
    moment: str | None = None,
    threat: str = "client",
) -> Record:
    """A record of a membership attack with these scores."""
    place = cell(defense, attack, "membership", threat, moment, seed, adaptive, about)
    return Record(
        key=place.slug,
        ingredients={},
        cell=place,
        status=status,
        reason="" if status == "ok" else "broken",
        scores={"tpr@1%fpr": ScoreRecord(value=0.25)} if status == "ok" else {},
        target_indices=list(range(len(scores))) if status == "ok" else [],
        members=list(members) if status == "ok" else [],
        member_scores=list(scores) if status == "ok" else [],
        decisions=[score > 0.5 for score in scores] if status == "ok" else [],
        training=summary(defense, seed, accuracy, train_accuracy),
    )


def extraction(
    defense: str = "fedsgd",
    attack: str = "steal",
    fidelity: Sequence[float] = (1.0, 1.0, 1.0, 1.0),
    *,
    stolen: Sequence[float] | None = None,
    moment: str = "last",
    seed: int = 0,
    accuracy: float | None = 0.9,
    adaptive: bool = False,
) -> Record:
    """A record of an extraction: agreement with the true model on each test record (0 or 1)."""
    place = cell(defense, attack, "extraction", "client", moment, seed, adaptive)
    right = stolen if stolen is not None else fidelity
    scores = {
        "fidelity": ScoreRecord(value=sum(fidelity) / len(fidelity), per_item=list(fidelity)),
        "stolen_accuracy": ScoreRecord(value=sum(right) / len(right), per_item=list(right)),
        "canonical_distance": ScoreRecord(value=0.25),
    }
    return Record(
        key=place.slug,
        ingredients={},
        cell=place,
        status="ok",
        scores=scores,
        target_indices=list(range(len(fidelity))),
        training=summary(defense, seed, accuracy),
    )


def audit(
    defense: str = "mp-dp",
    attack: str = "distinguish",
    audited: float | None = 5.0,
    details: Mapping[str, float] | None = None,
    *,
    seed: int = 0,
    accuracy: float | None = 0.9,
    adaptive: bool = False,
    threat: str = "server",
) -> Record:
    """A record of an audit with this lower bound of epsilon."""
    place = cell(defense, attack, "audit", threat, "first", seed, adaptive)
    known = details
    if known is None:
        known = {
            # as scoring writes them
            **promised({"epsilon_claimed": 3.0, "epsilon_round_exact": 3.1, "epsilon_run_exact": 40.0}, threat),
            **{"ceiling": 6.5, "trials": 2000.0},
        }
    reason = "" if audited is not None else "too few trials"
    return Record(
        key=place.slug,
        ingredients={},
        cell=place,
        status="ok",
        scores={"epsilon_lower": ScoreRecord(value=audited, reason=reason, details=dict(known))},
        training=summary(defense, seed, accuracy),
    )
