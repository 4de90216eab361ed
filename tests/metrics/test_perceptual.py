"""LPIPS against the lpips package. The true weights are not here: a seeded file stands in, its digest pinned."""

from __future__ import annotations

import urllib.error
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from leakboard.core import vision
from leakboard.core.errors import UserError
from leakboard.metrics.base import Score
from leakboard.metrics.building_blocks import backbone as _backbone
from leakboard.metrics.building_blocks.decoy_features import embed
from leakboard.metrics.identified import IdentifiedLpips, identified_lpips
from leakboard.metrics.perceptual import Lpips, lpips_distance
from tests.metrics.helpers import KERNELS, images, random_features, truth


@pytest.fixture(autouse=True)
def _fresh_cache() -> Iterator[None]:
    _backbone.load_network.cache_clear()
    yield
    _backbone.load_network.cache_clear()


@pytest.fixture(scope="module")
def features() -> dict[str, Tensor]:
    return random_features()


@pytest.fixture
def weights(features: dict[str, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(_backbone, "FEATURES_SHA256", _backbone.digest(features))
    file = tmp_path / "alexnet.pth"
    torch.save({**features, "classifier.1.bias": torch.zeros(3)}, file)  # a whole AlexNet is taken as well
    return str(file)


@pytest.fixture(scope="module")
def reference(features: dict[str, Tensor]) -> Any:
    """The package by itself, the backbone put in layer by layer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network = vision.lpips().LPIPS(net="alex", pnet_rand=True, verbose=False)
    slices = (network.net.slice1, network.net.slice2, network.net.slice3, network.net.slice4, network.net.slice5)
    with torch.no_grad():
        for part, layer in zip(slices, KERNELS, strict=True):
            convolution = getattr(part, str(layer))
            convolution.weight.copy_(features[f"features.{layer}.weight"])
            convolution.bias.copy_(features[f"features.{layer}.bias"])
    return network


def expected(reference: Any, left: Tensor, right: Tensor) -> Tensor:
    with torch.no_grad():
        distance: Tensor = reference(left, right, normalize=True)
    return distance.flatten()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [32, 70])
def test_lpips_against_the_package(weights: str, reference: Any, channels: int, size: int) -> None:
    original = images(3, channels, size)
    reconstruction = original + 0.3 * torch.randn(original.shape)
    left, right = (x.clamp(0, 1).repeat(1, 3 // channels, 1, 1) for x in (reconstruction, original))
    if size < 64:
        left, right = (interpolate(x, size=(64, 64), mode="bilinear", align_corners=False) for x in (left, right))
    score = Lpips(weights=weights).score(truth(reconstruction, original))
    assert score.value is not None
    assert score.per_item == pytest.approx(expected(reference, left, right).tolist(), rel=1e-4)
    assert score.value > 0


def test_a_perfect_image_has_no_distance(weights: str) -> None:
    assert Lpips(weights=weights).score(truth(images(), images())).value == 0.0


def test_a_safetensors_file_gives_the_same(weights: str, features: dict[str, Tensor], tmp_path: Path) -> None:
    file = tmp_path / "alexnet.safetensors"
    safetensors.torch.save_file(features, file)
    pair = truth(images(seed=1), images())
    assert Lpips(weights=str(file)).score(pair) == Lpips(weights=weights).score(pair)


def test_the_embedding_gives_lpips_as_squared_distance(weights: str, reference: Any) -> None:
    left, right = images(2, size=64), images(2, size=64, seed=1)
    network = _backbone.load_network(weights, False)
    ours = (embed(left, network) - embed(right, network)).square().sum(1)
    assert torch.allclose(ours, expected(reference, left, right), rtol=1e-3)
    assert torch.allclose(ours.double(), lpips_distance(left, right, network), rtol=1e-3)


def test_identified_by_lpips_against_all_pairs(weights: str, reference: Any) -> None:
    original, decoys = images(3, size=64), images(6, size=64, seed=5)
    decoys[0] = original[1]  # pixel-equal to one original: not a decoy of that one
    reconstruction = torch.stack([original[0] * 0.9 + 0.05, original[1], decoys[3]])
    network = _backbone.load_network(weights, False)
    hits = identified_lpips(reconstruction, original, decoys, network)
    for i in range(3):
        candidates = torch.cat([original[i : i + 1], decoys[1:] if i == 1 else decoys])
        pairs = expected(reference, reconstruction[i : i + 1].expand_as(candidates), candidates)
        assert bool(hits[i]) == (int(pairs.argmin()) == 0)
    assert hits.tolist() == [1.0, 1.0, 0.0]
    score = IdentifiedLpips(weights=weights).score(truth(reconstruction, original, decoys))
    assert score.per_item == (1.0, 1.0, 0.0)


def test_loading_happens_once_and_moves_no_random_state(weights: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = torch.random.get_rng_state()
    network = _backbone.load_network(weights, False)
    assert torch.equal(before, torch.random.get_rng_state())
    assert _backbone.load_network(weights, False) is network
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("metric", [Lpips(), IdentifiedLpips()], ids=lambda m: m.name)
def test_without_weights_it_is_none_with_the_reason(metric: Lpips | IdentifiedLpips) -> None:
    score = metric.score(truth(images(), images(), images(5, seed=2)))
    assert score == Score(None, reason=_backbone.NO_WEIGHTS)


def test_other_weights_are_refused(features: dict[str, Tensor], tmp_path: Path) -> None:
    file = tmp_path / "random.pth"
    torch.save(features, file)
    with pytest.raises(UserError, match="are not torchvision's AlexNet"):
        Lpips(weights=str(file)).score(truth(images(), images()))


def test_one_changed_number_is_another_file(weights: str, features: dict[str, Tensor], tmp_path: Path) -> None:
    changed = {name: value.clone() for name, value in features.items()}
    changed["features.8.bias"][3] += 1e-4
    torch.save(changed, tmp_path / "changed.pth")
    with pytest.raises(UserError, match="are not torchvision's AlexNet"):
        _backbone.read_features(str(tmp_path / "changed.pth"))


@pytest.mark.parametrize("name", ["broken.pth", "broken.safetensors"])
@pytest.mark.parametrize("content", [b"", b"not weights", b"PK\x03\x04 cut off"])
def test_a_broken_file_is_one_sentence(tmp_path: Path, name: str, content: bytes) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(UserError, match="cannot be read") as caught:
        _backbone.read_features(str(file))
    assert "\n" not in str(caught.value)


def test_a_file_of_something_else_or_none_is_one_sentence(tmp_path: Path) -> None:
    torch.save([torch.zeros(2)], tmp_path / "list.pth")
    with pytest.raises(UserError, match="cannot be read"):
        _backbone.read_features(str(tmp_path / "list.pth"))
    with pytest.raises(UserError, match="There is no file"):
        _backbone.read_features(str(tmp_path / "nowhere.pth"))


class _Download:
    """Stands in for torchvision: gives a state dict, or fails as without a network."""

    def __init__(self, state: dict[str, Tensor] | None) -> None:
        self.models = self.AlexNet_Weights = self.IMAGENET1K_V1 = self
        self.state = state

    def get_state_dict(self, *, progress: bool, check_hash: bool) -> dict[str, Tensor]:
        assert check_hash
        assert not progress
        if self.state is None:
            raise urllib.error.URLError("no network")
        return self.state


@pytest.mark.parametrize(("good", "reason"), [(True, ""), (False, "not those"), (None, "could not be downloaded")])
def test_a_download_only_when_asked(
    weights: str, features: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch, good: bool | None, reason: str
) -> None:
    states: dict[bool | None, dict[str, Tensor] | None] = {
        True: features,
        False: {"features.0.bias": torch.zeros(64)},
        None: None,
    }
    monkeypatch.setattr(_backbone, "torchvision", lambda: _Download(states[good]))
    score = Lpips(download=True).score(truth(images(), images()))
    assert (score.value == 0.0) if good else (score.value is None)
    assert reason in score.reason


def test_other_channels_are_refused(weights: str) -> None:
    with pytest.raises(ValueError, match="grey or RGB"):
        Lpips(weights=weights).score(truth(images(1, 2), images(1, 2)))


def test_channel_weights_are_pinned_and_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"lacks its channel weights alex.pth: install the package lpips again"):
        _backbone.read_channels(tmp_path / "alex.pth")
    torch.save({"lin0.model.1.weight": torch.zeros(1, 64, 1, 1)}, tmp_path / "alex.pth")
    with pytest.raises(UserError, match=r"are others than expected"):
        _backbone.read_channels(tmp_path / "alex.pth")
    (tmp_path / "alex.pth").write_text("text")
    with pytest.raises(UserError, match=r"The channel weights of LPIPS cannot be read"):
        _backbone.read_channels(tmp_path / "alex.pth")
