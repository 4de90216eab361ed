"""Flower's records as our tensors and plain values."""

from __future__ import annotations

from typing import Any

import flwr
import torch
from flwr.app import Message, RecordDict

from leakboard.federation.payload import Parameters

SOURCE = f"flwr {flwr.__version__}"


def client_name(node: int) -> str:
    """The name of a client: Flower's number of its node."""
    return f"client:{node}"


def tensors(content: RecordDict, key: str) -> Parameters:
    """The arrays under a key, or the only ones that there are, by name."""
    records = content.array_records
    chosen = records[key] if key in records else next(iter(records.values()), None)
    if chosen is None:
        return {}
    return {name: torch.from_numpy(array.numpy().copy()) for name, array in chosen.items()}


def numbers(content: RecordDict) -> dict[str, Any]:
    """All metrics of an answer, as plain numbers and lists."""
    return {
        name: list(value) if isinstance(value, list) else value
        for record in content.metric_records.values()
        for name, value in record.items()
    }


def examples(metrics: dict[str, Any], key: str) -> int:
    """How many records an answer says that it was trained on; 0 where it does not say."""
    value = metrics.get(key, 0)
    return int(value) if isinstance(value, int | float) and value > 0 else 0


def has_content(message: Message) -> bool:
    """Whether a message is an answer and not an error."""
    return bool(message.has_content())
