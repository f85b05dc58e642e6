"""Tests of the parser: threads that read at the same time."""

import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from exop.model.syntax import parsed_expression
from exop.safe_repr import traceback_of


def fails(a: int, b: int) -> None:
    """Raise an error on a line for whose marks Python parses."""
    raise ValueError((((a + 1) * 2 - (3 + 4 * (5 + b))) + [[[1], 2], [3, (4, 5)]][a // (b - b)]) < 3)  # type: ignore[operator]


@pytest.mark.parametrize("tracebacks", [False, True])
def test_threads_read_at_the_same_time(tracebacks: bool):
    """Also if garbage is collected inside the parser, which lets the other threads run; and if some print errors."""
    text = "x >= 1 and ((y.a[3] + 1) * 2 - (3 + 4 * (5 + z))) < 3 or " * 15 + "a"
    before, together = gc.get_threshold(), threading.Barrier(4)

    def reads(number: int) -> None:
        together.wait()
        for _ in range(20):
            if tracebacks and number % 2:
                with pytest.raises(ZeroDivisionError) as found:
                    fails(1, 2)
                traceback_of(found.value)
            else:
                parsed_expression(text)

    gc.callbacks.append(let_run := lambda *_: time.sleep(0))
    try:
        gc.set_threshold(40)
        with ThreadPoolExecutor(4) as threads:
            assert [*threads.map(reads, range(4))] == [None] * 4
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(let_run)
