"""A real Flower: strategies and clients that are recorded, and the example with its two client processes."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

import leakboard as lb
from leakboard.core.registry import IMPORT_ROOT, ROOT
from leakboard.federation.recording import update_in
from leakboard.metrics.matching import match
from leakboard.metrics.psnr import psnr

pytest.importorskip("flwr", reason="Flower is not installed: make test-flower")

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg, FedAvgM

from leakboard.flower import recorded, recording_mod

EXAMPLE = ROOT / "examples" / "flower"
NODES = (11, 12)


@pytest.fixture(autouse=True)
def _this_process_is_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower lets only processes that it started itself make messages."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def answer_to(message: Message) -> Message:
    """A client that adds its number to every value; client 12 fails in round 2."""
    node = message.metadata.dst_node_id
    if node == 12 and message.content["config"]["server-round"] == 2:
        return Message(Error(code=0, reason="it fell over"), reply_to=message)
    state = {n: v + node for n, v in message.content["arrays"].to_torch_state_dict().items()}
    told = MetricRecord({"num-examples": node, "loss": 0.5})
    return Message(RecordDict({"arrays": ArrayRecord(state), "metrics": told}), reply_to=message)


class FakeGrid:
    """Two clients in this process."""

    def get_node_ids(self) -> list[int]:
        return list(NODES)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return [answer_to(message) for message in messages]


def trained(strategy: Any) -> Any:
    first = ArrayRecord({"w": torch.arange(3.0), "n": torch.tensor(7)})
    return strategy.start(FakeGrid(), first, num_rounds=3)


@pytest.mark.parametrize("make", [FedAvg, FedAvgM])
def test_recording_changes_nothing_and_misses_nothing(make: Any, tmp_path: Path) -> None:
    plain = trained(make(fraction_evaluate=0.0))
    strategy = recorded(make(fraction_evaluate=0.0), tmp_path / "made")
    watched = trained(strategy)
    assert strategy.fraction_evaluate == 0.0
    for name, value in plain.arrays.to_torch_state_dict().items():
        assert torch.equal(value, watched.arrays.to_torch_state_dict()[name])
    view = lb.load_view(tmp_path / "made")
    assert [o.context.round for o in view.observations] == [1, 2, 3]
    seen = update_in(view, 1, "client:12")
    assert seen.records == 12
    assert seen.weights is not None
    assert torch.equal(seen.model["w"], torch.arange(3.0))
    assert torch.equal(seen.weights["w"], torch.arange(3.0) + 12)
    assert torch.equal(seen.weights["n"], torch.tensor(19))
    with pytest.raises(lb.UserError, match="allowed are client:11"):
        update_in(view, 2, "client:12")
    with pytest.raises(lb.UserError, match="holds a recording already"):
        recorded(make(), tmp_path / "made")


def test_a_client_s_mod_writes_what_it_got_and_sent(tmp_path: Path) -> None:
    mod, context = recording_mod(tmp_path / "mine"), Context(1, 11, {}, RecordDict(), {})
    for number in (1, 2):
        told = ConfigRecord({"server-round": number})
        content = RecordDict({"arrays": ArrayRecord({"w": torch.ones(2) * number}), "config": told})
        message = Message(content, dst_node_id=11, message_type="train")
        mod(message, context, lambda given, _: answer_to(given))
    view = lb.load_view(tmp_path / "mine")
    assert view.parties == ("client:11",)
    assert [o.context.round for o in view.observations] == [1, 2]
    seen = update_in(view, 2)
    assert seen.weights is not None
    assert torch.equal(seen.weights["w"], torch.ones(2) * 13)


def example() -> Any:
    spec = importlib.util.spec_from_file_location("digits_app", EXAMPLE / "digits_app.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def python(file: str, folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(IMPORT_ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(EXAMPLE / file), "recording"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    print(done.stdout[-2000:], done.stderr[-2000:])
    assert done.returncode == 0
    return done.stdout


def test_the_example_trains_records_and_shows_the_digits(tmp_path: Path) -> None:
    """Two SuperNodes, ten rounds, a ResNet with batch norm in train mode: the server sees the clients' digits."""
    python("run.py", tmp_path)
    told = python("attack.py", tmp_path)
    assert "10 rounds of 2 clients" in told
    for number in (1, 10):
        assert (tmp_path / "recording" / f"round-{number}.png").read_bytes().startswith(b"\x89PNG")
    app, view = example(), lb.load_view(tmp_path / "recording")
    auxiliary = app.digits(slice(1500, None))
    found = lb.attack(
        "inverting-gradients",
        model=app.network(),
        transcript=view,
        learning_rate=app.RATE,
        auxiliary=auxiliary,
        params={"iterations": 300, "tv": 0.01},
    )
    reached = []
    for client in (0, 1):  # Flower draws the numbers of its nodes: which of the two this is, only the images tell
        first = 1000 * client + app.BATCH
        truth, labels = app.digits(slice(first, first + app.BATCH))
        floor = float(psnr(auxiliary[0].mean(0, keepdim=True).expand_as(truth), truth).mean())
        gain = float(psnr(found.images[match(found.images, truth)], truth).mean()) - floor
        reached.append((gain, found.labels is not None and found.labels.tolist() == sorted(labels.tolist())))
    gain, right = max(reached)
    assert right
    assert gain > 6, reached
