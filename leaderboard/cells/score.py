"""The score: the only place where the truth meets an attack's answer, after the attack has returned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from leakboard.attacks.base import AuditAnswer, ExtractionAnswer, MembershipAnswer, ReconstructionAnswer
from leakboard.core import registry
from leakboard.core.seeds import derive_seed
from leakboard.datasets.base import ImagePool
from leakboard.datasets.loading import load_pool
from leakboard.datasets.splits import Splits
from leakboard.defenses.noise.calibration import DELTA
from leakboard.federation.task import task_of
from leakboard.federation.view import parse_threat
from leakboard.leaderboard.cells.answer import Answer, AttackFailed
from leakboard.leaderboard.cells.audit_game import bits_of, open_game
from leakboard.leaderboard.cells.question import candidates, targets
from leakboard.leaderboard.cells.train import load_model, load_public, load_summary
from leakboard.leaderboard.planning.jobs import Job, probe_size
from leakboard.leaderboard.planning.public_settings import splits_of
from leakboard.leaderboard.records.record import PRIOR, ScoreRecord
from leakboard.metrics.base import (
    AuditMetric,
    AuditTruth,
    ExtractionMetric,
    ExtractionTruth,
    MembershipMetric,
    MembershipTruth,
    Metric,
    ReconstructionMetric,
    ReconstructionTruth,
    Score,
)
from leakboard.metrics.matching import match
from leakboard.metrics.psnr import psnr


@dataclass(frozen=True)
class _Truth:
    pool: ImagePool
    splits: Splits


def score(job: Job, answer: Answer) -> dict[str, Any]:
    """The scores of an answer, as fields of the record. Called only after the attack has returned."""
    pool = load_pool(job.make_dataset())
    truth = _Truth(pool, splits_of(job, pool))
    if isinstance(answer, MembershipAnswer):
        return _score_membership(job, answer, truth)
    if isinstance(answer, ExtractionAnswer):
        return _score_extraction(job, answer, truth)
    if isinstance(answer, AuditAnswer):
        return _score_audit(job, answer, truth)
    return _score_reconstruction(job, answer, truth)


def _metrics(job: Job, goal: str) -> list[Metric]:
    """All metrics of a goal, told where the LPIPS weights are."""
    where = {"weights": job.locations.lpips_weights, "download": job.locations.download}
    found: list[Metric] = []
    for name, entry in registry.entries("metric").items():
        if entry["goal"] == goal:
            given = {k: v for k, v in where.items() if k in entry["parameters"]}
            found.append(cast(Metric, registry.create("metric", name, given)))
    return found


def _as_record(metric: Metric, score: Score) -> ScoreRecord:
    return ScoreRecord(
        value=score.value,
        unit=metric.unit,
        version=metric.version,
        reason=score.reason,
        per_item=list(score.per_item),
        details=dict(score.details),
    )


def _score_membership(job: Job, answer: MembershipAnswer, truth: _Truth) -> dict[str, Any]:
    assert job.cell is not None
    threat = parse_threat(job.cell.threat, len(truth.splits.shards))
    indices, members = candidates(job, truth.splits, threat)
    given = MembershipTruth(answer.scores, answer.decisions, members)
    return {
        "scores": {
            m.name: _as_record(m, m.score(given))
            for m in _metrics(job, "membership")
            if isinstance(m, MembershipMetric)
        },
        "target_indices": indices.tolist(),
        "members": members.tolist(),
        "member_scores": answer.scores.double().tolist(),
        "decisions": answer.decisions.tolist(),
        "flags": list(answer.flags),
        "diagnostics": dict(answer.diagnostics),
    }


def _score_extraction(job: Job, answer: ExtractionAnswer, truth: _Truth) -> dict[str, Any]:
    """The stolen model beside the true one of the attacked round, both run on the test set."""
    assert job.cell is not None
    assert job.cell.moment is not None
    task = task_of(load_public(job.training_folder))
    true = load_model(job.training_folder, load_summary(job.training_folder).observed[job.cell.moment])
    stolen = {name: answer.model[name].detach().cpu().to(value) for name, value in true.items()}
    test = truth.pool.take(truth.splits.test)
    given = ExtractionTruth(
        stolen=stolen,
        true=true,
        network=task.skeleton(),
        stolen_logits=task.predict(stolen, test.images),
        true_logits=task.predict(true, test.images),
        labels=test.labels,
    )
    return {
        "scores": {
            m.name: _as_record(m, m.score(given))
            for m in _metrics(job, "extraction")
            if isinstance(m, ExtractionMetric)
        },
        "target_indices": truth.splits.test.tolist(),
        "flags": list(answer.flags),
        "diagnostics": dict(answer.diagnostics),
    }


def _score_audit(job: Job, answer: AuditAnswer, truth: _Truth) -> dict[str, Any]:
    """The bound that the game proves, beside what the defense claims for a round and for the whole training."""
    bits = bits_of(job)
    if answer.scores.shape != bits.shape:
        raise AttackFailed(f"the attack must score {len(bits)} trials; given: {len(answer.scores)}")
    assert job.cell is not None
    claims = load_summary(job.training_folder).claims
    said = promised(claims, job.cell.threat)
    given = AuditTruth(answer.scores, bits, said.get("delta", DELTA), said.get("claimed"))
    scores = {m.name: _as_record(m, m.score(given)) for m in _metrics(job, "audit") if isinstance(m, AuditMetric)}
    for score in scores.values():
        score.details.update(said)
    return {
        "scores": scores,
        "target_indices": open_game(job, truth.pool, truth.splits).indices.tolist(),
        "members": bits.tolist(),
        "member_scores": answer.scores.double().tolist(),
        "flags": list(answer.flags),
        "diagnostics": dict(answer.diagnostics),
    }


def promised(claims: Mapping[str, Any], threat: str) -> dict[str, float]:
    """What the defense claims against this threat, as details of a score: epsilon of a round and composed, delta.

    `claimed` is what it says of a round, `round` what its noise gives this threat (if it were Gaussian), `composed` the
    same over the whole training. Where epsilon is meant for the whole training, `claimed` is its share of
    a round.
    """
    if threat not in claims.get("epsilon_against", [threat]):
        return {}
    by_threat = {name: claims.get(f"epsilon_{name}_by_threat") or {} for name in ("round", "total")}
    one = by_threat["round"].get(threat, claims.get("epsilon_round_exact"))
    found = {
        "claimed": claims.get("epsilon_round_claimed", claims.get("epsilon_claimed")),
        "round": one,
        "composed": by_threat["total"].get(threat, claims.get("epsilon_run_exact")),
        "delta": claims.get("delta"),
    }
    return {name: float(value) for name, value in found.items() if value is not None}


def _score_reconstruction(job: Job, answer: ReconstructionAnswer, truth: _Truth) -> dict[str, Any]:
    assert job.cell is not None
    assert job.cell.moment is not None
    indices = targets(job, truth.splits)
    originals = truth.pool.take(indices).images
    matched = [
        images.cpu()[match(images.cpu(), original)]
        for images, original in zip(answer.images, torch.split(originals, probe_size(job)), strict=True)
    ]
    reconstruction = torch.cat(matched)
    summary = load_summary(job.training_folder)
    public = load_public(job.training_folder)
    task = task_of(public)
    model = load_model(job.training_folder, summary.observed[job.cell.moment])
    given = ReconstructionTruth(
        reconstruction=reconstruction,
        original=originals,
        mean=public.mean,
        std=public.std,
        reconstruction_logits=task.predict(model, reconstruction.clamp(0, 1)),
        original_logits=task.predict(model, originals),
        decoys=_decoys(job, truth, indices),
    )
    scores = {
        m.name: _as_record(m, m.score(given))
        for m in _metrics(job, "reconstruction")
        if isinstance(m, ReconstructionMetric)
    }
    flags = list(answer.flags)
    if job.cell.attack.name != PRIOR:
        guess = truth.pool.take(truth.splits.auxiliary).images.mean(0).expand_as(originals)
        floor, found = float(psnr(guess, originals).mean()), scores["psnr"].value
        if found is not None and found <= floor:
            flags.append(f"no better than the prior: the mean auxiliary image has {floor:.2f} dB")
    return {
        "scores": scores,
        "target_indices": indices.tolist(),
        "reconstructions": job.answer_file.name,
        "flags": flags,
        "diagnostics": dict(answer.diagnostics),
    }


def _decoys(job: Job, truth: _Truth, targets: Tensor) -> Tensor:
    """Other members and auxiliary images among which `identified` looks, the same for all defenses."""
    assert job.cell is not None
    others = torch.cat([truth.splits.members, truth.splits.auxiliary])
    others = others[~torch.isin(others, targets)]
    generator = torch.Generator().manual_seed(derive_seed(job.private_seed, "decoys", job.training.dataset.label))
    chosen = others[torch.randperm(len(others), generator=generator)[: job.cell.decoys]]
    return truth.pool.take(chosen).images
