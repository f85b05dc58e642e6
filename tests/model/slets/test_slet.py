"""`Slet` classes: fields and methods become ports, settings and state, by the same rules as a function's parameters."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self  # noqa: F401 (for the texts below)

import pyarrow as pa
import pytest

from exop import (  # noqa: F401
    Batch,
    InputPort,
    InputPorts,
    Memento,
    OutputPort,
    OutputPorts,
    Punctuation,
    Slet,
    input_port,
    slet,
)
from exop.errors import SletError
from exop.model.slets.slet import spec_of

ONE = pa.schema([("a", pa.int32())])
One = Annotated[pa.RecordBatch, ONE]
Two = Annotated[pa.RecordBatch, pa.schema([("b", pa.int32())])]


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
    """A field `out` is the same port by which results leave; its type is the union of the field's and theirs."""

    class Both(Slet):
        out: OutputPort[str]

        @input_port
        def item(self, item: int) -> int:
            """Take."""
            self.out.push("before")
            return item

    spec = spec_of(Both)
    assert [str(port.type) for port in spec.outputs] == ["str | int"]
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


#: The body of a class, or what stands behind its name and its body; and the error.
WRONG = [
    (
        "(Slet, own_drver=True)\na: int",
        "the class has no keyword own_drver; use name, own_driver, exclusive, atomic, on_error,",
    ),
    ("@input_port\ndef item(self, item) -> None: ...", "the parameter 'item' has no type; write `item: T`"),
    (
        "@input_port\ndef item(self, item: int): ...",
        "it has no return annotation; write one, `-> None` for a sink",
    ),
    (
        "@input_port\ndef item(self, item: int, other: int) -> None: ...",
        "`def port(self, item: T)`, or `def port(self, member: str, item: T)` for a family of ports",
    ),
    (
        "@input_port\ndef item(self, name: str, item: int, other: int) -> None: ...",
        "an input port takes one item; write `def port(self, item: T)`",
    ),
    (
        "@input_port\n@staticmethod\ndef item(item: int) -> None: ...",
        "an input port is a plain method; write `def port(",
    ),
    ("@input_port\nasync def item(self, item: int) -> None: ...", "an input port is a plain method"),
    ("@input_port\ndef item(self, item: int) -> int: yield item", "it yields, but its annotation declares one result"),
    (
        "def __iter__(self) -> Iterator[int]: ...\n@input_port\ndef item(self, item: int) -> None: ...",
        "it is iterated, and items are pushed into item: two threads would run it; pull them",
    ),
    ("def __iter__(self): yield 1", "it has no return annotation"),
    ("def __iter__(self) -> int: ...", "return an Iterator[T]"),
    (
        "(Slet, own_driver=True)\nout: OutputPort[int]\n@input_port\ndef item(self, item: int) -> int: ...",
        "so the result of item is never sent; return None and push by an output port",
    ),
    (
        "(Slet, own_driver=True)\nout: OutputPort[int]\ndef __iter__(self) -> Iterator[int]: ...",
        "it has its own driver, and is iterated as well; drop __iter__, or own_driver=True",
    ),
    ("a: Book\nb: Book", "it has two mementos, a and b; put both in one class"),
    ("tags: list[str] = []", "mutable default <class 'list'> for field tags is not allowed"),
    (
        "(Match)\ndepth = 5",
        "depth is a field of its base, and a value without a type does not change it; write `depth: T",
    ),
    ("_file: Any", "the private field '_file' would be a setting; set it in __enter__"),
    (
        "@input_port\ndef a(self, x: int) -> int: ...\n@input_port\ndef b(self, x: int) -> Batch[int]: ...",
        "its methods return several forms (int as item, int as batch); let all return the same",
    ),
    (
        "@input_port\ndef a(self, x: int) -> One: ...\n@input_port\ndef b(self, x: int) -> Two: ...",
        "its methods return several forms",
    ),
    ("out: int = 1\n@input_port\ndef item(self, x: int) -> int: ...", "the name 'out' is taken by the output port of"),
    (
        "(Slet, on_error='ignore')\na: int",
        "on_error='ignore' is no policy; use one of suspend, retry, dead-letter, skip",
    ),
]


@pytest.mark.parametrize(("body", "message"), WRONG, ids=[message for _, message in WRONG])
def test_what_is_no_slet_is_told_at_the_class(body, message):
    """Every wrong class is refused where it is written, in one line that ends with the cure."""
    bases, _, lines = body.partition("\n") if body.startswith("(") else ("(Slet)", "", body)
    text = f"from __future__ import annotations\nclass Wrong{bases}:\n{textwrap.indent(lines, '    ')}"
    with pytest.raises(SletError) as caught:
        exec(text, dict(globals()))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_class_is_no_function():
    """`@slet` on a Slet class is refused: its base has marked it."""
    with pytest.raises(SletError, match="a class derives from Slet"):
        slet(Match)


def test_a_path_setting_is_a_field():
    """Settings of a class take every type that settings of functions take."""

    class Writer(Slet):
        path: Path

        @input_port
        def item(self, item: int) -> None:
            """Take."""

    assert spec_of(Writer).configured("w", {"path": "x"}) == {"path": Path("x")}


def test_an_error_of_a_class_beside_it_is_that_error():
    """It is not taken for a wrong keyword."""

    class Beside:
        def __init_subclass__(cls) -> None:
            raise TypeError("not today")

    with pytest.raises(TypeError, match="not today"):
        type("Wrong", (Slet, Beside), {})
