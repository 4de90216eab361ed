"""Records made by hand, for the tests of rankings and tables."""

from __future__ import annotations

from collections.abc import Sequence

from leaderboard.record import (
    CellSpec,
    Cost,
    PluginSpec,
    Record,
    ScoreRecord,
    Status,
    TrainingSpec,
    TrainingSummary,
)


def cell(defense: str, attack: str, goal: str, threat: str, moment: str | None, seed: int) -> CellSpec:
    def plugin(label: str) -> PluginSpec:
        name = "prior" if label.startswith("prior") else label
        return PluginSpec(label=label, name=name, parameters={})

    training = TrainingSpec(
        dataset=plugin("digits"), model=plugin("mlp"), defense=plugin(defense), training={}, observe={}, seed=seed
    )
    return CellSpec(training=training, attack=plugin(attack), goal=goal, threat=threat, moment=moment)


def summary(defense: str, seed: int, accuracy: float | None) -> TrainingSummary:
    return TrainingSummary(
        key=f"{defense}-{seed}",
        accuracy=accuracy,
        test_records=1000,
        train_accuracy=None,
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
    defense: str = "fedavg",
    attack: str = "inverting-gradients",
    psnr: Sequence[float] = (10.0, 12.0),
    *,
    identified: Sequence[float] | None = None,
    lpips: Sequence[float] | None = None,
    moment: str = "first",
    seed: int = 0,
    accuracy: float | None = 0.9,
    status: Status = "ok",
) -> Record:
    """A record of a reconstruction with these values an image."""

    def score(values: Sequence[float] | None) -> ScoreRecord:
        if values is None:
            return ScoreRecord(value=None, reason="no weights")
        return ScoreRecord(value=sum(values) / len(values), per_item=list(values))

    hits = identified if identified is not None else [0.0] * len(psnr)
    scores = {"psnr": score(psnr), "identified": score(hits), "lpips": score(lpips)}
    place = cell(defense, attack, "reconstruction", "server", moment, seed)
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
    defense: str = "fedavg",
    attack: str = "shadow",
    scores: Sequence[float] = (2.0, 1.0, 0.0, -1.0),
    members: Sequence[bool] = (True, True, False, False),
    *,
    seed: int = 0,
    accuracy: float | None = 0.9,
    status: Status = "ok",
) -> Record:
    """A record of a membership attack with these scores."""
    place = cell(defense, attack, "membership", "client", None, seed)
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
        training=summary(defense, seed, accuracy),
    )
