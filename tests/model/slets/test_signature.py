"""The signature is the contract: what a function's parameters and annotations become."""

from __future__ import annotations

import functools
import re
from collections.abc import AsyncIterator, Generator, Iterable, Iterator  # noqa: F401 (for the texts below)
from dataclasses import dataclass, field
from typing import Annotated, Any, NoReturn  # noqa: F401

import pyarrow as pa
import pytest

from exop import Batch, EndOfStream, InputPort, Memento, OutputPort, Punctuation, slet  # noqa: F401
from exop.errors import SletError
from exop.model.slets.slet import spec_of
from exop.model.slets.spec import Role

SCHEMA = pa.schema([("vid", pa.int32())])
Declared = Annotated[pa.RecordBatch, SCHEMA]


@dataclass
class Report:
    """An item."""

    segment: int
    speed: float


class Speeds(Memento):
    """A state."""

    by_segment: dict[int, list[float]] = field(default_factory=dict)


class Other(Memento):
    """Another state."""


@slet
def average(report: Report, speeds: Speeds, *, window: int = 10) -> tuple[int, float]:
    """Average the last *window* speeds of the report's segment."""
    recent = [*speeds.by_segment.get(report.segment, []), report.speed][-window:]
    speeds.by_segment[report.segment] = recent
    return report.segment, sum(recent) / len(recent)


def test_a_slet_stays_the_function_it_was():
    """The decorator returns the function itself: calling it is a unit test."""
    state = Speeds()
    assert average(Report(1, 10.0), state) == (1, 10.0)
    assert average(Report(1, 20.0), state, window=1) == (1, 20.0)
    assert average.__name__ == "average"


def test_what_the_signature_says():
    """Positional: input port. Memento: state. Keyword-only: settings. Return: what leaves. Docstring: help."""
    spec = spec_of(average)
    assert [(port.name, port.type.item) for port in spec.inputs] == [("report", Report)]
    assert [(port.name, port.type.item) for port in spec.outputs] == [("out", tuple[int, float])]
    assert spec.state == ("speeds", Speeds)
    assert [str(setting) for setting in spec.settings.values()] == ["window: int = 10"]
    assert spec.results == {"report": "one"}
    assert spec.doc == "Average the last *window* speeds of the report's segment."
    assert (spec.role, spec.iterated, spec.is_class, spec.atomic, spec.on_error) == (
        Role.PI,
        False,
        False,
        False,
        "suspend",
    )


def test_name_and_policies_are_given_at_the_decorator():
    """`@slet(name=…, atomic=…, on_error=…)`."""

    @slet(name="other", atomic=True, on_error="skip")
    def plain(item: int) -> int:
        """A slet."""
        return item

    spec = spec_of(plain)
    assert (spec.name, spec.atomic, spec.on_error) == ("other", True, "skip")


def test_an_unknown_policy_is_refused():
    """A policy that does not exist is told with those that do."""
    with pytest.raises(SletError, match="on_error='ignore' is no policy; use one of suspend, retry, dead-letter, skip"):

        @slet(on_error="ignore")  # type: ignore[call-overload]
        def plain(item: int) -> int:
            """A slet."""


def made(text: str) -> Any:
    """A slet out of the text of its function."""
    names = dict(globals())
    exec(f"from __future__ import annotations\n{text}", names)
    return slet(names[re.search(r"def (\w+)", text)[1]])  # type: ignore[index]


ROWS = "pyarrow.RecordBatch"
SHAPES = [
    ("(item: int) -> int", "pi", {"item": "one"}, "int", "int"),
    ("(item: int) -> int | None", "pi", {"item": "optional"}, "int", "int"),
    ("(item: int) -> Iterator[int]", "pi", {"item": "many"}, "int", "int"),
    ("(item: int) -> Iterable[int]", "pi", {"item": "many"}, "int", "int"),
    ("(item: int) -> Generator[int, None, None]", "pi", {"item": "many"}, "int", "int"),
    ("(item: int) -> None", "omega", {"item": "none"}, "int", None),
    ("(item: int) -> NoReturn", "omega", {"item": "none"}, "int", None),
    ("(position: Other, *, cars: int) -> Iterator[int | None]", "alpha", {"": "many"}, None, "int"),
    ("() -> Iterator[int]", "alpha", {"": "many"}, None, "int"),
    ("(items: InputPort[int]) -> Iterator[str]", "pi", {"": "many"}, "int", "str"),
    ("(items: InputPort[int]) -> None", "omega", {"": "none"}, "int", None),
    ("(item: int | Punctuation | EndOfStream) -> Iterator[int | Punctuation]", "pi", {"item": "many"}, "int", "int"),
    ("(item: Punctuation) -> None", "omega", {"item": "none"}, "Any", None),
    ("(items: Batch[int]) -> Batch[str]", "pi", {"items": "one"}, "int", "str"),
    ("(rows: pa.RecordBatch) -> pa.RecordBatch | None", "pi", {"rows": "optional"}, ROWS, ROWS),
    ("(rows: Declared | Punctuation) -> Iterator[Declared]", "pi", {"rows": "many"}, ROWS, ROWS),
    ("(item: Any) -> Any", "pi", {"item": "optional"}, "Any", "Any"),
]


@pytest.mark.parametrize(("signature", "role", "results", "enters", "leaves"), SHAPES, ids=lambda v: str(v)[:30])
def test_the_role_and_shape_are_derived(signature, role, results, enters, leaves):
    """α, π and ω follow from the ports, and the shape of the result from the return annotation."""
    spec = spec_of(made(f"def one{signature}: ..."))
    assert (str(spec.role), spec.results) == (role, results)
    assert [str(port.type) for port in spec.inputs] == ([enters] if enters else [])
    assert [str(port.type) for port in spec.outputs] == ([leaves] if leaves else [])
    assert spec.iterated == ("" in results)


def test_control_items_and_forms_are_read_from_the_ports_type():
    """A port whose type names a control item gets it; lists and columns are told by Batch and RecordBatch."""
    marked = made("def marked(item: int | Punctuation | EndOfStream) -> Iterator[int | Punctuation]: ...")
    entering, leaving = (spec_of(marked).ports[name].type for name in ("item", "out"))
    assert (entering.punctuation, entering.end, leaving.punctuation, leaving.end) == (True, True, True, False)
    assert [port.type.form for port in spec_of(made("def f(x: Batch[int]) -> Batch[str]: ...")).ports.values()] == [
        "batch",
        "batch",
    ]
    rows = spec_of(made("def f(rows: Declared | Punctuation) -> None: ...")).ports["rows"].type
    assert (rows.form, rows.schema, rows.punctuation) == ("columns", SCHEMA, True)


def test_a_decorated_function_keeps_its_signature():
    """functools.wraps leaves the signature readable."""

    def logged(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return function(*args, **kwargs)

        return wrapper

    assert spec_of(slet(logged(made("def one(item: int) -> int: ...")))).results == {"item": "one"}


WRONG = [
    ("def untyped(item) -> int: ...", "untyped is no slet: the parameter 'item' has no type; write `item: T`"),
    ("def f(item: int): ...", "it has no return annotation; write one, `-> None` for a sink"),
    (
        "def f(item: int, other: int) -> int: ...",
        "a function has one input, here are 2 (item, other); put `*, ` before the settings, or write a Slet class",
    ),
    ("def f(item: int = 1) -> int: ...", "the input 'item' has a default; put `*, ` before item to make it a setting"),
    ("def f(*items: int) -> int: ...", "*items names no port; name every parameter"),
    ("def f(item: int, **more: int) -> int: ...", "**more names no port; name every parameter"),
    ("def f(item: int, a: Speeds, b: Other) -> int: ...", "it has two mementos, a and b; put both in one class"),
    ("def f(a: Speeds, item: int) -> int: ...", "the memento 'a' is before the input; write (item, a)"),
    ("def f(*, cars: int) -> int: ...", "a slet without a pushed input is a source; return an Iterator[T]"),
    ("def f() -> None: ...", "it has no input and no output; give it an input, or yield items"),
    (
        "def f(item: Decimal) -> int: ...",
        "the annotation 'Decimal' cannot be resolved at run time; import it outside `if TYPE_CHECKING:`",
    ),
    ("def f(item: pa.RecordBatsh) -> int: ...", "an annotation is no type (module 'pyarrow' has no attribute 'Record"),
    ("def f(item: Batch[int] | str) -> int: ...", "has no form: choose one of them; give each its own port"),
    (
        "def f(item: int) -> Iterator[int] | None: ...",
        "an iterator is one of several results; return Iterator[T]; an empty one has no result",
    ),
    ("def f(item: int, *, out: int = 1) -> int: ...", "the name 'out' is taken by the output port of the results"),
    ("def f(item: int, *, on_error: str) -> int: ...", "the name 'on_error' is taken by the policy for items that fa"),
    ("def f(item: int, *, when: str) -> int: ...", "a setting cannot be called when, like an option of a change; ch"),
    ("def f(item: int, *, port: OutputPort[int]) -> int: ...", "'port' is a port, not a setting; return the results;"),
    ("def f(item: InputPort[InputPort[int]]) -> Iterator[int]: ...", "a port carries no port"),
    ("def f(item: int) -> int | None: yield item", "it yields, but its annotation declares one result; write `-> Iter"),
    ("def f(item: int) -> None: yield", "it yields, but its annotation declares one result; write `-> Iterator[T]`"),
    ("async def f(item: int) -> int: ...", "an `async def` is never awaited; write `def`"),
    ("async def f(item: int) -> AsyncIterator[int]: yield 1", "an `async def` is never awaited; write `def`"),
    ("def f(item: int) -> AsyncIterator[int]: ...", "does not drive an asynchronous iterator; return Iterator[T]"),
]


@pytest.mark.parametrize(("text", "message"), WRONG, ids=[text for text, _ in WRONG])
def test_what_is_no_slet_is_told_at_the_decorator(text, message):
    """Every wrong signature is refused where it is written, in one line that ends with the cure."""
    with pytest.raises(SletError) as caught:
        made(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_no_function_is_told():
    """A class, and a function with arguments filled in."""
    with pytest.raises(SletError, match="a partial has no signature of its own; write a function"):
        slet(functools.partial(average))
    with pytest.raises(SletError, match=r"Report is no slet: a class derives from Slet; write `class Report\(Slet"):
        slet(Report)


def test_a_type_of_the_function_around_is_told():
    """A type that is defined in a function cannot be resolved by another platform: the cure is to move it."""

    class Local:
        """Defined in a function."""

    with pytest.raises(SletError, match="define the type at the module's top level"):

        @slet
        def local(item: Local) -> int:
            """A slet."""


def test_what_was_never_marked_is_told():
    """A plain function given as a slet is refused with the cure."""

    def undecorated(item: int) -> int:
        """No slet."""

    with pytest.raises(SletError, match="undecorated is no slet: it is not marked; put @slet above the function"):
        spec_of(undecorated)
    with pytest.raises(SletError, match=r"'stock:show' is no slet: it is the name .*`platform.slets\(\)\['stock:show'"):
        spec_of("stock:show")
