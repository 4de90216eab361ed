"""How this process keeps memory that it has freed."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress

#: parameters of glibc's mallopt (malloc.h): when freed memory goes back to the system, and what is mapped by itself
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
#: no block below this size is mapped by itself; glibc before 2.35 takes at most 32 MiB, so that is set first
_SIZES = (2**25, 2**30)


def keep_freed_memory() -> None:
    """Let freed memory stay with this process, for the next tensor of the same size.

    By default glibc returns large blocks to the system when they are freed. A training frees and allocates the same
    activations in every step, and the system clears each page again: up to a third of the CPU time of a bare small
    network at a batch of 160. The peak of the memory may grow a little. Without glibc nothing happens.
    """
    if not sys.platform.startswith("linux"):
        return
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for size in _SIZES:
            mallopt(_MMAP_THRESHOLD, size)
        mallopt(_TRIM_THRESHOLD, 2**30)
