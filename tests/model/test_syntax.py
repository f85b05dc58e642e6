"""Tests of the parser: threads that read at the same time."""

import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from exop.model.syntax import parsed_expression


def test_threads_read_at_the_same_time():
    """Also if garbage is collected inside the parser, which lets the other threads run."""
    text = "x >= 1 and ((y.a[3] + 1) * 2 - (3 + 4 * (5 + z))) < 3 or " * 15 + "a"
    before, together = gc.get_threshold(), threading.Barrier(4)

    def reads(_: int) -> None:
        together.wait()
        for _ in range(20):
            parsed_expression(text)

    gc.callbacks.append(let_run := lambda *_: time.sleep(0))
    try:
        gc.set_threshold(40)
        with ThreadPoolExecutor(4) as threads:
            assert [*threads.map(reads, range(4))] == [None] * 4
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(let_run)
