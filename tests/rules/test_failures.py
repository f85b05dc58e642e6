"""Design §5 rule 8, as a table: an item's outputs leave once, whatever happens, by every policy and shape of slet."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from exop import Application, Batch, EndOfStream, InputPort, Memento, OutputPort, Platform, Slet, input_port, slet
from exop.model.slets.spec import POLICIES
from exop.runtime.supervision import failure_policy as failure
from tests.rig import PATIENCE, eventually, threads_leave

LAST, POISON, SIZE = 30, 13, 5


class Position(Memento):
    """How far the source has come."""

    number: int = 0


class Calls(Memento):
    """How often the slet has begun to deal with something."""

    begun: int = 0


@dataclass
class Row:
    """An item that columns can hold."""

    x: int


class Fault:
    """Raises for the poisonous item, so many times."""

    def __init__(self, times: int) -> None:
        self.left = times

    def __call__(self, *items: int) -> None:
        """Look at what comes."""
        if POISON in items and self.left:
            self.left -= 1
            raise ValueError(f"{POISON} is poison")


@slet
def singly(position: Position) -> Iterator[Row]:
    """Emit rows one by one."""
    while position.number < LAST:
        position.number += 1
        yield Row(position.number)


@slet
def in_batches(position: Position) -> Iterator[Batch[Row]]:
    """Emit rows in batches."""
    while position.number < LAST:
        first = position.number + 1
        position.number += SIZE
        yield Batch(Row(x) for x in range(first, first + SIZE))


@slet
def nothing() -> Iterator[Row]:
    """Emit nothing."""
    yield from ()


def function(fault: Fault, **care: Any) -> Any:
    """One item in, one out."""

    @slet(**care)
    def b(x: Row, calls: Calls) -> Row:
        calls.begun += 1
        fault(x.x)
        return x

    return b


def generator(fault: Fault, **care: Any) -> Any:
    """Several outputs per item, some of them before it raises."""

    @slet(**care)
    def b(x: Row, calls: Calls) -> Iterator[Row]:
        calls.begun += 1
        yield x
        fault(x.x)
        yield Row(-x.x)

    return b


def several_ports(fault: Fault, **care: Any) -> Any:
    """It pushes by a further port, in the middle, before it raises."""

    class B(Slet, **care):
        calls: Calls
        further: OutputPort[Row]

        @input_port
        def x(self, row: Row) -> Row:
            self.calls.begun += 1
            self.further.push(Row(-row.x))
            fault(row.x)
            return row

        @input_port
        def never(self, row: Row) -> Row:
            return row

    return B


def batch(fault: Fault, **care: Any) -> Any:
    """Lists in, lists out: the unit is the list."""

    @slet(**care)
    def b(x: Batch[Row], calls: Calls) -> Batch[Row]:
        calls.begun += 1
        fault(*(row.x for row in x))
        return Batch(x)

    return b


def columns(fault: Fault, **care: Any) -> Any:
    """Columns in, columns out: the unit is the record batch."""

    @slet(**care)
    def b(x: pa.RecordBatch, calls: Calls) -> pa.RecordBatch:
        calls.begun += 1
        fault(*x.column("x").to_pylist())
        return x

    return b


def pulling(fault: Fault, **care: Any) -> Any:
    """It pulls its items: the unit is what it has pulled since it has last yielded."""

    class B(Slet, **care):
        calls: Calls
        x: InputPort[Row]

        def __iter__(self) -> Iterator[Row]:
            for row in self.x:
                self.calls.begun += 1
                fault(row.x)
                yield row

    return B


def pulling_function(fault: Fault, **care: Any) -> Any:
    """The same as a function."""

    @slet(**care)
    def b(x: InputPort[Row], calls: Calls) -> Iterator[Row]:
        for row in x:
            calls.begun += 1
            fault(row.x)
            yield row

    return b


def own_driver(fault: Fault, **care: Any) -> Any:
    """Its pushes leave at once, so it pushes last."""

    class B(Slet, own_driver=True, **care):
        calls: Calls
        out: OutputPort[Row]

        @input_port
        def x(self, row: Row | EndOfStream) -> None:
            if isinstance(row, EndOfStream):
                self.out.end()
                return
            self.calls.begun += 1
            fault(row.x)
            self.out.push(row)

        def quiesce(self) -> None:
            """Nothing is kept back."""

    return B


#: The slet, how its items come, and what of it leaves for one item.
SHAPES = {
    "function": (function, singly, lambda x: [x]),
    "function-fed-in-batches": (function, in_batches, lambda x: [x]),
    "generator": (generator, singly, lambda x: [x, -x]),
    "generator-fed-in-batches": (generator, in_batches, lambda x: [x, -x]),
    "several-ports": (several_ports, singly, lambda x: [-x, x]),
    "batch": (batch, in_batches, lambda x: [x]),
    "record-batch": (columns, in_batches, lambda x: [x]),
    "pulled": (pulling, singly, lambda x: [x]),
    "pulled-by-a-function": (pulling_function, singly, lambda x: [x]),
    "own-driver": (own_driver, singly, lambda x: [x]),
}
WHOLE = ("batch", "record-batch")


def mesh(shape: str, made: Any, seen: list[int]) -> Any:
    """A source, the slet, and a sink that writes down what leaves by any of its ports."""

    @slet
    def write(row: Any) -> None:
        seen.append(row["x"] if isinstance(row, dict) else row.x)

    app = Application("app")
    into: dict[str, Any] = {"x": app.add("a", SHAPES[shape][1])}
    if shape == "several-ports":
        both = app.channel("both")
        into |= {"out": both, "further": both, "never": app.add("e", nothing)}
    left = app.add("b", made, **into)
    app.add("c", write, row=left)
    return app.build()


@pytest.mark.parametrize("atomic", [False, True], ids=["plain", "atomic"])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("shape", SHAPES)
def test_outputs_leave_once(monkeypatch, shape, policy, atomic):
    """Nothing of a failed try leaves; a later one starts from the memento that `atomic` promises, or the call left."""
    monkeypatch.setattr(failure, "BACK_OFF", 0.001)
    make, _, outputs = SHAPES[shape]
    seen: list[int] = []
    fault = Fault(2 if policy == "retry" else 1)
    units = [[x] for x in range(1, LAST + 1)]
    if shape in WHOLE:
        units = [list(range(x, x + SIZE)) for x in range(1, LAST + 1, SIZE)]
    failing = next(unit for unit in units if POISON in unit)
    with threads_leave(), Platform() as platform:
        platform.apply(mesh(shape, make(fault, atomic=atomic, on_error=policy), seen))
        component = platform.deployment("app").components["b"]
        if policy == "suspend":
            eventually(lambda: component.status == "failed", "the suspension")
            assert seen == [y for unit in units[: units.index(failing)] for x in unit for y in outputs(x)]
            kept = platform.status("app")["nodes"]["b"]["kept"]
            assert "13 is poison" in kept["traceback"]
            assert "13" in kept["item"], "also of a slet that pulls"
            platform.resume("app", "b")
        assert platform.wait("app", PATIENCE)
        left_out = policy in ("skip", "dead-letter")
        through = [unit for unit in units if not (left_out and unit is failing)]
        assert seen == [y for unit in through for x in unit for y in outputs(x)]
        tries = 2 if policy == "retry" else 1
        assert component.metrics.errors == tries
        assert component.state.begun == len(through) + (0 if atomic else tries)
        assert component.metrics.skipped == (len(failing) if policy == "skip" else 0)
        assert len(platform.dead_letters("app", "b")) == (policy == "dead-letter")
