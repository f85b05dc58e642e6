"""`feed`: a slet run over items."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from exop.errors import SletError
from exop.model.items import CONTROL, EndOfStream, Punctuation
from exop.model.slets.ports import OUT, PortSpec
from exop.model.slets.slet import spec_of
from exop.model.slets.spec import SletSpec
from exop.model.values.columns import is_columns
from exop.runtime.dataflow.batches import to_columns, to_items
from exop.runtime.dataflow.binding import bind_function
from exop.safe_repr import add_note, shown
from exop.testing.instances import PATIENCE, CollectingOutput, GivenInput, entered


def feed(slet: Any, items: Iterable[Any] = (), /, **given: Any) -> list[Any]:
    """Run a slet over *items* and return its output at `out`, in order.

    The slet receives the items as in a mesh: single items, lists or columns, by the type of its port; control items if
    that type names them, the end of the stream last. Other punctuations are passed on. A source runs to its end. An
    exception of the slet leaves `feed` with a note that shows the item.

    Args:
        slet: A `@slet` function or a `Slet` class with at most one input port.
        items: The input.
        given: Settings, and a memento under its name (a new one otherwise).

    Raises:
        SletError: the slet has several inputs; use `open` and call its methods.
    """
    spec = spec_of(slet)
    inputs = [*spec.inputs, *(family for family in spec.families if family.direction == "in")]
    if len(inputs) > len(spec.inputs) or len(inputs) > 1:
        ports = ", ".join(port.name for port in inputs)
        cure = "use exop.testing.open() and call its methods"
        raise SletError(slet=spec.name, what="slet for feed()", problem=f"it has several inputs ({ports})", cure=cure)
    memento = given.pop(spec.state[0], None) if spec.state else None
    pulled = {port.name: items for port in spec.inputs if port.pulled}
    if spec.is_class:
        with entered(spec, memento, {**given, **pulled}) as instance:
            return _fed_class(spec, instance, items)
    if spec.state and memento is None:
        memento = spec.state[1]()
    call = bind_function(spec, memento, spec.configured(spec.name, given))
    if spec.iterated:
        return leaving(spec, call(*(GivenInput(name, items) for name in pulled)) or ())
    return _fed(spec, call, items)


def _fed_class(spec: SletSpec, instance: Any, items: Iterable[Any]) -> list[Any]:
    out = getattr(instance, OUT, None)
    pushed = out if isinstance(out, CollectingOutput) else CollectingOutput()
    if spec.iterated:
        found = []
        for payload in instance:
            found += [*pushed.taken(), *leaving(spec, [payload])]
        return [*found, *pushed.taken()]
    if spec.inputs:
        port = spec.inputs[0]
        method = getattr(instance, port.method or port.name)
        found = _fed(spec, method, items, pushed if not spec.own_driver else None)
        if not spec.own_driver or out is None:
            return found
    assert pushed.wait(), f"{spec.name} has not ended its output within {PATIENCE:g} s; an engine calls out.end()"
    if pushed.error is not None:
        raise pushed.error
    return pushed.items


def _fed(
    spec: SletSpec, call: Callable[[Any], Any], items: Iterable[Any], pushed: CollectingOutput | None = None
) -> list[Any]:
    """Call a slet for each item; the items *pushed* to `out` come before the returned ones."""
    port, left, ended = spec.inputs[0], list[Any](), False
    returns = spec.results[port.name]

    def take(item: Any) -> None:
        result = call(entering(port, item))
        results = [*result] if returns == "many" else [] if returns == "none" else [result]
        left.extend(pushed.taken() if pushed is not None else ())
        left.extend(leaving(spec, results))

    for number, item in enumerate(items, 1):
        ended = ended or isinstance(item, EndOfStream)
        if isinstance(item, EndOfStream) and not port.type.end:
            continue
        if isinstance(item, Punctuation) and not port.type.punctuation:
            left.append(item)
            continue
        try:
            take(item)
        except Exception as error:
            add_note(error, f"in the slet {spec.name!r}, for item {number}: {shown(item, 200)}")
            raise
    if port.type.end and not ended:
        take(EndOfStream())
    return left


def entering(port: PortSpec, item: Any) -> Any:
    """Return an item in the form of the port: alone, in a list, in columns."""
    if isinstance(item, CONTROL) or port.type.form == "item":
        return item
    rows = item if isinstance(item, list) or is_columns(item) else [item]
    return to_columns(rows, port.type) if port.type.form == "columns" else to_items(rows, port.type.item)


def leaving(spec: SletSpec, payloads: Iterable[Any]) -> list[Any]:
    """Return the output item by item: lists of a batch port are flattened; `None` and the end are left out."""
    batches = any(port.name == OUT and port.type.form == "batch" for port in spec.outputs)
    left: list[Any] = []
    for payload in payloads:
        if payload is None or isinstance(payload, EndOfStream):
            continue
        left += payload if batches and isinstance(payload, list) else [payload]
    return left
