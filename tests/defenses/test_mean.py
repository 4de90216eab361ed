from __future__ import annotations

import pytest
import torch

from leakboard.defenses import base
from leakboard.defenses.base import PIECE, STACKED, mean


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(2 * PIECE,), (2 * PIECE + 1,), (3 * PIECE + 37,), (90, 100), (64, 32, 3, 3)])
@pytest.mark.parametrize("clients", [130, 257])
def test_the_mean_in_pieces_has_the_bits_of_the_whole(
    monkeypatch: pytest.MonkeyPatch, clients: int, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(clients)
    items = [{"w": torch.randn(shape, generator=generator, dtype=dtype)} for _ in range(clients)]
    assert clients * items[0]["w"].numel() > STACKED
    pieces = mean(items)["w"]
    monkeypatch.setattr(base, "STACKED", 10**12)
    assert pieces.shape == shape
    assert torch.equal(pieces, mean(items)["w"])
    assert torch.equal(pieces, torch.stack([item["w"] for item in items]).mean(0))


def test_counts_are_averaged_exactly() -> None:
    items = [{"n": torch.tensor(value)} for value in (1, 2, 6)]
    assert mean(items)["n"] == 3
    assert mean(items)["n"].dtype == torch.int64
