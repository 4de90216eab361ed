"""What an attack returned: the form in which it travels and is kept, and the one check before anything uses it.

An answer leaves the attack's process as safetensors with JSON in the header, and is kept beside the record in the same
bytes, so that a changed metric needs no new attack. Nothing that comes from there is ever unpickled: reading the bytes
gives tensors, texts and numbers or an error, and runs nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from leakboard.attacks.base import (
    AuditAnswer,
    AuditTask,
    ExtractionAnswer,
    ExtractionTask,
    MembershipAnswer,
    MembershipTask,
    ReconstructionAnswer,
    ReconstructionTask,
)
from leakboard.core.files import write_bytes
from leakboard.federation.payload import Parameters
from leakboard.federation.settings import Public
from leakboard.federation.task import task_of
from leakboard.leaderboard.records.record import Cost

Answer = ReconstructionAnswer | MembershipAnswer | ExtractionAnswer | AuditAnswer
AttackTask = ReconstructionTask | MembershipTask | ExtractionTask | AuditTask

#: what goes into a record beside the scores; a record that is too large to be read would spoil more than its cell
MOST_REMARKS, LONGEST_REMARK, MOST_TEXT = 1000, 2000, 500_000
#: bytes of an answer beside its tensors: their names, and the remarks with every character escaped
HEADER_ROOM = 2**24


class AttackFailed(Exception):
    """The attack raised, or its answer cannot be used; carries its traceback for the record."""

    def __init__(self, reason: str, trace: str = "") -> None:
        super().__init__(reason)
        self.trace = trace


# --- the check ----------------------------------------------------------------------------------


def check_answer(answer: Answer, task: AttackTask, public: Public) -> None:
    """Refuse an answer of the wrong form: kinds, shapes, counts, and whatever holds a number that is not finite.

    This is the only such check: the attack's process makes it before it sends, so that an honest mistake is told with
    its traceback, and the process that scores makes it again on what it received.
    """
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
    _check_remarks(answer)


def _check_remarks(answer: Answer) -> None:
    flags, diagnostics = answer.flags, answer.diagnostics
    if not isinstance(flags, tuple | list) or not isinstance(diagnostics, Mapping):
        given = f"{type(flags).__name__} and {type(diagnostics).__name__}"
        raise AttackFailed(f"flags must be a tuple of texts and diagnostics numbers by name; given: {given}")
    if len(flags) > MOST_REMARKS or len(diagnostics) > MOST_REMARKS:
        raise AttackFailed(f"at most {MOST_REMARKS} flags and diagnostics are kept")
    if not all(isinstance(flag, str) and len(flag) <= LONGEST_REMARK for flag in flags):
        raise AttackFailed(f"flags must be texts of at most {LONGEST_REMARK} characters")
    for name, value in diagnostics.items():
        if not isinstance(name, str) or not isinstance(value, int | float) or not math.isfinite(value):
            raise AttackFailed(f"diagnostics must be finite numbers by name; given: {name!r:.40}: {value!r:.40}")
    if sum(map(len, (*flags, *diagnostics))) > MOST_TEXT:
        raise AttackFailed(f"flags and names of diagnostics may have {MOST_TEXT} characters together")


def _check_images(answer: ReconstructionAnswer, sizes: tuple[int, ...], shape: tuple[int, ...]) -> None:
    """Exactly as many images as records are behind each gradient: matching more would be choosing by the truth.

    One problem without numbers fails the cell. To leave it out would flatter the attack's mean, and to call it grey
    would be an answer that the attack did not give. An attack that may diverge returns the best finite images it had.
    """
    if not isinstance(answer.images, tuple | list):
        raise AttackFailed(f"images must be a tuple of tensors; given: {type(answer.images).__name__}")
    if len(answer.images) != len(sizes):
        raise AttackFailed(f"the attack must answer {len(sizes)} problems; given: {len(answer.images)}")
    for images, size in zip(answer.images, sizes, strict=True):
        fits = isinstance(images, Tensor) and images.is_floating_point() and tuple(images.shape) == (size, *shape)
        if not fits:
            given = tuple(images.shape) if isinstance(images, Tensor) else type(images).__name__
            raise AttackFailed(f"images must be float {(size, *shape)}; given: {given}")
    broken = sum(not bool(images.isfinite().all()) for images in answer.images)
    if broken:
        raise AttackFailed(f"images must hold finite numbers; {broken} of {len(sizes)} problems have others (NaN, inf)")


def _check_scores(answer: MembershipAnswer, candidates: int) -> None:
    if not isinstance(answer.scores, Tensor) or not isinstance(answer.decisions, Tensor):
        given = f"{type(answer.scores).__name__} and {type(answer.decisions).__name__}"
        raise AttackFailed(f"scores and decisions must be tensors; given: {given}")
    if answer.scores.ndim != 1 or answer.decisions.shape != answer.scores.shape:
        raise AttackFailed(
            "scores and decisions must be two vectors of one length; "
            f"given: {tuple(answer.scores.shape)} and {tuple(answer.decisions.shape)}"
        )
    real = not answer.scores.is_complex() and bool(answer.scores.isfinite().all())
    if answer.decisions.dtype != torch.bool or not real:
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
    """One finite number per trial; the score knows how many there must be."""
    given = answer.scores
    if not isinstance(given, Tensor) or given.ndim != 1 or not given.is_floating_point():
        raise AttackFailed(f"scores must be one vector of floats; given: {type(given).__name__}")
    if not bool(given.isfinite().all()):
        raise AttackFailed("scores must be finite numbers")


# --- the form -----------------------------------------------------------------------------------


def most_bytes(task: AttackTask, public: Public, trials: int) -> int:
    """The longest that an answer to this task can be in bytes; `trials` is how many an audit has."""
    if isinstance(task, ReconstructionTask):
        tensors = 4 * sum(task.sizes) * math.prod(public.shape)
    elif isinstance(task, MembershipTask):
        tensors = 9 * len(task.candidates)
    elif isinstance(task, ExtractionTask):
        tensors = 8 * sum(value.numel() for value in task_of(public).initial(0).values())
    else:
        tensors = 8 * trials
    return tensors + HEADER_ROOM


def pack(answer: Answer, cost: Cost) -> bytes:
    """An answer that was checked as safetensors; its remarks and what it cost are JSON in the header."""
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
    return save({name: tensor.clone().contiguous() for name, tensor in tensors.items()}, notes)


def unpack(content: bytes) -> tuple[Answer, Cost]:
    """The answer in these bytes, which anybody may have written: `check_answer` must see it before it is used.

    Raises ValueError, LookupError, TypeError, RuntimeError or SafetensorError where they hold none.
    """
    tensors = load(content)  # first of all: it has checked the header when it returns
    notes = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
    flags, diagnostics = _plain(notes["flags"], list), _plain(notes["diagnostics"], dict)
    cost, remarks = Cost.model_validate_json(notes["cost"]), (tuple(flags), diagnostics)
    names = list(tensors)
    if names == ["trials"]:
        return AuditAnswer(tensors["trials"], *remarks), cost
    if sorted(names) == ["decisions", "scores"]:
        decisions = tensors["decisions"]
        return MembershipAnswer(
            tensors["scores"], decisions.bool() if decisions.dtype == torch.uint8 else decisions, *remarks
        ), cost
    if all(name.startswith("model/") for name in names):
        return ExtractionAnswer({name.removeprefix("model/"): tensors[name] for name in names}, *remarks), cost
    return ReconstructionAnswer(tuple(tensors[f"images/{i}"] for i in range(len(tensors))), *remarks), cost


def _plain(text: str, kind: type) -> Any:
    found = json.loads(text)
    if not isinstance(found, kind):
        raise ValueError(f"must be a {kind.__name__}; given: {type(found).__name__}")
    return found


def save_answer(path: Path, answer: Answer, cost: Cost) -> None:
    """Keep an answer beside its record."""
    write_bytes(path, pack(answer, cost))


def load_answer(path: Path) -> tuple[Answer, Cost]:
    """A kept answer and what it cost; the errors are those of `unpack`, and OSError."""
    return unpack(path.read_bytes())
