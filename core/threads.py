"""How many threads torch uses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """In this block torch computes on one thread: the bits do not depend on how many the caller's process has.

    Two threads divide a matrix product otherwise than one does, for some shapes: with 6 rows of 1,024 values and 16
    columns, say, the last bits of MKL's product differ.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
