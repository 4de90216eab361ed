"""Kept features of decoys bound the true distances, and never change which reconstruction is identified."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from leakboard.metrics.building_blocks import decoy_features
from leakboard.metrics.building_blocks.backbone import Network
from leakboard.metrics.building_blocks.decoy_features import Sketch, embed, sketch_of
from leakboard.metrics.identified import distances, identified_lpips, same_image, strictly_nearest
from tests.metrics.helpers import images

CHANNELS = (64, 192, 384, 256, 256)


@pytest.fixture(scope="module")
def network() -> Network:
    generator = torch.Generator().manual_seed(3)
    sizes, inputs = (11, 5, 3, 3, 3), (3, *CHANNELS)
    parts = []
    for before, after, size in zip(inputs, CHANNELS, sizes, strict=False):
        weight = torch.randn(after, before, size, size, generator=generator) * (2 / (before * size * size)) ** 0.5
        parts.append((weight, torch.zeros(after)))
    return Network(tuple(parts), tuple(torch.rand(count, generator=generator) for count in CHANNELS))


def directly(reconstruction: Tensor, original: Tensor, decoys: Tensor, network: Network) -> Tensor:
    """The definition: all distances between true features."""
    ours, true = embed(reconstruction, network), embed(original, network)
    others = distances(ours, embed(decoys, network))
    return strictly_nearest(distances(ours, true).diagonal(), others, same_image(original, decoys))


def test_the_bounds_hold(network: Network) -> None:
    decoys, ours = images(9, size=64, seed=1), embed(images(4, size=64), network)
    low, high = sketch_of(decoys, network, "").bounds(ours)
    true = torch.cdist(ours.double(), embed(decoys, network).double())
    assert ((low <= true) & (true <= high)).all()
    assert (high - low).max() < 0.02 * true.min()


def test_hits_are_those_of_the_definition(network: Network, tmp_path: Path) -> None:
    original, decoys = images(6, size=64), images(40, size=64, seed=5)
    decoys[7] = original[2]
    mixed = [0.0, 0.3, 0.48, 0.5, 0.52, 1.0]
    reconstruction = torch.stack([(1 - m) * original[i] + m * decoys[i] for i, m in enumerate(mixed)])
    expected = directly(reconstruction, original, decoys, network)
    assert 0 < expected.sum() < 6
    for _ in range(2):  # written, then read
        assert torch.equal(identified_lpips(reconstruction, original, decoys, network, str(tmp_path)), expected)
    assert len(list(tmp_path.glob("*.safetensors"))) == 1


def test_a_tie_counts_against_the_attack(network: Network) -> None:
    """The decoy is another image, but differs by less than the network's precision: only true features decide."""
    original = images(1, size=64).clamp(0.2, 0.8)
    decoy = original.clone()
    decoy[..., 0, 0] += 2e-6
    hits = identified_lpips(original * 0.9, original, decoy, network)
    assert torch.equal(hits, directly(original * 0.9, original, decoy, network))


def test_what_is_kept_is_read_again(network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoys = images(5, size=64)
    first = sketch_of(decoys, network, str(tmp_path))
    monkeypatch.setattr(decoy_features, "_sketch", lambda *_: pytest.fail("computed again"))
    second = sketch_of(decoys, network, str(tmp_path))
    assert all(torch.equal(getattr(first, name), getattr(second, name)) for name in ("half", "error", "square"))


@pytest.mark.parametrize("content", [b"", b"no tensors", None], ids=["empty", "text", "another form"])
def test_a_file_of_another_form_is_computed_again(content: bytes | None, network: Network, tmp_path: Path) -> None:
    decoys = images(5, size=64)
    right = sketch_of(decoys, network, str(tmp_path))
    (file,) = tmp_path.glob("*.safetensors")
    if content is None:
        save_file({"half": right.half[:3].contiguous(), "error": right.error, "square": right.square}, file)
    else:
        file.write_bytes(content)
    found = sketch_of(decoys, network, str(tmp_path))
    assert isinstance(found, Sketch)
    assert torch.equal(found.half, right.half)


def test_other_decoys_have_another_file(network: Network, tmp_path: Path) -> None:
    for seed in (1, 2):
        sketch_of(images(3, size=64, seed=seed), network, str(tmp_path))
    assert len(list(tmp_path.glob("*.safetensors"))) == 2


@pytest.mark.parametrize("part", ["error", "square"])
@pytest.mark.parametrize("value", [float("nan"), 1e6, -1.0])
def test_a_damaged_file_identifies_nobody(part: str, value: float, network: Network, tmp_path: Path) -> None:
    decoys = images(6, size=64, seed=1)
    good = sketch_of(decoys, network, str(tmp_path))
    (file,) = tmp_path.glob("*.safetensors")
    tensors = {"half": good.half, "error": good.error, "square": good.square}
    save_file({**tensors, part: torch.full_like(tensors[part], value)}, file)
    found = sketch_of(decoys, network, str(tmp_path))
    vectors = embed(decoys, network)
    nearer, doubtful = found.compared(torch.ones(len(decoys)), vectors)
    assert bool((nearer | doubtful).diagonal().all())  # each is its own decoy, at distance 0
