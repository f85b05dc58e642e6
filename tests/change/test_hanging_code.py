"""Code of a slet or channel that hangs where no hook is called: a setting, a copy, an item of a follower, a commit."""

import dataclasses
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from exop import Application, Memento, Platform, Shadow, Slet, hookimpl, input_port, slet
from exop.errors import CheckpointError, ComponentFailed, ExopError, NotCommitted, PlanError, ShadowFailed, StateError
from exop.hooks import Plugins
from exop.runtime.channels.base import DirectChannel
from exop.runtime.drivers.base import current_driver
from exop.wiring.shadow.follower import Follower
from tests.change.test_hanging import GATE, HANGING, SHORT, HangsInCommit, Old, Patient, adding, upgraded, upgrading
from tests.change.test_shadow_engines import Engine, Other, rows
from tests.change.test_shadow_engines import writing as writing_rows
from tests.change.tools import chain, changed, grows, in_thread, plain, plain_too, steady, whole, writing
from tests.rig import PATIENCE, eventually

__all__ = ["upgrading"]


#: The attributes of a slet that hang when they are set.
SLOW: set[str] = set()


class Tuned(Slet):
    """Passes on."""

    kept: Old
    step: int = 1

    def __setattr__(self, name: str, value: object) -> None:
        if name in SLOW:
            GATE.wait(PATIENCE)
        super().__setattr__(name, value)

    @input_port
    def x(self, x: int) -> int:
        """Pass on."""
        return x


class TunedToo(Tuned):
    """The same, by other code."""

    def __post_init__(self) -> None:
        SLOW.update(self.slow)

    slow = ("kept",)


@pytest.mark.parametrize("slow", ["step", "kept"])
def test_an_attribute_that_hangs_when_it_is_set_fails_its_change(slow, upgrading):
    """It is given up after a second; the old slet runs on with the old settings, to which it is set back later."""
    seen: list[int] = []
    SLOW.clear()
    with Platform() as platform:
        platform.apply(chain("app", steady, Tuned, writing(seen)).build())
        component = platform.deployment("app").components["b"]
        mesh = platform.mesh("app").replace("b", TunedToo)
        if slow == "step":
            SLOW.add(slow)
            mesh = platform.mesh("app").configure("b", step=7)
        with pytest.raises(ComponentFailed, match="b failed while taking its settings: it has not returned"):
            platform.apply(mesh)
        grows(seen, 10)
        assert platform.mesh("app").revision == 1
        GATE.set()
        SLOW.clear()
        eventually(lambda: "calls" not in platform.status("app"), "the end of the call")
        assert component.instance.step == 1
        assert component.instance.kept is component.state
        changed(platform, "app", lambda mesh: mesh.configure("b", step=8))
        assert component.instance.step == 8
    whole(seen)


class Uncopied(Memento):
    """A state whose copy hangs."""

    total: int = 0

    def __deepcopy__(self, memo: object) -> "Uncopied":
        GATE.wait(PATIENCE)
        return Uncopied(total=self.total)


@slet
def uncopied(x: int, kept: Uncopied) -> int:
    """Pass on."""
    kept.total += x
    return x


@slet
def uncopied_too(x: int, kept: Uncopied) -> int:
    """Pass on, by other code."""
    return x


def test_a_state_whose_copy_hangs_cannot_be_kept(upgrading):
    """The predecessor that is to run on needs a copy: the change is refused after its time-out."""
    seen: list[int] = []
    with Platform() as platform:
        platform.apply(chain("app", steady, uncopied, writing(seen)).build())
        grows(seen, 10)
        with pytest.raises(ComponentFailed, match="b failed while taking the memento: it has not returned"):
            platform.plan(platform.mesh("app").replace("b", uncopied_too)).apply(timeout=SHORT, keep=60)
        grows(seen, 10)
        assert platform.mesh("app").node("b").slet.name == "uncopied"
    whole(seen)


def test_an_upgrade_that_hangs_before_a_proof_gives_that_up(upgrading, monkeypatch):
    """The successor on trial begins with a state of its own; the stream goes on without it."""
    monkeypatch.setattr("exop.wiring.shadow.follower.Follower.patience", SHORT)
    HANGING.add(1)
    seen: list[int] = []
    with Platform() as platform:
        platform.apply(chain("app", steady, adding, writing(seen)).build())
        with pytest.raises(ComponentFailed, match="b failed while taking over the state: it has not returned"):
            upgraded(platform, timeout=SHORT, shadow=Shadow(items=20))
        grows(seen, 10)
        assert platform.mesh("app").node("b").slet.name == "adding"
    whole(seen)


class Hung:
    """An item whose copy hangs, while the gate is closed."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __deepcopy__(self, memo: object) -> "Hung":
        GATE.wait(PATIENCE)
        return Hung(self.number)


class Odd:
    """A value that hangs when it is compared, while the gate is closed."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return GATE.wait(PATIENCE)


class Unequal(Memento):
    """A state that hangs when it is compared."""

    total: int = 0
    odd: Odd = dataclasses.field(default_factory=Odd)


@slet
def boxing(x: int) -> Hung:
    """Put out items that are copied for a trial."""
    return Hung(x)


@slet
def unboxing(x: Hung) -> int:
    """Take them."""
    return x.number


@slet
def unboxing_too(x: Hung) -> int:
    """Take them, by other code."""
    return x.number


@slet(effects=False)
def unequal(x: int, kept: Unequal) -> None:
    """Keep a state."""
    kept.total += x


@slet(effects=False)
def unequal_too(x: int, kept: Unequal) -> None:
    """Keep a state, by other code."""
    kept.total += x


def test_an_item_whose_copy_hangs_ends_the_trial(upgrading):
    """The stream goes on without the copy after a second, and the call is shown."""
    seen: list[int] = []
    with Platform() as platform:
        platform.apply(chain("app", steady, boxing, unboxing, writing(seen)).build())
        grows(seen, 10)
        with pytest.raises(ShadowFailed, match="an item cannot be copied .*copying an item: it has not returned"):
            platform.plan(platform.mesh("app").replace("c", unboxing_too)).apply(shadow=Shadow(items=20))
        grows(seen, 10)
        assert [call["phase"] for call in platform.status("app")["calls"]] == ["copying an item"]
        GATE.set()
        platform.plan(platform.mesh("app").replace("c", unboxing_too)).apply(shadow=Shadow(items=20))
        grows(seen, 10)
    whole(seen)


def test_a_memento_of_a_sink_that_hangs_when_it_is_compared_ends_the_trial(upgrading):
    """The last comparison, in the cut, has the time-out of the change; the old sink goes on."""
    with Platform() as platform:
        platform.apply(chain("app", steady, unequal).build())
        component = platform.deployment("app").components["b"]
        plan = platform.plan(platform.mesh("app").replace("b", unequal_too))
        with pytest.raises(ComponentFailed, match="b failed while being compared: it has not returned"):
            plan.apply(shadow=Shadow(items=20), timeout=SHORT)
        before = component.state.total
        eventually(lambda: component.state.total > before, "the next items")
        GATE.set()
        plan.apply(shadow=Shadow(items=20))
        assert platform.mesh("app").node("b").slet.name == "unequal_too"


@pytest.mark.parametrize("end", ["its time is over", "abandoned"])
def test_a_comparison_of_engines_that_hangs_ends_the_trial(upgrading, end):
    """It is called by the change itself, which gives it up after the time-out, or when it is abandoned."""
    seen: list[int] = []
    compared = threading.Event()

    def hanging(old: object, new: object) -> bool:
        compared.set()
        return GATE.wait(PATIENCE)

    with Platform() as platform:
        platform.apply(chain("app", rows, Engine, writing_rows(seen, [])).build())
        plan = platform.plan(platform.mesh("app").replace("b", Other))
        timeout = SHORT if end == "its time is over" else PATIENCE

        def refused() -> None:
            with pytest.raises(ComponentFailed, match="b failed while being compared: it "):
                plan.apply(shadow=Shadow(items=20, compare=hanging), timeout=timeout)

        with in_thread(refused):
            assert compared.wait(PATIENCE)
            if end == "abandoned":
                platform.abandon_proof("app")
        grows(seen, 10)
        assert platform.mesh("app").node("b").slet.name == "engine"
    whole(seen)


BACK = threading.Event()


@slet
def behind(x: int) -> int:
    """Pass on; once it is to take over again, come to rest after one item, and hang in the next one."""
    driver = current_driver()
    if BACK.is_set() and isinstance(driver, Follower):
        if threading.current_thread() is driver._thread:
            eventually(lambda: driver.calls)  # the item in which it hangs
            eventually(lambda: driver.attention)
        else:
            GATE.wait(PATIENCE)
    return x


def test_an_item_that_hangs_in_a_follower_while_it_takes_over_fails_that(upgrading, monkeypatch):
    """The last items before the cut are given up after the time-out; the stream goes on as it was."""
    BACK.clear()
    seen: list[int] = []
    with Platform() as platform:
        platform.apply(chain("app", steady, behind, writing(seen)).build())
        platform.plan(platform.mesh("app").replace("b", plain)).apply(keep=60)
        grows(seen, 10)
        BACK.set()
        grows(seen, 1)  # what the predecessor, which follows, gets from now on
        monkeypatch.setattr("exop.wiring.changes.plan.PATIENCE", SHORT)
        with pytest.raises(PlanError, match="b failed while catching up: it has not returned"):
            platform.rollback("app", "b")
        grows(seen, 10)
        assert platform.mesh("app").node("b").slet.name == "plain"
        GATE.set()
    whole(seen)


class Unconfirmed(DirectChannel):
    """A channel that hangs when a checkpoint is committed, or captures it, or that raises when it is committed."""

    kind = "unconfirmed"
    hangs = "committed"

    def capture(self) -> Mapping[str, Any]:
        """Hang, if it is to."""
        if self.hangs == "capture":
            GATE.wait(PATIENCE)
        return {}

    def committed(self) -> None:
        """Hang, or raise."""
        if self.hangs == "raise":
            raise StateError("no space left")
        if self.hangs == "committed":
            GATE.wait(PATIENCE)


class Offered:
    """A plugin: a durable application finds its slets and channels by their names again."""

    @staticmethod
    @hookimpl
    def register_slets() -> list[Any]:
        """The slets of the durable application."""
        return [steady, plain, plain_too, Patient, HangsInCommit]

    @staticmethod
    @hookimpl
    def register_channels() -> list[Any]:
        """Its channel."""
        return [Unconfirmed]


def with_unconfirmed(platform: Platform, app: Application) -> str:
    """Apply an application with such a channel behind `b`; return the channel's name."""
    mesh = app.build()
    channel = mesh.node("b").ports["out"]
    channels = {**mesh.channels, channel: dataclasses.replace(mesh.channels[channel], kind="unconfirmed")}
    platform.apply(dataclasses.replace(mesh, channels=channels))
    return channel


def test_a_channel_that_cannot_commit_keeps_nobody_from_waiting_for_the_sinks(tmp_path, monkeypatch):
    """A sink commits one checkpoint at a time, within the limit, and its error is told."""
    GATE.set()
    app = chain("app", steady, plain, HangsInCommit)
    app.durable(every=3600)
    plugins = Plugins()
    plugins.register("hanging", Offered())
    with Platform(state=tmp_path / "state", control=False, plugins=plugins) as platform:
        channel = with_unconfirmed(platform, app)
        monkeypatch.setattr(Unconfirmed, "hangs", "raise")
        with pytest.raises(NotCommitted, match=f"{channel} could not put out .* no space left"):
            platform.checkpoint("app")
        assert platform.deployment("app").components["c"].committing is None
        monkeypatch.setattr(Unconfirmed, "hangs", "")


def test_a_channel_that_hangs_in_a_checkpoint_does_not_stop_the_application(tmp_path, monkeypatch):
    """A checkpoint is not written, or written and not committed; its error names the channel; changes are made."""
    monkeypatch.setattr("exop.runtime.durable.checkpointer.PATIENCE", SHORT)
    GATE.set()
    app = chain("app", steady, plain, Patient)
    app.durable(every=3600)
    plugins = Plugins()
    plugins.register("hanging", Offered())
    with Platform(state=tmp_path / "state", control=False, plugins=plugins) as platform:
        try:
            channel = with_unconfirmed(platform, app)
            platform.checkpoint("app")
            GATE.clear()
            with pytest.raises(NotCommitted, match=f"{channel} could not .* has not returned"):
                platform.checkpoint("app")
            with pytest.raises(CheckpointError, match=f"{channel} holds it up: .* was given up"):
                platform.checkpoint("app")
            changed(platform, "app", lambda mesh: mesh.replace("b", plain_too))
            GATE.set()
            eventually(lambda: "calls" not in platform.status("app"), "the end of the call")
            platform.checkpoint("app")
            monkeypatch.setattr(Unconfirmed, "hangs", "capture")
            GATE.clear()
            with pytest.raises(ExopError, match=f"{channel} failed while taking the memento: it has not returned"):
                platform.checkpoint("app")
            with pytest.raises(CheckpointError, match=f"{channel} holds it up: .* was given up"):
                platform.checkpoint("app")
            GATE.set()
            eventually(lambda: "calls" not in platform.status("app"), "the end of the call")
            platform.checkpoint("app")
        finally:
            GATE.set()
