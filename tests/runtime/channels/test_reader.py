"""Reading a channel of another platform: the interface by reflection, what crosses, and what a cache serves."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from exop.errors import (
    ChannelFull,
    ExpressionError,
    MeshError,
    NotStorable,
    PeerUnreachable,
    PlanError,
    PlatformBusy,
    StillOpening,
    StoredStateError,
    UnknownName,
)
from exop.model.meshes.mesh import ChannelSpec
from exop.model.slets.ports import PortType
from exop.runtime.channels import BUILT_IN, REMOTE, LogChannel, QueueChannel, TableChannel
from exop.runtime.channels.reader import Reader, RemoteChannel, answer, changes_content, interface
from exop.runtime.supervision.budget import Owner, UserCalls
from tests.rig import PATIENCE, eventually
from tests.runtime.rig import Log, joined


@dataclass(frozen=True)
class Car:
    """An item of a class."""

    plate: str
    speed: int


@dataclass(frozen=True)
class Other:
    """A class that no port declares."""

    n: int


def table():
    """A table of cars."""
    channel = TableChannel("cars", key="plate", index=["speed"])
    joined(channel, Log()).push_batch([Car("a", 1), Car("b", 2), Car("c", 2)])
    return channel


def remote(channel, item=Car):
    """The channel as another platform uses it."""
    entry = joined(channel, Log()) if isinstance(channel, QueueChannel) else Log().entry
    return RemoteChannel(
        lambda method, arguments: answer(channel, lambda: entry, [PortType(item)], method, arguments), item
    )


class Emptied(TableChannel):
    """A kind of a plugin, which does not say what its methods do."""

    kind = "emptied"

    def empty(self) -> None:
        """Remove all rows."""


def test_a_method_that_is_not_declared_to_read_needs_the_right_to_write():
    """A kind of a plugin is not open to peers that may only read."""
    assert changes_content(Emptied, "empty")
    assert not changes_content(Emptied, "scan")
    written = {kind.kind: {name for name in interface(kind) if changes_content(kind, name)} for kind in BUILT_IN}
    assert {kind: names - {"push"} for kind, names in written.items() if names - {"push"}} == {
        "table": {"delete"},
        "log": {"trim"},
    }


@pytest.mark.parametrize("kind", REMOTE)
def test_a_connector_answers_no_calls(kind):
    """The methods of the wire, by which events are numbered and acknowledged, are not those of a peer."""
    assert interface(kind) == {}


def test_the_interface_is_what_a_kind_adds_to_every_channel():
    """No method of the life cycle can be called by a peer, and no private one."""
    assert set(interface(TableChannel)) == {"get", "items", "find", "scan", "delete", "query"}
    assert set(interface(QueueChannel)) == {"query", "push"}
    assert [name for name, is_property in interface(LogChannel).items() if is_property]
    for kind in BUILT_IN:
        assert not {"restore", "capture", "close", "exchange", "entry", "wires"} & set(interface(kind))


def test_methods_that_change_the_content_need_the_right_to_write():
    """A peer that may read a table cannot delete its rows."""
    assert changes_content(TableChannel, "delete")
    assert changes_content(LogChannel, "trim")
    assert changes_content(QueueChannel, "push")
    assert not changes_content(TableChannel, "find")


def test_a_table_is_read_by_its_own_methods():
    """Arguments and rows cross with their types."""
    cars = remote(table())
    assert cars.get("a") == Car("a", 1)
    assert cars.get("z", Car("z", 0)) == Car("z", 0)
    assert cars.find(speed=2) == [Car("b", 2), Car("c", 2)]
    assert cars.query("item.speed > 1 and item.plate != 'c'") == [Car("b", 2)]
    assert cars.query("item.speed > 0", 2) == [Car("a", 1), Car("b", 2)]
    assert cars.delete("a") is True
    assert cars.items() == [Car("b", 2), Car("c", 2)]


@pytest.mark.parametrize("method", ["capture", "_keep", "__class__", "nothing", "close"])
def test_other_methods_and_attributes_are_not_called(method):
    """The answer names the methods that there are."""
    with pytest.raises(UnknownName, match="known: delete, find, get, items, query, scan"):
        answer(table(), lambda: Log().entry, [], method, b"\x92\x90\x80")


def test_no_code_crosses():
    """A function is no argument, and a condition calls no methods."""
    with pytest.raises(NotStorable):
        remote(table()).scan(lambda car: True)
    with pytest.raises(ExpressionError, match=r"there is no function 'item.plate.upper'; write upper"):
        remote(table()).query("item.plate.upper() == 'A'")


def test_arguments_and_results_are_of_declared_classes():
    """A peer cannot make the platform build a class that the ports do not declare, nor the other way round."""
    with pytest.raises(StoredStateError, match="not declared"):
        remote(table()).get("z", Other(1))
    stranger = remote(table())
    stranger.declared = RemoteChannel(lambda method, arguments: b"", Other).declared
    with pytest.raises(StoredStateError, match="not declared"):
        stranger.items()


@pytest.mark.parametrize("arguments", [{"wrong": 1}, {"key": ["no key"]}])
def test_arguments_that_do_not_fit_are_an_error_of_the_caller(arguments):
    """The channel is named, and the error of the method is told."""
    with pytest.raises(MeshError, match="the table channel 'cars': get has failed: TypeError"):
        remote(table()).get(**arguments)


def test_a_log_is_pulled_from_its_start_on():
    """Each pull returns the following items; several users do not disturb each other."""
    log = LogChannel("log")
    entry = joined(log, Log())
    entry.push_batch([*range(5)])
    one, other = remote(log, int), remote(log, int)
    assert one.pull(2) == [0, 1]
    assert list(one) == [2, 3, 4]
    assert one.pull() == []
    entry.push(5)
    assert (one.pull(), other.pull()) == ([5], [*range(6)])
    assert one.query("item > 3") == [4, 5]


def test_a_queue_takes_items_until_it_is_full():
    """A peer does not wait for room: all items of one push enter, or none of them."""
    queue = QueueChannel("queue", capacity=3)
    there = remote(queue, int)
    there.push([1, 2])
    with pytest.raises(ChannelFull, match="queue is full"):
        there.push([3, 4])
    there.push([3])
    assert queue.depth == 3


@contextmanager
def reader(channel, cache=False):
    """A reader of a channel at the peer `b`, and whether the peer can be reached."""
    made = Reader("cars.at.b", peer="b", channel="cars", reads=channel.kind, cache=cache)
    peer = {"reached": True}

    def call(peer_name: str, operation: str, **given: Any) -> bytes:
        if not peer["reached"]:
            raise PeerUnreachable(address=peer_name, problem="lost")
        assert (operation, given["application"], given["channel"]) == ("call_channel", "app", "cars")
        return answer(channel, lambda: Log().entry, [PortType(Car)], given["method"], given["arguments"])

    made.call_peer, made.application, made.kinds = call, "app", {kind.kind: kind for kind in BUILT_IN}
    made.asked = ChannelSpec(made.name, "reader", type=PortType(Car))
    made.typed([])
    try:
        yield made, peer
    finally:
        made.close()


def test_a_reader_has_the_methods_of_the_kind_that_it_reads():
    """A pull reads the content; properties are values; what the kind lacks is missing here too."""
    with reader(table()) as (found, _):
        assert found.read("port") == [Car("a", 1), Car("b", 2), Car("c", 2)]
        assert found.get("b") == Car("b", 2)
        assert not hasattr(found, "replay")
    log = LogChannel("log")
    joined(log, Log()).push_batch([1, 2])
    with reader(log) as (found, _):
        assert (found.start, found.end, found.replay(0)) == (0, 2, [1, 2])


def test_a_read_waits_for_a_lost_peer():
    """It goes on when the peer is back, and fails when the channel is closed."""
    with reader(table()) as (found, peer):
        calls = []
        original = found.call_peer

        def call(*given, **named):
            calls.append(1)
            peer["reached"] = len(calls) > 2
            return original(*given, **named)

        found.call_peer = call
        assert found.get("a") == Car("a", 1)
        assert len(calls) >= 3
        found.call_peer = original
        peer["reached"] = False
        with ThreadPoolExecutor() as pool:
            reading = pool.submit(found.get, "a")
            eventually(lambda: found.metrics()["state"].startswith("disconnected") and found.away)
            assert found.away.startswith("'cars' on b: no platform answers at b: lost; start one with `exop serve`")
            assert not found.filled
            found.close()
            with pytest.raises(PeerUnreachable):
                reading.result(PATIENCE)


def test_a_call_that_changes_the_content_is_made_once_when_the_peer_is_back():
    """What finds out that the peer is back only reads, so that the result is that of the one call."""
    channel = table()
    with reader(channel) as (found, peer), ThreadPoolExecutor() as pool:
        peer["reached"] = False
        deleted = pool.submit(found.delete, "a")
        eventually(lambda: found.away)
        peer["reached"] = True
        assert deleted.result(PATIENCE) is True
        assert found.read("port") == [Car("b", 2), Car("c", 2)]


def test_a_call_that_is_given_up_waits_for_no_peer():
    """The limit of opening a slet that reads ends the wait."""
    owner = Owner("app", "node", "app/node")
    with reader(table()) as (found, peer):
        peer["reached"] = False
        call = UserCalls().begin(owner, "opening", lambda: found.get("a"))
        eventually(lambda: found.away)
        call.abandon()
        eventually(lambda: call.over)


def test_an_error_of_the_call_ends_the_wait_for_a_peer():
    """The slet gets it: it is no absence."""
    with reader(table()) as (found, _):
        answers = [PeerUnreachable(address="b", problem="lost"), MeshError("refused"), MeshError("refused")]

        def call(*given, **named):
            raise answers.pop(0)

        found.call_peer = call
        with pytest.raises(MeshError, match="refused"):
            found.get("a")
        assert found.away == ""


@pytest.mark.parametrize(
    "answer",
    [
        PlanError("it is starting"),
        StillOpening(application="app", host="b", opened=0, total=1),
        PlatformBusy(operation="call_channel", problem="too many"),
        UnknownName(place="b", kind="application", name="app", known=[]),
    ],
)
def test_the_peer_of_a_reader_starts_again(answer: Exception):
    """A read waits until the peer has its content again: the slet that reads does not fail meanwhile."""
    with reader(table()) as (found, _):
        answers, original = [answer, answer], found.call_peer

        def call(*given, **named):
            if answers:
                raise answers.pop()
            return original(*given, **named)

        found.call_peer = call
        assert found.get("a") == Car("a", 1)
        assert found.metrics()["state"] == "connected"


def test_a_cache_serves_the_last_result_and_refreshes_it():
    """Also while the peer is away; a call that was never made has no last result."""
    channel = table()
    with reader(channel, cache=True) as (found, peer):
        assert found.get("a") == Car("a", 1)
        channel._keep([Car("a", 9)])
        assert found.get("a") == Car("a", 1)
        eventually(lambda: found.get("a") == Car("a", 9), "the refreshed result")
        peer["reached"] = False
        assert found.get("a") == Car("a", 9)
        eventually(lambda: found.metrics()["state"].startswith("disconnected"))
        assert found.get("a") == Car("a", 9)
        peer["reached"] = True
        eventually(lambda: found.get("a") and found.metrics()["state"] == "connected")


def test_a_window_is_not_read_from_another_host():
    """It belongs to a port; the cure is in the message."""
    with pytest.raises(MeshError, match="place the slet on the host 'b'"):
        Reader("w.at.b", peer="b", channel="w", reads="window")
