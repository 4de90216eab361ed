"""Colour images of 64 x 64 pixels go through every attack, and what comes back through every metric on images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from leakboard.attacks.base import Attack
from leakboard.contract import trials, worlds
from leakboard.contract.trials import checked_answer, home_of
from leakboard.core import registry
from leakboard.datasets.base import ImagePool
from leakboard.metrics.base import ReconstructionMetric, ReconstructionTruth
from tests.contract.plugins import attacks

SHAPE, CLASSES, COUNT = (3, 64, 64), 4, 200


def pool() -> ImagePool:
    """Smooth images of four classes."""
    generator = torch.Generator().manual_seed(0)
    images = nn.functional.interpolate(torch.rand(COUNT, 3, 8, 8, generator=generator), 64, mode="bilinear")
    labels = torch.arange(COUNT) % CLASSES
    names = tuple(map(str, range(CLASSES)))
    return ImagePool((images * 255).to(torch.uint8), labels, torch.zeros(COUNT, dtype=torch.bool), names)


@pytest.fixture(scope="module", autouse=True)
def _large_images() -> Iterator[None]:
    """The worlds of the contract, with these images instead of digits; none of them is left to other tests."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(worlds, "digits", lambda label_noise=0.0: pool())
        patched.setattr(worlds, "Digits", SimpleNamespace(mean=(0.5,) * 3, std=(0.25,) * 3))
        patched.setattr(worlds, "_kept", {})
        patched.setattr(trials, "_homes", {})
        patched.setattr(trials, "trial_world", cache(trials.trial_world.__wrapped__))
        yield


#: the scheme of the first decrypts every value of a gradient, of which there are many here; the second learns a map
#: from gradients to images of 12,288 values, and takes more than 20 CPU seconds
SLOW = ("mix-and-match", "resnet-inversion")


@pytest.mark.parametrize(
    "attack",
    [pytest.param(a, id=a.name, marks=[pytest.mark.slow] if a.name in SLOW else []) for a in attacks()],
)
def test_every_attack_answers(attack: Attack) -> None:
    world = home_of(attack)
    assert world.outcome.public.shape == SHAPE
    checked_answer(attack, world)


@pytest.mark.parametrize(
    "name", [n for n, entry in registry.entries("metric").items() if entry["goal"] == "reconstruction"]
)
def test_every_metric_on_images_scores(name: str) -> None:
    images = pool().take(torch.arange(12)).images
    noise = 0.1 * torch.randn(4, *SHAPE, generator=torch.Generator().manual_seed(1))
    logits = torch.randn(4, CLASSES, generator=torch.Generator().manual_seed(2))
    truth = ReconstructionTruth(
        images[:4] + noise, images[:4], (0.5,) * 3, (0.25,) * 3, logits + 0.1, logits, decoys=images[4:]
    )
    labels = (torch.arange(4) % CLASSES,)
    truth = replace(truth, labels=labels, recovered_labels=labels)
    metric = registry.create("metric", name)
    assert isinstance(metric, ReconstructionMetric)
    found = metric.score(truth)
    if found.value is None:
        assert "weights" in found.reason  # of LPIPS, which are not in the package
    else:
        assert len(found.per_item) == 4
