"""Runs an attack in a process of its own that has never held the truth.

The child comes from the fork server, so its memory holds our code and what it is handed (view, auxiliary images,
candidates, a seed of its own), and nothing of the federation. The engine starts it beside the worker: a worker that
started it itself would first start a fork server of its own, which takes seconds.

While the attack runs, opening a file of the run or one that held the data is refused. Plugin files may be read wherever
they lie: Python reads them to show a warning or a traceback. This catches mistakes and lazy cheating; it is no jail for
malicious code.

Questions are pickled towards the child. What comes back is never unpickled, whoever sent it: a short JSON text that
says how it went, and after "ok" the answer as safetensors (`leaderboard.cells.answer`), each of bounded length.
"""

from __future__ import annotations

import json
import os
import queue
import resource
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

from torch import Tensor

from leakboard.attacks.base import Attack, Knowledge
from leakboard.core import registry
from leakboard.core.errors import Unsupported
from leakboard.leaderboard.cells.answer import most_bytes, pack, unpack
from leakboard.leaderboard.cells.parcel import open_parcel, receive_parcel, send_parcel
from leakboard.leaderboard.cells.processes import context, limit_to_one_thread, obey_engine, print_into
from leakboard.leaderboard.goals.question import Answer, AttackFailed, GoalQuestion
from leakboard.leaderboard.records.record import Cost

#: of a reason and of a traceback so much is sent: a pipe takes 64 KB, and nobody may be there to read more yet
LONGEST, PIPE = 20_000, 60_000
#: the largest report of an outcome that is received, in bytes, and the outcomes there are
LARGEST_TOLD, OUTCOMES = 2**20, ("ok", "unsupported", "failed")
#: what an attack that ended without an answer is told, and one that wrote something else to the pipe
DIED = "the attack's process died without an answer: it was killed or ended itself"
NO_ANSWER = "the attack's process sent something that is no answer"
#: what follows the last portion of the work, and the parcels of portions that wait for the attack
NO_MORE = "no more portions"
Inbox: TypeAlias = "queue.Queue[tuple[bytes, Tensor]]"


class Cheating(Exception):
    """The attack opened a file that its threat model does not give it."""


@dataclass(frozen=True)
class Question:
    """What the child is handed: no truth, no base seed, no run folder but as something forbidden.

    Where the work comes in parts (the trials of an audit), the `portions` follow one after another.
    """

    plugin_files: tuple[str, ...]
    goal: GoalQuestion
    attack: Attack
    knowledge: Knowledge
    task: Any
    forbidden: tuple[str, ...]
    portions: Iterable[Any] = ()


#: what Python tells of files before it touches them
WATCHED = ("open", "os.listdir", "os.scandir", "os.remove", "os.rename", "os.rmdir", "os.truncate", "shutil.rmtree")
#: the file of Python's own importer: what it opens are modules, and what they read when they are imported
IMPORTER = "<frozen importlib._bootstrap>"
_opened: set[str] | None = None
_watching: FrameType | None = None  # the frame with the block of `opened_files`
_forbidden: tuple[str, ...] = ()
_readable: frozenset[str] = frozenset()  # plugin files, which may lie in the run's folder
_caught = ""  # what a forbidden opening said; an attack that swallows the error still fails


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    """Python's audit hook: notes opened files while `opened_files` runs, refuses forbidden ones during an attack."""
    watched = event in WATCHED and isinstance(arguments[0], str | bytes)
    if not watched or (_opened is None and not _forbidden):
        return
    path = os.path.realpath(os.fsdecode(arguments[0]))
    if _opened is not None and event == "open" and not _importing():
        _opened.add(path)
    if not (path in _readable and event == "open" and _only_reads(arguments)):
        _refuse(path)


def _importing() -> bool:
    """Whether a module is being imported, within the block of `opened_files`."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame is not _watching:
        if frame.f_code.co_filename == IMPORTER:
            return True
        frame = frame.f_back
    return False


def _only_reads(arguments: tuple[Any, ...]) -> bool:
    """Whether the flags of an `open` event, its third argument, leave the file as it is."""
    return not int(arguments[2]) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)


def _refuse(path: str) -> None:
    """Raise where a path is one that the attack must not open."""
    global _caught
    for refused in _forbidden:
        if path == refused or path.startswith(refused + os.sep):
            _caught = f"the attack opened {Path(path).name}, which its view does not hold"
            raise Cheating(_caught)


def _watch_native_readers() -> None:
    """Readers in native code raise no audit event: let them ask first."""
    import safetensors
    import safetensors.torch
    import torch

    def asking(reader: Any) -> Any:
        def ask(filename: Any, *arguments: Any, **named: Any) -> Any:
            _refuse(os.path.realpath(os.fsdecode(filename)))
            return reader(filename, *arguments, **named)

        return ask

    readers = ((safetensors, "safe_open"), (safetensors.torch, "safe_open"), (torch, "from_file"))
    for module, name in readers:
        setattr(module, name, asking(getattr(module, name)))


_hooked = False


def _hook() -> None:
    global _hooked
    if not _hooked:  # an audit hook cannot be removed, so there is one a process
        sys.addaudithook(_audit)
        _hooked = True


@contextmanager
def _refusing(question: Question) -> Iterator[None]:
    """Refuse what is forbidden while the block runs; whoever tried fails, whatever else the block raises.

    After the block everything may be opened again: tracebacks are formatted then, which reads source files.
    """
    global _forbidden, _readable
    _hook()
    _watch_native_readers()
    _readable = frozenset(map(os.path.realpath, question.plugin_files))
    _forbidden = question.forbidden
    try:
        yield
    finally:
        _forbidden = ()
        if _caught:
            raise Cheating(_caught)


@contextmanager
def opened_files() -> Iterator[set[str]]:
    """The data files opened in the block: not Python's own sources and libraries, nor what those read on import."""
    global _opened, _watching
    _hook()
    _opened, _watching = set(), sys._getframe(2)  # the frame above this generator and its context manager
    found: set[str] = set()
    try:
        yield found
    finally:
        code = (".py", ".pyc", ".so", ".pyi", ".json", ".toml", ".txt")
        found |= {path for path in _opened if Path(path).is_file() and not path.endswith(code)}
        _opened = _watching = None


@dataclass(frozen=True)
class AttackPipes:
    """The worker's ends of the pipes to a waiting attack process: the question goes in, the answer comes out."""

    questions: Connection
    answers: Connection

    def close(self) -> None:
        """Let go: an attack process whose pipe nobody holds any more ends."""
        self.questions.close()
        self.answers.close()


def start_attack_process() -> tuple[Any, AttackPipes]:
    """Start an attack process that waits for its question: (the process, the ends for whoever will use it)."""
    their_questions, our_questions = context().Pipe(duplex=False)
    our_answers, their_answers = context().Pipe(duplex=False)
    process = context().Process(target=_child, args=(their_questions, their_answers))  # type: ignore[attr-defined]
    process.start()
    their_questions.close()
    their_answers.close()
    return process, AttackPipes(our_questions, our_answers)


def _child(questions: Connection, pipe: Connection) -> None:
    """Child process: run the attack, send back how it went and, where it went well, the answer."""
    obey_engine()
    try:
        log, plugin_files = open_parcel(*receive_parcel(questions))
        parcel = receive_parcel(questions)
    except EOFError:  # the worker needs no attack: it has the answer already, or cannot have one
        return
    inbox: Inbox = queue.Queue(maxsize=1)  # one portion waits while another is attacked
    threading.Thread(target=_die_with_worker, args=(questions, inbox), daemon=True).start()
    if log:
        print_into(log)
    limit_to_one_thread()
    try:
        question = _unpack(plugin_files, parcel)
        with _refusing(question):
            wall, cpu = time.perf_counter(), time.process_time()
            answer = _run(question, inbox)
            used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform != "darwin" else 1024**2)
            cost = Cost(
                wall_seconds=time.perf_counter() - wall, cpu_seconds=time.process_time() - cpu, peak_memory_mib=used
            )
            content = pack(question.goal, answer, cost)
        pipe.send_bytes(_told("ok"))
        pipe.send_bytes(content)
    except Unsupported as reason:
        pipe.send_bytes(_told("unsupported", str(reason)))
    except AttackFailed as failure:
        pipe.send_bytes(_told("failed", str(failure), traceback.format_exc()))
    except BaseException as error:
        pipe.send_bytes(_told("failed", f"{type(error).__name__}: {error}", traceback.format_exc()))


def _told(outcome: str, reason: str = "", trace: str = "") -> bytes:
    """How it went, as JSON that a pipe takes at once."""
    for most in (LONGEST, LONGEST // 8):  # the second is short enough even if every character is escaped
        text = json.dumps({"outcome": outcome, "reason": reason[:most], "trace": trace[-most:]}).encode()
        if len(text) <= PIPE:
            break
    return text


def _unpack(plugin_files: Iterable[str], parcel: tuple[bytes, Tensor]) -> Question:
    for file in plugin_files:
        registry.load_file(file)
    question: Question = open_parcel(*parcel)  # made by our own parent process a moment ago
    return question


def _die_with_worker(questions: Connection, inbox: Inbox) -> None:
    """The fork server is this process's parent, so a killed worker must be noticed by its closed pipe.

    What comes through the pipe before are the portions of the work.
    """
    with suppress(EOFError, OSError):
        while True:
            inbox.put(receive_parcel(questions))
    os._exit(1)


def _progress(line: str) -> None:
    print(line, flush=True)


def _run(question: Question, inbox: Inbox) -> Answer:
    goal, knowledge = question.goal, replace(question.knowledge, progress=_progress)
    answer: Answer = goal.run(question.attack, knowledge, question.task, _portions(inbox))
    goal.accept(answer, question.task, knowledge.public)
    return answer


def _portions(inbox: Inbox) -> Iterator[Any]:
    """The portions of the work as they arrive, until there are no more."""
    while True:
        portion = open_parcel(*inbox.get())  # made by our own parent process
        if isinstance(portion, str) and portion == NO_MORE:  # an array would compare element by element
            return
        yield portion


def run_attack(question: Question, pipes: AttackPipes, log: Path | None = None) -> tuple[Answer, Cost]:
    """Run an attack in the waiting process, its prints into `log`; raises `Unsupported` or `AttackFailed`."""
    try:
        send_parcel(pipes.questions, (log, question.plugin_files))
        send_parcel(pipes.questions, replace(question, portions=()))
        _send_portions(question.portions, pipes)
        told = _received(pipes, LARGEST_TOLD)
        outcome, reason, trace = _read_told(told)
        if outcome == "unsupported":
            raise Unsupported(reason)
        if outcome == "failed":
            raise AttackFailed(reason, trace)
        content = _received(pipes, longest_answer(question))
    except (EOFError, OSError):
        raise AttackFailed(DIED) from None
    try:
        return unpack(question.goal, content)
    except Exception as error:  # whatever bytes of a stranger lead to, in safetensors or JSON
        raise AttackFailed(f"{NO_ANSWER} ({type(error).__name__})") from None


def _received(pipes: AttackPipes, most: int) -> bytes:
    """The next message of the attack's process; refused by its length before anything is allocated for it."""
    try:
        return pipes.answers.recv_bytes(most)
    except OSError:
        if pipes.answers.closed:  # that is what a connection does when a message is too long
            raise AttackFailed(f"{NO_ANSWER}: it is longer than {most} bytes") from None
        raise


def _read_told(told: bytes) -> tuple[str, str, str]:
    """Outcome, reason and traceback of what `_told` sent, or whoever else wrote to the pipe."""
    try:
        found = json.loads(told)
        parts = [found[name] for name in ("outcome", "reason", "trace")]
        if not all(isinstance(part, str) for part in parts) or parts[0] not in OUTCOMES:
            raise ValueError("unknown outcome")
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise AttackFailed(f"{NO_ANSWER} ({type(error).__name__})") from None
    outcome, reason, trace = (part.encode("utf-8", "replace").decode() for part in parts)  # no half characters
    return outcome, reason[:LONGEST], trace[-LONGEST:]


def longest_answer(question: Question) -> int:
    """The largest size in bytes that an answer to this question can have."""
    return most_bytes(question.goal, question.task, question.knowledge.public, question.attack)


def _send_portions(portions: Iterable[Any], pipes: AttackPipes) -> None:
    """Send the portions as fast as the attack takes them, then `NO_MORE`; stop where it has ended already."""
    with suppress(BrokenPipeError):
        for portion in chain(portions, (NO_MORE,)):
            send_parcel(pipes.questions, portion)
