"""The accuracy during a training: on which images, how often, and at which share of the training's work."""

from __future__ import annotations

import pytest
import torch

from leakboard.core.randomness import Stream
from leakboard.datasets.base import LabelledImages
from leakboard.federation.payload import Parameters
from leakboard.federation.settings import Public
from leakboard.federation.task import task_of
from leakboard.leaderboard.cells.accuracy_curve import (
    FEWEST_IMAGES,
    FORWARDS,
    POINTS,
    SHARE,
    AccuracyCurve,
    points_and_images,
)
from leakboard.metrics.accuracy import accuracy
from tests.federation.makings import public_of


def schedule(rounds: int, clients: int, batch: int, shard: int) -> Public:
    """Settings with this many rounds, clients, and records per batch and shard."""
    made = public_of((shard,) * clients, rounds=rounds)
    return made.model_copy(update={"training": made.training.model_copy(update={"batch_size": batch})})


def images_of(public: Public, count: int) -> LabelledImages:
    stream = Stream(bytes(32))
    pixels = torch.as_tensor(stream.uniform(count * torch.Size(public.shape).numel()), dtype=torch.float32)
    return LabelledImages(pixels.view(count, *public.shape), torch.arange(count) % public.classes)


def curve_of(public: Public, test: LabelledImages, models: dict[int, Parameters]) -> AccuracyCurve:
    """A whole training's curve, with these models after these rounds (the last one stays)."""
    curve = AccuracyCurve(public, test)
    model: Parameters = {}
    for done in range(1, public.total_rounds + 1):
        model = models.get(done, model)
        now = model
        curve.note(done, lambda now=now: now)  # type: ignore[misc]
    return curve


@pytest.mark.parametrize("rounds", [1, 7, 100, 3000])
@pytest.mark.parametrize(("clients", "batch", "shard"), [(5, 64, 115), (100, 20, 20), (5, 200, 400), (2, 4, 12)])
@pytest.mark.parametrize("test", [0, 30, 359, 10_000])
def test_all_points_together_take_at_most_the_share(
    rounds: int, clients: int, batch: int, shard: int, test: int
) -> None:
    public = schedule(rounds, clients, batch, shard)
    points, images = points_and_images(public, test)
    measured = images * len(curve_of(public, images_of(public, test), {1: task_of(public).initial(0)}).points)
    assert measured <= SHARE * FORWARDS * rounds * clients * batch
    assert points <= POINTS
    assert images <= test
    assert images == 0 or images >= min(FEWEST_IMAGES, test)


def test_a_long_training_is_measured_on_all_images_at_twenty_epochs() -> None:
    assert points_and_images(schedule(3000, 5, 64, 64), 359) == (20, 359)


def test_quick_is_measured_on_a_part() -> None:
    points, images = points_and_images(schedule(100, 5, 64, 115), 359)
    assert points == 20
    assert images == int(0.04 * 3 * 100 * 5 * 64) // 20 == 192


def test_values_are_of_the_first_images_and_the_last_one_of_all() -> None:
    public = schedule(60, 5, 8, 16)
    task, test = task_of(public), images_of(public, 400)
    early, late = task.initial(1), task.initial(2)
    curve = curve_of(public, test, {1: early, 30: late})
    first = LabelledImages(test.images[: curve.images], test.labels[: curve.images])
    assert 0 < curve.images < len(test)
    assert len(curve.points) > 1
    for point in curve.points:
        logits = task.predict(early if point.rounds < 30 else late, first.images)
        assert point.accuracy == accuracy(logits, first.labels)
        assert point.loss == float(task.loss(logits, first.labels))
        assert point.images == curve.images
        assert point.rounds % 2 == 0  # an epoch has two rounds
    assert curve.points[0].loss != curve.points[-1].loss
    assert curve.accuracies(0.5) == {**{p.rounds: p.accuracy for p in curve.points}, 60: 0.5}


def test_without_test_images_there_is_nothing() -> None:
    public = schedule(60, 5, 8, 16)
    curve = curve_of(public, images_of(public, 0), {1: task_of(public).initial(0)})
    assert curve.points == []
    assert curve.accuracies(None) == {}
