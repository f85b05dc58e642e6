"""What slets say of themselves by `metrics()` is shown without waiting for it."""

import threading
from collections.abc import Iterator
from typing import Any

from exop.model.meshes.mesh import Node
from exop.model.slets.slet import Slet, spec_of
from exop.remoting.transport.codec import encode_message
from exop.runtime.component import Component
from exop.status import plain
from tests.rig import PATIENCE, collector, eventually


class Slow(Slet):
    """Answers when it is let."""

    def __iter__(self) -> Iterator[int]:
        """No items."""
        return iter(())

    def metrics(self):
        """One figure, at last."""
        LET.wait(PATIENCE)
        return {"rows": 7}


class Raises(Slow):
    """Has no answer."""

    def metrics(self):
        """None at all."""
        raise SystemExit("no figures")


class Silent(Slow):
    """Has none of its own."""

    metrics = Slet.metrics


LET = threading.Event()


def of(cls: type[Slet]) -> Component:
    """A component of this slet."""
    return Component("app/slet#1", "app", Node("slet", spec_of(cls)), lambda _: None)


def asking() -> int:
    """How many threads wait for figures."""
    return sum(one.name.endswith("reporting figures") for one in threading.enumerate())


def test_a_slow_answer_is_not_waited_for(monkeypatch):
    """It says for how long there is none; one question at a time is asked, and the answer is shown when it is there."""
    monkeypatch.setattr("exop.runtime.lifecycle.PATIENCE", 0.01)
    LET.clear()
    slow = of(Slow)
    for _ in range(3):
        assert slow.own_figures()["metrics()"].startswith("has not answered for")
    assert asking() == 1
    LET.set()
    eventually(lambda: slow.own_figures() == {"rows": 7})


class Large(Slow):
    """Says far too much."""

    def metrics(self):
        """One figure that is good, and others that are too long, too deep or too many."""
        deep = []
        for _ in range(3000):
            deep = [deep]
        rest = {str(number): number for number in range(1000)}
        return {"rows": 7, "pair": [1, 2], "deep": deep, "text": "x" * 10**6, "list": [1] * 10**6} | rest


def test_large_figures_keep_no_platform_from_answering():
    """What one slet says is bounded: the status of the platform, and so every command, depends on it."""
    large = of(Large)
    told: list[dict[str, Any]] = []
    eventually(
        lambda: told.append(large.own_figures()) or not told[-1].get("metrics()", "has not").startswith("has not")
    )
    figures = told[-1]
    assert figures["rows"] == 7
    assert figures["list"] == "a list of 1000000 values"
    assert figures["pair"] == [1, 2]
    assert figures["metrics()"] == "has 1005 figures; 200 are shown"
    assert len(encode_message(plain(figures))) < 10_000


def test_what_raises_ends_nothing():
    """Whatever it is that it raises."""
    raises = of(Raises)
    eventually(lambda: raises.own_figures() == {"metrics()": "raised SystemExit('no figures')"})


def test_who_has_none_is_not_asked():
    """No thread is made for that."""
    before = asking()
    assert of(Silent).own_figures() == {}
    assert of(collector([])).own_figures() == {}
    assert asking() == before
