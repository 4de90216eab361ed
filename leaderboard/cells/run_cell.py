"""One cell: open the view, let the attack loose on it, then (and only then) fetch the truth and score."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

from leakboard.attacks.base import STOPPED
from leakboard.core.errors import Unsupported, UserError
from leakboard.core.files import write_text
from leakboard.federation.settings import Public
from leakboard.leaderboard.cells.answer import load_answer, save_answer
from leakboard.leaderboard.cells.attack_process import AttackPipes, Question, longest_answer, run_attack
from leakboard.leaderboard.cells.question import make_question
from leakboard.leaderboard.cells.score import goal_of, score
from leakboard.leaderboard.cells.train import load_public, load_summary
from leakboard.leaderboard.goals.question import Answer, AttackFailed
from leakboard.leaderboard.planning.jobs import Job
from leakboard.leaderboard.planning.skips import sure_skip
from leakboard.leaderboard.records.provenance import provenance
from leakboard.leaderboard.records.record import Cost, Record
from leakboard.leaderboard.records.validation import unsound


def run_cell(job: Job, pipes: AttackPipes, log: Path) -> None:
    """Compute the record of one cell and write it; whatever happens, the record says so."""
    write_text(job.record_file, _compute(job, pipes, log).to_json())


def _compute(job: Job, pipes: AttackPipes, log: Path) -> Record:
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
        if reason := sure_skip(job):
            raise Unsupported(reason)
        answer, cost = _answer(job, pipes, log)
        scored = score(job, answer)
        late = _stopped(answer)
        record = Record(**base, status="timeout" if late else "ok", reason=late, cost=cost, **scored)
        if broken := next(unsound(record), ""):  # no table can be made of it, nor of its neighbours beside it
            raise AttackFailed(f"nothing sound came out: {broken}")
        return record
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


def _answer(job: Job, pipes: AttackPipes, log: Path) -> tuple[Answer, Cost]:
    """The kept answer of this attack where there is one, else run it and keep it."""
    goal, question = goal_of(job), make_question(job)
    public = load_public(job.training_folder)
    kept = _kept(job, question, public)
    if kept is not None and not _stopped(kept[0]):  # one that was stopped is tried again
        return kept
    answer, cost = run_attack(question, pipes, log)
    goal.accept(answer, question.task, public)
    if not _stopped(answer) or goal.shows_answer:
        save_answer(goal, job.answer_file, answer, cost)  # images are shown also when the clock ended the search
    return answer, cost


def _kept(job: Job, question: Question, public: Public) -> tuple[Answer, Cost] | None:
    """The kept answer; None where there is none, or what lies there is no answer to this question."""
    file = job.answer_file
    try:
        if file.stat().st_size > longest_answer(question):
            return None
        answer, cost = load_answer(question.goal, file)
        question.goal.accept(answer, question.task, public)
    except Exception:  # cut, changed or of another kind: the attack runs again and its answer takes the place
        return None
    return answer, cost


def _stopped(answer: Answer) -> str:
    """The flag that says that the clock ended the attack; its answer is scored, but not taken for all it can do."""
    return next((flag for flag in answer.flags if flag.startswith(STOPPED)), "")
