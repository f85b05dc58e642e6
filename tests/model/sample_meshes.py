"""Slets and meshes for the tests of the model: a small catalog, and a strategy that makes any mesh of it."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from hypothesis import strategies as st

from exop import InputPort, Memento, Mesh, OutputPort, OutputPorts, Slet, input_port, slet
from exop.model.meshes.mesh import ChannelSpec, Node
from exop.model.slets.slet import spec_of
from exop.model.slets.spec import POLICIES


class Mode(enum.Enum):
    """A setting with choices."""

    FAST = "fast"
    SAFE = "safe"


@dataclass
class Rule:
    """A setting with fields."""

    low: float = 0.0
    name: str | None = None


class Seen(Memento):
    """A state."""

    count: int = 0


@slet
def numbers(seen: Seen, *, to: int = 10, path: Path | None = None, since: datetime | None = None) -> Iterator[int]:
    """A source."""
    yield to


@slet
def double(item: int, *, factor: float = 2.0, limit: int | None = 5, mode: Mode = Mode.FAST) -> int:
    """A slet."""
    return item


@slet
def triple(item: int, seen: Seen, *, factor: float = 3.0, tags: list[str] | None = None) -> int:
    """Another one, with the same ports."""
    return item


@slet
def words(item: str) -> str:
    """A slet for text."""
    return item


class Split(Slet):
    """A slet with a second output."""

    refused: OutputPort[int]
    rules: dict[str, Rule] = field(default_factory=dict)
    wait: timedelta = timedelta(seconds=1)

    @input_port
    def item(self, item: int) -> int | None:
        """Take."""
        return item


class Look(Slet):
    """A slet that reads a table beside its input."""

    table: InputPort[int]

    @input_port
    def item(self, item: int) -> int:
        """Take."""
        return item


class Fan(Slet):
    """A slet with families of ports."""

    to: OutputPorts[int]

    @input_port
    def side(self, side: str, item: int) -> int:
        """Take."""
        return item


@slet
def console(item: int, *, prefix: str = "") -> None:
    """A sink."""


THINGS = (numbers, double, triple, words, console, Split, Look, Fan)
SLETS = {thing.__name__: spec_of(thing).of("demo") for thing in THINGS}
CATALOG = {spec.identity: spec for spec in SLETS.values()}


def node(name: str, slet_name: str, /, *, settings: dict[str, object] | None = None, **ports: str) -> Node:
    """A node of the catalog, configured."""
    spec = SLETS[slet_name]
    return Node(name, spec, spec.configured(name, settings or {}), ports)


def line() -> Mesh:
    """Make numbers -> a -> double -> b -> console."""
    mesh = Mesh("line")
    mesh = mesh.add(node("source", "numbers", out="a"), ChannelSpec("a", "queue", {"capacity": 3}))
    mesh = mesh.add(node("middle", "double", settings={"factor": 4.0}, item="a", out="b"), ChannelSpec("b"))
    return mesh.add(node("sink", "console", item="b"))


names = st.text("abcdefgäß-_.0123456789", min_size=1, max_size=8)
texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=12)
values = {
    "to": st.integers(),
    "path": st.none() | st.text("ab/.", min_size=1).map(Path),
    "since": st.none() | st.datetimes(),
    "factor": st.floats(allow_nan=False),
    "limit": st.none() | st.integers(0, 2**70),
    "mode": st.sampled_from(Mode),
    "tags": st.none() | st.lists(texts, max_size=3),
    "rules": st.dictionaries(texts, st.builds(Rule, st.floats(allow_nan=False), st.none() | texts), max_size=3),
    "wait": st.timedeltas(timedelta(0), timedelta(days=400)),
    "prefix": texts,
}
channel_settings = st.dictionaries(
    st.sampled_from(["capacity", "slide", "key", "ports"]),
    st.integers() | st.booleans() | texts | st.none() | st.lists(texts, max_size=2) | st.just({"n.p": {"count": 3}}),
    max_size=3,
)


@st.composite
def meshes(draw: st.DrawFn, name: str = "demo") -> Mesh:
    """Any mesh of the catalog: types and shape need not make sense, names and settings do."""
    channels = [
        ChannelSpec(key, draw(st.sampled_from(["direct", "queue", "window", "mine"])), draw(channel_settings))
        for key in draw(st.lists(names, unique=True, max_size=4))
    ]
    every = draw(st.none() | st.floats(0.001, 1e6) | st.integers(1, 100))
    called = draw(names) if name == "any" else name
    mesh = Mesh(called, {}, {channel.name: channel for channel in channels}, durable=every)
    for key in draw(st.lists(names, unique=True, max_size=5)):
        spec = draw(st.sampled_from(list(SLETS.values())))
        given = {setting: draw(values[setting]) for setting in spec.settings if draw(st.booleans())}
        possible = [*spec.ports, *(f"{one.family}.{name}" for one in spec.families for name in ("a", "b-1"))]
        ports = {port: draw(st.sampled_from(channels)).name for port in possible if channels and draw(st.booleans())}
        mesh = mesh.add(
            Node(
                key,
                spec,
                spec.configured(key, given),
                ports,
                draw(st.none() | names),
                draw(st.booleans()),
                draw(st.none() | st.sampled_from(POLICIES)),  # type: ignore[arg-type]
            )
        )
    return mesh
