"""A slet that owns a port, file or device is replaced: the old one closes first, and is reopened if that fails."""

import socket
import threading
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any, Self

import pytest

from exop import Application, Shadow, Slet, input_port, slet
from exop.errors import ExopError, PlanError, SletError
from exop.model.meshes.mesh import Node
from exop.model.slets.slet import spec_of
from exop.wiring.changes import successors
from tests.change.owning import Answering, Listening, Ports, Pushing, Serving, owner
from tests.change.tools import Position, chain, changed, end, endless, grows, plain, stream, whole, writing
from tests.hosts.moving import APP, hosts
from tests.rig import eventually


def test_a_source_closes_before_its_successor_opens(platform):
    """Its items come once and in order; the plan says that the stream waits."""
    ports, seen = Ports(), list[int]()
    old, new = (owner(ports, Listening, name, exclusive=True) for name in ("Old", "New"))
    platform.apply(chain("app", old, writing(seen)).build())
    grows(seen)
    plan = platform.plan(platform.mesh("app").replace("a", new))
    assert "pause → drain → memento → bind → close the old → open → release" in str(plan)
    assert "a opens when the old slet is closed, as only one can be open: the stream pauses for it" in str(plan)
    plan.apply()
    grows(seen)
    assert ports.log == ["open Old 80", "close Old 80", "open New 80"]
    end(platform, "app")
    whole(seen)


@pytest.mark.parametrize("kind", [Serving, Pushing])
@pytest.mark.parametrize("which", ["old", "new", "both"])
def test_one_of_the_two_need_only_say_so(platform, kind, which):
    """A version that lacks the keyword is replaced by one that has it, and the other way round."""
    ports = Ports()
    old = owner(ports, kind, "Old", exclusive=which != "new")
    new = owner(ports, kind, "New", exclusive=which != "old")
    with stream(platform, old) as seen:
        grows(seen)
        changed(platform, "app", lambda mesh: mesh.replace("b", new))
    assert ports.log == ["open Old 80", "close Old 80", "open New 80", "close New 80"][: len(ports.log)]
    assert platform.deployment("app").components["b"].state.count == len(seen)


@pytest.mark.parametrize("kind", [Listening, Serving, Pushing, Answering])
@pytest.mark.parametrize("queued", ["direct", "queue"])
def test_a_successor_that_does_not_open_leaves_the_old_one_open(platform, kind, queued):
    """Another instance of the old slet goes on with its state; nothing is lost; the error says what has happened."""
    ports, seen = Ports(), list[int]()
    old, new = (owner(ports, kind, name, exclusive=True) for name in ("Old", "New"))
    ports.refused = {"New"}
    slets = (old,) if kind in (Listening, Answering) else (endless, old)
    app = chain("app", *slets, writing(seen), **{letter: {} for letter in "abc"})
    platform.apply(app.build())
    node, revision = "ab"[len(slets) - 1], platform.mesh("app").revision
    first = platform.deployment("app").components[node].instance
    grows(seen)
    with pytest.raises(PlanError, match="New is refused") as refused:
        changed(platform, "app", lambda mesh: mesh.replace(node, new))
    assert refused.value.__notes__ == [f"app.{node} was closed for its successor, and is open again, with its state"]
    now = platform.deployment("app").components[node]
    assert type(now.instance) is type(first)
    assert now.instance is not first
    assert platform.mesh("app").revision == revision
    grows(seen)
    ports.refused = set()
    changed(platform, "app", lambda mesh: mesh.replace(node, new))
    grows(seen)
    end(platform, "app")
    whole(seen)
    assert ports.log[:5] == ["open Old 80", "close Old 80", "open Old 80", "close Old 80", "open New 80"]


@pytest.mark.parametrize("given", [True, False])
def test_a_state_is_lost_or_given_once(platform, given):
    """A later change that fails opens the slet again with the state of now, and not with that of the change before."""
    ports, seen = Ports(), list[int]()
    old, new = (owner(ports, Listening, name, exclusive=True) for name in ("Old", "New"))
    platform.apply(chain("app", new, writing(seen)).build())
    grows(seen)
    mesh = platform.mesh("app").replace("a", old, lose_state=True)
    state = platform.memento("app", "a")
    platform.apply(mesh.edited({"a": replace(mesh.node("a"), memento=state)}) if given else mesh)
    eventually(lambda: given or seen[-1] < max(seen), "the stream that begins anew")
    grows(seen)
    ports.refused = {"New"}
    del seen[:-1]
    with pytest.raises(PlanError, match="New is refused"):
        changed(platform, "app", lambda mesh: mesh.replace("a", new))
    grows(seen)
    end(platform, "app")
    assert seen == [*range(seen[0], seen[-1] + 1)]


@pytest.mark.parametrize("cure", ["resume", "replace", "configure"])
@pytest.mark.parametrize("kind", [Listening, Serving, Pushing, Answering])
def test_an_old_slet_that_does_not_reopen_fails_and_is_mended(platform, kind, cure):
    """It is closed with a reason; each cure that the error names works, and so does a setting; nothing is lost."""
    ports, seen = Ports(), list[int]()
    old, new = (owner(ports, kind, name, exclusive=True) for name in ("Old", "New"))
    slets = (old,) if kind in (Listening, Answering) else (endless, old)
    platform.apply(chain("app", *slets, writing(seen)).build())
    node = "ab"[len(slets) - 1]
    grows(seen)
    ports.refused = {"Old", "New"}
    with pytest.raises(PlanError, match="New is refused") as refused:
        changed(platform, "app", lambda mesh: mesh.replace(node, new))
    (note,) = refused.value.__notes__
    assert f"app.{node} was closed for its successor, and does not open again: ComponentFailed: {node} failed" in note
    assert f"`exop resume app.{node}` (platform.resume), or replace it" in note
    facts = platform.status("app")["nodes"][node]
    assert (facts["state"], "Old is refused" in facts["error"]) == ("failed", True)
    with pytest.raises(ExopError, match="Old is refused"):
        platform.resume("app", node)
    assert platform.status("app")["nodes"][node]["state"] == "failed"
    ports.refused = set()
    if cure == "resume":
        platform.resume("app", node)
    elif cure == "replace":
        changed(platform, "app", lambda mesh: mesh.replace(node, new))
    else:
        changed(platform, "app", lambda mesh: mesh.configure(node, port=81))
    grows(seen)
    end(platform, "app")
    whole(seen)


@pytest.mark.parametrize("refused", [set(), {"New"}])
def test_a_push_returns_whose_item_is_held_up_behind_it(platform, refused):
    """A slet that waits for its own push when it closes is replaced; the item waits for the repair without it."""
    ports, seen = Ports(), list[int]()
    old, new = (owner(ports, Answering, name, exclusive=True) for name in ("Old", "New"))
    platform.apply(chain("app", old, plain, writing(seen)).build())
    grows(seen)
    changed(platform, "app", lambda mesh: mesh.suspend("b"))
    driver = platform.deployment("app").components["a"].driver
    eventually(lambda: driver.held_by, "the push in front of the suspended slet")
    ports.refused = refused
    with pytest.raises(PlanError, match="New is refused") if refused else nullcontext():
        changed(platform, "app", lambda mesh: mesh.replace("a", new))
    changed(platform, "app", lambda mesh: mesh.resume("b"))
    grows(seen)
    end(platform, "app")
    whole(seen)


def test_a_suspended_slet_opens_again_suspended(platform):
    """An undone change leaves a suspended node as it was, and `resume` lets its items in."""
    ports = Ports()
    old, new = (owner(ports, Serving, name, exclusive=True) for name in ("Old", "New"))
    with stream(platform, old) as seen:
        grows(seen)
        changed(platform, "app", lambda mesh: mesh.suspend("b"))
        ports.refused = {"New", "Old"}
        with suppress(PlanError):
            changed(platform, "app", lambda mesh: mesh.replace("b", new))
        assert platform.status("app")["nodes"]["b"]["state"] == "failed"
        ports.refused = {"New"}
        platform.resume("app", "b")
        grows(seen)


def test_a_checkpoint_is_taken_while_it_is_closed(tmp_path):
    """What has failed and is closed is asked for nothing; a restart opens it, with its state and what waits for it."""
    ports = Ports()
    old, new = (owner(ports, Serving, name, exclusive=True) for name in ("Old", "New"))
    old.flush = lambda self: ports.owner[self.bound]  # raises if it is closed
    with hosts("h1", slets=(old, new), state=tmp_path) as there:
        there.home.apply(there.line(endless, old, durable=3600.0))
        grows(there.seen)
        ports.refused = {"New", "Old"}
        with pytest.raises(PlanError, match="New is refused"):
            there.apply(lambda mesh: mesh.replace("b", new))
        there.home.checkpoint(APP)
        seen = [*there.seen]
    ports.refused.clear()
    with hosts("h1", slets=(old, new), state=tmp_path) as there:
        grows(there.seen)
        whole([*seen, *there.seen])


def test_a_setting_reopens_it(platform):
    """A slet that owns what its settings name is opened with the new ones; at a point in the stream, it cannot be."""
    ports = Ports()
    with stream(platform, owner(ports, Serving, "Old", exclusive=True)) as seen:
        grows(seen)
        changed(platform, "app", lambda mesh: mesh.configure("b", port=81))
        assert ports.log == ["open Old 80", "close Old 80", "open Old 81"]
        with pytest.raises(PlanError, match="configure it without when="):
            changed(platform, "app", lambda mesh: mesh.configure("b", port=82, when="x > 1000"))
        changed(platform, "app", lambda mesh: mesh.configure("b", port=82))


def test_ports_change_hands_between_nodes(platform):
    """Two nodes swap what they own, and one that is added gets what one that is removed had; or all stays."""
    ports, seen = Ports(), list[int]()
    kind, other = (owner(ports, Serving, name, exclusive=True) for name in ("Old", "New"))
    platform.apply(chain("app", endless, kind, kind, writing(seen), c={"port": 81}).build())
    ports.log.clear()
    changed(platform, "app", lambda mesh: mesh.configure("b", port=81).configure("c", port=80))
    assert sorted(ports.log[:2]) == ["close Old 80", "close Old 81"]
    assert sorted(ports.log[2:]) == ["open Old 80", "open Old 81"]
    grows(seen)
    ports.refused = {"New"}

    def renamed(mesh: Any) -> Any:
        node = Node("e", spec_of(other), {"port": 80}, mesh.nodes["c"].ports)
        return mesh.remove("c").add(node)

    with pytest.raises(PlanError, match="New is refused"):
        changed(platform, "app", renamed)
    grows(seen)
    ports.refused.clear()
    ports.log.clear()
    end(platform, "app")
    whole(seen)


def test_only_what_is_needed_closes_early(platform):
    """One that is added opens beside the stream, and one that is removed closes after the change."""
    ports = Ports()
    kind = owner(ports, Serving, "Old", exclusive=True)
    with stream(platform, plain) as seen:
        mesh = platform.mesh("app")
        plan = platform.plan(mesh.add(Node("d", spec_of(kind), {}, {"x": mesh.nodes["b"].ports["out"]})))
        assert "d opens beside the running stream" in str(plan)
        grows(seen)


def test_what_leaves_gives_way_to_what_comes(platform):
    """One that is added gets what one that is removed in the same change had."""
    ports, seen = Ports(), list[int]()
    old, new = (owner(ports, Listening, name, exclusive=True) for name in ("Old", "New"))
    platform.apply(chain("app", old, writing(seen)).build())
    grows(seen)
    out = platform.mesh("app").nodes["a"].ports["out"]
    changed(platform, "app", lambda mesh: mesh.remove("a").add(Node("z", spec_of(new), {}, {"out": out})))
    assert ports.log == ["open Old 80", "close Old 80", "open New 80"]
    grows(seen)
    end(platform, "app")
    assert 1 in seen[1:], "the other source has begun anew"


def test_trials_and_standbys_are_refused(platform):
    """Two cannot run side by side; a trial with another port can, and the successor takes the port over then."""
    ports = Ports()
    old, new = (owner(ports, Serving, name, exclusive=True) for name in ("Old", "New"))
    with stream(platform, old) as seen:
        grows(seen)
        plan = platform.plan(platform.mesh("app").replace("b", new))
        with pytest.raises(
            PlanError, match=r"exclusive: only one can be open.*divert=.*\), or replace it without a shadow"
        ):
            plan.apply(shadow=Shadow(items=10))
        with pytest.raises(PlanError, match="exclusive: only one can be open.* to go back later, replace it back"):
            plan.apply(keep=10)
        plan.apply(shadow=Shadow(items=10, divert={"port": 81}))
        assert ports.log == ["open Old 80", "open New 81", "close Old 80", "open New 80", "close New 81"]


def test_the_iterator_is_closed_before_the_slet(platform):
    """What a source has opened while it is iterated, such as a connection, is closed first, as at any end."""
    log, seen = [], list[int]()

    class Reading(Slet, exclusive=True):
        position: Position

        def __enter__(self) -> Self:
            log.append("open")
            return self

        def __exit__(self, *exc: object) -> None:
            log.append("close")

        def __iter__(self) -> Iterator[int]:
            log.append("connect")
            try:
                yield from endless(self.position)
            finally:
                log.append("disconnect")

    platform.apply(chain("app", Reading, writing(seen)).build())
    grows(seen)
    changed(platform, "app", lambda mesh: mesh.replace("a", type("Another", (Reading,), {}, name="another")))
    grows(seen)
    end(platform, "app")
    whole(seen)
    once = ["open", "connect", "disconnect", "close"]
    eventually(lambda: log[:6] == [*once, *once[:2]], f"{log}")


@pytest.mark.parametrize("how", ["raises", "hangs"])
def test_an_old_slet_that_does_not_close_is_replaced_if_it_is_out_of_the_way(platform, how):
    """An error at closing is logged; whether the port is free shows when the new one opens."""
    gone, ports = threading.Event(), Ports()

    class Odd(owner(ports, Serving, "Old", exclusive=True), name="odd"):
        def __exit__(self, *exc: object) -> None:
            super().__exit__(*exc)
            if how == "hangs":
                gone.wait(60)
            raise OSError("it is gone")

    with stream(platform, Odd) as seen:
        grows(seen)
        plan = platform.plan(platform.mesh("app").replace("b", owner(ports, Serving, "New", exclusive=True)))
        plan.apply(timeout=0.2)
        gone.set()
        grows(seen)


def test_a_change_that_fails_between_the_two_is_undone(platform, monkeypatch):
    """Whatever happens when the old one is closed and the new one is not open yet, the old one is opened again."""
    ports = Ports()
    old, new = (owner(ports, Serving, name, exclusive=True) for name in ("Old", "New"))

    def fail(name: str) -> None:
        if name == "exclusive-closed":
            raise PlanError("refused in between")

    with stream(platform, old) as seen:
        grows(seen)
        monkeypatch.setattr(successors, "failpoint", fail)
        with pytest.raises(PlanError, match="refused in between"):
            changed(platform, "app", lambda mesh: mesh.replace("b", new))
        grows(seen)
    assert ports.log[:3] == ["open Old 80", "close Old 80", "open Old 80"]


def test_the_state_of_the_old_slet_is_not_touched_by_a_successor_that_fails(platform):
    """It works on a copy: what it has altered before it failed is not in the state of the one that goes on."""
    ports = Ports()
    old = owner(ports, Serving, "Old", exclusive=True)

    class Eager(old, name="eager"):  # type: ignore[valid-type, misc]
        def __enter__(self) -> Self:
            self.served.count += 1000
            raise OSError("refused after all")

    with stream(platform, old) as seen:
        grows(seen)
        with pytest.raises(PlanError, match="refused after all"):
            changed(platform, "app", lambda mesh: mesh.replace("b", Eager))
        grows(seen)


def test_an_undeclared_slet_is_told_of_the_keyword(platform):
    """A successor that finds its port in use names the keyword, and with the keyword it is replaced."""
    ports = Ports()
    with stream(platform, owner(ports, Serving, "Old")) as seen:
        grows(seen)
        for name, traits in (("New", {}), ("New", {"exclusive": True})):
            new = owner(ports, Serving, name, **traits)
            if traits:
                changed(platform, "app", lambda mesh, new=new: mesh.replace("b", new))
                continue
            for how in ({}, {"shadow": Shadow(items=10)}):
                with pytest.raises(PlanError, match="Address already in use") as refused:
                    platform.plan(platform.mesh("app").replace("b", new)).apply(**how)
                assert "write `class New(…, exclusive=True)`: then that closes" in refused.value.__notes__[0]
        grows(seen)


def test_a_real_port_is_handed_over(platform):
    """A source that listens is replaced at its port; one that has nothing to do with ports gives no such hint."""
    seen: list[int] = []

    class Listen(Slet, exclusive=True):
        position: Position
        port: int = 0

        def __enter__(self) -> Self:
            self.socket = socket.create_server(("127.0.0.1", self.port))
            return self

        def __exit__(self, *exc: object) -> None:
            self.socket.close()

        def __iter__(self) -> Iterator[int]:
            yield from endless(self.position)

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    platform.apply(chain("app", Listen, writing(seen), a={"port": port}).build())
    grows(seen)
    changed(platform, "app", lambda mesh: mesh.replace("a", type("Other", (Listen,), {}, name="other")))
    assert platform.deployment("app").components["a"].instance.socket.getsockname()[1] == port
    end(platform, "app")
    whole(seen)


def test_a_generator_function_needs_no_keyword(platform):
    """What it has opened is closed with its generator, before that of its successor begins."""
    log, seen = [], list[int]()

    def reading(name: str) -> Any:
        def read(position: Position) -> Iterator[int]:
            log.append(f"open {name}")
            try:
                yield from endless(position)
            finally:
                log.append(f"close {name}")

        return slet(name=name)(read)

    platform.apply(chain("app", reading("old"), writing(seen)).build())
    grows(seen)
    changed(platform, "app", lambda mesh: mesh.replace("a", reading("new")))
    grows(seen)
    end(platform, "app")
    whole(seen)
    assert log == ["open old", "close old", "open new", "close new"]


def test_a_slet_that_would_lose_its_own_state_is_refused():
    """What closes on the way loses what is in no memento."""
    with pytest.raises(SletError, match="keep the state in a memento, or drop exclusive=True"):

        class Engine(Slet, exclusive=True):
            keeps_own_state = True

            @input_port
            def x(self, x: int) -> int:
                return x

    with pytest.raises(SletError, match="@slet has no option exclusive"):

        @slet(exclusive=True)  # type: ignore[call-overload]
        def function(x: int) -> int:
            return x


def test_a_rebuilt_state_is_refused(platform):
    """A successor cannot catch up with a log while its predecessor has what it needs."""
    seen: list[int] = []
    app = Application("app")
    rows = app.channel("rows", "log", keep="all")
    app.add("a", endless, out=rows)
    app.add("b", plain, x=rows)
    app.add("c", writing(seen), x=app.output("b"))
    platform.apply(app.build())
    new = owner(Ports(), Serving, "New", exclusive=True)
    with pytest.raises(ExopError, match="the old slet is closed before it opens, so it cannot catch up beside it"):
        platform.plan(platform.mesh("app").replace("b", new, rebuild="log"))


@pytest.mark.parametrize("says", [None, True])
def test_an_exclusive_source_does_not_repeat_unless_it_says_so(says):
    """After a restart, requests are others: they do not pass as the events of which a peer has the numbers already."""

    class Asked(Slet, exclusive=True):
        def __iter__(self) -> Iterator[int]:
            yield 1

    class Kept(Asked):
        @classmethod
        def repeats(cls, settings: Any) -> bool:
            """Ask again from a number."""
            return True

    assert Node("a", spec_of(Kept if says else Asked)).repeats() is bool(says)
