"""Ctrl-C in the main thread while another one carries a change out."""

import _thread
import signal
import threading
from typing import Any

import pytest

from exop.runtime.supervision.interrupts import PATIENCE, check_interrupt, held, interrupted, uninterrupted, woken
from tests.rig import PATIENCE as SECONDS
from tests.rig import eventually


@pytest.fixture
def interrupts():
    """Notes the interrupts that have come, each of which is raised as ever."""
    come: list[int] = []

    def note(number: int, frame: Any) -> None:
        come.append(number)
        signal.default_int_handler(number, frame)

    before = signal.signal(signal.SIGINT, note)
    yield come
    signal.signal(signal.SIGINT, before)


def test_it_is_done_in_another_thread_and_the_result_comes_back():
    """The main thread carries nothing out; any other thread does it itself, for nothing interrupts that one."""

    @uninterrupted
    def where(*, name: str) -> tuple[str, threading.Thread]:
        return name, threading.current_thread()

    name, thread = where(name="a")
    assert name == "a"
    assert thread is not threading.main_thread()
    found: list[threading.Thread] = []
    other = threading.Thread(target=lambda: found.append(where(name="b")[1]))
    other.start()
    other.join(SECONDS)
    assert found == [other]


def test_an_error_of_it_is_raised():
    """As if it had been called."""

    @uninterrupted
    def fails() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fails()


def test_an_interrupt_is_met_once_where_the_change_looks_for_it():
    """It is raised there, the undoing is left alone, and the main thread gets it when all is over."""
    steps: list[str] = []

    @uninterrupted
    def change() -> None:
        _thread.interrupt_main()
        eventually(interrupted, "the interrupt")
        try:
            check_interrupt()
        except KeyboardInterrupt:
            _thread.interrupt_main()
            check_interrupt()  # the second one does not disturb the undoing
            steps.append("undone")
            raise

    with pytest.raises(KeyboardInterrupt):
        change()
    assert steps == ["undone"]


def test_an_interrupt_behind_the_decision_comes_when_the_change_is_made():
    """The change is completed."""
    steps: list[str] = []

    @uninterrupted
    def change() -> None:
        _thread.interrupt_main()
        eventually(interrupted, "the interrupt")
        steps.append("made")

    with pytest.raises(KeyboardInterrupt):
        change()
    assert steps == ["made"]


def test_one_interrupt_too_many_is_raised_at_once(interrupts):
    """What hangs in user code does not make Ctrl-C dead; the thread goes on."""
    go_on, steps = threading.Event(), []

    @uninterrupted
    def hangs() -> None:
        for number in range(PATIENCE + 1):
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            eventually(lambda number=number: len(interrupts) > number, "the handler")
        assert go_on.wait(SECONDS)
        steps.append("over")

    with pytest.raises(KeyboardInterrupt):
        hangs()
    assert not steps
    go_on.set()
    eventually(lambda: steps == ["over"], "the end of the change")


def test_whoever_waits_is_woken():
    """A change that waits for a driver looks again when the interrupt comes."""
    news = threading.Condition()

    def wake() -> None:
        with news:
            news.notify_all()

    @uninterrupted
    def waits() -> bool:
        with woken(wake), news:
            threading.Timer(0, _thread.interrupt_main).start()
            return news.wait_for(interrupted, SECONDS)

    with pytest.raises(KeyboardInterrupt):
        waits()


def test_whoever_waits_for_its_turn_gives_up():
    """The lock of another change keeps an interrupt no longer than a moment."""
    turn = threading.RLock()

    @uninterrupted
    def waits() -> None:
        _thread.interrupt_main()
        with held(turn):
            raise AssertionError("it is not its turn")

    with turn, pytest.raises(KeyboardInterrupt):
        waits()


def test_the_handlers_are_what_they_were():
    """Those of the program, whatever has come; one that raises nothing goes on counting."""
    counted: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: counted.append(number))
    try:
        mine = signal.getsignal(signal.SIGINT)
        uninterrupted(lambda: _thread.interrupt_main())()
        eventually(lambda: counted == [signal.SIGINT], "the call of the handler")
        assert signal.getsignal(signal.SIGINT) is mine
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_main_thread_waits_in_no_code_that_an_interrupt_could_break():
    """A wait in Python code, as that of an `Event`, leaves its lock broken for the change when an exception ends it."""
    frames: list[str] = []
    before = signal.signal(signal.SIGINT, lambda _number, frame: frames.append(frame.f_code.co_filename))

    @uninterrupted
    def interrupted() -> None:
        for count in range(1, 21):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            eventually(lambda count=count: len(frames) >= count)

    try:
        interrupted()
    finally:
        signal.signal(signal.SIGINT, before)
    assert set(frames) == {uninterrupted.__code__.co_filename}
