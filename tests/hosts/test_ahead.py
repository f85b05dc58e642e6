"""Parts of a state go to another host while the stream runs; the cut has only what has come since."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable
from dataclasses import field
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from exop import Memento
from exop.errors import CallTimeout, ConnectionLost, PlanError
from exop.hosts.moves import ahead
from exop.hosts.moves.ahead import Ahead, free
from exop.model.slets.stored_memento import declared_by, dump_memento, load_memento
from exop.model.values.pieces import LARGE

PLAN = "0123456789ab@a"


class Rows(Memento):
    """A state of columns, some of them inside of collections."""

    name: str = ""
    rows: list[pa.RecordBatch] = field(default_factory=list)
    latest: dict[str, pa.RecordBatch] = field(default_factory=dict)


class Keys(Memento):
    """A state of keys."""

    by_key: dict[int, Any] = field(default_factory=dict)
    lists: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))


class Link:
    """A link that stores what is sent, and loses its connection after so many byte strings."""

    def __init__(self, most: int = 1000) -> None:
        self.stored: dict[int, Any] = {}
        self.most = most

    def send_bytes(self, number: int, data: Any) -> None:
        """Store; an empty byte string is refused by the peer."""
        assert data
        if len(self.stored) >= self.most:
            raise ConnectionLost(address="b", operation="send_bytes", problem="cut")
        self.stored[number] = data

    def take_bytes(self, number: int, timeout: float) -> Any:
        """Take out."""
        if number not in self.stored:
            raise ConnectionLost(address="b", operation="take_bytes", problem="cut")
        return self.stored.pop(number)

    def receiving(self, number: int) -> int:
        """Nothing is incomplete."""
        return 0

    def drop_bytes(self, numbers: range) -> None:
        """Drop."""
        self.stored = {number: data for number, data in self.stored.items() if number not in numbers}


def at_once(action: Callable[[], None]) -> None:
    """Run an action between two items of a slet that rests."""
    action()


def batch(seed: int) -> pa.RecordBatch:
    """A large record batch."""
    return pa.record_batch([np.arange(seed, seed + LARGE // 4)], names=["n"])


def ends(link: Link) -> tuple[Ahead, Ahead]:
    """The sending and the receiving end of one plan."""
    return Ahead(PLAN, lambda: {"b": link}, 1.0), Ahead(PLAN, lambda: {"a": link}, 1.0)


def moved(here: Ahead, there: Ahead, state: Memento) -> tuple[int, Memento]:
    """What the cut sends of a state that was copied, in bytes, and the state at the other host."""
    there.await_parts("a", "n", type(state))
    late, parts = here.rest("n", state)
    there.add("n", type(state), late)
    data = dump_memento(state, "n", parts)
    found = load_memento(data, type(state), "n", declared=declared_by(type(state)), parts=there.parts["n"])
    return len(late) + len(data), found


def test_large_parts_travel_once_and_the_rest_in_the_cut():
    """What has come since the copy is in the cut, and a part that two fields share is sent once."""
    first, link = batch(1), Link()
    state = Rows(name="x", rows=[first, batch(2)], latest={"first": first})
    here, there = ends(link)
    here.copy("b", "n", state, at_once)
    sent = sum(map(len, link.stored.values()))
    assert 2 * first.nbytes < sent < 3 * first.nbytes
    state.rows = [*state.rows[1:], pa.record_batch([[3]], names=["n"])]
    size, found = moved(here, there, state)
    assert size < LARGE
    assert found == state


def test_a_dict_travels_in_pieces_and_the_cut_has_those_that_differ():
    """Whatever the slet does to its dicts between two pieces, the state arrives as it is in the cut, in its order."""
    state, link = Keys(), Link()
    state.by_key.update((key, bytes(1024)) for key in range(2000))
    state.lists.update((str(key), [float(key)] * 100) for key in range(1000))
    work = iter(
        [lambda: state.by_key.pop(7), lambda: state.lists["8"].append(1.0), lambda: state.by_key.update({-1: b""})]
    )

    def between(action: Callable[[], None]) -> None:
        next(work, int)()
        action()

    here, there = ends(link)
    here.copy("b", "n", state, between)
    state.by_key[5], state.lists["new"] = b"new", []
    state.lists["9"].append(2.0)
    size, found = moved(here, there, state)
    assert len(there.parts["n"]) > 40
    assert size < 4 * LARGE
    assert found == state
    assert [*found.by_key] == [*state.by_key]
    assert found.lists.default_factory is list


def test_a_small_state_is_not_copied_ahead():
    """It goes in the cut: one message fewer."""
    here, there = ends(link := Link())
    state = Keys(by_key={1: "one"})
    here.copy("b", "n", state, at_once)
    assert len(link.stored) == 1
    assert moved(here, there, state)[1] == state


def test_a_slet_that_does_not_come_to_rest_is_not_copied_ahead():
    """A pause that fails is logged; the stream goes on, and the cut has all of the state."""

    def never(action: Callable[[], None]) -> None:
        raise PlanError("it does not come to a safe point")

    here, there = ends(Link())
    state = Keys(by_key=dict.fromkeys(range(100), bytes(1024)))
    here.copy("b", "n", state, never)
    size, found = moved(here, there, state)
    assert size > LARGE
    assert found == state


def test_a_dict_that_is_replaced_by_another_one_is_compared_anew():
    """Pieces belong to the field; a field that is no dict any more travels whole."""
    here, there = ends(Link())
    state = Keys(by_key=dict.fromkeys(range(100), bytes(1024)))
    state.lists.update((str(key), [float(key)] * 100) for key in range(1000))
    here.copy("b", "n", state, at_once)
    state.by_key, state.lists = {key: bytes(1024) for key in range(50, 150)}, None
    assert moved(here, there, state)[1] == state


def test_without_a_connection_everything_goes_in_the_cut():
    """A copy that fails is no failure of the change; an unknown host gets nothing ahead."""
    here, there = ends(Link(most=1))
    state = Rows(rows=[batch(1), batch(2)])
    here.copy("b", "n", state, at_once)
    here.copy("c", "n", state, at_once)
    assert here.sent == {}
    assert here.rest("n", state) == (b"", {})
    assert moved(here, there, state)[1] == state
    assert here.send("c", bytes(LARGE)) == bytes(LARGE)


@pytest.mark.parametrize("size", [10, LARGE])
def test_bytes_of_the_cut_go_directly_if_they_are_large(size: int):
    """Small ones are part of the message."""
    here, there = ends(link := Link())
    found = here.send("b", bytes(size))
    assert len(link.stored) == (size == LARGE)
    assert there.receive("a", found) == bytes(size)


def test_what_was_not_taken_is_dropped_at_the_end():
    """Byte strings of an aborted plan do not stay in memory."""
    here, there = ends(link := Link())
    here.copy("b", "n", Rows(rows=[batch(1)]), at_once)
    there.close()
    assert link.stored == {}


def test_a_state_that_has_left_is_freed():
    """Objects of which it was the only owner go at once, without a collection of garbage; others stay."""

    class Large:
        """A value whose end is noticed."""

    shared, own = Large(), [Large() for _ in range(1200)]
    state = Keys(by_key={0: shared} | dict(enumerate(own, 1)))
    ends_of = [weakref.ref(one) for one in own]
    del own
    free(state)
    assert not any(one() for one in ends_of)
    assert vars(state) == {}


def test_many_small_parts_do_not_make_a_message_too_long():
    """Beyond a sum, parts of any size go beside the message; an empty one never does, which a link would refuse."""
    here, there = ends(link := Link())
    found = [here.send("b", bytes(LARGE // 4)) for _ in range(8)] + [here.send("b", b"")]
    assert len(link.stored) == 5
    assert [len(there.receive("a", one)) for one in found] == [LARGE // 4] * 8 + [0]


def test_a_large_part_may_take_longer_than_the_cut(monkeypatch: pytest.MonkeyPatch):
    """It is waited for as long as more of it comes."""
    here, there = ends(link := Link())
    state, takes, late = Rows(rows=[batch(1)]), link.take_bytes, iter(range(3))
    here.copy("b", "n", state, at_once)

    def take(number: int, timeout: float) -> Any:
        if next(late, None) is not None:
            raise CallTimeout(address="a", operation="take_bytes", seconds=timeout)
        return takes(number, timeout)

    monkeypatch.setattr(link, "take_bytes", take)
    monkeypatch.setattr(link, "receiving", partial(next, count(1)))
    monkeypatch.setattr(ahead, "_LONGEST", 0.0)
    there.seconds = 0.0
    assert moved(here, there, state)[1] == state


def test_a_part_that_was_lost_before_it_was_awaited_is_not_waited_for(monkeypatch: pytest.MonkeyPatch):
    """The connection is there again, and tells nothing of the loss: the whole state comes in the cut."""
    link, looks = Link(), iter(range(100))

    def take(number: int, timeout: float) -> Any:
        next(looks)
        raise CallTimeout(address="a", operation="take_bytes", seconds=timeout)

    monkeypatch.setattr(link, "take_bytes", take)
    monkeypatch.setattr(ahead, "_LONGEST", 0.0)
    there = Ahead(PLAN, lambda: {"a": link}, 0.0)
    there.await_parts("a", "n", Rows)
    assert next(looks) == 1
    assert "n" not in there.parts


def test_parts_that_are_lost_are_not_taken_for_those_of_another_node():
    """After a loss, a host takes nothing more ahead from this host."""
    here, there = ends(link := Link())
    here.copy("b", "other", Rows(rows=[batch(1)]), at_once)
    del link.stored[min(link.stored)]
    there.await_parts("a", "n", Rows)
    there.await_parts("a", "other", Rows)
    assert not there.parts["other"]
    assert len(link.stored) == 1
