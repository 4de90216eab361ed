"""What a server or client of somebody else's federation sent and received, round by round, as a transcript on disk.

A recording is a folder: `recording.json` says what wrote it, `rounds/<number>/` holds one observation each (JSON and
safetensors, no pickle). A round is there as a whole or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from leakboard.core.errors import UserError
from leakboard.core.files import whole_folder, write_text
from leakboard.federation.party import Message, RoundContext
from leakboard.federation.payload import Parameters, Payload, Value, size_in_bytes
from leakboard.federation.settings import SERVER, Public, Training
from leakboard.federation.transcript import Observation, Transcript
from leakboard.federation.view import View

#: the file that marks a folder as a recording
MARK = "recording.json"
ROUNDS = "rounds"
#: kinds of messages: the weights that a client got, and those that it sent back
MODEL, WEIGHTS = "model", "weights"


@dataclass(frozen=True)
class Exchange:
    """What one client got and sent in a round: tensors by name, and what came with them."""

    client: str
    sent: Parameters
    received: Parameters | None
    #: of the client's answer: how many records it trained on (0: not told), and its other numbers
    examples: int = 0
    metrics: Mapping[str, Value] = field(default_factory=dict)

    def messages(self) -> tuple[Message, ...]:
        """The one or two messages of this exchange."""
        there: Payload = {"model": self.sent}
        found = [Message("train", SERVER, self.client, MODEL, there, size_in_bytes(there))]
        if self.received is not None:
            back: Payload = {"weights": self.received, "examples": self.examples, "metrics": dict(self.metrics)}
            found.append(Message("train", self.client, SERVER, WEIGHTS, back, size_in_bytes(back)))
        return tuple(found)


class Recorder:
    """Writes a recording into a folder, one round at a time."""

    def __init__(self, folder: str | Path, *, party: str, source: str, more: bool = False) -> None:
        """`party` is who records, `source` the program; `more`: go on with a recording that is there already."""
        self.folder = Path(folder)
        if (self.folder / MARK).exists() and not more:
            raise UserError(f"{self.folder} holds a recording already: remove it, or give another folder.")
        if not (self.folder / MARK).exists():
            write_text(self.folder / MARK, json.dumps({"format": 1, "party": party, "source": source}))

    def note(self, round_index: int, exchanges: Iterable[Exchange]) -> None:
        """Write a round; the same round again replaces it."""
        found = list(exchanges)
        participants = tuple(exchange.client for exchange in found)
        sizes = {exchange.examples for exchange in found}
        context = RoundContext(round_index, None, "train", participants, sizes.pop() if len(sizes) == 1 else 0)
        messages = tuple(message for exchange in found for message in exchange.messages())
        with whole_folder(self.folder / ROUNDS / f"{round_index:06d}") as part:
            Transcript((Observation(context, messages, {}, {}),)).save(part)


def is_recording(folder: Path) -> bool:
    """Whether a folder holds a recording."""
    return (folder / MARK).is_file()


def load_recording(folder: Path) -> View:
    """The view of the party that recorded: all its rounds in order.

    Its public settings are mostly unknown (shape (0, 0, 0), no classes): a server of somebody else's federation knows
    names and shapes of weights, not the network.
    """
    told = json.loads((folder / MARK).read_text())
    rounds = sorted(part for part in (folder / ROUNDS).glob("[0-9]*") if part.is_dir())
    observations = tuple(o for part in rounds for o in Transcript.load(part).observations)
    clients = sorted({name for o in observations for name in o.context.participants})
    public = Public(
        defense="fedsgd",
        parameters={},
        model=str(told["source"]),
        model_parameters={},
        shape=(0, 0, 0),
        classes=0,
        mean=(),
        std=(),
        training=Training(rounds=max(1, len(rounds)), clients=max(1, len(clients))),
        total_rounds=max(1, len(rounds)),
        shard_sizes=(),
    )
    return View(SERVER if told["party"] == SERVER else "client", (str(told["party"]),), public, observations, {}, {})


@dataclass(frozen=True)
class Local:
    """A client's local steps: how many, on how many batches in turn, at which rate."""

    steps: int
    batches: int
    learning_rate: float


@dataclass(frozen=True)
class SeenUpdate:
    """One client's update in a view: the model that it got, and the gradient or the weights that it sent.

    Where the view's clients take local steps (`local`), `gradient` is the update w_t - w_(t+1).
    """

    client: str
    round: int
    model: Parameters
    gradient: Parameters | None
    weights: Parameters | None
    records: int
    local: Local | None = None


def update_in(view: View, round_index: int | None = None, client: str | None = None) -> SeenUpdate:
    """The update of a client (None: the first one) in a training round (None: the first one) of a view."""
    rounds = [o for o in view.observations if o.context.kind == "train"]
    known = sorted({o.context.round for o in rounds})
    chosen = [o for o in rounds if round_index in (None, o.context.round)]
    if not chosen:
        raise UserError(f"The transcript has no round {round_index}: allowed are {known or 'none, it is empty'}.")
    observation = chosen[0]
    answers = {m.sender: m for m in observation.messages if m.kind in ("update", WEIGHTS)}
    models = {m.receiver: m.payload["model"] for m in observation.messages if m.kind == MODEL}
    usable = [name for name in answers if name in models]
    name = client if client is not None else next(iter(usable), None)
    if name is None or name not in usable:
        told = f"round {observation.context.round} of the transcript"
        raise UserError(
            f"The client '{client}' has no update in {told}: allowed are {', '.join(usable)}."
            if usable
            else f"There is no update that can be attacked in {told}."
        )
    body = answers[name].payload
    records = int(body.get("examples") or observation.context.batch_size)
    training, sent = view.public.training, body.get("gradient")
    local = None
    if sent is not None and training.local_learning_rate is not None:
        local = Local(training.local_steps, training.local_batches, training.local_learning_rate)
    return SeenUpdate(name, observation.context.round, models[name], sent, body.get("weights"), records, local)
