"""`Slet` classes: fields and methods become ports, settings and state, by the same rules as a function's parameters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import pyarrow as pa
import pytest

from exop import Batch, InputPort, InputPorts, Memento, OutputPort, OutputPorts, Punctuation, Slet, input_port, slet
from exop.errors import SletError
from exop.model.slet import spec_of

ONE = pa.schema([("a", pa.int32())])
TWO = pa.schema([("b", pa.int32())])


class Book(Memento):
    """A state."""

    orders: list[int] = field(default_factory=list)


class Match(Slet):
    """Pair each bid with an ask at or below its price."""

    book: Book
    refused: OutputPort[str]
    rates: InputPort[float]
    depth: int = 10
    tags: list[str] = field(default_factory=list)
    kept: int = field(init=False, default=0)
    known: ClassVar[int] = 3

    def __enter__(self) -> Self:
        """Open."""
        return self

    @input_port
    def bid(self, order: int) -> Iterator[int]:
        """A bid."""
        yield order

    @input_port
    def ask(self, order: str) -> Iterator[str]:
        """An ask."""
        yield order


def test_what_a_class_says():
    """Ports by type or by @input_port, the memento, settings; class variables and `init=False` are the slet's own."""
    spec = spec_of(Match)
    assert [(port.name, str(port.type), port.pulled) for port in spec.inputs] == [
        ("rates", "float", True),
        ("bid", "int", False),
        ("ask", "str", False),
    ]
    assert [(port.name, str(port.type)) for port in spec.outputs] == [("refused", "str"), ("out", "int | str")]
    assert spec.state == ("book", Book)
    assert list(spec.settings) == ["depth", "tags"]
    assert spec.results == {"bid": "many", "ask": "many"}
    assert (spec.name, spec.is_class, spec.iterated, spec.own_driver) == ("match", True, False, False)


def test_ports_stand_in_the_order_in_which_they_are_written():
    """The first method is the first port, also when the alphabet says otherwise."""
    assert [port.name for port in spec_of(Match).inputs][1:] == ["bid", "ask"]


def test_the_docstring_is_the_classs_own():
    """Without a docstring there is no help text: neither the base's nor a generated signature."""
    assert spec_of(Match).doc == "Pair each bid with an ask at or below its price."

    class Silent(Slet):
        @input_port
        def item(self, item: int) -> None:
            """Take."""

    assert spec_of(Silent).doc == ""


def test_a_base_without_ports_is_no_slet_yet():
    """An abstract base may hold settings; given as a slet it is refused with the cure."""

    class Base(Slet):
        depth: int = 1

    with pytest.raises(SletError, match="the class has no port; mark a method with @input_port, or define __iter__"):
        spec_of(Base)


def test_a_subclass_inherits_ports_settings_and_class_keywords():
    """What the base says holds for the subclass: settings, ports, own driver and policies; only the name is its own."""

    class Engine(Slet, own_driver=True, atomic=True, on_error="retry", name="engine"):
        out: OutputPort[int]
        depth: int = 1

    class Fast(Engine, on_error="skip"):
        depth: int = 5

    spec = spec_of(Fast)
    assert (spec.name, spec.own_driver, spec.atomic, spec.on_error) == ("fast", True, True, "skip")
    assert spec.settings["depth"].default == 5
    assert [port.name for port in spec.outputs] == ["out"]


def test_a_source_as_a_class():
    """`__iter__` makes an α-slet; None in its type is a pause, not an item."""

    class Source(Slet):
        def __iter__(self) -> Iterator[int | None]:
            yield 1

    spec = spec_of(Source)
    assert (str(spec.role), spec.iterated, spec.results) == ("alpha", True, {"": "many"})
    assert str(spec.outputs[0].type) == "int"


def test_a_slet_that_pulls_several_inputs():
    """With `__iter__` a class pulls its InputPort fields."""

    class Join(Slet):
        left: InputPort[int]
        right: InputPort[str]

        def __iter__(self) -> Iterator[tuple[int, str]]:
            yield from zip(self.left, self.right, strict=False)

    spec = spec_of(Join)
    assert (str(spec.role), [port.pulled for port in spec.inputs]) == ("pi", [True, True])


def test_families_of_ports():
    """Fields of families, and a method that is told the name of the port, are any number of ports."""

    class Switch(Slet):
        to: OutputPorts[int]
        rates: InputPorts[float]

        @input_port
        def side(self, side: str, item: int) -> str:
            """Take."""
            return side

    spec = spec_of(Switch)
    assert [(port.name, port.direction, str(port.type), port.pulled) for port in spec.families] == [
        ("to.*", "out", "int", False),
        ("rates.*", "in", "float", True),
        ("side.*", "in", "int", False),
    ]
    assert (str(spec.role), [*spec.ports], spec.settings) == ("pi", ["out"], {})
    found = spec.connected(["side.left", "to.a", "rates.x", "other.a", "to.a b", "to"])
    assert [*found.ports] == ["side.left", "rates.x", "out", "to.a"]
    assert found.connected(["to.b"]).connected([]).ports == spec.ports


def test_an_engine_pushes_by_its_fields():
    """With own_driver=True the outputs are fields, `out` among them, and input methods only hand over."""

    class Engine(Slet, own_driver=True):
        out: OutputPort[Annotated[pa.RecordBatch, ONE] | Punctuation]

        @input_port
        def rows(self, rows: pa.RecordBatch | Punctuation) -> None:
            """Hand over."""

    spec = spec_of(Engine)
    out = spec.ports["out"].type
    assert (out.form, out.schema, out.punctuation, spec.own_driver) == ("columns", ONE, True, True)


def test_a_method_may_push_by_out_as_well():
    """A field `out` is the same port by which results leave; its type is the field's."""

    class Both(Slet):
        out: OutputPort[int | str]

        @input_port
        def item(self, item: int) -> int:
            """Take."""
            self.out.push("before")
            return item

    spec = spec_of(Both)
    assert [str(port.type) for port in spec.outputs] == ["int | str"]
    assert spec.results == {"item": "one"}


def test_several_methods_may_return_several_types():
    """What leaves by `out` is the union of what the methods return, control items included."""

    class Both(Slet):
        @input_port
        def a(self, item: int) -> int | None:
            """A."""

        @input_port
        def b(self, item: str) -> str | Punctuation:
            """B."""

    out = spec_of(Both).ports["out"].type
    assert (out.item, out.punctuation) == (int | str, True)


def test_nested_types_are_found():
    """A type that is defined in the class body is known to its annotations."""
    assert spec_of(Nested).state == ("state", Nested.State)


class Nested(Slet):
    """A slet with its types inside."""

    class State(Memento):
        """The state."""

        count: int = 0

    state: State

    @input_port
    def item(self, item: int) -> None:
        """Take."""


def body_untyped_port() -> None:
    """A port without a type."""

    class Wrong(Slet):
        @input_port
        def item(self, item) -> None:
            """Take."""


def body_no_return() -> None:
    """A port without a return annotation."""

    class Wrong(Slet):
        @input_port
        def item(self, item: int):
            """Take."""


def body_two_items() -> None:
    """A port with two parameters."""

    class Wrong(Slet):
        @input_port
        def item(self, item: int, other: int) -> None:
            """Take."""


def body_three_items() -> None:
    """A port with three parameters."""

    class Wrong(Slet):
        @input_port
        def item(self, name: str, item: int, other: int) -> None:
            """Take."""


def body_static() -> None:
    """A port that is no method."""

    class Wrong(Slet):
        @input_port
        @staticmethod
        def item(item: int) -> None:
            """Take."""


def body_async() -> None:
    """A port that is a coroutine."""

    class Wrong(Slet):
        @input_port
        async def item(self, item: int) -> None:
            """Take."""


def body_generator() -> None:
    """A port that yields and does not say so."""

    class Wrong(Slet):
        @input_port
        def item(self, item: int) -> int:
            """Take."""
            yield item


def body_iterated_and_pushed() -> None:
    """A class that is iterated and pushed into."""

    class Wrong(Slet):
        def __iter__(self) -> Iterator[int]:
            yield 1

        @input_port
        def item(self, item: int) -> None:
            """Take."""


def body_iter_untyped() -> None:
    """A source that does not say what it yields."""

    class Wrong(Slet):
        def __iter__(self):
            yield 1


def body_iter_one() -> None:
    """A source that returns one item."""

    class Wrong(Slet):
        def __iter__(self) -> int:  # type: ignore[misc]
            return 1


def body_engine_returns() -> None:
    """An engine whose input method returns something."""

    class Wrong(Slet, own_driver=True):
        out: OutputPort[int]

        @input_port
        def item(self, item: int) -> int:
            """Take."""
            return item


def body_engine_iterated() -> None:
    """An engine that is iterated."""

    class Wrong(Slet, own_driver=True):
        out: OutputPort[int]

        def __iter__(self) -> Iterator[int]:
            yield 1


def body_two_mementos() -> None:
    """Two states."""

    class Wrong(Slet):
        a: Book
        b: Book

        @input_port
        def item(self, item: int) -> None:
            """Take."""


def body_mutable() -> None:
    """A default that instances would share."""

    class Wrong(Slet):
        tags: list[str] = []  # noqa: RUF012

        @input_port
        def item(self, item: int) -> None:
            """Take."""


def body_untyped_default() -> None:
    """A base's setting changed without its type."""

    class Wrong(Match):
        depth = 5


def body_private() -> None:
    """A private field."""

    class Wrong(Slet):
        _file: Any

        @input_port
        def item(self, item: int) -> None:
            """Take."""


def body_forms() -> None:
    """Items by one method and batches by another."""

    class Wrong(Slet):
        @input_port
        def a(self, item: int) -> int:
            """A."""

        @input_port
        def b(self, item: int) -> Batch[int]:
            """B."""


def body_schemas() -> None:
    """Different columns by two methods."""

    class Wrong(Slet):
        @input_port
        def a(self, item: int) -> Annotated[pa.RecordBatch, ONE]:
            """A."""

        @input_port
        def b(self, item: int) -> Annotated[pa.RecordBatch, TWO]:
            """B."""


def body_port_called_like_a_setting() -> None:
    """A name for two things."""

    class Wrong(Slet):
        out: int = 1

        @input_port
        def item(self, item: int) -> int:
            """Take."""


def body_policy() -> None:
    """No such policy."""

    class Wrong(Slet, on_error="ignore"):  # type: ignore[arg-type]
        @input_port
        def item(self, item: int) -> None:
            """Take."""


WRONG = [
    (body_untyped_port, "item is no slet: the parameter 'item' has no type; write `item: T`"),
    (body_no_return, "it says not what it returns; annotate it, with `-> None` for a sink"),
    (body_two_items, "`def port(self, item: T)`, or `def port(self, member: str, item: T)` for a family of ports"),
    (body_three_items, "an input port takes one item; write `def port(self, item: T)`"),
    (body_static, "an input port is a plain method; write `def port(self, item: T)`"),
    (body_async, "an input port is a plain method"),
    (body_generator, "it yields, but its annotation declares one result; write `-> Iterator[T]`"),
    (
        body_iterated_and_pushed,
        "it is iterated, and items are pushed into item: two drivers would meet in it; pull them",
    ),
    (body_iter_untyped, "it says not what it returns"),
    (body_iter_one, "return an Iterator[T]"),
    (body_engine_returns, "item only hands over: what it returns goes nowhere; return None and push by an output port"),
    (body_engine_iterated, "it has a driver of its own, and is iterated as well; drop __iter__, or own_driver=True"),
    (body_two_mementos, "it has two mementos, a and b; put both in one class"),
    (body_mutable, "mutable default <class 'list'> for field tags is not allowed"),
    (
        body_untyped_default,
        "depth is a field of its base, and a value without a type does not change it; write `depth: T",
    ),
    (body_private, "the private field '_file' would be a setting; set it in __enter__"),
    (body_forms, "its methods return several forms (int as item, int as batch); let all return the same"),
    (body_schemas, "its methods return several forms"),
    (body_port_called_like_a_setting, "the name 'out' is taken by the output port of the results"),
    (body_policy, "on_error='ignore' is no policy; use one of suspend, retry, dead-letter, skip"),
]


@pytest.mark.parametrize(("define", "message"), WRONG, ids=lambda v: getattr(v, "__name__", ""))
def test_what_is_no_slet_is_told_at_the_class(define, message):
    """Every wrong class is refused where it is written, in one line that ends with the cure."""
    with pytest.raises(SletError) as caught:
        define()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_class_is_no_function():
    """`@slet` on a Slet class is refused: its base has marked it."""
    with pytest.raises(SletError, match="a class is marked by its base"):
        slet(Match)


def test_a_path_setting_is_a_field():
    """Settings of a class take every type that settings of functions take."""

    class Writer(Slet):
        path: Path

        @input_port
        def item(self, item: int) -> None:
            """Take."""

    assert spec_of(Writer).configured("w", {"path": "x"}) == {"path": Path("x")}
