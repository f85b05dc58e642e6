"""What takes long: begun by one call, asked for by others."""

import threading

import pytest

from exop.errors import PlanError, PlatformBusy
from exop.remoting.api.service import ENDED, RUNNING, Tasks


def test_the_result_is_given_out_once() -> None:
    """While the work is under way there is nothing; then its result, or its error, once."""
    tasks = Tasks()
    gate = threading.Event()
    number = tasks.begin(lambda: gate.wait(60) and 7)
    with pytest.raises(TimeoutError):
        tasks[number].result(0.01)
    gate.set()
    assert tasks.take(number).result(30) == 7
    with pytest.raises(PlanError, match=r"nothing of the number .* \(any more\)"):
        tasks.take(number)


def test_its_error_is_its_own() -> None:
    """What the work raises is raised where it is asked for."""

    def fail() -> int:
        raise PlanError("it cannot be")

    tasks = Tasks()
    with pytest.raises(PlanError, match="it cannot be"):
        tasks.take(tasks.begin(fail)).result()


def test_it_is_bounded() -> None:
    """So many run at a time; of those that have ended and that nobody asks for, the oldest make room."""
    tasks = Tasks()
    gate = threading.Event()
    waiting = [tasks.begin(lambda: gate.wait(60) and 1) for _ in range(RUNNING)]
    with pytest.raises(PlatformBusy, match="8 others are under way; try again"):
        tasks.begin(lambda: 1)
    gate.set()
    assert [tasks.take(number).result() for number in waiting] == [1] * RUNNING
    numbers = []
    for _ in range(ENDED + 1):
        numbers.append(tasks.begin(lambda: 2))
        tasks[numbers[-1]].result(30)
    with pytest.raises(PlanError):
        tasks.take(numbers[0])
    assert tasks.take(numbers[-1]).result() == 2
