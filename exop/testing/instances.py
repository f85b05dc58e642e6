"""`open`: an instance of a class slet, entered, with its memento and with ports that collect, or hold given items."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final, TypeVar

from exop.errors import SletError
from exop.model.items import EndOfStream
from exop.model.slets.memento import Memento
from exop.model.slets.ports import InputPort, OutputPort, OutputPorts
from exop.model.slets.slet import Slet, spec_of
from exop.model.slets.spec import SletSpec
from exop.runtime.channels.base import Channel
from exop.runtime.component import families
from exop.runtime.durable.engine_journal import EngineJournal

S = TypeVar("S", bound=Slet)
T = TypeVar("T")

#: The seconds to wait for a slet with a driver of its own.
PATIENCE: Final = 30.0


class CollectingOutput(OutputPort[Any]):
    """An output port that collects the pushed items.

    Attributes:
        items: The items and punctuations in their order. The items of lists are separate; record batches are not split.
        ended: Whether the slet has ended this output.
        error: The error that the slet has reported by `fail`.
    """

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.ended = False
        self.error: BaseException | None = None
        self._done = threading.Event()

    def push(self, item: Any) -> None:
        """Collect one item, or a control item."""
        if isinstance(item, EndOfStream):
            self.end()
        else:
            self.items.append(item)

    def push_batch(self, batch: Any) -> None:
        """Collect the items of a list, or a record batch."""
        self.items.extend(batch if isinstance(batch, list) else [batch])

    def end(self) -> None:
        """Record the end of the stream."""
        self.ended = True
        self._done.set()

    def fail(self, error: BaseException) -> None:
        """Record that the slet has failed."""
        self.error = error
        self._done.set()

    def taken(self) -> list[Any]:
        """Remove and return the items collected so far."""
        taken, self.items = self.items, []
        return taken

    def wait(self, timeout: float = PATIENCE) -> bool:
        """Wait until a slet with its own driver has ended its output or failed; return `False` after the time-out."""
        return self._done.wait(timeout)


class CollectingOutputs(OutputPorts[Any]):
    """A family of collecting outputs. Each port is created when it is first used."""

    def __missing__(self, name: str) -> OutputPort[Any]:
        return self.setdefault(name, CollectingOutput())


class GivenInput(InputPort[Any]):
    """An input port for slets that pull, which returns the given items or the content of a channel."""

    def __init__(self, name: str, given: Iterable[Any] | Channel = ()) -> None:
        self._name = name
        self._channel = given if isinstance(given, Channel) else None
        self._rest: Iterator[Any] = iter(()) if isinstance(given, Channel) else iter(given)

    def pull(self, most: int = 1024, wait: bool = True) -> list[Any]:
        """Return the next items, or the content of the channel."""
        return self._channel.read(self._name) if self._channel is not None else list(islice(self._rest, most))

    def __iter__(self) -> Iterator[Any]:
        return self._rest

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or self._channel is None:
            raise AttributeError(
                f"{name}: give the port a channel that has it: open(…, port=TableChannel('rows', key='id'))"
            )
        return getattr(self._channel, name)


def collected(port: OutputPort[T]) -> list[T]:
    """Return the items that a slet from `open` has pushed to an output port: `collected(match.refused)`."""
    assert isinstance(port, CollectingOutput), "collected() takes a port of an instance that exop.testing.open has made"
    return port.items


@contextmanager
def open(slet: type[S], /, **given: Any) -> Iterator[S]:  # noqa: A001 (it opens a slet)
    """Create an instance of a `Slet` class with its ports and memento, enter it, and exit it at the end of the block.

    Output ports collect the pushed items (see `collected`). *given* contains the settings, which are converted and
    checked as in a mesh; a memento, under the name of its field; and for each input port that the slet pulls, the items
    or a channel. For a family of ports, *given* contains the names of the ports, with the items for ports that the slet
    pulls. Further output ports of a family are created at their first push.

    Raises:
        SletError: *slet* is not a class slet.
        UnknownName, SettingError: a setting is unknown, or its value is invalid.
    """
    spec = spec_of(slet)
    if not spec.is_class:
        raise SletError(slet=spec.name, what="class slet", problem="it is a function", cure="call it, or use feed()")
    memento = given.pop(spec.state[0], None) if spec.state else None
    with entered(spec, memento, given) as instance:
        yield instance


@contextmanager
def entered(spec: SletSpec, memento: Memento | None, given: dict[str, Any]) -> Iterator[Any]:
    """Yield an entered instance of a class slet with this memento, or with a new memento if `None`."""
    instance = _instance(spec, memento, given)
    instance.__enter__()
    try:
        yield instance
    finally:
        instance.__exit__(None, None, None)


def _instance(spec: SletSpec, memento: Memento | None, given: dict[str, Any]) -> Any:
    spec = spec.asked(spec.name, given)
    spec = spec.connected([f"{one.family}.{name}" for one in spec.families for name in given.get(one.family, ())])
    ports: dict[str, Any] = {port.name: CollectingOutput() for port in spec.outputs}
    for port in (one for one in spec.inputs if one.pulled):
        ends = given.get(port.family, ())
        ports[port.name] = GivenInput(port.name, ends[port.member] if port.member else ends)
    members = families(spec, ports)
    fields = ports | {
        name: CollectingOutputs(one) if type(one) is OutputPorts else one for name, one in members.items()
    }
    if spec.state:
        fields[spec.state[0]] = memento if memento is not None else spec.state[1]()
    if spec.tie:
        fields[spec.tie] = EngineJournal({port.name: port.type.form for port in spec.inputs})
    connected = {*fields, *(one.family for one in spec.families)}
    settings = spec.configured(spec.name, {name: value for name, value in given.items() if name not in connected})
    declared = getattr(spec.factory, "__dataclass_fields__", fields)
    instance = spec.factory(**settings, **{name: value for name, value in fields.items() if name in declared})
    if spec.specialises or spec.families:
        instance.outputs = {port.name: ports[port.name] for port in spec.outputs}
        instance.inputs = tuple(port.name for port in spec.inputs)
    return instance


def outputs_of(instance: Any, spec: SletSpec) -> dict[str, CollectingOutput]:
    """Return the output ports of an instance by name, including the ports of families."""
    found = {port.name: getattr(instance, port.name, None) for port in spec.outputs}
    found |= getattr(instance, "outputs", {})
    for family in (one.family for one in spec.families if one.direction == "out"):
        found |= {f"{family}.{member}": port for member, port in getattr(instance, family).items()}
    return {name: port for name, port in found.items() if isinstance(port, CollectingOutput)}
