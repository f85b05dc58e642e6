"""An opening is measured, and its imports are read from the code; whatever a slet raises at its end, all is closed."""

import _thread
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

import pytest

from exop import Platform, slet
from exop.errors import ComponentFailed
from exop.model.meshes.mesh import Node
from exop.model.slets.slet import Slet, input_port
from exop.runtime.component import Component
from exop.runtime.lifecycle import opens
from exop.runtime.supervision.budget import UserCalls
from tests.change.tools import chain, changed, end, endless, grows, plain, whole, writing
from tests.rig import PATIENCE, line, threads_leave


class Opens(Slet):
    """Has something to open."""

    def __enter__(self) -> Self:
        return self

    @input_port
    def item(self, item: int) -> None:
        """Take one."""


class Plain(Slet):
    """Opens nothing."""

    @input_port
    def item(self, item: int) -> None:
        """Take one."""


@slet
def function(item: int) -> None:
    """Has nothing to open."""


def spec(thing):
    """The specification of a slet."""
    return thing.__slet__


def test_only_a_class_with_an_opening_of_its_own_opens():
    """Functions, and classes without `__enter__`, have nothing to open."""
    assert [opens(spec(one)) for one in (Opens, Plain, function)] == [True, False, False]


def test_the_last_opening_of_a_slet_is_remembered():
    """How long it took, and how much of that was computing; an opening that fails is none."""

    class Broken(Plain):
        """Does not open."""

        def __enter__(self) -> Self:
            raise ValueError("no")

    calls = UserCalls()
    Component("one", "app", Node("node", spec(Plain)), print, user=calls).enter()
    (found,) = calls.opened.values()
    assert found.seconds >= found.computing == 0.0
    component = Component("two", "app", Node("node", Broken.__slet__), print, user=calls)
    with pytest.raises(ComponentFailed, match="no") as failed:
        component.enter()
    assert (failed.value.node, type(failed.value.__cause__)) == ("node", ValueError)
    assert [*calls.opened.values()] == [found]


def test_deploying_and_changing_remember_what_they_open(tmp_path: Path):
    """Every way in which a platform opens a slet counts."""
    app = line(
        "opening", numbers=("stock:count_up", {"to": 3}), write=("stock:write_lines", {"path": tmp_path / "lines"})
    )
    with Platform() as platform:
        platform.apply(app.build())
        written = platform.slets()["stock:write_lines"]
        assert platform.components.user.opened[written.identity].seconds > 0
        platform.wait("opening")


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
