"""`open` makes an instance of a slet with ports that collect; `feed` runs a slet on items, `replay` a failed item."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

from exop.errors import SletError, StoredStateError, entry
from exop.model.items import CONTROL, EndOfStream, Punctuation
from exop.model.slets.memento import Memento
from exop.model.slets.ports import OUT, InputPort, OutputPort, OutputPorts, PortSpec
from exop.model.slets.slet import Slet, spec_of
from exop.model.slets.spec import SletSpec
from exop.model.slets.stored_memento import declared_by, load_memento
from exop.model.values.classes import named
from exop.model.values.columns import is_columns
from exop.runtime.channels.base import Channel
from exop.runtime.dataflow.batches import to_columns, to_items
from exop.runtime.durable.engine_journal import EngineJournal
from exop.runtime.slet_code import bind_function, bind_method, families, make_instance
from exop.runtime.supervision.failure_state import FailedItem
from exop.safe_repr import add_note, safe_repr

S = TypeVar("S", bound=Slet)
T = TypeVar("T")
#: The calls of an open slet by input port; for `None`, the call that returns its iterator.
Calls: TypeAlias = Callable[[PortSpec | None], Callable[..., Any]]

#: The seconds to wait for a slet with a driver of its own.
PATIENCE: Final = 120.0


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
            cure = "give the port a channel that has it: open(…, port=TableChannel('rows', key='id'))"
            raise AttributeError(f"{name}: {cure}")
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
    if not (spec := spec_of(slet)).is_class:
        raise SletError(slet=spec.name, what="class slet", problem="it is a function", cure="call it, or use feed()")
    memento = given.pop(spec.state[0], None) if spec.state else None
    with opened(spec, memento, given) as (instance, _):
        yield instance


@contextmanager
def opened(spec: SletSpec, memento: Memento | None, given: dict[str, Any]) -> Iterator[tuple[Any, Calls]]:
    """Open a slet with this memento, or with a new memento if `None`, and close it at the end of the block.

    Yield the instance of a class slet, and the calls.
    """
    memento = memento if memento is not None or spec.state is None else spec.state[1]()
    if not spec.is_class:
        inputs = [GivenInput(port.name, given.pop(port.name, ())) for port in spec.inputs if port.pulled]
        call = partial(bind_function(spec, memento, spec.configured(spec.name, given)), *inputs)
        yield None, lambda _: call
        return
    instance = _instance(spec, memento, given)
    instance.__enter__()
    try:
        yield instance, lambda port: instance.__iter__ if port is None else bind_method(instance, port)
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
    for family, one in members.items():
        members[family] = defaultdict(CollectingOutput, one) if isinstance(one, OutputPorts) else one
    tie = EngineJournal({port.name: port.type.form for port in spec.inputs}) if spec.tie else None
    connected = {*ports, spec.tie, *(one.family for one in spec.families)}
    settings = spec.configured(spec.name, {name: value for name, value in given.items() if name not in connected})
    return make_instance(spec, settings, ports | members, memento, tie)


def feed(slet: Any, items: Iterable[Any] = (), /, **given: Any) -> list[Any]:
    """Run a slet on *items* and return the output of the port `out`, in order.

    The slet receives the items in the form that the type of its port requires: single items, lists or columns. If the
    type names control items, the slet receives these, too, and at last the end of the stream; otherwise punctuations
    are forwarded. A source is run to its end. If the slet raises an exception, `feed` adds a note that shows the item.

    Args:
        slet: A `@slet` function or a `Slet` class with at most one input port.
        items: The input.
        given: Settings, and a memento under its name; by default a new memento is created.

    Raises:
        SletError: the slet has several inputs; use `open` and call its methods.
    """
    spec = spec_of(slet)
    spec = spec.asked(spec.name, given)
    inputs = [*spec.inputs, *(family for family in spec.families if family.direction == "in")]
    if len(inputs) > len(spec.inputs) or len(inputs) > 1:
        ports = ", ".join(port.name for port in inputs)
        cure = "use exop.testing.open() and call its methods"
        raise SletError(slet=spec.name, what="slet for feed()", problem=f"it has several inputs ({ports})", cure=cure)
    memento = given.pop(spec.state[0], None) if spec.state else None
    pulled = {port.name: items for port in spec.inputs if port.pulled}
    with opened(spec, memento, {**given, **pulled}) as (instance, call):
        pushed = out if isinstance(out := getattr(instance, OUT, None), CollectingOutput) else CollectingOutput()
        if spec.iterated:
            found = []
            for payload in call(None)() or ():
                found += [*pushed.taken(), *leaving(spec, [payload])]
            return [*found, *pushed.taken()]
        if spec.inputs:
            found = _fed(spec, call(spec.inputs[0]), items, pushed if not spec.own_driver else None)
            if not spec.own_driver or out is None:
                return found
        assert pushed.wait(), f"{spec.name} has not ended its output within {PATIENCE:g} s; an engine calls out.end()"
        if pushed.error is not None:
            raise pushed.error
        return pushed.items


def _fed(
    spec: SletSpec, call: Callable[[Any], Any], items: Iterable[Any], pushed: CollectingOutput | None
) -> list[Any]:
    """Call a slet for each item, and return its output; the items *pushed* to `out` precede the returned items."""
    port, left = spec.inputs[0], list[Any]()
    returns, ended = spec.results[port.name], not port.type.end
    for number, item in enumerate(chain(items, (EndOfStream(),)), 1):
        if isinstance(item, EndOfStream) and ended:
            continue
        if isinstance(item, Punctuation) and not port.type.punctuation:
            left.append(item)
            continue
        ended = ended or isinstance(item, EndOfStream)
        try:
            result = call(entering(port, item))
            results = [*result] if returns == "many" else [] if returns == "none" else [result]
        except Exception as error:
            add_note(error, f"in the slet {spec.name!r}, for item {number}: {safe_repr(item, 200)}")
            raise
        left.extend(pushed.taken() if pushed is not None else ())
        left.extend(leaving(spec, results))
    return left


def entering(port: PortSpec, item: Any) -> Any:
    """Return an item in the form that the port requires: a single item, a list or columns."""
    if isinstance(item, CONTROL) or port.type.form == "item":
        return item
    rows = item if isinstance(item, list) or is_columns(item) else [item]
    return to_columns(rows, port.type) if port.type.form == "columns" else to_items(rows, port.type.item)


def leaving(spec: SletSpec, payloads: Iterable[Any]) -> list[Any]:
    """Return the output as single items, without `None` and the end of the stream; flatten lists of a batch port."""
    batches = any(port.name == OUT and port.type.form == "batch" for port in spec.outputs)
    left: list[Any] = []
    for payload in payloads:
        if payload is not None and not isinstance(payload, EndOfStream):
            left += payload if batches and isinstance(payload, list) else [payload]
    return left


def replay(
    file: str | os.PathLike[str] | FailedItem, *, slet: Any = None, memento: Memento | None = None
) -> list[Any] | dict[str, list[Any]]:
    """Process a failed item: open the slet, restore the memento, and push the item.

    Args:
        file: A file that `exop item export` has written, or an item of `platform.kept_item()` or `dead_letters()`.
        slet: The slet that processes the item; by default the slet that failed.
        memento: The state before the item; by default the memento in the file, or a new memento if the file has none.

    Returns:
        The items that the slet emits at `out`; for a slet with further outputs, the items of each port by its name.

    Raises:
        Exception: the exception of the slet.
        StoredStateError: the file is damaged, or the code of the slet, the item or the memento is missing.
        SletError: the slet has its own driver.
        UnknownName: the slet has no input port of the name in the file.
    """
    failed = file if isinstance(file, FailedItem) else FailedItem.from_bytes(Path(file).read_bytes())
    spec = _original(failed) if slet is None else spec_of(slet)
    if spec.own_driver:
        cure = "use exop.testing.open() and call its methods"
        raise SletError(slet=spec.name, what="slet to replay", problem="it has a driver of its own", cure=cure)
    if spec.state is not None and memento is None and failed.memento is not None:
        declared = declared_by(spec.state[1])
        memento = load_memento(failed.memento, spec.state[1], f"the memento of {failed.place}", declared=declared)
    pulled: Mapping[str, Any] = failed.item if not failed.port and isinstance(failed.item, Mapping) else {}
    settings = {name: value for name, value in failed.settings.items() if name in spec.settings}
    spec = spec.asked(spec.name, settings).connected([failed.port])
    with opened(spec, memento, {**settings, **pulled}) as (instance, call):
        if spec.iterated:
            results = leaving(spec, call(None)() or ())
        else:
            ports = {port.name: port for port in spec.inputs if not port.pulled}
            port = entry(f"the slet {spec.name}", "input port", ports, failed.port)
            found = call(port)(entering(port, failed.item))
            results = leaving(spec, found if spec.results[port.name] == "many" else [found])
        pushed = {port.name: getattr(instance, port.name, None) for port in spec.outputs}
        pushed |= getattr(instance, "outputs", {})
        for family in (one.family for one in spec.families if one.direction == "out"):
            pushed |= {f"{family}.{member}": port for member, port in getattr(instance, family).items()}
        taken = {name: one.taken() for name, one in pushed.items() if isinstance(one, CollectingOutput)}
        outputs = {port.name: [] for port in spec.outputs} | taken
    if OUT in outputs:
        outputs[OUT] += results
    return outputs if outputs.keys() - {OUT} else outputs.get(OUT, [])


def _original(failed: FailedItem) -> SletSpec:
    """Return the slet for which the item has failed: by the place of its code, else from an installed plugin."""
    with suppress(StoredStateError, SletError):  # the code may have moved, while its identity still holds
        if failed.code is not None:
            return spec_of(named(failed.code))
    # Imported lazily: plugins are loaded only where the code is not found by its name.
    from exop.runtime.catalog import known_slets

    if (spec := known_slets().slets.get(failed.slet)) is not None:
        return spec
    what, cure = f"the slet {failed.slet} of {failed.place}", "install it, or give it: replay(FILE, slet=…)"
    raise StoredStateError(what=what, problem="its code is not found here", cure=cure)
