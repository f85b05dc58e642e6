"""Dead letters that go into a channel: all of them, in order, with back-pressure, as values for any slet behind it."""

from collections.abc import Iterator
from typing import Any

import pytest

from exop import Application, Batch, DeadLetter, InputPort, Platform, Slet, hookimpl, slet
from exop.cli.status_text import troubles
from exop.errors import MeshError, PlanError, WiringError
from exop.hooks import Plugins
from exop.model.meshes.mesh import ChannelSpec, Mesh
from exop.model.slets.slet import spec_of
from exop.runtime.catalog import known_slets
from tests.change.offered import offered
from tests.change.tools import PACE, Books, Position, Sum, changed, count_to, finish, plain, suspended, writing
from tests.rig import eventually

LAST = 3000
ODD, EVEN = list(range(1, LAST + 1, 2)), list(range(2, LAST + 1, 2))


@slet
def odd_only(x: int, *, odd: bool = True) -> int:
    """Pass odd numbers on."""
    if odd and x % 2 == 0:
        raise ValueError(f"{x} is even")
    return x


@slet
def odd_only_too(x: int, total: Sum) -> int:
    """The same, by other code, with a state."""
    total.count += 1
    if x % 2 == 0:
        raise ValueError(f"{x} is even")
    return x


@slet
def odd_batch(x: Batch[int]) -> Batch[int]:
    """Pass a batch of odd numbers on."""
    if x[0] % 2 == 0:
        raise ValueError(f"{x[0]} is even")
    return Batch(x)


class OddPulled(Slet):
    """The same as a slet that pulls."""

    x: InputPort[int]

    def __iter__(self) -> Iterator[int]:
        for one in self.x:
            if one % 2 == 0:
                raise ValueError(f"{one} is even")
            yield one


@slet
def in_batches(*, to: int = LAST) -> Iterator[Batch[int]]:
    """Emit 1, 2, 3, … in batches of seven."""
    for first in range(1, to + 1, 7):
        yield Batch(range(first, min(first + 7, to + 1)))


def built(
    slet_: Any, seen: list[int], letters: list[Any], kind: str = "direct", *, source: Any = count_to, **given: Any
) -> Application:
    """A source, a slet `b` that sets even numbers aside, a sink behind it, and one for the letters."""
    app = Application("app")
    bad = app.channel("bad", kind=kind, **given)
    numbers = app.add("a", source, to=LAST)
    app.add("c", writing(seen), x=app.add("b", slet_, x=numbers, dead_letters=bad))
    app.add("d", writing(letters), x=bad)
    return app


def items(letters: list[Any]) -> list[Any]:
    """The items of the letters."""
    return [letter.item for letter in letters]


@pytest.mark.parametrize("kind", ["direct", "queue"])
@pytest.mark.parametrize("source", [count_to, in_batches])
@pytest.mark.parametrize("slet_", [odd_only, odd_only_too, odd_batch])
def test_every_failed_item_goes_into_the_channel(platform, slet_, source, kind):
    """Also beyond the bound of the list, in their order; nothing is kept or dropped."""
    seen, letters = list[int](), list[Any]()
    platform.apply(built(slet_, seen, letters, kind, source=source).build())
    finish(platform, "app")
    whole = slet_ is odd_batch and source is in_batches  # a batch fails as a whole
    found = [x for item in items(letters) for x in item] if slet_ is odd_batch else items(letters)
    assert sorted(seen + found) == list(range(1, LAST + 1))
    assert whole or (seen, found) == (ODD, EVEN)
    status = platform.status("app")["nodes"]["b"]
    assert status["dead_letters"] == {
        "count": 0, "dropped": 0, "first": [], "channel": "bad", "sent": len(letters),
    }  # fmt: skip
    assert not Books().check(platform.deployment("app"))


def test_a_letter_says_what_has_failed(platform):
    """The place, the item, the error with its traceback, and when."""
    seen, letters = list[int](), list[Any]()
    platform.apply(built(odd_only, seen, letters).build())
    finish(platform, "app")
    first = letters[0]
    assert isinstance(first, DeadLetter)
    assert (first.application, first.node, first.port, first.item) == ("app", "b", "x", 2)
    assert first.error == "ValueError: 2 is even"
    assert "odd_only" in first.traceback
    assert first.at > 0


def test_items_of_a_slet_that_pulls(platform):
    """The letter has the items that were pulled last, by port."""
    seen, letters = list[int](), list[Any]()
    platform.apply(built(OddPulled, seen, letters, "queue", capacity=5).build())
    finish(platform, "app")
    assert seen == ODD
    assert items(letters) == [{"x": [x]} for x in EVEN]


def test_a_full_channel_holds_the_slet(platform):
    """Back-pressure as of any output; nothing is lost, doubled or reordered when the reader goes on."""
    seen, letters = list[int](), list[Any]()
    app = built(odd_only, seen, letters, "queue", capacity=5)
    platform.apply(app.build().suspend("d"))
    eventually(lambda: platform.deployment("app").channels["bad"].depth >= 5)
    assert letters == []
    assert len(seen) < LAST // 2
    changed(platform, "app", lambda mesh: mesh.resume("d"))
    finish(platform, "app")
    assert (seen, items(letters)) == (ODD, EVEN)


@pytest.mark.parametrize("source", [count_to, in_batches])
def test_a_reader_of_letters_that_fails_suspends_on_them(platform, source):
    """The driver unwinds out of the call that has failed, and goes on after the repair."""
    seen, letters = list[int](), list[Any]()

    @slet
    def picky(x: DeadLetter, *, picky: bool = True) -> DeadLetter:
        if picky and x.item % 6 == 0:
            raise ValueError("no sixes")
        return x

    app = Application("app")
    bad = app.channel("bad")
    app.add("c", writing(seen), x=app.add("b", odd_only, x=app.add("a", source, to=LAST), dead_letters=bad))
    app.add("d", writing(letters), x=app.add("p", picky, x=bad))
    platform.apply(app.build())
    suspended(platform, "app", "p")
    changed(platform, "app", lambda mesh: mesh.configure("p", picky=False))
    finish(platform, "app")
    assert (seen, items(letters)) == (ODD, EVEN)


def test_slets_share_a_channel(platform):
    """Two slets with drivers of their own: each letter says where it comes from, and each one's come in order."""
    letters, seen = list[Any](), list[int]()
    app = Application("app")
    bad = app.channel("bad")
    for name in ("one", "two"):
        numbers = app.add(f"numbers-{name}", count_to, to=LAST)
        app.add(f"sink-{name}", writing(seen), x=app.add(name, odd_only, x=numbers, dead_letters=bad))
    app.add("d", writing(letters), x=bad)
    platform.apply(app.build())
    finish(platform, "app")
    for name in ("one", "two"):
        assert [one.item for one in letters if one.node == name] == EVEN


def test_an_item_that_a_channel_refuses(platform):
    """The letter of the producer, although the worker of a queue has met the error; it is listed if that has ended."""
    letters = list[Any]()

    @slet
    def untyped(x: int) -> Any:
        return x

    app = Application("app")
    table = app.channel("table", kind="table", key="number")
    bad = app.channel("bad")
    for name in ("one", "two"):  # two drivers meet at the table: a queue stands before it
        app.add(name, untyped, x=app.add(f"numbers-{name}", count_to, to=100), out=table, dead_letters=bad)
    app.add("c", writing([]), x=table)
    app.add("d", writing(letters), x=bad)
    platform.apply(app.build())
    finish(platform, "app")
    listed = [*platform.dead_letters("app", "one"), *platform.dead_letters("app", "two")]
    eventually(lambda: len(letters) + len(listed) == 200)
    assert sorted(items(letters) + items(listed)) == sorted([*range(1, 101)] * 2)
    assert {one.port for one in (*letters, *listed)} == {"out"}


@pytest.mark.parametrize("slet_", [odd_only, odd_batch, OddPulled])
def test_a_letter_that_its_channel_refuses_is_listed(platform, slet_):
    """A letter of the letter would be refused as well, and so on for ever. Behind a `rewire` it is sent again."""
    seen, letters, source = list[int](), list[Any](), Paced(20)
    app = Application("app")
    bad = app.channel("bad", kind="table", key="9")  # of a letter that is no tuple
    app.add("c", writing(seen), x=app.add("b", slet_, x=app.add("a", source.source()), dead_letters=bad))
    app.add("d", writing(letters), x=bad)
    platform.apply(app.build())
    eventually(lambda: len(platform.dead_letters("app", "b")) == 10)
    assert "has no field '9'; it has application, at, error" in platform.dead_letters("app", "b")[0].error
    changed(platform, "app", lambda mesh: mesh.rewire("b", dead_letters=ChannelSpec("good")).rewire("d", x="good"))
    assert platform.retry_dead_letters("app", "b") == 10
    eventually(lambda: len(letters) == 10)
    source.over = True
    finish(platform, "app")
    assert (len(seen), {one.port for one in letters}) == (10, {""} if slet_ is OddPulled else {"x"})


def test_a_channel_that_leads_back(platform):
    """Directly it would call itself, and is refused; through a queue an item is tried again."""
    seen = list[int]()

    @slet
    def item_of(letter: DeadLetter) -> int:
        return int(letter.item) + 1

    def back(kind: str) -> Mesh:
        app = Application("app")
        numbers = app.channel("numbers", kind=kind)
        bad = app.channel("bad")
        app.add("a", count_to, to=10, out=numbers)
        app.add("c", writing(seen), x=app.add("b", odd_only, x=numbers, dead_letters=bad))
        app.add("again", item_of, letter=bad, out=numbers)
        return app.build()

    with pytest.raises(WiringError, match="contains no queue"):
        back("direct")
    platform.apply(back("queue"))
    eventually(lambda: len(seen) == 10)
    assert sorted(seen) == [1, 3, 3, 5, 5, 7, 7, 9, 9, 11]


def test_a_running_slet_gets_a_channel_for_its_letters(platform):
    """`rewire` connects it, a successor keeps it, and what was listed before can still be tried again."""
    seen, letters = list[int](), list[Any]()
    source = Paced(10)
    app = Application("app")
    app.add("c", writing(seen), x=app.add("b", odd_only, x=app.add("a", source.source()), on_error="dead-letter"))
    platform.apply(app.build())
    eventually(lambda: len(platform.dead_letters("app", "b")) == 5)

    def edit(mesh: Mesh) -> Mesh:
        mesh = mesh.rewire("b", dead_letters=ChannelSpec("bad"))
        return mesh.add(type(mesh.nodes["c"])("d", spec_of(writing(letters)), ports={"x": "bad"}))

    changed(platform, "app", edit)
    source.last = 20
    eventually(lambda: items(letters) == [12, 14, 16, 18, 20])
    changed(platform, "app", lambda mesh: mesh.replace("b", odd_only_too))
    assert platform.retry_dead_letters("app", "b") == 5
    eventually(lambda: items(letters)[5:] == [2, 4, 6, 8, 10])
    with pytest.raises(PlanError, match="go into the channel 'bad'"):
        platform.retry_dead_letters("app", "b")
    facts = platform.status("app")["nodes"]["b"]
    assert "10 dead letters went into the channel bad" in troubles(facts, "app.b")
    source.over = True
    finish(platform, "app")


class Paced:
    """Lets a source yield so many numbers, and pause (as a durable one has to) until it is over."""

    def __init__(self, last: int) -> None:
        self.last, self.over = last, False

    def source(self) -> Any:
        """The source: the numbers 1, 2, 3, …"""

        @slet
        def paced(position: Position) -> Iterator[int | None]:
            while position.number < self.last or not self.over:
                if position.number < self.last:
                    position.number += 1
                    yield position.number
                else:
                    PACE.wait(0.001)
                    yield None

        return paced


def test_letters_are_in_the_checkpoint(tmp_path):
    """Those on their way are there after a crash, and no other."""
    seen, letters, source = list[int](), list[Any](), Paced(20)
    slets = {"a": source.source(), "b": odd_only, "c": writing(seen), "d": writing(letters)}

    class Offered:
        """By this, a platform finds the slets again."""

        @hookimpl
        def register_slets(self) -> list[Any]:
            """The slets."""
            return [offered(one, name) for name, one in slets.items()]

    def started() -> Platform:
        plugins = Plugins()
        plugins.register("test", Offered())
        return Platform(plugins=plugins, state=tmp_path).start()

    app = Application("app")
    app.durable(3600.0)
    bad = app.channel("bad", kind="queue", capacity=100)
    app.add("c", slets["c"], x=app.add("b", slets["b"], x=app.add("a", slets["a"]), dead_letters=bad))
    app.add("d", slets["d"], x=bad)
    with started() as platform:
        platform.apply(app.build().suspend("d"))
        eventually(lambda: len(seen) == 10)
        platform.checkpoint("app")
    with started() as platform:
        changed(platform, "app", lambda mesh: mesh.resume("d"))
        source.last, source.over = 40, True
        finish(platform, "app")
    assert seen == list(range(1, 41, 2))
    assert items(letters) == list(range(2, 41, 2))
    assert letters[0].error == "ValueError: 2 is even"


def test_a_topology_file_names_the_channel():
    """Among the ports; read again, it is the same mesh."""
    app = Application("app")
    bad = app.channel("bad", kind="queue")
    numbers = app.add("numbers", "stock:count_up", to=3)
    app.add("again", "stock:pass_on", item=numbers, dead_letters=bad)
    app.add("show", "stock:show", item=bad)
    app.add("lines", "stock:show", item="again")
    mesh = app.build()
    assert mesh.nodes["again"].policy == "dead-letter"
    assert 'dead_letters = "bad"' in mesh.to_toml()
    assert Mesh.from_toml(mesh.to_toml(), known_slets().slets) == mesh


def test_an_engine_is_refused():
    """It pushes from threads of its own: the error says what to give instead."""

    class Engine(Slet, own_driver=True):
        """Drives itself."""

        x: InputPort[int]

    app = Application("app")
    bad = app.channel("bad")
    with pytest.raises(MeshError, match=r"dead_letters=1000"):
        app.add("engine", Engine, x=app.add("a", count_to), dead_letters=bad)


def test_letters_are_of_their_type():
    """What reads the channel must take dead letters."""
    app = Application("app")
    bad = app.channel("bad")
    app.add("b", odd_only, x=app.add("a", count_to), dead_letters=bad)
    with pytest.raises(WiringError, match="DeadLetter"):
        app.add("again", plain, x=bad)
