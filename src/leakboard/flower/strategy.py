"""A Flower strategy that writes down what its server sends and receives."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from leakboard.federation.payload import Parameters
from leakboard.federation.recording import Exchange, Recorder
from leakboard.federation.settings import SERVER
from leakboard.flower.exchange import SOURCE, client_name, examples, has_content, numbers, tensors


class RecordedStrategy(Strategy):  # type: ignore[misc]  # Flower is not in the environment of the checks
    """Another strategy with a recorder in front of it: every call goes to that strategy, unchanged."""

    def __init__(self, strategy: Strategy, folder: str | Path) -> None:
        self.strategy = strategy
        self.recorder = Recorder(folder, party=SERVER, source=SOURCE)
        self._sent: dict[int, Parameters] = {}

    def __getattr__(self, name: str) -> Any:
        """What this class does not have is the strategy's."""
        if name == "strategy":  # not there yet, while an object is copied
            raise AttributeError(name)
        return getattr(self.strategy, name)

    def start(self, *given: Any, **named: Any) -> Result:
        """The strategy's own loop, with the calls of this object."""
        return type(self.strategy).start(self, *given, **named)

    def summary(self) -> None:
        """As the strategy does."""
        self.strategy.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Keep what is sent to each client until the answers come."""
        messages = list(self.strategy.configure_train(server_round, arrays, config, grid))
        known: dict[int, Parameters] = {}  # usually all messages share one record
        for message in messages:
            content = message.content
            if id(content) not in known:
                known[id(content)] = tensors(content, self._arrays_key)
        self._sent = {message.metadata.dst_node_id: known[id(message.content)] for message in messages}
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Write the round, then let the strategy aggregate."""
        messages = list(replies)
        answers = {message.metadata.src_node_id: message for message in messages if has_content(message)}
        self.recorder.note(server_round, [self._exchange(node, answers.get(node)) for node in sorted(self._sent)])
        self._sent = {}
        found: tuple[ArrayRecord | None, MetricRecord | None] = self.strategy.aggregate_train(server_round, messages)
        return found

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the strategy does."""
        messages: Iterable[Message] = self.strategy.configure_evaluate(server_round, arrays, config, grid)
        return messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """As the strategy does."""
        return self.strategy.aggregate_evaluate(server_round, replies)

    @property
    def _arrays_key(self) -> str:
        return str(getattr(self.strategy, "arrayrecord_key", "arrays"))

    def _exchange(self, node: int, answer: Message | None) -> Exchange:
        if answer is None:
            return Exchange(client_name(node), self._sent[node], None)
        metrics = numbers(answer.content)
        count = examples(metrics, str(getattr(self.strategy, "weighted_by_key", "num-examples")))
        received = tensors(answer.content, self._arrays_key)
        return Exchange(client_name(node), self._sent[node], received, count, metrics)
