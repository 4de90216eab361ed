"""A mod of a Flower client that writes down what the client gets and sends."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context, Message, MessageType
from flwr.clientapp.typing import ClientAppCallable, Mod

from leakboard.federation.recording import Exchange, Recorder
from leakboard.flower.exchange import SOURCE, client_name, examples, has_content, numbers, tensors


def make_mod(folder: str | Path) -> Mod:
    """The mod, for one client and one folder."""

    def record(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Let the client answer, then write both messages; only training is recorded."""
        if message.metadata.message_type.split(".")[0] != MessageType.TRAIN:
            return call_next(message, context)
        sent = tensors(message.content, "arrays")
        answer = call_next(message, context)
        name, number = client_name(context.node_id), _round(message)
        recorder = Recorder(folder, party=name, source=SOURCE, more=True)
        if has_content(answer):
            metrics = numbers(answer.content)
            found = Exchange(name, sent, tensors(answer.content, "arrays"), examples(metrics, "num-examples"), metrics)
        else:
            found = Exchange(name, sent, None)
        recorder.note(number, [found])
        return answer

    return record


def _round(message: Message) -> int:
    """The number of the round, as the server told it; 0 where it did not."""
    for config in message.content.config_records.values():
        if isinstance(config.get("server-round"), int):
            return int(config["server-round"])
    group = message.metadata.group_id
    return int(group) if group.isdecimal() else 0
