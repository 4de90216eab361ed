"""Progress: one line that changes on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TextIO

from leakboard.core.terminal import plain

if TYPE_CHECKING:
    from leakboard.leaderboard.engine.engine import Engine


class Progress:
    """Cells done, the running ones, time left."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.live = stream.isatty()
        self.started = time.monotonic()
        self.shown = ""

    def begin(self, line: str) -> None:
        """The first line."""
        print(line, file=self.stream, flush=True)

    def tell(self, engine: Engine, line: str) -> None:
        """A finished job (a line that stays), or just a moment to redraw the status."""
        if line:
            self._erase()
            print(plain(f"[{engine.done}/{engine.total}] {line}"), file=self.stream, flush=True)
        if self.live:
            self._draw(engine)

    def end(self) -> None:
        """Leave the terminal clean."""
        self._erase()

    def _draw(self, engine: Engine) -> None:
        running = ", ".join(item.job.title for item in engine.executor.running)
        text = f"{engine.done}/{engine.total} done{self._left(engine)}; running: {running}"[:110]
        if text != self.shown:
            self._erase()
            self.stream.write(text)
            self.stream.flush()
            self.shown = text

    def _left(self, engine: Engine) -> str:
        if not engine.done:
            return ""
        seconds = (time.monotonic() - self.started) / engine.done * (engine.total - engine.done)
        return f", about {seconds / 60:.0f} min left" if seconds >= 90 else f", about {seconds:.0f} s left"

    def _erase(self) -> None:
        if self.live and self.shown:
            self.stream.write("\r" + " " * len(self.shown) + "\r")
            self.stream.flush()
            self.shown = ""
