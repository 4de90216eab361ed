"""A block that never ends is ended, and one that ends is left alone."""

from __future__ import annotations

import signal
import threading

import pytest

from leakboard.core.alarms import alarm


def forever() -> None:
    while True:
        pass


@pytest.mark.parametrize("cpu", [False, True])
def test_a_block_without_end_is_ended_and_the_handler_is_put_back(cpu: bool) -> None:
    sign = signal.SIGPROF if cpu else signal.SIGALRM
    before = signal.getsignal(sign)
    with pytest.raises(TimeoutError, match="enough"), alarm(0.01, TimeoutError("enough"), cpu=cpu):
        forever()
    assert signal.getsignal(sign) is before


def test_a_block_that_ends_is_left_alone_and_another_thread_has_no_bound() -> None:
    done: list[str] = []

    def work() -> None:
        with alarm(1e-6, TimeoutError(), cpu=False):
            done.append("here")

    other = threading.Thread(target=work)
    other.start()
    other.join()
    with alarm(3600, TimeoutError(), cpu=True):
        done.append("and here")
    assert done == ["here", "and here"]
