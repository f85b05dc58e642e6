"""The signature is the contract: what a function's parameters and annotations become."""

from __future__ import annotations

import functools
import typing
from collections.abc import AsyncIterator, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, NoReturn

import pyarrow as pa
import pytest

from exop import Batch, EndOfStream, InputPort, Memento, OutputPort, Punctuation, slet
from exop.errors import SletError
from exop.model.slet import spec_of
from exop.model.spec import Role

if typing.TYPE_CHECKING:
    from decimal import Decimal

SCHEMA = pa.schema([("vid", pa.int32())])


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


def one(item: int) -> int:
    """One item out."""


def optional(item: int) -> int | None:
    """One or none."""


def many(item: int) -> Iterator[int]:
    """Any number."""


def iterable(item: int) -> Iterable[int]:
    """Any number, as an iterable."""


def generator(item: int) -> Generator[int, None, None]:
    """Any number, as a generator."""


def sink(item: int) -> None:
    """Nothing."""


def never(item: int) -> NoReturn:
    """Nothing, ever."""


def source(position: Other, *, cars: int) -> Iterator[int | None]:
    """A source that may have nothing now."""


def bare_source() -> Iterator[int]:
    """A source without a state."""


def pulling(items: InputPort[int]) -> Iterator[str]:
    """A slet that pulls."""


def pulling_sink(items: InputPort[int]) -> None:
    """A sink that pulls."""


def marked(item: int | Punctuation | EndOfStream) -> Iterator[int | Punctuation]:
    """A slet that sees control items."""


def marks_only(item: Punctuation) -> None:
    """A slet that sees nothing else."""


def batches(items: Batch[int]) -> Batch[str]:
    """A slet that takes lists."""


def columns(rows: pa.RecordBatch) -> pa.RecordBatch | None:
    """A slet that takes columns."""


def declared(rows: Annotated[pa.RecordBatch, SCHEMA] | Punctuation) -> Iterator[Annotated[pa.RecordBatch, SCHEMA]]:
    """A slet that takes declared columns."""


def anything(item: Any) -> Any:
    """A slet that takes anything."""


SHAPES = [
    (one, "pi", {"item": "one"}, "int", "int"),
    (optional, "pi", {"item": "optional"}, "int", "int"),
    (many, "pi", {"item": "many"}, "int", "int"),
    (iterable, "pi", {"item": "many"}, "int", "int"),
    (generator, "pi", {"item": "many"}, "int", "int"),
    (sink, "omega", {"item": "none"}, "int", None),
    (never, "omega", {"item": "none"}, "int", None),
    (source, "alpha", {"": "many"}, None, "int"),
    (bare_source, "alpha", {"": "many"}, None, "int"),
    (pulling, "pi", {"": "many"}, "int", "str"),
    (pulling_sink, "omega", {"": "none"}, "int", None),
    (marked, "pi", {"item": "many"}, "int", "int"),
    (marks_only, "omega", {"item": "none"}, "Any", None),
    (batches, "pi", {"items": "one"}, "int", "str"),
    (columns, "pi", {"rows": "optional"}, "pyarrow.RecordBatch", "pyarrow.RecordBatch"),
    (declared, "pi", {"rows": "many"}, "pyarrow.RecordBatch", "pyarrow.RecordBatch"),
    (anything, "pi", {"item": "optional"}, "Any", "Any"),
]


@pytest.mark.parametrize(
    ("function", "role", "results", "enters", "leaves"), SHAPES, ids=lambda v: getattr(v, "__name__", str(v))[:30]
)
def test_the_role_and_shape_are_derived(function, role, results, enters, leaves):
    """α, π and ω follow from the ports, and the shape of the result from the return annotation."""
    spec = spec_of(slet(function))
    assert (str(spec.role), spec.results) == (role, results)
    assert [str(port.type) for port in spec.inputs] == ([enters] if enters else [])
    assert [str(port.type) for port in spec.outputs] == ([leaves] if leaves else [])
    assert spec.iterated == ("" in results)


def test_control_items_and_forms_are_read_from_the_ports_type():
    """A port whose type names a control item gets it; lists and columns are told by Batch and RecordBatch."""
    entering, leaving = (spec_of(slet(marked)).ports[name].type for name in ("item", "out"))
    assert (entering.punctuation, entering.end, leaving.punctuation, leaving.end) == (True, True, True, False)
    assert [port.type.form for port in spec_of(slet(batches)).ports.values()] == ["batch", "batch"]
    rows = spec_of(slet(declared)).ports["rows"].type
    assert (rows.form, rows.schema, rows.punctuation) == ("columns", SCHEMA, True)


def test_a_decorated_function_keeps_its_signature():
    """functools.wraps leaves the signature readable."""

    def logged(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return function(*args, **kwargs)

        return wrapper

    assert spec_of(slet(logged(one))).results == {"item": "one"}


def untyped(item) -> int:
    """No type."""


def unanswered(item: int):
    """No return annotation."""


def two(item: int, other: int) -> int:
    """Two inputs."""


def defaulted(item: int = 1) -> int:
    """An input with a default."""


def starred(*items: int) -> int:
    """Any number of inputs."""


def options(item: int, **more: int) -> int:
    """Any settings."""


def two_states(item: int, a: Speeds, b: Other) -> int:
    """Two mementos."""


def state_first(a: Speeds, item: int) -> int:
    """The memento before the input."""


def no_source(*, cars: int) -> int:
    """A source that returns one item."""


def nothing() -> None:
    """No port at all."""


def hidden(item: Decimal) -> int:
    """A type that is only there for the type checker."""


def not_a_type(item: 5) -> int:  # type: ignore[valid-type]
    """An annotation that is no type."""


def misspelled(item: pa.RecordBatsh) -> int:  # type: ignore[name-defined]
    """An attribute that is not there."""


def mixed(item: Batch[int] | str) -> int:
    """Two forms at one port."""


def maybe_iterator(item: int) -> Iterator[int] | None:
    """An iterator or nothing."""


def out_setting(item: int, *, out: int = 1) -> int:
    """A setting called out."""


def on_error_setting(item: int, *, on_error: str = "x") -> int:
    """A setting called on_error."""


def port_setting(item: int, *, refused: OutputPort[int]) -> int:
    """A port where a setting stands."""


def port_in_port(item: InputPort[InputPort[int]]) -> Iterator[int]:
    """A port of ports."""


async def awaited(item: int) -> int:
    """A coroutine."""


async def async_source() -> AsyncIterator[int]:
    """An asynchronous source."""
    yield 1


def async_result(item: int) -> AsyncIterator[int]:
    """An asynchronous result."""


def generator_of_one(item: int) -> int | None:
    """It yields and does not say so."""
    yield item


def generator_of_none(item: int) -> None:
    """A sink whose body would never run."""
    yield


WRONG = [
    (untyped, "untyped is no slet: the parameter 'item' has no type; write `item: T`"),
    (unanswered, "it says not what it returns; annotate it, with `-> None` for a sink"),
    (two, "a function has one input, here are 2 (item, other); put `*, ` before the settings, or write a Slet class"),
    (defaulted, "the input 'item' has a default; put `*, ` before item to make it a setting"),
    (starred, "*items names no port; name every parameter"),
    (options, "**more names no port; name every parameter"),
    (two_states, "it has two mementos, a and b; put both in one class"),
    (state_first, "the memento 'a' stands before the input; write (item, a)"),
    (no_source, "a slet without a pushed input is a source; return an Iterator[T]"),
    (nothing, "nothing enters and nothing leaves; give it an input, or yield items"),
    (hidden, "the annotation 'Decimal' cannot be resolved at run time; import it outside `if TYPE_CHECKING:`"),
    (misspelled, "an annotation is no type (module 'pyarrow' has no attribute 'RecordBatsh')"),
    (mixed, "a union of items, batches and columns has no form: choose one of them; give each its own port"),
    (maybe_iterator, "an iterator is one of several results; return Iterator[T]"),
    (out_setting, "the name 'out' is taken by the output port of the results; choose another"),
    (on_error_setting, "the name 'on_error' is taken by the policy for items that fail; choose another"),
    (port_setting, "'refused' is a port, not a setting; return the results; for more ports write a Slet class"),
    (port_in_port, "a port carries no port"),
    (generator_of_one, "it yields, but its annotation declares one result; write `-> Iterator[T]`, T being"),
    (generator_of_none, "it yields, but its annotation declares one result; write `-> Iterator[T]`, T being"),
    (awaited, "an `async def` is never awaited; write `def`"),
    (async_source, "an `async def` is never awaited; write `def`"),
    (async_result, "the platform does not drive an asynchronous iterator; return Iterator[T]"),
    (functools.partial(one), "a partial has no signature of its own; write a function"),
    (Report, "Report is no slet: a class is marked by its base; write `class Report(Slet):`"),
]


@pytest.mark.parametrize(("function", "message"), WRONG, ids=lambda v: v[:40] if isinstance(v, str) else None)
def test_what_is_no_slet_is_told_at_the_decorator(function, message):
    """Every wrong signature is refused where it is written, in one line that ends with the cure."""
    with pytest.raises(SletError) as caught:
        slet(function)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


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

    with pytest.raises(SletError, match="undecorated is no slet: it was never marked; put @slet above the function"):
        spec_of(undecorated)
