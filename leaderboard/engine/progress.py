"""Progress: a bar with the running jobs on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from leakboard.core.terminal import plain

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

    from leakboard.leaderboard.engine.engine import Engine
    from leakboard.leaderboard.engine.executors.base import Running

#: how many running jobs are named on a terminal
SHOWN = 8
#: how often a terminal is drawn anew in a second
PER_SECOND = 4
#: so many finished jobs tell how far the estimate is off
ENOUGH = 3
#: colours of a result on a terminal
STYLES = {"ok": "green", "skipped": "dim", "failed": "red", "timeout": "red", "crashed": "red", "no": "red"}


class Progress:
    """Results as they come in, the running jobs, time left; without a stream nothing is shown.

    `detail` tells how far a running job is, such as the round of a training; it follows the title of the job.
    """

    def __init__(self, stream: TextIO | None, detail: Callable[[Running], str] | None = None) -> None:
        self.stream = stream
        self.detail = detail
        self.started = time.monotonic()
        self.live: Live | None = None

    def begin(self, line: str) -> None:
        """The first line; on a terminal the bar follows beneath."""
        if self.stream is None:
            return
        print(plain(line), file=self.stream, flush=True)
        if self.stream.isatty():
            self.live = _live(self.stream)
            self.live.start()

    def tell(self, engine: Engine, line: str) -> None:
        """A finished job (a line that stays), or just a moment to redraw the bar."""
        if self.stream is None:
            return
        text = plain(f"[{engine.done}/{engine.total}] {line}")
        if self.live is None:
            if line:
                print(text, file=self.stream, flush=True)
            return
        if line:
            from rich.text import Text

            self.live.console.print(Text(text, style=STYLES.get(line.split()[0], "")), soft_wrap=True)
        self.live.update(self._drawn(engine))

    def end(self) -> None:
        """Leave the terminal clean."""
        if self.live is not None:
            self.live.stop()

    def _drawn(self, engine: Engine) -> RenderableType:
        """A bar, and beneath it one line per running job."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        line = Table.grid(padding=(0, 1))
        words = f"{engine.done}/{engine.total} done{self._left(engine)}"
        line.add_row(ProgressBar(total=max(1, engine.total), completed=engine.done, width=40), Text(words))
        running, now = engine.executor.running, time.time()
        jobs = [plain(f"  {now - one.since:6.0f} s  {one.job.title}{self._beside(one)}") for one in running[:SHOWN]]
        jobs += [f"  and {len(running) - SHOWN} more"] if len(running) > SHOWN else []
        return Group(line, *(Text(job, style="dim", no_wrap=True, overflow="ellipsis") for job in jobs))

    def _beside(self, one: Running) -> str:
        told = self.detail(one) if self.detail is not None else ""
        return f", {told}" if told else ""

    def _left(self, engine: Engine) -> str:
        seconds = time_left(engine, time.monotonic() - self.started, time.time())
        if seconds is None:
            return ""
        if seconds < 1:
            return ", almost done" if engine.done else ""
        return f", about {seconds / 60:.0f} min left" if seconds >= 90 else f", about {seconds:.0f} s left"


def time_left(engine: Engine, elapsed: float, now: float) -> float | None:
    """Wall seconds until all jobs are done; None while that cannot be told.

    By the estimates of the plan, corrected by what the jobs took that are done; without estimates, by their number.
    """
    if not engine.seconds:
        return elapsed / engine.done * (engine.total - engine.done) if engine.done else None
    ahead = sum(engine.seconds.get(job.key or job.training_key, 0.0) for job in (*engine.trainings, *engine.waiting))
    running = [
        (engine.seconds.get(one.job.key or one.job.training_key, 0.0), now - one.since)
        for one in engine.executor.running
    ]
    slots = max(1, engine.executor.slots)
    behind = engine.expected - ahead - sum(expected for expected, _ in running)
    took = elapsed * slots - sum(so_far for _, so_far in running)
    slower = max(took, 0.0) / behind if engine.done >= ENOUGH and behind > 0 else 1.0
    return (ahead * slower + sum(max(0.0, expected * slower - so_far) for expected, so_far in running)) / slots


def _live(stream: TextIO) -> Live:
    """A part of the terminal that is drawn anew; it goes when the run ends."""
    from rich.console import Console
    from rich.live import Live

    console: Console = Console(file=stream, markup=False, highlight=False, emoji=False)
    return Live(console=console, refresh_per_second=PER_SECOND, transient=True, redirect_stdout=False)
