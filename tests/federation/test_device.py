"""Where a federation computes. No test has a GPU: `meta` tensors fail wherever one on the CPU gets among them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from leakboard.core.randomness import Stream
from leakboard.defenses.perturbation.client import expanded_of, part_norms, train
from leakboard.defenses.perturbation.server import draw_secret, perturb
from leakboard.federation.device import compute_device, computing_on, on_compute_device, on_device, run_there
from leakboard.federation.example_norms import loss_norms
from leakboard.federation.payload import leaves
from leakboard.federation.settings import Public, Training
from leakboard.federation.task import task_of

NETWORKS = ["mlp", "convnet", "resnet8"]


def test_the_innermost_block_says_where() -> None:
    assert compute_device() == "cpu"
    with computing_on("cuda"):
        assert compute_device() == "cuda"
        with computing_on("meta"):
            assert compute_device() == "meta"
        assert compute_device() == "cuda"
    assert compute_device() == "cpu"


def test_on_the_cpu_a_function_gets_its_own_arguments() -> None:
    given = {"w": torch.ones(2)}
    assert on_compute_device(lambda tensors: tensors)(given) is given


def test_elsewhere_it_gets_tensors_there_and_its_results_come_back() -> None:
    seen: list[str] = []

    @on_compute_device
    def doubled(parts: dict[str, Tensor], pair: tuple[Tensor, int], *, more: list[Tensor]) -> dict[str, Any]:
        made = torch.zeros(1)
        seen.extend(str(tensor.device) for tensor in (parts["w"], pair[0], more[0], made))
        return {"n": pair[1], "new": [torch.ones(3, device="cpu")]}

    with computing_on("meta"):
        found = doubled({"w": torch.ones(2)}, (torch.ones(1), 7), more=[torch.ones(1)])
    assert seen == ["meta"] * 4
    assert found["n"] == 7
    assert torch.equal(found["new"][0], torch.ones(3))


def test_only_tensors_move() -> None:
    moved = on_device({"a": [torch.zeros(1), "text", None], "b": (1, torch.zeros(2))}, "meta")
    assert [leaf for _, leaf in leaves(moved) if not isinstance(leaf, Tensor)] == ["text", None, 1]
    assert all(leaf.device.type == "meta" for _, leaf in leaves(moved) if isinstance(leaf, Tensor))
    assert isinstance(moved["b"], tuple)


def works_of(model: str) -> dict[str, Callable[[str], Any]]:
    """The passes of all defenses over images, as functions of a device."""
    public = Public(
        defense="mp-dp",
        parameters={},
        model=model,
        model_parameters={},
        shape=(3, 16, 16),
        classes=4,
        mean=(0.5,) * 3,
        std=(0.25,) * 3,
        training=Training(rounds=1, batch_size=3),
        total_rounds=1,
        shard_sizes=(3,),
    )
    task, images, labels = task_of(public), torch.rand(3, 3, 16, 16), torch.tensor([0, 1, 3])
    weights, factors = task.initial(0), torch.tensor([1.0, 0.5, 0.0])
    aims = torch.nn.functional.one_hot(labels, 4).float()
    full, bare = (expanded_of(public, transitional=transitional) for transitional in (True, False))
    secret = draw_secret(Stream(bytes(32)), full.wiring, 4, transitional=True, variant="V2", scale=0.1)
    hidden = perturb(weights, full.wiring, secret, transitional=True, dtype=torch.float32)
    along = secret.direction.float()
    return {
        "gradient": lambda device: run_there(task.gradient, device, weights, images, labels, factors),
        "predict": lambda device: run_there(task.predict, device, weights, images),
        "norms": lambda device: run_there(lambda *parts: loss_norms(task, *parts), device, weights, images, labels),
        "train": lambda device: run_there(train, device, full, hidden, along, images, aims, factors),
        "parts": lambda device: run_there(part_norms, device, bare, weights, along, images, aims),
    }


@pytest.mark.parametrize("model", NETWORKS)
@pytest.mark.parametrize("work", ["gradient", "predict", "norms", "train", "parts"])
def test_a_pass_over_images_computes_where_its_tensors_are(
    model: str, work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "autocast", lambda *given, **more: nullcontext())  # it does not know meta tensors
    run = works_of(model)[work]
    there = [leaf for _, leaf in leaves(run("meta"))]
    here = [leaf for _, leaf in leaves(run("cpu"))]
    assert all(tensor.device.type == "meta" for tensor in there)
    assert [tensor.shape for tensor in there] == [tensor.shape for tensor in here]
