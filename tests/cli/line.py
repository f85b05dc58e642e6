"""A small application with slets that can take each other's place, as a package that a platform loads."""

PACKAGE = '''
"""Counts and transforms."""
import threading
from collections.abc import Iterator
from pathlib import Path

from exop import Application, Memento, OutputPorts, Slet, hookimpl, input_port, slet
from exop.stock.slets import WriteLines

PACE = threading.Event()


class Position(Memento):
    """How far the source has come."""

    number: int = 0


class Seen(Memento):
    """How many items were seen."""

    count: int = 0


@slet
def numbers(position: Position, *, to: int = 1_000_000, pace: float = 0.002) -> Iterator[int | None]:
    """Emit 1, 2, …, one every *pace* seconds."""
    while position.number < to:
        position.number += 1
        yield position.number
        PACE.wait(pace)


@slet
def tag(item: int, seen: Seen, *, label: str = "a", limit: int = 0) -> str:
    """Write an item with a label and how many were seen."""
    seen.count += 1
    return f"{label} {item} {seen.count}"


@slet
def twin(item: int, seen: Seen, *, label: str = "a") -> str:
    """One that does the same as `tag`, by other code."""
    seen.count += 1
    return " ".join([label, str(item), str(seen.count)])


@slet
def shout(item: int, seen: Seen, *, label: str = "A") -> str:
    """Another one, which takes over the state."""
    seen.count += 1
    return f"{label}! {item} {seen.count}"


@slet
def forgetful(item: int) -> str:
    """One that keeps no state."""
    return f"f {item}"


class Unopened(Slet):
    """One that cannot be opened."""

    def __enter__(self):
        raise RuntimeError("no engine here")

    @input_port
    def item(self, item: int) -> str:
        """Never called."""
        return "never"


class Deal(Slet, name="deal"):
    """Gives each item to every port of a family."""

    to: OutputPorts[int]

    @input_port
    def item(self, item: int) -> None:
        """Give one."""
        for port in self.to.values():
            port.push(item)


def line(*, output: Path, label: str = "a") -> Application:
    """Count, tag, write."""
    app = Application("line")
    tagged = app.add("tag", tag, item=app.add("numbers", numbers), label=label)
    app.add("sink", WriteLines, item=tagged, path=output)
    return app


@hookimpl
def register_slets():
    return [numbers, tag, twin, shout, forgetful, Unopened, Deal]


@hookimpl
def register_builders():
    return [line]
'''
