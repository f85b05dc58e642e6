"""What slets say of themselves by `metrics()` is shown without waiting for it."""

import threading
from collections.abc import Iterator

from exop.model.slet import Slet
from exop.runtime.own import OwnFigures
from tests.rig import PATIENCE, eventually


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


def asking() -> int:
    """How many threads wait for figures."""
    return sum(one.name == "exop figures" for one in threading.enumerate())


def test_a_slow_answer_is_not_waited_for(monkeypatch):
    """It says for how long there is none; one question at a time is asked, and the answer is shown when it is there."""
    monkeypatch.setattr("exop.runtime.own.PATIENCE", 0.01)
    LET.clear()
    figures, slow = OwnFigures(), Slow()
    for _ in range(3):
        assert figures.ask(slow)["metrics()"].startswith("has not answered for")
    assert asking() == 1
    LET.set()
    eventually(lambda: figures.ask(slow) == {"rows": 7})


def test_what_raises_ends_nothing():
    """Whatever it is that it raises."""
    figures = OwnFigures()
    eventually(lambda: figures.ask(Raises()) == {"metrics()": "raised SystemExit('no figures')"})


def test_who_has_none_is_not_asked():
    """No thread is made for that."""
    before = asking()
    assert OwnFigures().ask(Silent()) == {}
    assert OwnFigures().ask(None) == {}
    assert asking() == before
