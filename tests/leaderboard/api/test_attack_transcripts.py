"""`lb.attack` on transcripts that others recorded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import leakboard as lb
from leakboard.attacks.base import TAKEN_FOR_GRADIENT
from leakboard.contract.worlds import make_world
from leakboard.defenses.fedsgd import FedSGD
from leakboard.federation.payload import Parameters
from leakboard.federation.recording import Exchange, Recorder
from leakboard.federation.task import task_of
from leakboard.metrics.psnr import psnr
from tests.leaderboard.api.foreign import SHAPE, gradient_of, perceptron, refusal, smooth


def recording(folder: Path, net: nn.Module, after: Parameters) -> None:
    state = {name: value.detach().clone() for name, value in net.state_dict().items()}
    recorder = Recorder(folder, party="server", source="a test")
    recorder.note(1, [Exchange("client:7", state, None)])
    recorder.note(2, [Exchange("client:7", state, after, 2, {"loss": 0.5}), Exchange("client:9", state, None)])


def test_a_recorded_update_is_attacked_like_the_gradient(tmp_path: Path) -> None:
    net, (images, labels) = perceptron(), smooth(1)
    gradient = gradient_of(net, images, labels)
    after = {name: value.detach() - 0.25 * gradient[name] for name, value in net.state_dict().items()}
    recording(tmp_path / "made", net, after)
    view = lb.load_view(tmp_path / "made")
    assert view.threat == "server"
    assert [o.context.round for o in view.observations] == [1, 2]
    assert view.observations[1].messages[1].payload["metrics"] == {"loss": 0.5}
    other = perceptron()
    nn.init.zeros_(next(other.parameters()))  # the weights come from the transcript
    settings: dict[str, Any] = {"model": other, "transcript": tmp_path / "made", "round": 2, "learning_rate": 0.25}
    found = lb.attack("analytic", records=1, shape=SHAPE, **settings)
    assert float(psnr(found.images, images)) > 40
    told = lb.attack("inverting-gradients", shape=SHAPE, params={"iterations": 1}, **settings)
    assert len(told.images) == 2  # as many records as the client said
    for changes, expected in (
        ({"round": 3}, "no round 3: allowed are [1, 2]"),
        ({"round": 1}, "no update that can be attacked in round 1"),
        ({"round": 2, "client": "client:9"}, "allowed are client:7"),
        ({"round": 2, "learning_rate": None}, "needs the `learning_rate`"),
    ):
        given: dict[str, Any] = {"transcript": view, "learning_rate": 0.25, "gradient": None, **changes}
        assert expected in refusal(**given)


def test_an_update_of_local_steps_in_a_transcript_is_scaled_and_flagged() -> None:
    world = make_world(FedSGD(), rounds=1)
    told = world.outcome.public
    training = told.training.model_copy(update={"local_steps": 4, "local_learning_rate": 0.05})
    public = told.model_copy(update={"training": training})
    view = replace(world.view("server"), public=public)
    (observation, *_) = view.of_kind("train")
    sent = next(m.payload["gradient"] for m in observation.messages if m.kind == "update")
    start = next(m.payload["model"] for m in observation.messages if m.kind == "model")
    net = task_of(public).skeleton()
    net.load_state_dict(start)
    settings: dict[str, Any] = {"model": net, "shape": public.shape, "params": {"iterations": 3}}
    settings |= {"loss": public.training.loss, "records": public.training.batch_size}
    found = lb.attack("inverting-gradients", transcript=view, **settings)
    mean = {name: value / (4 * 0.05) for name, value in sent.items()}
    plain = lb.attack("inverting-gradients", gradient=mean, **settings)
    assert torch.equal(found.images, plain.images)
    assert TAKEN_FOR_GRADIENT in found.flags
    assert TAKEN_FOR_GRADIENT not in plain.flags


def test_numbered_arrays_stand_for_the_order_of_the_state(tmp_path: Path) -> None:
    net, (images, labels) = perceptron(), smooth(1)
    gradient = gradient_of(net, images, labels)
    state = {str(i): value.detach() for i, value in enumerate(net.state_dict().values())}
    after = {str(i): v.detach() - 0.25 * gradient[n] for i, (n, v) in enumerate(net.state_dict().items())}
    Recorder(tmp_path / "made", party="server", source="a test").note(1, [Exchange("client:0", state, after, 1)])
    found = lb.attack("analytic", model=net, transcript=tmp_path / "made", learning_rate=0.25, shape=SHAPE)
    assert float(psnr(found.images, images)) > 40


def test_a_recording_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = perceptron()
    recording(tmp_path / "made", net, dict(net.state_dict()))
    with pytest.raises(lb.UserError, match="holds a recording already"):
        Recorder(tmp_path / "made", party="server", source="a test")
    recorder = Recorder(tmp_path / "made", party="server", source="a test", more=True)

    def broken(*given: Any, **named: Any) -> str:
        raise OSError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(json, "dumps", broken)
        with pytest.raises(OSError, match="full"):
            recorder.note(3, [Exchange("client:7", dict(net.state_dict()), None)])
    assert len(lb.load_view(tmp_path / "made").observations) == 2
    assert sorted(path.name for path in (tmp_path / "made" / "rounds").iterdir()) == ["000001", "000002"]
    (tmp_path / "made" / "rounds" / "000001" / "transcript.json").write_text("[")
    with pytest.raises(lb.UserError, match="damaged"):
        lb.load_view(tmp_path / "made")
