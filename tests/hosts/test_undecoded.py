"""What a host cannot decode, or no port takes, is set aside as bytes: the next items pass; the cure, and a retry."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest

from exop import Application, Batch, DeadLetter, InputPort, Platform, Slet, hookimpl, input_port, slet
from exop.errors import PlanError
from exop.hooks import Plugins
from exop.model.meshes.mesh import Mesh
from exop.model.values.classes import forget
from exop.model.values.encoding import encode
from exop.runtime import component
from exop.runtime.channels import frame_body
from exop.runtime.channels.frame_body import GENERAL, event_of
from exop.runtime.channels.wire import Event, Undecoded
from exop.runtime.lifecycle import State
from exop.runtime.supervision.failure_state import FailedItem
from tests.rig import eventually

UPTO = 40
BAD = frozenset({5, 6, 20, 39})
GOOD = [one for one in range(UPTO) if one not in BAD]
#: What the consumers have seen.
SEEN: list[Any] = []
#: The module of an item, which is not loaded at first.
LATE = "tests.hosts.test_undecoder"


@dataclass
class Thing:
    """An item by whose number a group shares it."""

    real: int


@slet
def numbers() -> Iterator[int | Thing | None]:
    """Count; the stream does not end."""
    yield from range(UPTO)
    while True:
        time.sleep(0.001)
        yield None


@slet
def texts() -> Iterator[int | Thing | str | None]:
    """Send nothing; the stream does not end."""
    while True:
        time.sleep(0.001)
        yield None


@slet
def keeps(item: int | Thing, *, copies: int = 1) -> None:
    """Take numbers."""
    SEEN.extend([item] * copies)


@slet
def keeps_too(item: int | Thing | str) -> None:
    """Take texts, too."""
    SEEN.append(item)


@slet
def batches(item: Batch[int | Thing]) -> None:
    """Take batches of numbers."""
    SEEN.extend(item)


@slet
def letters_too(letter: DeadLetter) -> None:
    """Take what is set aside."""
    SEEN.append(letter)


class Pulls(Slet):
    """Takes numbers by itself."""

    item: InputPort[int | Thing]

    def __iter__(self) -> Iterator[int]:
        for one in self.item:
            SEEN.append(one)
            yield 1


class Shares(Slet):
    """A member of a group."""

    @input_port
    def item(self, item: int | Thing) -> None:
        """Take a number."""
        SEEN.append(item)


class Offered:
    """The slets."""

    def __init__(self, *others: Any) -> None:
        own = (numbers, texts, keeps, keeps_too, letters_too, batches, Pulls, Shares)
        self._slets = {one.__name__: one for one in (*own, *others)}

    @hookimpl
    def register_slets(self) -> list[Any]:
        """All of them."""
        return [*self._slets.values()]


@contextmanager
def pair(*there: Any) -> Iterator[tuple[Platform, Platform]]:
    """Two linked platforms; the second one has other slets of some names."""
    SEEN.clear()
    made = []
    for name in ("a", "b"):
        plugins = Plugins()
        plugins.register("test", Offered(*there if name == "b" else ()))
        made.append(Platform(name=name, control=False, plugins=plugins, listen=f"inproc:{name}"))
    with made[0] as a, made[1] as b:
        b.remoting.connect("inproc:a")
        yield a, b


def text(event: Event) -> Event:
    """An item of another type."""
    return event_of("push", f"text {event.data.hex()}")


def absent(event: Event) -> Event:
    """An item of a class whose module is not loaded here."""
    data = encode(Thing(event.data[0])).replace(encode(f"{__name__}:Thing"), encode(f"{LATE}:Thing"))
    return event._replace(head=GENERAL, data=data)


def sends(monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Event], Event]) -> None:
    """Let connectors send the bad numbers otherwise."""
    forget()
    real = frame_body.item_event
    spoiled = lambda item, at=0.0: spoil(real(item, at)) if item in BAD else real(item, at)  # noqa: E731
    monkeypatch.setattr(frame_body, "item_event", spoiled)


def mesh(slet: Any, host: str, *names: str, **how: Any) -> Mesh:
    """Numbers on a, taken by the slet on b, past a channel on one of the hosts."""
    app = Application("app")
    dead = app.channel("dead") if how.pop("dead", False) else None
    app.add("numbers", numbers, out=(items := app.channel("items", "queue", host=host, **how)))
    for name in names or ("sink",):
        app.on("b").add(name, slet, item=items, group="both" if names else None, dead_letters=dead)
    if dead is not None:
        app.on("b").add("letters", letters_too, letter=dead)
    return app.build()


#: Slets that take the items from the connector, by any kind of port, and one behind a channel.
WAYS = {
    "port": lambda: mesh(keeps, "a"),
    "port whose settings are to change": lambda: mesh(keeps, "a").configure("sink", when="item == 1000", copies=2),
    "channel": lambda: mesh(keeps, "b"),
    "pulled": lambda: mesh(Pulls, "a"),
    "batches": lambda: mesh(batches, "a"),
    "group": lambda: mesh(Shares, "a", "sink", "mate", by="real"),
}


def letters(b: Platform) -> list[FailedItem]:
    """What was set aside, by any node."""
    return [one for node in b.deployment("app").components.values() for one in node.trouble.dead]


def passed(a: Platform, b: Platform) -> list[FailedItem]:
    """The good items have passed in order, all are acknowledged, and the bad ones are set aside."""
    eventually(lambda: len(SEEN) == len(GOOD) and len(letters(b)) == len(BAD), "all")
    assert sorted(SEEN) == GOOD
    halves: list[Any] = [one for name, one in a.deployment("app").channels.items() if ".to." in name]
    eventually(lambda: not any(one.depth for one in halves), "all are acknowledged")
    return letters(b)


@pytest.mark.parametrize("way", WAYS)
def test_items_of_a_class_that_is_loaded_later(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """The cure: import the code there, and retry; before that, a retry sets them aside again."""
    sends(monkeypatch, absent)
    with pair() as (a, b):
        a.apply(WAYS[way]())
        for one in passed(a, b):
            assert f"app.{one.node}.item cannot take an item of another host: the module {LATE} is not" in one.error
            assert f"install the code that has {LATE}, and import it" in one.error
            assert f"and then `exop item retry app.{one.node}`" in one.error
        nodes = sorted({one.node for one in letters(b)})
        monkeypatch.setitem(sys.modules, LATE, late := ModuleType(LATE))
        late.Thing = type("Thing", (Thing,), {"__module__": LATE})  # type: ignore[attr-defined]
        assert sum(b.retry_dead_letters("app", node) for node in nodes) == len(BAD)
        eventually(lambda: len(SEEN) == UPTO, "the others")
        assert sorted(one.real for one in SEEN) == [*range(UPTO)]
        assert letters(b) == []


@pytest.mark.parametrize(("slet", "names", "how"), [(Pulls, (), {}), (Shares, ("sink", "mate"), {"by": "real"})])
def test_what_is_set_aside_goes_to_the_channel_for_it(monkeypatch: pytest.MonkeyPatch, slet: Any, names: Any, how: Any):
    """At once, as behind any other port, and not when the stream ends, which it may never do."""
    sends(monkeypatch, absent)
    with pair() as (a, _):
        a.apply(mesh(slet, "a", *names, dead=True, **how))
        eventually(lambda: len(SEEN) == UPTO, "the letters")
        assert sum(isinstance(one, DeadLetter) for one in SEEN) == len(BAD)


@pytest.mark.parametrize("way", ["port", "channel"])
def test_items_of_another_type(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """The cure: replace what does not take them, or, in front of a channel, what sends it; and retry."""
    sends(monkeypatch, text)
    with pair() as (a, b):
        a.apply(WAYS[way]())
        (node,) = {one.node for one in passed(a, b)}
        assert "it is str, and int | Thing is expected" in letters(b)[0].error
        assert b.retry_dead_letters("app", node) == len(BAD)
        eventually(lambda: len(letters(b)) == len(BAD), "again")
        now = a.mesh("app").replace("sink", keeps_too)
        a.apply(now if way == "port" else now.replace("numbers", texts))
        assert b.retry_dead_letters("app", node) == len(BAD)
        eventually(lambda: len(SEEN) == UPTO, "the others")
        assert SEEN[len(GOOD) :] == [f"text {one:02x}" for one in sorted(BAD)]


@pytest.mark.parametrize("most", [2, 1000])
def test_only_as_many_are_set_aside_as_there_is_room_for(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Then the slet is suspended on the next one, as on an item for which it raises: nothing is dropped."""
    sends(monkeypatch, absent)
    size = len(absent(frame_body.item_event(0)).data) + 2
    monkeypatch.setattr(component, "UNDECODED", 10**6 if most == 2 else 2 * size)
    with pair() as (a, b):
        app = Application("app")
        app.on("b").add("sink", keeps, item=app.add("numbers", numbers), dead_letters=most)
        a.apply(app.build())
        sink: Any = lambda: b.deployment("app").components["sink"]  # noqa: E731
        eventually(lambda: sink().status is State.FAILED or sink().status is State.SUSPENDED, "suspended")
        assert (len(letters(b)), SEEN) == (2, [one for one in range(20) if one not in BAD])
        monkeypatch.setitem(sys.modules, LATE, late := ModuleType(LATE))
        late.Thing = type("Thing", (Thing,), {"__module__": LATE})  # type: ignore[attr-defined]
        b.resume("app", "sink")
        b.retry_dead_letters("app", "sink")
        eventually(lambda: len(SEEN) == UPTO, "the others")
        assert sorted(one.real for one in SEEN) == [*range(UPTO)]


def test_bytes_that_are_malformed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cure: a file has them. Of a frame, whose items have no bounds then, all that comes with them is set aside."""
    sends(monkeypatch, lambda event: event._replace(data=b"\xc1"))
    with pair() as (a, b):
        a.apply(WAYS["port"]())
        eventually(lambda: len(SEEN) + sum(one.item.num_rows for one in letters(b)) == UPTO, "all")
        first = letters(b)[0]
        assert "`exop item export app.sink FILE --dead-letter N` writes them into a file" in first.error
        found = FailedItem.from_bytes(b.export_item("app", "sink", 1)).item
        assert isinstance(found, Undecoded)
        assert b"\xc1" in found.body


def test_a_host_whose_slet_sends_another_type_than_at_home() -> None:
    """The plan is refused before anything runs; the cure: the same release here and there."""

    def other() -> Iterator[str]:
        yield "one"

    other.__name__ = other.__qualname__ = "numbers"
    app = Application("app")
    app.on("b").add("numbers", numbers, out=(items := app.channel("items", host="a")))
    app.add("sink", keeps, item=items)
    why = "numbers.out sends through .* what the home does not expect: items are str"
    with pair(slet(other)) as (a, _), pytest.raises(PlanError, match=why):
        a.apply(app.build())
    with pair() as (a, _):
        a.apply(app.build())
        eventually(lambda: len(SEEN) == UPTO, "all")


def test_what_a_connector_has_set_aside_goes_with_it(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """The log tells it, since no user removes the node; it does not when the platform is closed."""
    sends(monkeypatch, absent)
    told = "a connector ends, and what it has set aside is dropped"
    for moves in (False, True):
        SEEN.clear()
        with pair() as (a, b):
            a.apply(WAYS["channel"]())
            passed(a, b)
            if moves:
                a.apply(a.mesh("app").move("items", to="a"))
                eventually(lambda: told in capsys.readouterr().err, "the log")
        assert told not in capsys.readouterr().err, moves
