"""Code of a slet that hangs keeps nobody waiting for longer than was said, and is shown until it returns."""

import threading

import pytest

from exop.errors import ComponentFailed
from exop.runtime.supervision.budget import Owner, UserCall, UserCalls
from tests.rig import PATIENCE, eventually


def component() -> Owner:
    """The owner of the code that is called."""
    return Owner("app", "b", "app/b#1")


def test_what_returns_in_time_is_returned_and_what_raises_raises():
    """As if it had been called directly; nothing is shown afterwards."""
    calls = UserCalls()
    assert calls.run(component(), "opening", lambda: 7, PATIENCE) == 7
    with pytest.raises(ZeroDivisionError):
        calls.run(component(), "opening", lambda: 1 // 0, PATIENCE)
    eventually(lambda: not calls.abandoned(component()) and not calls.plain())


def test_a_call_that_hangs_is_given_up_and_shown_until_it_returns():
    """The error says where it is; its late result is not used, and what is to be done about it is done."""
    calls, one, gate, late = UserCalls(), component(), threading.Event(), list[str]()

    def hang() -> int:
        gate.wait(PATIENCE)
        return 7

    with pytest.raises(ComponentFailed, match=r"(?s)b failed while opening: it has not returned within .*in hang"):
        calls.begin(one, "opening", hang, lambda: late.append("closed")).result(0)
    (shown,) = calls.plain("app")
    assert (shown["node"], shown["phase"], shown["given_up"]) == ("b", "opening", True)
    assert "in hang" in shown["stack"]
    assert calls.plain("another") == []
    assert len(calls.abandoned(one)) == 1
    assert not late
    gate.set()
    eventually(lambda: not calls.plain(), "the end of the call")
    assert late == ["closed"]


def test_time_for_which_the_process_stands_still_does_not_count(monkeypatch):
    """A process that is stopped during a call gives the call its time when it goes on."""
    release, now, waits = threading.Event(), [0.0], list[float]()
    call = UserCall(set(), component(), "opening", lambda: release.wait(PATIENCE), bool, bool)
    wait = call._changed.wait

    def stands_still(seconds: float) -> bool:
        waits.append(seconds)
        if len(waits) == 1:
            now[0] += 100.0
            return False
        release.set()
        return wait(PATIENCE)

    monkeypatch.setattr(threading, "_time", lambda: now[0])
    monkeypatch.setattr(call._changed, "wait", stands_still)
    assert call.wait(2.0)


def test_an_application_that_is_gone_waits_for_nothing():
    """Its calls are given up, and those that wait for them go on."""
    calls, gate = UserCalls(), threading.Event()
    call = calls.begin(component(), "opening", lambda: gate.wait(PATIENCE))
    calls.abandon("app")
    with pytest.raises(ComponentFailed, match="app is removed"):
        call.result(PATIENCE)
    gate.set()
