"""Whatever a slet raises at its end, everything is closed, and what it has buffered is not lost in silence."""

import _thread
import threading
from collections.abc import Callable

import pytest

from exop import Platform, Slet, input_port
from exop.errors import ComponentFailed
from exop.model.lifecycle import Lifecycle, State
from exop.runtime.budget import UserCalls
from exop.runtime.closing import Visibility
from tests.change.tools import chain, changed, end, endless, grows, plain, whole, writing
from tests.rig import PATIENCE, threads_leave


def bad_at_the_end(error: BaseException, before: Callable[[], object] = lambda: None) -> type[Slet]:
    """A slet that raises *error* when it is closed."""

    class Bad(Slet):
        def __exit__(self, *exc: object) -> None:
            before()
            raise error

        @input_port
        def x(self, x: int) -> int:
            return x

    return Bad


class Unflushed(Slet):
    """One that cannot hand on what it has buffered."""

    def flush(self) -> None:
        """Fail."""
        raise OSError("the disk is full")

    @input_port
    def x(self, x: int) -> int:
        """Pass on."""
        return x


@pytest.mark.parametrize("error", [SystemExit("bye"), GeneratorExit(), ValueError("no")], ids=repr)
def test_everything_is_closed_whatever_one_raises(error):
    """`remove` and `close` come to their end: nothing of the application is left, and nothing of the others runs on."""
    with threads_leave():
        platform = Platform().start()
        seen: list[int] = []
        for name in ("one", "two"):
            platform.apply(chain(name, endless, bad_at_the_end(error), writing(seen)).build())
        platform.apply(chain("three", endless, plain, writing(seen)).build())
        assert platform.remove("one") is True
        assert platform.applications() == ["three", "two"]
        platform.close()
        assert platform.applications() == []


def test_an_interrupt_of_the_main_thread_is_raised_when_all_is_closed():
    """It may be the user's: it is not swallowed, and nothing is left behind either."""
    with threads_leave():
        platform = Platform().start()
        seen: list[int] = []
        met = threading.Event()

        def interrupt() -> None:
            _thread.interrupt_main()
            met.wait(PATIENCE)

        platform.apply(chain("one", endless, bad_at_the_end(ValueError(), interrupt), writing(seen)).build())
        platform.apply(chain("two", endless, plain, writing(seen)).build())
        services = platform.registry
        with pytest.raises(KeyboardInterrupt):
            platform.close()
        met.set()
        assert platform.applications() == []
        assert not services.find(None, "(application=one)")
        assert not services.find(None, "(application=two)")


def test_a_slet_that_cannot_flush_is_replaced_without_its_state():
    """The change is refused with the cure, and everything runs on; told to lose the state, it is made."""
    seen: list[int] = []
    with Platform() as platform:
        platform.apply(chain("app", endless, Unflushed, writing(seen)).build())
        grows(seen, 10)
        with pytest.raises(
            ComponentFailed, match="b failed while flushing: OSError: the disk is full; .*lose_state=True"
        ):
            changed(platform, "app", lambda mesh: mesh.replace("b", plain))
        grows(seen, 10)
        changed(platform, "app", lambda mesh: mesh.replace("b", plain, lose_state=True))
        grows(seen, 10)
        assert platform.mesh("app").node("b").slet.name == "plain"
        end(platform, "app")
    whole(seen)


class Component:
    """As much of a component as visibility looks at: how far it has come, and how often it was made visible."""

    id, status = "app/sink#1", State.ACTIVE
    lifecycle = Lifecycle("app.sink")

    def __init__(self) -> None:
        self.user = UserCalls()
        self.instance = self.runner = self
        self.count = self.rows = self.calls = 0
        self.error: BaseException | None = None
        self.gate = threading.Event()
        self.gate.set()

    def make_visible(self) -> None:
        """Count the call, and hang or fail."""
        self.calls += 1
        self.gate.wait(60)
        if self.error is not None:
            raise self.error


def test_output_is_made_visible_when_the_stream_rests():
    """Once after items have come; an idle stream is not looked after again within the second."""
    sink, visibility = Component(), Visibility(lambda: 5.0)
    for count, calls in ((0, 0), (3, 0), (3, 1), (3, 1), (4, 1), (4, 2), (4, 2)):
        sink.count = count
        visibility.look([sink])
        assert sink.calls == calls


def test_output_is_made_visible_every_second_while_items_come():
    """Also where the stream never rests."""
    now = 0.0
    sink, visibility = Component(), Visibility(lambda: now)
    for tick in range(100):
        now, sink.rows = tick * 0.05, tick
        visibility.look([sink])
    assert sink.calls == 4


def test_output_that_cannot_be_made_visible_is_logged_once(capsys):
    """The thread goes on with the others, and tells again when it has gone well in between."""
    now = 0.0
    bad, good, visibility = Component(), Component(), Visibility(lambda: now)
    good.id = "app/sink#2"
    for number, error in enumerate((OSError("full"), OSError("full"), None, SystemExit("full"))):
        now, bad.error = number * 2.0, error
        visibility.look([bad, good])
    assert good.calls == 3
    assert capsys.readouterr().err.count("output is not visible yet") == 2


def test_a_slet_that_hangs_while_it_makes_its_output_visible_holds_up_nothing_else(monkeypatch):
    """The thread that looks goes on: with the other slets, the figures and the watchdog."""
    monkeypatch.setattr("exop.runtime.closing.VISIBLE_WITHIN", 0.01)
    now = 0.0
    hanging, good, visibility = Component(), Component(), Visibility(lambda: now)
    good.id = "app/sink#2"
    hanging.gate.clear()
    for _ in range(3):
        visibility.look([hanging, good])
        now += 2.0
    assert (hanging.calls, good.calls) == (1, 2)
    hanging.gate.set()
