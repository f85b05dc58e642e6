"""Nodes and channels move between hosts while items flow: none is lost, doubled or reordered."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest

from exop import Application, InputPort, OutputPort, Slet, input_port, slet
from exop.errors import PlanError, StateError
from exop.hosts.fragment_change import FragmentChange
from exop.hosts.journal import Journal
from exop.hosts.moves.handing import Handing
from exop.runtime.channels.reader import RemoteChannel
from exop.runtime.dataflow.entry import NOWHERE, InFlight, placeholder
from exop.runtime.durable.durability import Durability
from exop.runtime.durable.store import Store
from exop.wiring.changes.change import Change
from exop.wiring.changes.executor import Changes
from tests.change.owning import Ports, Serving, owner
from tests.change.tools import Sum, Tap, count_to, endless, grows, plain, summing, suspended, whole
from tests.hosts.hosts_rig import at_rest
from tests.hosts.moving import APP, Hosts, hosts
from tests.rig import PATIENCE, eventually, parked


@slet
def as_rows(x: int) -> dict[str, int]:
    """Make rows."""
    return {"key": x}


def begin(there: Hosts, *slets, **kinds: str) -> None:
    """Run a line of slets at the home."""
    there.home.apply(there.line(*slets, **kinds))
    grows(there.seen)


@pytest.mark.parametrize("kinds", [{}, {"a": "queue"}, {"b": "queue"}], ids=["direct", "queue before", "queue behind"])
@pytest.mark.parametrize(("node", "places"), [("b", "21"), ("b", "231"), ("a", "21"), ("sink", "231")])
def test_a_node_moves_and_comes_back(node: str, places: str, kinds: dict[str, str]):
    """A slet with state, a source and a sink, with a queue in front of it or behind it, or none."""
    with hosts("h1", "h2", "h3") as there:
        begin(there, endless, summing, **kinds)
        for place in places:
            there.move(f"h{place}", node)
            grows(there.seen)
        with parked(there.home.deployment(APP)):
            so_far = there.component("h1", "b").state
        assert so_far.total == so_far.count * (so_far.count + 1) // 2
        whole([*there.seen])


class Join(Slet):
    """Merge two inputs, and end with the later one."""

    out: OutputPort[int]

    @input_port
    def a(self, x: int) -> None:
        """One stream."""
        self.out.push(x)

    @input_port
    def b(self, x: int) -> None:
        """The other one."""
        self.out.push(x)


def test_a_source_that_has_ended_moves_and_comes_back():
    """No item follows its end; the slet behind it runs on with another stream."""
    tap = Tap()
    with hosts("h1", "h2", slets=(tap.source(), Join)) as there:
        app = Application(APP)
        app.add("short", count_to, to=3, out=app.channel("q", "queue"))
        app.add("sink", there.sink, x=app.add("join", Join, a="q", b=app.add("long", tap.source())))
        there.home.apply(app.build())
        eventually(lambda: there.component("h1", "short").status == "ended")
        eventually(lambda: len(there.seen) == 3)
        for host in ("h2", "h1"):
            there.move(host, "short")
            tap.let(1)
        tap.shut()
        assert there.home.wait(APP, PATIENCE)
        assert sorted(there.seen) == [1, 1, 2, 2, 3]


@slet
def five(x: InputPort[int]) -> Iterator[int]:
    """Pass five items on, and end."""
    for _, one in zip(range(5), x, strict=False):
        yield one


def test_a_source_moves_though_its_consumer_has_ended():
    """To the host of the consumer and of the queue between them, and from there; no other one is connected to it."""
    with hosts("h1", "h2", "h3", slets=(five,)) as there:
        app = Application(APP)
        waits = app.channel("waits", "queue", host="h2")
        app.add("a", endless, out=waits)
        app.add("sink", there.sink, x=app.on("h2").add("five", five, x=waits))
        app.add("keeps", plain, x=app.add("other", endless))
        there.home.apply(app.build())
        eventually(lambda: there.component("h2", "five").has_ended)
        for host in ("h2", "h3"):
            with pytest.raises(PlanError, match=r"the stream has ended at five.x: other.out cannot be connected"):
                there.apply(lambda mesh: mesh.remove("keeps").rewire("other", out="waits").move("other", to="h2"))
            there.move(host, "a")
        eventually(lambda: len(there.seen) == 5)
        assert not there.component("h3", "a").has_ended


def test_the_pause_of_a_change_is_that_of_the_host_that_stops_longest():
    """The status and the history of the home have it; a first deployment has paused nothing."""
    with hosts("h1", "h2") as there:
        there.home.apply(there.line(endless, summing, summing).move("a", to="h2").move("b", to="h2"))
        grows(there.seen)
        status = there.home.status(APP)
        assert [one["last_change"] for one in (status, *status["hosts"].values())] == [None] * 3
        assert all("paused_ms" not in one for host in ("h1", "h2") for one in there.platforms[host].history(APP))
        there.move("h1", "b")
        status = there.home.status(APP)
        longest = max(one["last_change"]["paused_ms"] for one in status["hosts"].values())
        assert status["last_change"] == {"revision": 2, "paused_ms": longest}
        deployed, changed = there.home.history(APP)[-2:]
        assert "paused_ms" not in deployed
        assert changed["paused_ms"] == longest


@pytest.mark.parametrize("names", ["abc", ["a", "b", "c", "sink"]], ids=["some", "all"])
def test_several_nodes_move_at_once(names: Sequence[str]):
    """All of them go to another host and back in one change each; the host that has nothing left forgets it."""
    with hosts("h1", "h2", "h3") as there:
        begin(there, endless, plain, summing)
        for place in ("h2", "h3", "h1"):
            there.move(place, *names)
            grows(there.seen)
        assert there.platforms["h2"].applications() == []
        whole([*there.seen])


def test_a_queue_moves_with_its_content():
    """The consumer at the other host gets what was on its way first, then the content of the queue."""
    with hosts("h1", "h2") as there:
        begin(there, endless, summing, b="queue")
        there.move("h2", "sink")
        grows(there.seen)
        for place in ("h2", "h1", "h2"):
            there.move(place, "bs")
            grows(there.seen)
        there.move("h1", "sink", "bs")
        grows(there.seen)
        whole([*there.seen])


def test_a_table_without_rows_moves_and_is_read():
    """A channel that has a length counts as there when it has no content."""
    tap = Tap()
    with hosts("h1", "h2", slets=(tap.source(), as_rows)) as there:
        app = Application(APP)
        app.add("rows", as_rows, x=app.add("numbers", tap.source()), out=(rows := app.channel("t", "table", key="key")))
        app.add("sink", there.sink, x=rows)
        there.home.apply(app.build())
        for host in ("h2", "h1", "h2"):
            there.move(host, "t")
            assert RemoteChannel(partial(there.platforms[host].call_channel, APP, "t"), dict).items() == []
        tap.let(3)
        tap.shut()
        eventually(lambda: there.home._hosts.homes[APP].finished, "the end")
        assert there.seen == [{"key": number} for number in (1, 2, 3)]


def test_a_failed_slet_moves_with_its_item():
    """The slet there tries the item again, on which it was suspended here."""
    bad = [True]

    @slet
    def careful(x: int, so_far: Sum) -> int:
        if x == 50 and bad:
            raise ValueError("not now")
        so_far.count += 1
        return x

    with hosts("h1", "h2", slets=(careful,)) as there:
        there.home.apply(there.line(endless, careful))
        suspended(there.home, APP, "b")
        bad.clear()
        there.move("h2", "b")
        grows(there.seen)
        whole([*there.seen])


class Refuses(Slet):
    """Fails where it opens, on every host but the first."""

    opened: ClassVar[list[int]] = []
    so_far: Sum

    def __enter__(self) -> Refuses:
        self.opened.append(1)
        if len(self.opened) > 1:
            raise ValueError("not here")
        return self

    @input_port
    def x(self, item: int) -> int:
        """Count."""
        self.so_far.count += 1
        return item


def test_a_target_that_refuses_leaves_the_slet_where_it_was():
    """The error names the host and the reason; the stream has not stopped."""
    Refuses.opened.clear()
    with hosts("h1", "h2", slets=(Refuses,)) as there:
        begin(there, endless, Refuses)
        with pytest.raises(PlanError, match=r"h2: .*not here"):
            there.move("h2", "b")
        grows(there.seen)
        eventually(lambda: there.platforms["h2"].applications() == [], "h2 without applications")
        whole([*there.seen])


def test_a_target_does_not_wait_for_a_source_that_refuses():
    """The source refuses another part of the change, and copies no state ahead: the next change is soon possible."""
    Refuses.opened.clear()
    Refuses.opened.append(1)
    with hosts("h1", "h2", slets=(Refuses,)) as there:
        begin(there, endless, summing)
        refused = there.home.mesh(APP).move("b", to="h2").replace("sink", Refuses)
        with pytest.raises(PlanError, match="not here"):
            there.home.apply(refused, timeout=1e3)

        there.move("h2", "b")  # begins when the refused plan is undone
        grows(there.seen)
        whole([*there.seen])


@pytest.mark.parametrize("side", ["target", "source"])
def test_a_failure_in_the_cut_leaves_the_slet_where_it_was(side: str, monkeypatch: pytest.MonkeyPatch):
    """Whether the source cannot hand over or the target cannot take over: both are as before; the next move is made."""
    name = "take_over" if side == "target" else "hand_over"
    original = getattr(Handing, name)

    def fails(self: Handing, handed: dict[str, Any]) -> Any:
        if self.host == ("h2" if side == "target" else "h1"):
            raise PlanError("it breaks here")
        return original(self, handed)

    with hosts("h1", "h2") as there:
        begin(there, endless, summing)
        monkeypatch.setattr(Handing, name, fails)
        with pytest.raises(PlanError, match="it breaks here"):
            there.move("h2", "b")
        grows(there.seen)
        monkeypatch.undo()
        there.move("h2", "b")
        grows(there.seen)
        whole([*there.seen])


@pytest.mark.parametrize("host", ["h1", "h2"])
def test_a_fragment_whose_slets_still_open_after_a_restart_is_not_changed(host: str):
    """The move is refused until it runs, with the reason."""
    with hosts("h1", "h2") as there:
        begin(there, endless, summing)
        there.move("h2", "a")
        running = there.platforms[host]._applications
        running._manager.opening[APP] = running.deployed.pop(APP)
        with pytest.raises(PlanError, match="is still opening"):
            there.move("h2", "b")
        running.deployed[APP] = running._manager.opening.pop(APP)
        there.move("h2", "b")
        grows(there.seen)
    whole(there.seen)


@pytest.mark.parametrize(("owner", "name"), [(Change, "finish"), (FragmentChange, "_write"), (Changes, "close")])
def test_what_fails_after_the_commit_is_logged_and_the_rest_is_done(
    owner: type, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The host is known to have made the change, and the application finishes."""
    real, failed = getattr(owner, name), list[Any]()

    def fails(self: Any, *given: Any) -> None:
        real(self, *given)
        failed.append(self)
        if len(failed) <= 2:  # at both hosts
            raise OSError("it breaks here")

    with hosts("h1", "h2") as there:
        begin(there, endless, summing)
        monkeypatch.setattr(owner, name, fails)
        there.move("h2", "b")
        there.home.end(APP)
        assert there.home.wait(APP, PATIENCE)
    whole(there.seen)
    assert capsys.readouterr().err.count("a part of what follows it has failed: OSError: it breaks here") == 2


@pytest.mark.parametrize(("owner", "name"), [(Store, "save"), (Journal, "keep"), (Store, "set_active")])
def test_what_a_full_disk_does_not_take_after_the_commit_is_stored_when_there_is_room(
    owner: type, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """A restart knows the fragment that has come, and nothing of one that has left."""
    real, full = getattr(owner, name), list[str]()

    def fails(self: Any, *given: Any, **named: Any) -> Any:
        if threading.current_thread().name == f"exop {APP} change" and len(full) < 3:
            full.append(name)
            raise StateError("the disk is full")
        return real(self, *given, **named)

    with hosts("h1", "h2", state=tmp_path) as there, ExitStack() as stack:
        begin(there, endless, summing, durable=0.05)
        if name == "set_active":
            there.move("h2", "b")
        monkeypatch.setattr(owner, name, fails)
        there.move("h1" if name == "set_active" else "h2", "b")
        participant = there.platforms["h2"]._hosts.exchange.of(APP).participant
        eventually(lambda: len(full) == 3 and not participant.is_alive(), "it is stored")
        there.platforms["h2"].close()
        there.platforms["h2"] = again = stack.enter_context(there.platform("h2"))
        again.remoting.connect("inproc:h1")
        grows(there.seen)
        assert again.applications() == [APP] * (name != "set_active")
    whole(there.seen)


class Owning(Slet, exclusive=True):
    """Owns something that there is only once, also for platforms on one machine."""

    so_far: Sum
    log: ClassVar[list[str]] = []
    refused: ClassVar[bool] = False

    def __enter__(self) -> Self:
        assert not self.log or self.log[-1] != "open", "another one is open"
        if self.refused and len(self.log) % 4 == 2:  # the first one that opens after a close
            self.log += ["refused", "closed"]
            raise OSError("not here")
        self.log.append("open")
        return self

    def __exit__(self, *exc: object) -> None:
        self.log.append("closed")

    @input_port
    def x(self, x: int) -> int:
        """Count."""
        self.so_far.count += 1
        assert x == self.so_far.count
        return x


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("where", ["target", "source", "nowhere"])
def test_an_exclusive_slet_closes_before_it_opens_elsewhere(
    where: str, durable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """If it does not open there, or the change fails after that, it is opened here again, with its state."""
    Owning.log.clear()
    original = Handing.hand_over

    def fails(self: Handing, handed: dict[str, Any]) -> Any:
        if self.host == "h1":
            raise PlanError("not here")
        return original(self, handed)

    with hosts("h1", "h2", slets=(Owning,), state=tmp_path if durable else None) as there:
        there.home.apply(there.line(endless, Owning, durable=0.05 if durable else None))
        grows(there.seen)
        if where != "nowhere":
            monkeypatch.setattr(Owning, "refused", where == "target")
            monkeypatch.setattr(Handing, "hand_over", fails if where == "source" else original)
            taken = list[str]()
            monkeypatch.setattr(Durability, "changed", lambda self, deployment: taken.append(deployment.name))
            with pytest.raises(PlanError, match="not here"):
                there.move("h2", "b")
            at_rest(*there.platforms.values())  # the change is undone
            monkeypatch.undo()
            assert not taken, "a checkpoint would wait for the end of the change, and the next change for that"
            grows(there.seen)
        there.move("h2", "b")
        grows(there.seen)
        there.move("h1", "b")
        grows(there.seen)
        whole([*there.seen])
    assert Owning.log.count("open") == 3 + (where != "nowhere")


def test_an_exclusive_slet_that_opens_at_neither_host_is_shown_and_resumed():
    """The error names the command that shows it: the slet has failed where it was, and `resume` opens it."""
    ports = Ports()
    one = owner(ports, Serving, "Old", exclusive=True)
    with hosts("h1", "h2", slets=(one,)) as there:
        there.home.apply(there.line(endless, one))
        there.move("h2", "b")
        grows(there.seen)
        ports.refused = {"Old"}
        with pytest.raises(PlanError, match="nothing was changed on any host; see `exop ps`"):
            there.move("h1", "b")
        at_rest(*there.platforms.values())
        facts = there.home.status(APP)["hosts"]["h2"]["nodes"]["b"]
        assert (facts["state"], "Old is refused" in facts["error"]) == ("failed", True)
        ports.refused.clear()
        there.home.resume(APP, "b")
        grows(there.seen)
        whole([*there.seen])


def test_a_target_that_dies_in_the_middle_leaves_the_slet_where_it_was(monkeypatch: pytest.MonkeyPatch):
    """The target is gone before it has taken over: at the deadline the source goes on with its slet, whole."""
    with hosts("h1", "h2") as there:
        begin(there, endless, summing)
        handed_over = Handing.hand_over

        def dies(self: Handing, handed: dict[str, Any]) -> Any:
            found = handed_over(self, handed)
            if self.host == "h1":
                there.platforms["h2"].remoting.close()
            return found

        monkeypatch.setattr(Handing, "hand_over", dies)
        with pytest.raises(PlanError, match="h2"):
            there.home.apply(there.home.mesh(APP).move("b", to="h2"), timeout=3.0)
        grows(there.seen)
        with parked(there.home.deployment(APP)):
            so_far = there.component("h1", "b").state
        assert so_far.total == so_far.count * (so_far.count + 1) // 2
        whole([*there.seen])


@slet
def spread(x: list[int], so_far: Sum) -> Iterator[int]:
    """Pass on the items of windows that follow each other."""
    so_far.count += len(x)
    yield from x


def test_a_slet_moves_together_with_its_windows():
    """The open windows go along; a slet that would leave them behind is refused, and told what else has to move."""
    with hosts("h1", "h2", slets=(spread,)) as there:
        app = Application(APP)
        window = app.channel("as", "window", count=7)
        app.add("a", endless, out=window)
        app.add("sink", there.sink, x=app.add("b", spread, x=window))
        there.home.apply(app.build())
        grows(there.seen)
        for alone in ("b", "as"):
            with pytest.raises(PlanError, match=rf"b\.x and its windows .* `exop move {APP}\.as h2 b`"):
                there.move("h2", alone)
        for host in ("h2", "h1"):
            there.move(host, "b", "as")
            grows(there.seen)
        whole([*there.seen])


def test_a_slet_that_reads_windows_of_another_host_takes_none_over():
    """It is removed, the channel moves, and it is added again: the cure of the refusal, followed."""
    with hosts("h1", "h2", slets=(spread,)) as there:
        app = Application(APP)
        window = app.channel("as", "window", count=7, host="h2")
        app.on("h2").add("a", endless, out=window)
        app.add("sink", there.sink, x=app.add("b", spread, x=window))
        there.home.apply(app.build())
        grows(there.seen)
        for host, alone in (("h1", "as"), ("h2", "b")):
            with pytest.raises(PlanError, match=rf"from another host, .* by `exop remove {APP}\.NODE`; move the"):
                there.move(host, alone)
        for name in ("sink", "b"):
            there.home.apply(there.home.mesh(APP).remove(name))
        there.move("h1", "as")
        assert NOWHERE.endpoint == ""  # no port has windows; what all entries without a target share has no name
        there.home.apply(app.build().move("as", to="h1").at(there.home.mesh(APP).revision))
        grows(there.seen)


def test_what_waits_in_front_of_windows_moves_along():
    """What a move has delivered at the windows, and the slet behind them has not taken, goes along in the next one."""
    with hosts("h1", "h2", "h3", slets=(spread,)) as there:
        app = Application(APP)
        window = app.channel("as", "window", count=7, host="h2")
        app.add("a", endless, out=window)
        app.add("sink", there.sink, x=app.on("h2").add("b", spread, x=window))
        there.home.apply(app.build())
        grows(there.seen)
        there.apply(lambda mesh: mesh.suspend("b"))
        inbox = there.platforms["h2"].deployment(APP).channels["as.from.h1"]
        eventually(lambda: inbox.depth > 100, "items wait")
        there.move("h3", "b", "as")
        inlets = there.platforms["h3"].deployment(APP).inlets
        assert len(inlets.at("into as")) > 90
        there.move("h2", "b", "as")
        there.apply(lambda mesh: mesh.resume("b"))
        grows(there.seen, 2000)
        whole([*there.seen])


@slet
def keyed(x: int) -> tuple[int, int]:
    """Put a key in front of a number."""
    return x % 7, x


@slet
def member(x: tuple[int, int], so_far: Sum) -> tuple[int, int]:
    """Pass on."""
    so_far.count += 1
    return x


@pytest.mark.parametrize("kind", ["direct", "queue", "partitioned_log"])
def test_a_group_moves(kind: str):
    """The members share out what has waited in front of them, as they share all else, wherever their channel is."""
    with hosts("h1", "h2", "h3", slets=(keyed, member)) as there:
        app = Application(APP)
        shared, out = app.channel("as", kind, by="0"), app.channel("bs", "queue")
        app.add("k", keyed, x=app.add("a", endless), out=shared)
        for name in ("b", "c"):
            app.on("h2").add(name, member, group="g", x=shared, out=out)
        app.add("sink", there.sink, x=out)
        there.home.apply(app.build())
        grows(there.seen)
        there.apply(lambda mesh: mesh.suspend("b").suspend("c"))
        inbox = there.platforms["h2"].deployment(APP).channels["as.from.h1"]
        assert inbox.partitioning == there.platforms["h1"].deployment(APP).channels["as"].partitioning
        eventually(lambda: inbox.depth > 100, "items wait")
        there.move("h3", "b", "c")
        there.apply(lambda mesh: mesh.resume("b").resume("c"))
        # The inbox at h2 feeds the channel first, and then the group.
        for host, names in (("h2", ("as", "b", "c")), ("h1", ("as",)), ("h2", ("as",))):
            grows(there.seen, 700)
            there.move(host, *names)
        grows(there.seen, 700)
        seen = [*there.seen]
        for key in range(7):
            numbers = [number for one, number in seen if one == key]
            assert numbers == [*range(key or 7, numbers[-1] + 1, 7)]


def test_a_group_does_not_leave_the_rest_of_a_batch_behind():
    """A batch that has not reached all members that share it waits for a resume: the move is refused until then."""
    with hosts("h1", "h2", "h3", slets=(keyed, member)) as there:
        app = Application(APP)
        shared, out = app.channel("as", by="0"), app.channel("bs", "queue")
        app.add("k", keyed, x=app.add("a", endless), out=shared)
        for name in ("b", "c"):
            app.on("h2").add(name, member, group="g", x=shared, out=out)
        app.add("sink", there.sink, x=out)
        there.home.apply(app.build())
        there.apply(lambda mesh: mesh.suspend("b").suspend("c"))
        batch = [(key, -1) for key in range(7)]
        inlets = there.platforms["h2"].deployment(APP).inlets
        inlets.post([InFlight(placeholder("into as.from.h1"), "push_batch", batch)])
        with pytest.raises(PlanError, match="a part of a batch waits"):
            there.move("h3", "b", "c")
        there.apply(lambda mesh: mesh.resume("b").resume("c"))
        grows(there.seen)
        there.move("h3", "b", "c")
        grows(there.seen)
        assert sorted(one for one in there.seen if one[1] == -1) == batch


def test_a_durable_application_moves(tmp_path: Path):
    """What is on its way is kept until a checkpoint of the receiver contains it; a move delivers it once, too."""
    with hosts("h1", "h2", state=tmp_path) as there:
        there.home.apply(there.line(endless, summing, a="queue", durable=0.2))
        for host in ("h2", "h1", "h2"):
            grows(there.seen)
            there.move(host, "b")
        grows(there.seen)
        whole([*there.seen])


def test_items_that_wait_behind_a_connector_and_are_in_a_checkpoint_move(tmp_path: Path):
    """The sender has forgotten them, since a checkpoint of the receiver contains them: they come from there."""
    with hosts("h1", "h2", state=tmp_path) as there:
        there.home.apply(there.line(endless, summing, a="queue", durable=60.0))
        there.move("h2", "b")
        grows(there.seen)
        there.apply(lambda mesh: mesh.suspend("b"))
        inbox = there.platforms["h2"].deployment(APP).channels["as.from.h1"]
        eventually(lambda: inbox.depth > 100, "items wait")
        there.home.checkpoint(APP)
        outbox = there.home.deployment(APP).channels["as.to.h2"]
        eventually(lambda: outbox.stored()[0] > inbox.waiting()[0], "the sender has forgotten them")
        there.move("h1", "b")
        there.apply(lambda mesh: mesh.resume("b"))
        grows(there.seen)
        whole([*there.seen])


class Hoard(Slet):
    """Keeps items until it is told to emit them."""

    out: OutputPort[int]

    def __enter__(self) -> Self:
        self.waiting: list[int] = []
        return self

    def __exit__(self, *exc: object) -> None:
        """Nothing is open."""

    @input_port
    def x(self, x: int) -> None:
        """Keep."""
        self.waiting.append(x)

    def flush(self) -> None:
        """Emit."""
        self.waiting, waiting = [], self.waiting
        for one in waiting:
            self.out.push(one)


@pytest.mark.parametrize("kind", ["direct", "queue"])
def test_buffered_output_leaves_before_its_slet(kind: str):
    """The slet emits it in the cut, by its old connections, also if its items then go on at another host."""
    with hosts("h1", "h2", slets=(Hoard,)) as there:
        there.home.apply(there.line(endless, Hoard, b=kind))
        for source, target in (("h1", "h2"), ("h2", "h1"), ("h1", "h2")):
            hoard = there.component(source, "b").instance
            eventually(lambda hoard=hoard: len(hoard.waiting) > 10, "items wait")
            so_far = len(there.seen)
            there.move(target, "b")
            eventually(lambda so_far=so_far: len(there.seen) > so_far, "they have been emitted")
        whole([*there.seen])
