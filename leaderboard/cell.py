"""One cell: open the view, let the attack loose on it, then (and only then) fetch the truth and score."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any, cast

import torch

from attacks.base import Knowledge, MembershipTask, ReconstructionTask
from core.errors import Unsupported, UserError
from core.seeds import derive_seed
from datasets.base import ImagePool
from datasets.loading import load_pool
from datasets.splits import Splits
from federation.settings import Moment, Training, Watch, client_name
from federation.view import Threat, parse_threat
from leaderboard.answers import check_answer, load_answer, save_answer
from leaderboard.files import write_text
from leaderboard.jobs import Job
from leaderboard.provenance import provenance
from leaderboard.record import Cost, Record
from leaderboard.sandbox import Answer, AttackFailed, AttackTask, Cage, Errand, opened_files, run_attack
from leaderboard.scoring import candidates, score
from leaderboard.training import load_public, load_summary, open_view, splits_of


def run_cell(job: Job, cage: Cage, log: Path) -> None:
    """Compute the record of one cell and write it; whatever happens, the record says so."""
    write_text(job.record_file, _compute(job, cage, log).to_json())


def _compute(job: Job, cage: Cage, log: Path) -> Record:
    assert job.cell is not None
    base: dict[str, Any] = {
        "key": job.key,
        "ingredients": job.ingredients,
        "cell": job.cell,
        "training": load_summary(job.training_folder),
        "provenance": provenance(job.device, job.data_digest),
    }
    try:
        attack = job.make_attack()
        base["budget"] = attack.budget()
        if not attack.allows(job.cell.threat):
            raise Unsupported(f"the attack works under {', '.join(attack.threats)}, not under {job.cell.threat}")
        clients = Training.model_validate(job.training.training).clients
        if parse_threat(job.cell.threat, clients).active:
            raise Unsupported(f"the defense {job.training.defense.name} has no strategy of an active server")
        answer, cost = _answer(job, cage, log)
        scored = score(job, answer)
        return Record(**base, status="ok", cost=cost, **scored)
    except Unsupported as reason:
        return Record(**base, status="skipped", reason=_line(str(reason)))
    except AttackFailed as failure:
        return Record(**base, status="failed", reason=_line(str(failure)), traceback=failure.trace)
    except Exception as error:
        said = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        return Record(**base, status="failed", reason=_line(said), traceback=traceback.format_exc())


def _line(text: str) -> str:
    """A reason is one line: the traceback has the rest."""
    return " ".join(text.split())


# --- the attack ---------------------------------------------------------------------------------


def _answer(job: Job, cage: Cage, log: Path) -> tuple[Answer, Cost]:
    """The kept answer of this attack where there is one, else run it and keep it."""
    if job.answer_file.exists():
        return load_answer(job.answer_file)
    errand = _errand(job)
    answer, cost = run_attack(errand, cage, log)
    asked = len(errand.task.candidates) if isinstance(errand.task, MembershipTask) else None
    check_answer(answer, Watch.model_validate(job.training.observe), load_public(job.training_folder).shape, asked)
    save_answer(job.answer_file, answer, cost)
    return answer, cost


def _errand(job: Job) -> Errand:
    """What the attack is handed. The pool lives only in this function: the attack's process never has it."""
    assert job.cell is not None
    with opened_files() as data_files:
        pool = load_pool(job.make_dataset())
    splits = splits_of(job, pool)
    threat = parse_threat(job.cell.threat, len(splits.shards))
    shards = {client_name(i): pool.take(s) for i, s in enumerate(splits.shards) if client_name(i) in threat.parties}
    attack_seed = derive_seed(job.training.seed, "attack", job.cell.attack.label, job.cell.threat, job.cell.moment)
    knowledge = Knowledge(
        view=open_view(job.training_folder, threat, shards),
        defense=job.make_defense(),
        auxiliary=pool.take(splits.auxiliary),
        seed=attack_seed,
        device=job.device,
    )
    forbidden = (*sorted(data_files), _run_folder(job))
    return Errand(job.plugin_files, job.make_attack(), knowledge, _task(job, pool, splits, threat), forbidden)


def _run_folder(job: Job) -> str:
    return str(job.training_folder.parent.parent.resolve())


def _task(job: Job, pool: ImagePool, splits: Splits, threat: Threat) -> AttackTask:
    assert job.cell is not None
    if job.cell.goal == "membership":
        indices, members = candidates(job, splits, threat)
        return MembershipTask(pool.take(indices), float(members.double().mean()))
    watch = Watch.model_validate(job.training.observe)
    probes = watch.targets // watch.probe_batch
    observed = load_summary(job.training_folder).observed
    assert job.cell.moment is not None
    if job.cell.moment not in observed:
        raise Unsupported(f"the run is so short that its {job.cell.moment} round is another observed one")
    labels = pool.labels[splits.shards[0][: watch.targets]]
    known = tuple(torch.split(labels, watch.probe_batch)) if job.cell.known_labels else None
    return ReconstructionTask(
        cast(Moment, job.cell.moment), observed[job.cell.moment], probes, watch.probe_batch, known
    )
