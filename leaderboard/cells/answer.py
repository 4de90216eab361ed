"""What an attack returned: the form in which it travels and is kept.

An answer leaves the attack's process as safetensors with JSON in the header, and is kept beside the record in the same
bytes, so that a changed metric needs no new attack. Nothing that comes from there is ever unpickled: reading the bytes
gives tensors, texts and numbers or an error, and runs nothing. Which tensors those are, and whether they are an answer,
its goal says (`leaderboard.goals.question`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load, save

from leakboard.attacks.base import Attack
from leakboard.core.files import write_bytes
from leakboard.federation.settings import Public
from leakboard.leaderboard.goals.question import Answer, GoalQuestion
from leakboard.leaderboard.records.record import Cost

#: bytes of an answer beside its tensors: their names, and the remarks with every character escaped
HEADER_ROOM = 2**24


def most_bytes(goal: GoalQuestion, task: Any, public: Public, attack: Attack) -> int:
    """The longest that an answer to this task can be, in bytes."""
    return goal.most_bytes(task, public, attack) + HEADER_ROOM


def pack(goal: GoalQuestion, answer: Answer, cost: Cost) -> bytes:
    """An answer that was checked as safetensors; its remarks and what it cost are JSON in the header."""
    notes = {
        "flags": json.dumps(list(answer.flags)),
        "diagnostics": json.dumps({k: float(v) for k, v in answer.diagnostics.items()}, allow_nan=False),
        "cost": cost.model_dump_json(),
    }
    # copies, since an attack may give one image for several problems and safetensors refuses shared memory
    return save({name: tensor.clone().contiguous() for name, tensor in goal.tensors(answer).items()}, notes)


def unpack(goal: GoalQuestion, content: bytes) -> tuple[Any, Cost]:
    """The answer in these bytes, which anybody may have written: `goal.accept` must see it before it is used.

    Raises ValueError, LookupError, TypeError, RuntimeError or SafetensorError where they hold none.
    """
    tensors = load(content)  # first of all: it has checked the header when it returns
    notes = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
    flags, diagnostics = _plain(notes["flags"], list), _plain(notes["diagnostics"], dict)
    cost = Cost.model_validate_json(notes["cost"])
    return goal.restore(tensors, tuple(flags), diagnostics), cost


def _plain(text: str, kind: type) -> Any:
    found = json.loads(text)
    if not isinstance(found, kind):
        raise ValueError(f"must be a {kind.__name__}; given: {type(found).__name__}")
    return found


def save_answer(goal: GoalQuestion, path: Path, answer: Answer, cost: Cost) -> None:
    """Keep an answer beside its record."""
    write_bytes(path, pack(goal, answer, cost))


def load_answer(goal: GoalQuestion, path: Path) -> tuple[Any, Cost]:
    """A kept answer and what it cost; the errors are those of `unpack`, and OSError."""
    return unpack(goal, path.read_bytes())
