"""The interface between the engine and whatever runs its jobs."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from leakboard.leaderboard.planning.jobs import Job
from leakboard.leaderboard.records.record import Status

#: seconds between two checks of time and memory
PATIENCE = 0.2


@dataclass
class Running:
    """A running job and its start."""

    job: Job
    since: float = field(default_factory=time.time)


@dataclass(frozen=True)
class End:
    """A job that ended, with status and reason in case it left no record of its own."""

    job: Job
    status: Status
    reason: str


class Executor(ABC):
    """Starts jobs and reports how they ended. The engine chooses the next job and writes all files."""

    name: ClassVar[str]
    #: how many jobs may run at once
    slots: int

    @property
    @abstractmethod
    def running(self) -> Sequence[Running]:
        """The jobs that have started and not ended."""

    @abstractmethod
    def start(self, job: Job) -> None:
        """Start a job. It ends by itself, at a limit, or with its machine."""

    @abstractmethod
    def wait(self) -> list[End]:
        """Wait a moment and return the jobs that ended, if any."""

    @abstractmethod
    def stop(self) -> None:
        """End all jobs; none is left when this returns."""
