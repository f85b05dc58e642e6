"""The interpreter of a platform: its lock, its switch interval, and how a change gives way to streams."""

import gc
import json
import sys
import threading

import pytest

from exop import Platform
from exop.cli import main
from exop.errors import PlanError, StateError
from exop.runtime.supervision.interpreter import collect_young, yield_gil


@pytest.mark.parametrize("on", [True, False])
def test_the_youngest_objects_are_collected_unless_the_process_does_without(on):
    """A pause comes right behind it; the collector stays as it is."""
    collected: list[int] = []

    def note(phase: str, told: dict[str, int]) -> None:
        collected.append(told["generation"])

    was = gc.isenabled()
    (gc.enable if on else gc.disable)()
    gc.callbacks.append(note)
    try:
        collect_young()
        assert gc.isenabled() == on
    finally:
        gc.callbacks.remove(note)
        (gc.enable if was else gc.disable)()
    assert (0 in collected) == on


def test_who_gives_way_lets_others_run():
    """Another thread gets on while one gives way."""
    moved = threading.Event()
    thread = threading.Thread(target=moved.set)
    thread.start()
    while not moved.is_set():
        yield_gil()
    thread.join()


@pytest.fixture
def slow_switch():
    """The process has the switch interval of Python itself before the test."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("slow_switch")
def test_the_last_platform_that_closes_restores_the_switch_interval(tmp_path):
    """Platforms share the short interval of the process; the last one, closed in any order, puts the former back."""
    with Platform(state=tmp_path / "one", name="one", control=False) as one:
        other = Platform(name="other").start()
        with pytest.raises(StateError):  # a platform that does not start leaves no trace
            Platform(state=tmp_path / "one", name="third", control=False).start()
        one.close()
        assert sys.getswitchinterval() < 0.005
        other.close()
        assert sys.getswitchinterval() == pytest.approx(0.005)
    assert sys.getswitchinterval() == pytest.approx(0.005)


def test_a_python_without_its_lock_is_refused(capsys, monkeypatch):
    """A platform does not start in a free-threaded Python, says why and what to do, and so does `exop doctor`."""
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    with pytest.raises(PlanError, match=r"without the global interpreter lock.*PYTHON_GIL=1"):
        Platform().start()
    assert main(["doctor", "--json"]) == 1
    python = next(one for one in json.loads(capsys.readouterr().out) if one["subject"] == "Python")
    assert python["verdict"] == "broken"
    assert "free-threaded" in python["fact"]
