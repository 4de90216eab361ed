"""Nothing that an attack's process sends is unpickled: planted objects are never executed where the truth is.

Each test hands a question to a real attack process, and takes its answer as a cell does. On the code before issue 17
the planted object ran in this very process.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch

from leakboard.attacks.base import (
    Attack,
    AuditTask,
    ExtractionAnswer,
    ExtractionTask,
    Knowledge,
    MembershipAnswer,
    MembershipTask,
    ReconstructionAnswer,
    ReconstructionTask,
)
from leakboard.core import registry
from leakboard.core.errors import Unsupported
from leakboard.defenses.fedsgd import FedSGD
from leakboard.federation.party import RoundContext
from leakboard.federation.transcript import Observation
from leakboard.federation.view import View
from leakboard.leaderboard.cells.attack_process import Question, run_attack, start_attack_process
from leakboard.leaderboard.goals.base import Goal
from leakboard.leaderboard.goals.question import AttackFailed
from tests.federation.makings import images, public_of
from tests.leaderboard.runs import HANG, forget_plugins

PUBLIC = public_of()
NAMES = {"reconstruction": "images", "membership": "scores", "extraction": "model", "audit": "scores"}
#: kind of answer -> what of it is planted; `item` is inside of the first field, `key` among its names
REMARKS = ("flags", "flag", "diagnostics", "diagnostic", "diagnostic name")
FIELDS = ("first", "item", "answer", *REMARKS, "raised", "reason")
PLACES = [(kind, field) for kind in NAMES for field in FIELDS]
PLACES += [("membership", "decisions"), ("extraction", "key")]
PLACES.remove(("membership", "item"))
PLACES.remove(("audit", "item"))

PLUGIN = """
import gc, json, os, pickle, struct
from multiprocessing.connection import Connection
from typing import ClassVar
import torch
from leakboard.attacks.base import *
from leakboard.core.errors import Unsupported
from leakboard.federation.task import task_of
from leakboard.leaderboard.cells.answer import pack
from leakboard.leaderboard.goals.audit import Audit
from leakboard.leaderboard.goals.membership import Membership
from leakboard.leaderboard.records.record import Cost

MARKER = "@MARKER@"
COST = Cost(wall_seconds=0, cpu_seconds=0, peak_memory_mib=0)


def harm(self, protocol=0):
    return exec, (f"open({MARKER!r}, 'a').write('executed')",)


class Planted:
    __reduce_ex__ = harm


class PlantedError(Exception):
    __reduce_ex__ = harm


class PlantedText(str):
    __reduce_ex__ = harm


class PlantedNumber(float):
    __reduce_ex__ = harm


class PlantedTensor(torch.Tensor):
    __reduce_ex__ = harm


def disguise(tensor):
    return tensor.as_subclass(PlantedTensor)


def answered(field, make, first, others):
    '''The answer in which this field is planted.'''
    flags, diagnostics = ("fine",), {"fit": 1.0}
    if field == "first":
        first = Planted()
    elif field == "item":
        first = {**first, next(iter(first)): Planted()} if isinstance(first, dict) else (Planted(), *first[1:])
    elif field == "key":
        first = {**first, Planted(): torch.zeros(1)}
    elif field == "decisions":
        others = (Planted(),)
    elif field == "flags":
        flags = Planted()
    elif field == "flag":
        flags = ("fine", Planted())
    elif field == "diagnostics":
        diagnostics = Planted()
    elif field == "diagnostic":
        diagnostics = {"fit": Planted()}
    elif field == "diagnostic name":
        diagnostics = {Planted(): 1.0}
    elif field == "raised":
        raise PlantedError(Planted())
    elif field == "reason":
        raise Unsupported(Planted())
    elif field == "disguised":
        flags, diagnostics = (PlantedText("fine"),), {PlantedText("fit"): PlantedNumber(1.0)}
        others = tuple(map(disguise, others))
        if isinstance(first, dict):
            first = {PlantedText(name): disguise(value) for name, value in first.items()}
        else:
            first = tuple(map(disguise, first)) if isinstance(first, tuple) else disguise(first)
    elif field.startswith("raw "):
        write(field, make(first, *others, flags, diagnostics))
    answer = make(first, *others, flags, diagnostics)
    return Planted() if field == "answer" else answer


def write(field, answer):
    '''Past the harness: find the pipe and write to it.'''
    (pipe,) = [thing for thing in gc.get_objects() if isinstance(thing, Connection) and thing.writable]
    ok = json.dumps({"outcome": "ok", "reason": "", "trace": ""}).encode()
    harmful = pickle.dumps(Planted())
    messages = {
        "raw pickle": [pickle.dumps(("ok", Planted(), None))],
        "raw answer": [ok, harmful],
        "raw tensors": [ok, pack(Membership(), answer, COST).replace(b'"fine', b'"f\\\\ud8')],
        "raw nan": [ok, pack(Membership(), MembershipAnswer(torch.full((3,), torch.nan), torch.zeros(3) > 0), COST)],
        "raw other kind": [ok, pack(Audit(), AuditAnswer(torch.zeros(3)), COST)],
        "raw long": [ok, bytes(2**25)],
        "raw long outcome": [bytes(2**21)],
        "raw list": [b'["ok", "", ""]'],
        "raw outcome": [b'{"outcome": "fine", "reason": "", "trace": ""}'],
        "raw types": [b'{"outcome": "failed", "reason": ["x"], "trace": ""}'],
        "raw nesting": [b"[" * 100_000],
        "raw half": [],
        "raw endless": [ok],
    }[field]
    for message in messages:
        pipe.send_bytes(message)
    if field == "raw half":
        os.write(pipe.fileno(), struct.pack("!i", 1000) + b"only the beginning")
    if field == "raw endless":
        os.write(pipe.fileno(), struct.pack("!iQ", -1, 2**50))
    os._exit(0)


class Rebuilds(ReconstructionAttack):
    '''Plants.'''
    name: ClassVar[str] = "planted-reconstruction"
    field: str = ""
    def reconstruct(self, knowledge, task):
        images = tuple(torch.zeros(n, *knowledge.public.shape) for n in task.sizes)
        return answered(self.field, ReconstructionAnswer, images, ())


class Infers(MembershipAttack):
    '''Plants.'''
    name: ClassVar[str] = "planted-membership"
    field: str = ""
    def infer(self, knowledge, task):
        zeros = torch.zeros(len(task.candidates))
        return answered(self.field, MembershipAnswer, zeros, (zeros > 0,))


class Extracts(ExtractionAttack):
    '''Plants.'''
    name: ClassVar[str] = "planted-extraction"
    field: str = ""
    def extract(self, knowledge, task):
        return answered(self.field, ExtractionAnswer, task_of(knowledge.public).initial(0), ())


class Audits(AuditAttack):
    '''Plants.'''
    name: ClassVar[str] = "planted-audit"
    field: str = ""
    def distinguish(self, knowledge, task):
        return answered(self.field, AuditAnswer, torch.zeros(len(task.trials)), ())
"""


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    path = tmp_path / "planted.py"
    path.write_text(PLUGIN.replace("@MARKER@", str(path.with_name("executed"))))
    return path


def asked(kind: str, view: View) -> tuple[Any, tuple[AuditTask, ...]]:
    """A small question of this kind and, for an audit, its trials."""
    if kind == "reconstruction":
        return ReconstructionTask("first", 0, 2, 1, None, (1, 1)), ()
    if kind == "membership":
        return MembershipTask(images(3)), ()
    if kind == "extraction":
        return ExtractionTask("first", 0), ()
    task = AuditTask((images(1), images(1, seed=1)), view)
    return task, (task,)


def attacked(kind: str, field: str, plugin: Path) -> Any:
    """What a cell would get of the attack that plants something there."""
    observation = Observation(RoundContext(0, 0, "probe", ("client:0",), 1), (), {}, {})
    view = View("server", ("server",), PUBLIC, (observation,), {}, {})
    registry.load_file(plugin)
    attack = cast(Attack, registry.create("attack", f"planted-{kind}", {"field": field}))
    goal = cast(Goal, registry.create("goal", kind))
    task, portions = asked(kind, view)
    knowledge = Knowledge(view, FedSGD(), images(2), seed=0)
    process, pipes = start_attack_process()
    try:
        answer, _ = run_attack(Question((str(plugin),), goal, attack, knowledge, task, (), portions), pipes)
        goal.accept(answer, task, PUBLIC)
        return answer
    finally:
        pipes.close()
        process.join(HANG)
        forget_plugins()


def executed(plugin: Path) -> bool:
    return plugin.with_name("executed").exists()


@pytest.mark.parametrize(("kind", "field"), PLACES)
def test_nothing_planted_in_an_answer_is_executed(kind: str, field: str, plugin: Path) -> None:
    with pytest.raises(Unsupported if field == "reason" else AttackFailed) as failure:
        attacked(kind, field, plugin)
    assert not executed(plugin)
    reasons = {
        "first": f"{'model' if kind == 'extraction' else NAMES[kind]}",
        "item": "must be",
        "key": "missing or unknown",
        "answer": "must return a",
        "decisions": "must be tensors",
        "flags": "flags must be a tuple of texts",
        "flag": "flags must be texts",
        "diagnostics": "diagnostics numbers by name",
        "diagnostic": "diagnostics must be finite numbers by name",
        "diagnostic name": "diagnostics must be finite numbers by name",
        "raised": "PlantedError",
        "reason": "Planted",
    }
    assert reasons[field] in str(failure.value)


@pytest.mark.parametrize("kind", list(NAMES))
def test_texts_numbers_and_tensors_arrive_as_plain_ones(kind: str, plugin: Path) -> None:
    """Of a class of the plugin's own only the text, the number and the values travel."""
    answer = attacked(kind, "disguised", plugin)
    assert not executed(plugin)
    assert [type(flag) for flag in answer.flags] == [str]
    assert [(type(name), type(value)) for name, value in answer.diagnostics.items()] == [(str, float)]
    if isinstance(answer, ReconstructionAnswer):
        tensors = list(answer.images)
    elif isinstance(answer, ExtractionAnswer):
        assert {type(name) for name in answer.model} == {str}
        tensors = list(answer.model.values())
    else:
        tensors = [answer.scores, *([answer.decisions] if isinstance(answer, MembershipAnswer) else [])]
    assert {type(tensor) for tensor in tensors} == {torch.Tensor}


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("raw pickle", r"sent something that is no answer \(UnicodeDecodeError\)"),
        ("raw answer", r"sent something that is no answer \(SafetensorError\)"),
        ("raw tensors", "sent something that is no answer"),
        ("raw nan", "scores finite numbers"),
        ("raw other kind", r"sent something that is no answer \(ValueError\)"),
        ("raw long", r"sent something that is no answer: it is longer than \d+ bytes"),
        ("raw long outcome", r"sent something that is no answer: it is longer than \d+ bytes"),
        ("raw list", r"sent something that is no answer \(TypeError\)"),
        ("raw outcome", r"sent something that is no answer \(ValueError\)"),
        ("raw types", r"sent something that is no answer \(ValueError\)"),
        ("raw nesting", r"sent something that is no answer \(RecursionError\)"),
        ("raw half", "process died without an answer"),
        ("raw endless", r"sent something that is no answer: it is longer than \d+ bytes"),
    ],
)
def test_raw_bytes_on_the_pipe_are_no_answer(written: str, reason: str, plugin: Path) -> None:
    with pytest.raises(AttackFailed, match=reason):
        attacked("membership", written, plugin)
    assert not executed(plugin)


def test_a_good_answer_arrives(plugin: Path) -> None:
    """The harness of these tests itself: without anything planted the attacks work."""
    for kind in NAMES:
        assert attacked(kind, "", plugin).flags == ("fine",)
