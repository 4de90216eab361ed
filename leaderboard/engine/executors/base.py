"""What the engine asks of whoever runs its jobs."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from leakboard.leaderboard.planning.jobs import Job
from leakboard.leaderboard.records.record import Status

#: seconds between two looks at time and memory
PATIENCE = 0.2


@dataclass
class Running:
    """A job under way, since when."""

    job: Job
    since: float = field(default_factory=time.time)


@dataclass(frozen=True)
class End:
    """A job that ended, and what to say of it where it left no record of its own."""

    job: Job
    status: Status
    reason: str


class Executor(ABC):
    """Starts jobs and tells how they ended. Which job is next, and what is written, is the engine's affair."""

    name: ClassVar[str]
    #: how many jobs may run at once
    slots: int

    @property
    @abstractmethod
    def running(self) -> Sequence[Running]:
        """The jobs that were started and have not ended."""

    @abstractmethod
    def start(self, job: Job) -> None:
        """Start a job; it ends by itself, over a limit, or with its machine."""

    @abstractmethod
    def wait(self) -> list[End]:
        """Those that ended, after a moment at most; none where nothing did."""

    @abstractmethod
    def stop(self) -> None:
        """End all that runs; nothing of it is left when this returns."""
