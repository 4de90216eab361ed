"""docs/views.md: what each threat's view of each defense holds, read off the transcript of a tiny federation.

`make docs` writes it.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

from leakboard.core import registry
from leakboard.datasets.base import LabelledImages
from leakboard.datasets.digits import Digits
from leakboard.datasets.loading import load_pool
from leakboard.defenses.base import AGGREGATE, Defense, Reading
from leakboard.federation.outcome import Outcome
from leakboard.federation.party import Message
from leakboard.federation.payload import Parameters, Value, leaves, size_in_bytes
from leakboard.federation.rounds import Federation
from leakboard.federation.settings import ObservedRounds, Public, Training, client_name
from leakboard.federation.transcript import Observation
from leakboard.federation.view import View, make_view, parse_threat

#: long lines of a list go on in the next line
_WRAPPED = textwrap.TextWrapper(120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
THREATS = ("server", "server+keys", "server+clients:1", "client")
CLIENTS, ROUNDS, SHARD, BATCH, HIDDEN = 3, 2, 8, 4, 1
COMMAND = "make docs"
HEADER = f"""# What each view holds

Generated from transcripts by `{COMMAND}`; nothing here is written by hand.
Each defense, with its default parameters (and `crypto: real` where there is a choice), ran {ROUNDS} rounds on `digits`
with an `mlp` of {HIDDEN} hidden unit, {CLIENTS} clients and batches of {BATCH}; the tables show the set-up and the last
training round.
A probe has the same messages, for `probe_batch` records. [model-perturbation.md](model-perturbation.md) says what `psi`
and `phi` are.

- **message**: its kind, from whom to whom; client 0 is the victim, client 1 attacks in `server+clients:1` and `client`.
- **entries**: name, number of values and type of each part of one message; **bytes**: of one message.
- **state**: what the attacking parties keep when the round ends; **keys**: decryption keys that they hold.
- **own**: the parties' random keys (all their draws follow from them) and, for clients, their records.
- **honest reading**: what the protocol itself lets these parties compute; plain attacks take that, adaptive ones all.
"""


def views_markdown() -> str:
    """The whole document: one section a defense."""
    sections = [_section(name) for name in registry.entries("defense")]
    return "\n".join([HEADER, *sections])


# --- running ------------------------------------------------------------------------------------


def _run(defense: Defense) -> tuple[Outcome, dict[str, LabelledImages]]:
    """A federation of three clients that is over in a moment."""
    pool = load_pool(Digits())
    shards = {client_name(i): pool.take(torch.arange(i * SHARD, (i + 1) * SHARD)) for i in range(CLIENTS)}
    public = Public(
        defense=defense.name,
        parameters=defense.parameters(),
        model="mlp",
        model_parameters=registry.create("model", "mlp", {"hidden": [HIDDEN]}).parameters(),
        shape=pool.shape,
        classes=pool.classes,
        mean=Digits.mean,
        std=Digits.std,
        training=Training(rounds=ROUNDS, batch_size=BATCH, clients=CLIENTS),
        total_rounds=ROUNDS,
        shard_sizes=(SHARD,) * CLIENTS,
    )
    observe = ObservedRounds(rounds=("last",), targets=1)
    return Federation(defense, public, shards, observe, seed=0).run(), shards


def _section(name: str) -> str:
    """A defense: a table and three lines for each threat; threats with the same content share one."""
    fields = registry.create("defense", name).parameters()
    defense = registry.create("defense", name, {"crypto": "real"} if "crypto" in fields else {})
    assert isinstance(defense, Defense)
    outcome, shards = _run(defense)
    secrets = outcome.secrets
    views = {
        threat: make_view(outcome.transcript, parse_threat(threat, CLIENTS), outcome.public, secrets, shards)
        for threat in THREATS
    }
    true = _training_reading(defense, views["server"]).model
    parts: dict[str, list[str]] = {}
    for threat, view in views.items():
        parts.setdefault(_view_markdown(defense, view, true), []).append(threat)
    text = [f"## {name}", "", defense.summary(), ""]
    for body, threats in parts.items():
        text += [f"### {name}: {', '.join(f'`{threat}`' for threat in threats)}", "", body, ""]
    return "\n".join(text)


# --- one view -----------------------------------------------------------------------------------


def _view_markdown(defense: Defense, view: View, true: Parameters | None) -> str:
    """The messages of a view as a table, then its states, keys and honest reading."""
    shown = [*view.of_kind("setup"), *view.of_kind("train")]
    lines = ["| when | message | from → to | entries of one | bytes of one |", "|---|---|---|---|---:|"]
    for observation in shown:
        lines += _rows(observation)
    last = shown[-1]
    facts = {"state": _held(last.states), "keys": _held(last.keys), "own": _own(view)}
    facts["honest reading"] = _reading(defense, view, true)
    lines += ["", *(_WRAPPED.fill(f"- {name}: {value}") for name, value in facts.items())]
    return "\n".join(lines)


def _rows(observation: Observation) -> Iterator[str]:
    """One row for each kind of message between two roles."""
    grouped: dict[tuple[str, str, str], list[Message]] = {}
    for m in observation.messages:
        roles = (m.sender.partition(":")[0], m.receiver.partition(":")[0])
        grouped.setdefault((m.kind, *roles), []).append(m)
    for (kind, *_), messages in grouped.items():
        route = f"{_names(m.sender for m in messages)} → {_names(m.receiver for m in messages)}"
        first = messages[0]
        entries = "; ".join(f"`{name}` {_extent(value)}" for name, value in first.payload.items())
        yield f"| {observation.context.kind} | `{kind}` | {route} | {entries or 'none'} | {first.size:,} |"


def _names(parties: Iterable[str]) -> str:
    """`server`, or `clients 0, 1, 2`."""
    found = sorted(set(parties))
    numbers = [name.partition(":")[2] for name in found]
    if not all(numbers):
        return ", ".join(found)
    return f"client{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"


def _extent(value: Value) -> str:
    """How many values of which type: `8,272 float32`."""
    counts: dict[str, int] = {}
    for _, leaf in leaves(value):
        kind = str(leaf.dtype).removeprefix("torch.") if isinstance(leaf, Tensor) else type(leaf).__name__
        size = leaf.numel() if isinstance(leaf, Tensor) else len(leaf) if isinstance(leaf, bytes) else 1
        counts[kind] = counts.get(kind, 0) + size
    return " + ".join(f"{count:,} {kind}" for kind, count in counts.items()) or "empty"


def _held(holdings: Mapping[str, Mapping[str, Value]]) -> str:
    """The names of what parties keep, with sizes."""
    found = [
        f"{party}: "
        + ", ".join(f"`{name}` ({_parts(value)}{size_in_bytes(value):,} bytes)" for name, value in state.items())
        for party, state in holdings.items()
        if state
    ]
    return "; ".join(found) or "none"


def _parts(value: Value) -> str:
    """The names inside an entry, unless they are a network's layers or parties."""
    names = list(value) if isinstance(value, Mapping) else []
    return "" if any("." in name or ":" in name for name in names) else "".join(f"`{name}`, " for name in names)


def _own(view: View) -> str:
    """Whose random keys and records the view has."""
    records = sum(len(held.labels) for held in view.holdings.values())
    whose = f"{records} records of {_names(view.holdings)}" if records else "no records"
    return f"random keys of {' and '.join(_names([party]) for party in view.secrets)}; {whose}"


def _training_reading(defense: Defense, view: View) -> Reading:
    return next(r for r in defense.interpret(view) if r.context.kind == "train")


def _reading(defense: Defense, view: View, true: Parameters | None) -> str:
    """Which model the protocol gives these parties, and whose gradients, in the training round."""
    reading = _training_reading(defense, view)
    owners = set(reading.gradients)
    model = "no model"
    if reading.model is not None:
        model = "the server's model" if _same(reading.model, true) else "a model, which is not the server's"
    if not owners:
        return f"{model}; no gradient"
    whose = ["the aggregate gradient"] if AGGREGATE in owners else []
    single = owners - {AGGREGATE}
    if single:
        whose.append(f"individual gradients of {_names(single)}")
    return f"{model}; {' and '.join(whose)}"


def _same(first: Parameters, second: Parameters | None) -> bool:
    return second is not None and all(torch.equal(value, second[name]) for name, value in first.items())


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.stdout.write(views_markdown())
