"""How far a running training is: one small file per training, which `status` and the progress bar read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from pydantic import Field, ValidationError

from leakboard.core.files import write_text
from leakboard.core.plugins import Settings
from leakboard.leaderboard.cells.accuracy_curve import Point

#: seconds between two writes of the file, and between two lines of the log if rounds take long
PAUSE, LINE_PAUSE = 1.0, 60.0
#: lines in the log of a training, if rounds are fast
LINES = 10


class TrainingProgress(Settings):
    """How far a training is. Accuracy and loss are of the last measured epoch, on the first `images` test images."""

    round: int = Field(description="finished rounds")
    rounds: int = Field(description="rounds of the whole training")
    accuracy: float | None = Field(None, description="test accuracy, 0 to 1")
    loss: float | None = Field(None, description="mean loss on the same test images; null if it is not finite")
    images: int = Field(0, description="number of test images behind accuracy and loss")
    seconds_left: float | None = Field(None, description="from the rounds after the first one")
    resumed: int | None = Field(None, description="the round from which it went on after it had been stopped")
    written: float = Field(0.0, description="seconds since 1970")

    def words(self, going: bool = True) -> str:
        """One line for people; nothing is left to wait for if the training is not `going` any more.

        >>> TrainingProgress(round=40, rounds=100, accuracy=0.85, loss=0.2, images=120, seconds_left=75).words()
        'round 40 of 100, test accuracy 85.0 % and loss 0.2 (120 images), about 1 min 15 s left'
        """
        again = "" if self.resumed is None else f" (went on from round {self.resumed})"
        parts = [f"round {self.round} of {self.rounds}{again}"]
        if self.accuracy is not None:
            loss = "" if self.loss is None else f" and loss {self.loss:.4g}"
            parts.append(f"test accuracy {100 * self.accuracy:.1f} %{loss} ({self.images} images)")
        if going and self.seconds_left is not None and self.round < self.rounds:
            parts.append(f"about {duration(self.seconds_left)} left")
        return ", ".join(parts)


def progress_file(training_folder: Path) -> Path:
    """The file for the progress of a training, beside the folder that appears when it is complete."""
    return training_folder.with_name(f"{training_folder.name}.progress.json")


def read_progress(run: Path, training_keys: Iterable[str]) -> dict[str, TrainingProgress]:
    """The progress of those of these trainings that have said anything, by training key."""
    found = {}
    for key in training_keys:
        with suppress(OSError, ValidationError):
            text = progress_file(run / "trainings" / key).read_text()
            found[key] = TrainingProgress.model_validate_json(text)
    return found


class Teller:
    """Tells how a training goes: in its file, at most once per second, and by lines in the log."""

    def __init__(
        self,
        path: Path,
        rounds: int,
        points: list[Point],
        now: Callable[[], float] = time.time,
        say: Callable[[str], None] = lambda line: print(line, flush=True),
        resumed: int | None = None,
    ) -> None:
        self.path, self.rounds, self.points, self.now, self.say = path, rounds, points, now, say
        self.resumed = resumed
        # when the first round here had ended: set-up is no measure of the other rounds
        self.first: tuple[int, float] | None = None
        self.written = self.said = now()
        self._write(self._at(resumed or 0))
        if resumed is not None:
            say(self._at(resumed).words())

    def note(self, done: int) -> None:
        """After a round."""
        moment = self.now()
        self.first = (done, moment) if self.first is None else self.first
        due = done % max(1, self.rounds // LINES) == 0 or moment - self.said >= LINE_PAUSE
        if due:
            self.said = moment
            self.say(self._at(done).words())
        if moment - self.written >= PAUSE:
            self.written = moment
            self._write(self._at(done))

    def end(self) -> None:
        """The training is over, well or not: nobody has to wait for it."""
        with suppress(OSError):
            self.path.unlink(missing_ok=True)

    def _at(self, done: int) -> TrainingProgress:
        moment, point = self.now(), self.points[-1] if self.points else None
        left = None
        if self.first is not None and done > self.first[0]:
            left = (moment - self.first[1]) / (done - self.first[0]) * (self.rounds - done)
        return TrainingProgress(
            round=done,
            rounds=self.rounds,
            accuracy=None if point is None else point.accuracy,
            loss=None if point is None or abs(point.loss) == float("inf") or point.loss != point.loss else point.loss,
            images=0 if point is None else point.images,
            seconds_left=left,
            resumed=self.resumed,
            written=moment,
        )

    def _write(self, progress: TrainingProgress) -> None:
        with suppress(OSError):  # a training goes on without it
            write_text(self.path, progress.model_dump_json(), synced=False)


def duration(seconds: float) -> str:
    """A time in words.

    >>> duration(75), duration(20), duration(7300)
    ('1 min 15 s', '20 s', '2 h 1 min')
    """
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"
