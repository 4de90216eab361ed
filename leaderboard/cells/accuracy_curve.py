"""The test accuracy during a training: on the first test images between, on all of them at the end.

Accuracy on all test images after every epoch took 17 to 30 % of a training. Between, it is now measured on a part of
the test images, whose size follows from the training alone (`points_and_images`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

from leakboard.datasets.base import LabelledImages
from leakboard.federation.device import on_device
from leakboard.federation.payload import Parameters
from leakboard.federation.settings import Public
from leakboard.federation.task import task_of
from leakboard.metrics.accuracy import accuracy

#: the most points of a curve before the last one
POINTS = 20
#: fewer images say little: with 100 the standard error of a share is up to 5 %
FEWEST_IMAGES = 100
#: the share of a training's work that all points between may take; a training pass is taken for three forward passes
SHARE, FORWARDS = 0.04, 3


def points_and_images(public: Public, test: int) -> tuple[int, int]:
    """How many points a curve has between, and the number of test images behind each of them.

    With R rounds, K clients per round and batches of B, training makes about 3 R K B forward passes of one image, so
    P points of n images take the share n P / (3 R K B). P is at most 20 and the number of epochs. n is the largest that
    keeps the share at 4 %. If that is below 100 images (or below all of them), there are fewer points instead.
    """
    training = public.training
    passes = int(SHARE * FORWARDS * public.total_rounds * training.per_round * training.batch_size)
    fewest = min(FEWEST_IMAGES, test)
    if not fewest:
        return 0, 0
    points = min(POINTS, (public.total_rounds - 1) // rounds_per_epoch(public), passes // fewest)
    return (points, min(test, passes // points)) if points > 0 else (0, 0)


def rounds_per_epoch(public: Public) -> int:
    """Rounds in which the client with the most records sees its whole batches once."""
    return max(1, max(public.shard_sizes) // public.training.batch_size)


@dataclass(frozen=True)
class Point:
    """The global model after some rounds on some test images."""

    rounds: int
    accuracy: float
    loss: float
    images: int


class AccuracyCurve:
    """Test accuracy and loss at the ends of at most 20 epochs, on the first test images in the split's order.

    The split's order is drawn from the seed: all defenses of a run are measured on the same images.
    """

    def __init__(self, public: Public, test: LabelledImages, device: str = "cpu") -> None:
        self.task, self.device = task_of(public), device
        points, self.images = points_and_images(public, len(test))
        self.test = LabelledImages(test.images[: self.images], test.labels[: self.images])
        epoch = rounds_per_epoch(public)
        epochs = -(-public.total_rounds // epoch)
        self.every = epoch * -(-epochs // (points + 1)) if points else public.total_rounds
        self.last = public.total_rounds
        self.points: list[Point] = []

    def note(self, done: int, model: Callable[[], Parameters]) -> None:
        """After a round: measure if a measurement is due. The final model is measured elsewhere, on all images."""
        if not self.images or done % self.every or done == self.last:
            return
        tensors, test = on_device(model(), self.device), self.test
        logits = self.task.predict(tensors, on_device(test.images, self.device)).cpu()
        loss = float(self.task.loss(logits, test.labels))
        self.points.append(Point(done, accuracy(logits, test.labels), loss, self.images))

    def notes(self) -> list[dict[str, float]]:
        """The points so far, as a snapshot stores them."""
        return [asdict(point) for point in self.points]

    def restore(self, points: Iterable[Point]) -> None:
        """Go on from stored points."""
        self.points[:] = points

    def accuracies(self, final: float | None) -> dict[int, float]:
        """Finished rounds -> accuracy: on the first images between, on all of them at the end."""
        found = {point.rounds: point.accuracy for point in self.points}
        return found if final is None else {**found, self.last: final}
