"""What a run of a federation leaves behind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from leakboard.federation.oracle import Ledger
from leakboard.federation.payload import Parameters
from leakboard.federation.settings import Public
from leakboard.federation.snapshot import ReplaySnapshot
from leakboard.federation.transcript import Transcript


@dataclass(frozen=True)
class Outcome:
    """The result of a run of a federation. It holds everything, so only the harness may keep it.

    `model` is the final global model. `models` are those on which the probes of each observed round ran. `batches` are
    the positions in the victim's shard of the records on which it trained in each of these rounds (none if it dropped
    out). `replay` is what it takes to run the observed rounds again, where that was asked for.
    """

    public: Public
    transcript: Transcript
    secrets: Mapping[str, bytes]
    model: Parameters
    models: Mapping[int, Parameters]
    observed: Mapping[int, str]
    seconds: Mapping[str, float]
    cpu_seconds: Mapping[str, float]
    extrapolated: Mapping[str, float]
    bytes_by_kind: Mapping[str, int]
    client_rounds: int
    ledger: Ledger
    batches: Mapping[int, torch.Tensor]
    replay: ReplaySnapshot | None = None
