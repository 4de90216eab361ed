from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from leakboard.federation import transcript as module
from leakboard.federation.party import Message, RoundContext
from leakboard.federation.payload import Packer
from leakboard.federation.replay import differences
from leakboard.federation.settings import SERVER
from leakboard.federation.transcript import Observation, Transcript
from leakboard.federation.view import limiter, parse_threat
from tests.federation.makings import Keyed, observe_of, public_of, run


@pytest.fixture(scope="module")
def recorded() -> Transcript:
    return run(public_of((12, 12, 12)), Keyed(), observe=observe_of("first", "last")).transcript


def as_values(transcript: Transcript) -> list[Any]:
    return [
        [
            [o.context.round, o.context.probe, o.context.kind, list(o.context.participants), o.context.batch_size],
            [[m.step, m.sender, m.receiver, m.kind, m.payload, m.size] for m in o.messages],
            dict(o.states),
            dict(o.keys),
        ]
        for o in transcript.observations
    ]


class Reader:
    """Opens a safetensors file as `safe_open` does, and notes the names of the tensors that are read."""

    names: list[str]

    def __init__(self, path: str, framework: str) -> None:
        self._opened: Any = safe_open(path, framework=framework)

    def __enter__(self) -> Reader:
        self._file = self._opened.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.__exit__(None, None, None)

    def get_tensor(self, name: str) -> torch.Tensor:
        type(self).names.append(name)
        found: torch.Tensor = self._file.get_tensor(name)
        return found


@pytest.fixture
def read_names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    Reader.names = []
    monkeypatch.setattr(module, "safe_open", Reader)
    return Reader.names


def test_what_is_saved_is_loaded_equal(recorded: Transcript, tmp_path: Path) -> None:
    recorded.save(tmp_path)
    loaded = Transcript.load(tmp_path)
    assert list(differences(as_values(recorded), as_values(loaded))) == []
    assert [o.context for o in loaded.observations] == [o.context for o in recorded.observations]


def test_two_files_without_pickle(recorded: Transcript, tmp_path: Path) -> None:
    recorded.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["transcript.json", "transcript.safetensors"]
    assert json.loads((tmp_path / "transcript.json").read_text())


def test_strange_values_survive(tmp_path: Path) -> None:
    payload = {
        "nan": float("nan"),
        "inf": float("-inf"),
        "big": -(3**2000),
        "empty": [b"", torch.zeros(0), torch.zeros(0, 3), {}, []],
        "shared": [torch.ones(2, 2)[0], torch.ones(2, 2).t()],
    }
    message = Message("s", "client:0", SERVER, "k", payload, 1)
    written = Transcript(
        (Observation(RoundContext(0, 3, "probe", ("client:0",), 1), (message,), {SERVER: payload}, {}),)
    )
    written.save(tmp_path)
    assert list(differences(as_values(written), as_values(Transcript.load(tmp_path)))) == []


def test_an_empty_transcript(tmp_path: Path) -> None:
    Transcript(()).save(tmp_path)
    assert Transcript.load(tmp_path) == Transcript(())


def test_equal_tensors_are_stored_once(tmp_path: Path) -> None:
    # prepare: one model to 50 clients, and in the server's state
    model = torch.rand(1000)
    context = RoundContext(0, None, "train", (), 1)
    messages = tuple(Message("s", SERVER, f"client:{i}", "model", {"model": model.clone()}, 4000) for i in range(50))
    # execute
    Transcript((Observation(context, messages, {SERVER: {"model": model}}, {}),)).save(tmp_path)
    # assert
    assert (tmp_path / "transcript.safetensors").stat().st_size < 2 * 4000
    assert len(Transcript.load(tmp_path).observations[0].messages) == 50


def test_all_tensors_are_read_without_a_limit(recorded: Transcript, tmp_path: Path, read_names: list[str]) -> None:
    recorded.save(tmp_path)
    packer = Packer()
    packer.pack(as_values(recorded))
    Transcript.load(tmp_path)
    assert sorted(read_names) == sorted(packer.tensors)  # each exactly once


@pytest.mark.parametrize("threat", ["server", "server+keys", "server+clients:1", "client"])
def test_with_a_limit_only_its_tensors_are_read(
    recorded: Transcript, tmp_path: Path, read_names: list[str], threat: str
) -> None:
    # prepare
    recorded.save(tmp_path)
    keep = limiter(parse_threat(threat, 3))
    expected = Transcript(tuple(keep(o) for o in recorded.observations))
    # execute
    loaded = Transcript.load(tmp_path, keep=keep)
    # assert
    assert list(differences(as_values(loaded), as_values(expected))) == []
    allowed, everything = Packer(), Packer()
    allowed.pack(as_values(expected))
    everything.pack(as_values(recorded))
    assert set(read_names) == set(allowed.tensors) < set(everything.tensors)


def test_a_poisoned_tensor_outside_the_limit_does_no_harm(recorded: Transcript, tmp_path: Path) -> None:
    # prepare: overwrite the victim's first gradient on disk
    recorded.save(tmp_path)
    update = next(m for o in recorded.observations for m in o.messages if (m.sender, m.kind) == ("client:0", "update"))
    secret = update.payload["gradient"]["1.weight"].numpy().tobytes()
    file = tmp_path / "transcript.safetensors"
    content = file.read_bytes()
    assert content.count(secret) == 1
    file.write_bytes(content.replace(secret, b"\xff" * len(secret)))
    # execute
    client = Transcript.load(tmp_path, keep=limiter(parse_threat("client", 3)))
    server = Transcript.load(tmp_path, keep=limiter(parse_threat("server", 3)))

    # assert: who may not see it does not, who may does
    def poisoned(loaded: Transcript) -> bool:
        packer = Packer()
        packer.pack(as_values(loaded))
        return any(bool(tensor.isnan().any()) for tensor in packer.tensors.values())

    assert not poisoned(client)
    assert poisoned(server)
