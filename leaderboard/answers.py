"""What an attack returned: checked, and kept beside the record so that a changed metric needs no new attack."""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from attacks.base import (
    AuditAnswer,
    AuditTask,
    ExtractionAnswer,
    ExtractionTask,
    MembershipAnswer,
    MembershipTask,
    ReconstructionAnswer,
    ReconstructionTask,
)
from core.files import write_bytes
from federation.payload import Parameters
from federation.settings import Public
from federation.task import task_of
from leaderboard.record import Cost
from leaderboard.sandbox import Answer, AttackFailed, AttackTask

#: what goes into a record beside the scores; a record that is too large to be read would spoil more than its cell
MOST_REMARKS, LONGEST_REMARK = 1000, 2000


def check_answer(answer: Answer, task: AttackTask, public: Public) -> None:
    """Refuse an answer of the wrong form: shapes, counts, types, non-finite scores and diagnostics."""
    if isinstance(answer, ReconstructionAnswer) and isinstance(task, ReconstructionTask):
        _check_images(answer, task.sizes, public.shape)
    elif isinstance(answer, MembershipAnswer) and isinstance(task, MembershipTask):
        _check_scores(answer, len(task.candidates))
    elif isinstance(answer, ExtractionAnswer) and isinstance(task, ExtractionTask):
        _check_model(answer, task_of(public).initial(0))
    elif isinstance(answer, AuditAnswer) and isinstance(task, AuditTask):
        _check_ratios(answer)
    else:
        raise AttackFailed(f"the attack must return an answer to its task; given: {type(answer).__name__}")
    if len(answer.flags) > MOST_REMARKS or len(answer.diagnostics) > MOST_REMARKS:
        raise AttackFailed(f"at most {MOST_REMARKS} flags and diagnostics are kept")
    if not all(isinstance(flag, str) and len(flag) <= LONGEST_REMARK for flag in answer.flags):
        raise AttackFailed(f"flags must be texts of at most {LONGEST_REMARK} characters")
    for name, value in answer.diagnostics.items():
        if not isinstance(name, str) or not isinstance(value, int | float) or not math.isfinite(value):
            raise AttackFailed(f"diagnostics must be finite numbers by name; given: {name!r:.40}: {value!r:.40}")


def _check_images(answer: ReconstructionAnswer, sizes: tuple[int, ...], shape: tuple[int, ...]) -> None:
    """Exactly as many images as records are behind each gradient: matching more would be choosing by the truth."""
    if len(answer.images) != len(sizes):
        raise AttackFailed(f"the attack must answer {len(sizes)} problems; given: {len(answer.images)}")
    for images, size in zip(answer.images, sizes, strict=True):
        fits = isinstance(images, Tensor) and images.is_floating_point() and tuple(images.shape) == (size, *shape)
        if not fits:
            given = tuple(images.shape) if isinstance(images, Tensor) else type(images).__name__
            raise AttackFailed(f"images must be float {(size, *shape)}; given: {given}")


def _check_scores(answer: MembershipAnswer, candidates: int) -> None:
    if not isinstance(answer.scores, Tensor) or not isinstance(answer.decisions, Tensor):
        given = f"{type(answer.scores).__name__} and {type(answer.decisions).__name__}"
        raise AttackFailed(f"scores and decisions must be tensors; given: {given}")
    if answer.scores.ndim != 1 or answer.decisions.shape != answer.scores.shape:
        raise AttackFailed(
            "scores and decisions must be two vectors of one length; "
            f"given: {tuple(answer.scores.shape)} and {tuple(answer.decisions.shape)}"
        )
    if answer.decisions.dtype != torch.bool or not bool(answer.scores.isfinite().all()):
        raise AttackFailed("decisions must be booleans and scores finite numbers")
    if len(answer.scores) != candidates:
        raise AttackFailed(f"the attack must score {candidates} candidates; given: {len(answer.scores)}")


def _check_model(answer: ExtractionAnswer, like: Parameters) -> None:
    """The names, shapes and kinds of the public network's own tensors, all of them finite."""
    if not isinstance(answer.model, dict):
        raise AttackFailed(f"the model must be tensors by name; given: {type(answer.model).__name__}")
    if set(answer.model) != set(like):
        wrong = sorted(map(str, set(answer.model) ^ set(like)))
        raise AttackFailed(f"the model must have the public network's own tensors; missing or unknown: {wrong!r:.80}")
    for name, wanted in like.items():
        value = answer.model[name]
        fits = isinstance(value, Tensor) and value.shape == wanted.shape
        if not fits or value.is_floating_point() != wanted.is_floating_point():
            given = (value.dtype, tuple(value.shape)) if isinstance(value, Tensor) else type(value).__name__
            raise AttackFailed(f"the model's {name} must be {(wanted.dtype, tuple(wanted.shape))}; given: {given}")
        if not bool(value.isfinite().all()):
            raise AttackFailed(f"the model's {name} must hold finite numbers")


def _check_ratios(answer: AuditAnswer) -> None:
    """One finite number a trial; how many there must be, the score knows."""
    given = answer.scores
    if not isinstance(given, Tensor) or given.ndim != 1 or not given.is_floating_point():
        raise AttackFailed(f"scores must be one vector of floats; given: {type(given).__name__}")
    if not bool(given.isfinite().all()):
        raise AttackFailed("scores must be finite numbers")


def save_answer(path: Path, answer: Answer, cost: Cost) -> None:
    """Keep an answer as safetensors; remarks and cost go into its header."""
    tensors: dict[str, Tensor]
    if isinstance(answer, ReconstructionAnswer):
        tensors = {f"images/{i}": x.detach().cpu().float() for i, x in enumerate(answer.images)}
    elif isinstance(answer, ExtractionAnswer):
        tensors = {f"model/{name}": value.detach().cpu() for name, value in answer.model.items()}
    elif isinstance(answer, AuditAnswer):
        tensors = {"trials": answer.scores.detach().cpu().double()}
    else:
        tensors = {"scores": answer.scores.detach().cpu().double(), "decisions": answer.decisions.cpu().to(torch.uint8)}
    notes = {
        "flags": json.dumps(list(answer.flags)),
        "diagnostics": json.dumps({k: float(v) for k, v in answer.diagnostics.items()}, allow_nan=False),
        "cost": cost.model_dump_json(),
    }
    # copies, since an attack may give one image for several problems and safetensors refuses shared memory
    write_bytes(path, save({name: tensor.clone().contiguous() for name, tensor in tensors.items()}, notes))


def load_answer(path: Path) -> tuple[Answer, Cost]:
    """A kept answer and what it cost."""
    with safe_open(str(path), framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        notes = file.metadata()
    flags, diagnostics = tuple(json.loads(notes["flags"])), json.loads(notes["diagnostics"])
    cost = Cost.model_validate_json(notes["cost"])
    if "scores" in tensors:
        return MembershipAnswer(tensors["scores"], tensors["decisions"].bool(), flags, diagnostics), cost
    if "trials" in tensors:
        return AuditAnswer(tensors["trials"], flags, diagnostics), cost
    if not any(name.startswith("images/") for name in tensors):
        model = {name.removeprefix("model/"): value for name, value in tensors.items()}
        return ExtractionAnswer(model, flags, diagnostics), cost
    images = tuple(tensors[f"images/{i}"] for i in range(len(tensors)))
    return ReconstructionAnswer(images, flags, diagnostics), cost
