"""Stacks of running threads, and collections that are put off."""

import gc
import threading
from contextlib import ExitStack

import pytest

from exop.stacks import frames_of_threads, frames_within, uncollected


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_is_not_collected_in_nested_blocks_and_then_as_before(enabled):
    """The last block restores what was set before the first one."""
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with uncollected():
            with uncollected():
                assert not gc.isenabled()
            assert not gc.isenabled()
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()


class _Garbage:
    """Is freed by a collection only, which it tells: finalizers let other threads run."""

    def __init__(self, freed: list[str]) -> None:
        self.own, self.freed = self, freed

    def __del__(self) -> None:
        self.freed.append("freed")


@pytest.mark.parametrize("collects", [True, False])
def test_nothing_is_collected_while_stacks_are_walked(collects):
    """A collection would let another thread leave the frame that is read, which ended the process up to Python 3.11."""
    freed, thresholds = list[str](), gc.get_threshold()
    gc.set_threshold(1)
    try:
        if not collects:
            gc.disable()
        with ExitStack() as pause:
            pause.enter_context(uncollected())
            with frames_of_threads() as innermost:
                pause.close()  # the cut of a change ends while another thread looks at a stack
                _Garbage(freed)
                kept = [[] for _ in range(100)]
                assert (freed, gc.isenabled()) == ([], False)
        assert threading.get_ident() in innermost
        assert gc.isenabled() == collects
    finally:
        gc.set_threshold(*thresholds)
        gc.enable()
    gc.collect()
    assert freed == ["freed"]
    assert len(kept) == 100


def test_the_stack_within_a_call():
    """The frames of a thread inside of one call, innermost first; none of a thread that does not exist."""
    reached, leave = threading.Event(), threading.Event()

    def entry() -> None:
        inner()

    def inner() -> None:
        reached.set()
        leave.wait(60)

    thread = threading.Thread(target=entry)
    thread.start()
    reached.wait(60)
    names = [frame.f_code.co_name for frame, _ in frames_within(thread.ident, entry.__code__)]
    leave.set()
    thread.join()
    assert names[-1] == "inner"
    assert frames_within(None, entry.__code__) == frames_within(0, entry.__code__) == []
