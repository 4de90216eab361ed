"""Batches are cut into chunks only if no layer mixes examples, and the sum of the chunks is the whole."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from leakboard.federation import separable as module
from leakboard.federation.separable import Separable, separable
from leakboard.federation.task import Task
from tests.defenses.makings import images_of, public_of


class Centred(nn.Sequential):
    """Subtracts the mean over the batch: examples are mixed without any batch norm."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, 4) to (B, 2)."""
        out: Tensor = self[0](x - x.mean(0))
        return out


def test_the_chunk_follows_the_largest_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "VALUES", 600)
    network = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(48, 2))
    assert separable(network, (1, 4, 4)) == Separable(("0", "3"), 600 // 48)


def test_networks_that_may_mix_examples_are_not_cut() -> None:
    assert separable(nn.Sequential(nn.Linear(4, 2)), (4,)) is not None
    mixing = Centred(nn.Linear(4, 2)), nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 2))
    assert all(separable(network, (4,)) is None for network in mixing)
    assert separable(nn.Sequential(nn.Flatten(0), nn.Linear(4, 2)), (4,)) is None


@pytest.mark.parametrize(("records", "lengths"), [(3, [3]), (100, [100]), (101, [50, 51]), (300, [100, 100, 100])])
def test_parts_have_nearly_equal_lengths(records: int, lengths: list[int]) -> None:
    parts = Separable((), 100).parts(torch.empty(records, 1))
    assert [part.stop - part.start for part in parts] == lengths
    assert (parts[0].start, parts[-1].stop) == (0, records)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_gradient_in_chunks_is_that_of_the_whole_batch(weighted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task(public_of("convnet", {"width": 2}, precision="float64"))
    images, labels = images_of(50, *task.public.shape).double(), torch.arange(50) % task.public.classes
    weights = torch.linspace(0, 1, 50) if weighted else None
    whole, _ = task.gradient(task.initial(0), images, labels, weights)
    monkeypatch.setattr(module, "VALUES", 1)
    cut = Task(task.public)  # a network of its own, whose chunk size is not known yet
    assert len(cut.parts(images)) == 4
    found, _ = cut.gradient(task.initial(0), images, labels, weights)
    torch.testing.assert_close(found, whole, rtol=1e-10, atol=1e-14)


def test_batch_norm_sees_the_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "VALUES", 1)
    task = Task(public_of("convnet", {"width": 2, "norm": "batch"}))
    assert task.parts(images_of(50, *task.public.shape)) == [slice(0, 50)]


@pytest.mark.parametrize(
    "network",
    [
        nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(32, 2)),
        nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Flatten(2), nn.Linear(16, 3), nn.Flatten(), nn.Linear(6, 2)),
    ],
    ids=["changes its input in place", "several rows per example"],
)
def test_layers_whose_gradients_are_not_those_of_one_row_are_left_alone(network: nn.Module) -> None:
    assert separable(network, (1, 4, 4)) is None
