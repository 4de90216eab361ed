"""Progress: a bar with the running jobs on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TextIO

from leakboard.core.terminal import plain

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

    from leakboard.leaderboard.engine.engine import Engine

#: how many running jobs are named on a terminal
SHOWN = 8
#: how often a terminal is drawn anew in a second
PER_SECOND = 4
#: colours of a result on a terminal
STYLES = {"ok": "green", "skipped": "dim", "failed": "red", "timeout": "red", "crashed": "red", "no": "red"}


class Progress:
    """Cells done, the running ones, time left; without a stream nothing is shown."""

    def __init__(self, stream: TextIO | None) -> None:
        self.stream = stream
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
        jobs = [plain(f"  {now - one.since:6.0f} s  {one.job.title}") for one in running[:SHOWN]]
        jobs += [f"  and {len(running) - SHOWN} more"] if len(running) > SHOWN else []
        return Group(line, *(Text(job, style="dim", no_wrap=True, overflow="ellipsis") for job in jobs))

    def _left(self, engine: Engine) -> str:
        if not engine.done:
            return ""
        seconds = (time.monotonic() - self.started) / engine.done * (engine.total - engine.done)
        return f", about {seconds / 60:.0f} min left" if seconds >= 90 else f", about {seconds:.0f} s left"


def _live(stream: TextIO) -> Live:
    """A part of the terminal that is drawn anew; it goes when the run ends."""
    from rich.console import Console
    from rich.live import Live

    console: Console = Console(file=stream, markup=False, highlight=False, emoji=False)
    return Live(console=console, refresh_per_second=PER_SECOND, transient=True, redirect_stdout=False)
