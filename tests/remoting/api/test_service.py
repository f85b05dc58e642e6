"""What takes long: begun by one call, asked for by others."""

import threading
from typing import Any, cast

import pytest

from exop.errors import PlanError, PlatformBusy
from exop.remoting.api import service
from exop.remoting.api.service import ENDED, RUNNING, ManagementService


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> ManagementService:
    """A service whose calls for an outcome do not wait long."""
    monkeypatch.setattr(service, "PATIENCE", 0.01)
    return ManagementService(cast(Any, None))


def result(tasks: ManagementService, number: str) -> Any:
    """Ask for the result of a task until there is one."""
    while (found := tasks.outcome(number).result) is None:
        pass
    return found


def test_the_result_is_given_out_once(tasks: ManagementService) -> None:
    """While the work is under way there is nothing; then its result, or its error, once."""
    gate = threading.Event()
    number = tasks._begin(lambda: gate.wait(60) and 7)
    assert tasks.outcome(number).result is None
    gate.set()
    assert result(tasks, number) == 7
    with pytest.raises(PlanError, match=r"nothing of the number .* \(any more\)"):
        tasks.outcome(number)


def test_its_error_is_its_own(tasks: ManagementService) -> None:
    """What the work raises is raised where it is asked for."""

    def fail() -> int:
        raise PlanError("it cannot be")

    with pytest.raises(PlanError, match="it cannot be"):
        result(tasks, tasks._begin(fail))


def test_it_is_bounded(tasks: ManagementService) -> None:
    """So many run at a time; of those that have ended and that nobody asks for, the oldest make room."""
    gate = threading.Event()
    waiting = [tasks._begin(lambda: gate.wait(60) and 1) for _ in range(RUNNING)]
    with pytest.raises(PlatformBusy, match="8 others are under way; try again"):
        tasks._begin(lambda: 1)
    gate.set()
    assert [result(tasks, number) for number in waiting] == [1] * RUNNING
    numbers = []
    for _ in range(ENDED + 1):
        numbers.append(tasks._begin(lambda: 2))
        tasks._tasks.get(numbers[-1]).result(30)
    with pytest.raises(PlanError):
        tasks.outcome(numbers[0])
    assert result(tasks, numbers[-1]) == 2
