"""The compiler of the entry into one port of a component: calls, control items, instruments, fusion, suspension."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from exop.errors import ComponentFailed, WiringError
from exop.model.items import CONTROL, EndOfStream, Punctuation
from exop.model.slets.ports import OUT, PortSpec
from exop.model.slets.relay import RELAY
from exop.runtime.channels.base import RETRACTED
from exop.runtime.channels.wire import Undecoded
from exop.runtime.component import Component
from exop.runtime.dataflow.batches import are_references, to_columns, to_items, weight
from exop.runtime.dataflow.entry import NOWHERE, Entry, InFlight, Late, LateEntry, Link, Method, Push, Unwind, in_turn
from exop.runtime.dataflow.fusion import fused, fused_batch, sender
from exop.runtime.dataflow.metrics import Tally
from exop.runtime.drivers.base import current_driver
from exop.runtime.lifecycle import Event
from exop.runtime.supervision.failure_policy import failure_handler, leave_out, omission_handler, size_at


def compile_entry(component: Component, port: PortSpec) -> Entry:
    """Compile the entry into *port*; it sends results to the entries to which the output ports are bound now."""
    if component.held or component.unfilled:
        return _waiting_entry(component, port)
    compiled = partial(_open_entry, component, port)
    return compiled() if (updates := component.updates) is None else updates.trigger(port.name, port.type, compiled)


def _open_entry(component: Component, port: PortSpec) -> Entry:
    """Compile the entry without the trigger of pending settings."""
    call, lazy = _converted(component, port), component.spec.results.get(port.name) == "many"
    for tap in component.taps:
        call = tap.around(port, call, lazy=lazy)
    component.tried[port.name] = call
    to = component.to.get(OUT, NOWHERE)
    tally = component.metrics.tallies[port.name]
    tally.chained = _is_plain(component, port) and component.spec.results[port.name] != "none"
    tally.lead_into(to.tally if tally.chained else None)
    compiled = _relay_entry if component.spec == RELAY and not component.taps else _slet_entry

    def probe() -> Entry:
        timed = component.metrics.timed(call, lazy=lazy)
        return _instrumented(component, compiled(component, port, timed, to.probe, {}))

    return compiled(component, port, call, to, {"probe": probe})


def _relay_entry(component: Component, port: PortSpec, _: Callable[[Any], Any], to: Entry, late: Late) -> Entry:
    """Compile the entry into a relay: that of its output channel, with the counts of the node.

    Batches stay whole. Single items that the caller counts pass without any call.
    """
    metrics, tally = component.metrics, component.metrics.tallies[port.name]

    def one_by_one() -> Push:
        push_uncounted = to.uncounted

        def push(item: Any) -> None:
            tally.received += 1
            push_uncounted(item)

        return push

    def whole() -> Push:
        push_whole = to.push_batch

        def push_batch(batch: Any) -> None:
            size = weight(batch)
            tally.received += size
            tally.stopped += size  # the target counts the batch itself
            tally.sent += size
            metrics.batches += 1
            push_whole(batch)

        return push_batch

    methods = {"push": one_by_one, "uncounted": lambda: to.uncounted, "push_batch": whole, **late}
    return _with_control(component, port, NOWHERE.control, methods, tally)


def _slet_entry(component: Component, port: PortSpec, call: Callable[[Any], Any], to: Entry, late: Late) -> Entry:
    """Compile the entry for the form of this port; one that takes and returns single items is fused with the next ones.

    The methods of the entry are compiled when they are first read, and so is the probe, which *late* makes.
    """
    if not _is_plain(component, port):
        entry = _entry_by_form(component, port, _call_and_send(component, port, call, to), late)
        if port.type.form != "item":
            entry.gathers = getattr(component.spec.factory, "gathers", 0)
            entry.max_wait = getattr(component.instance, "max_wait", 0.0)
        return entry
    methods = {
        "link": lambda: _link(component, port, call, to),
        "push": lambda: fused(entry, counted=True),
        "uncounted": lambda: fused(entry, counted=False),
        "push_batch": lambda: fused_batch(entry),
        **late,
    }
    entry = _with_control(component, port, NOWHERE.control, methods, component.metrics.tallies[port.name])
    return entry


def _link(component: Component, port: PortSpec, call: Callable[[Any], Any], to: Entry) -> Link:
    result, tally = component.spec.results[port.name], component.metrics.tallies[port.name]
    pauses = any(one.name == OUT and one.type.pauses for one in component.spec.outputs)

    def resend(found: Any) -> None:  # called late, since this compiles the entries downstream
        sender(result, to, tally, batches=False)[0](found)

    return Link(
        call=call,
        result="some" if result == "many" and pauses else result,
        to=to,
        stuck=failure_handler(component, port),
        aside=omission_handler(component, port),
        resend=resend,
        metrics=component.metrics,
        tally=tally,
        placeholder=component.port_placeholder(port),
        item=port.type.item,
    )


def _entry_by_form(component: Component, port: PortSpec, push: Push, late: Late) -> LateEntry:
    """Make an entry of *push*, which takes one item, or one batch if the port takes batches, and counts it as 1."""
    metrics, tally = component.metrics, component.metrics.tallies[port.name]

    def push_mark(mark: Any) -> None:
        tally.received -= 1
        push(mark)

    def push_items(batch: Any) -> None:
        metrics.batches += 1
        in_turn(entry, to_items(batch, port.type.item))

    def push_whole(batch: Any) -> None:
        tally.received += weight(batch) - 1
        metrics.batches += 1
        push(batch)

    one, several = (push, push_items) if port.type.form == "item" else (lambda item: push([item]), push_whole)
    methods = {"push": lambda: one, "push_batch": lambda: several, **late}
    entry = _with_control(component, port, push_mark, methods, None)
    return entry


def _is_plain(component: Component, port: PortSpec) -> bool:
    """Whether the slet takes and returns single items, by one port each, without control items or further ports."""
    out = next((one.type for one in component.spec.outputs if one.name == OUT), None)
    mixed = out is not None and (out.punctuation or out.end or out.form != "item")
    return not (mixed or component.buffered or port.type.punctuation or port.type.end or port.type.form != "item")


def _call_and_send(component: Component, port: PortSpec, call: Callable[[Any], Any], to: Entry) -> Push:
    """Compile the call of a slet of any shape: results are sent one by one, after the items pushed by further ports."""
    spec, tally = component.spec, component.metrics.tallies[port.name]
    result = spec.results[port.name]
    out = next((one.type for one in spec.outputs if one.name == OUT), None)
    send, leave = sender(result, to, tally, batches=out is not None and out.form != "item")
    stuck, lazy = failure_handler(component, port), result == "many"

    outputs = component.buffered if component.aside is None else (*component.buffered, component.aside)
    pushed = tuple(output.pushed for output in outputs)

    def send_all(payload: Any) -> None:
        try:
            component.flush_outputs()
        except Unwind as unwound:
            leave(unwound, payload)
            raise
        send(payload)

    def push(item: Any) -> None:
        tally.received += 1
        try:
            found = [*call(item)] if lazy else call(item)
        except BaseException as error:  # noqa: BLE001 (any error of a slet is handled by its policy)
            stuck(item, error, send_all)
            return
        if pushed and any(pushed):
            send_all(found)
        else:
            send(found)

    return push


def _converted(component: Component, port: PortSpec) -> Callable[[Any], Any]:
    """Return a call of the slet that first converts items to the form of the port; each call with a batch is timed."""
    plain, form = component.calls[port.name], port.type.form
    if form == "item":
        return plain
    metrics, lazy, clock = component.metrics, component.spec.results[port.name] == "many", time.perf_counter
    asked = getattr(component.instance, "takes_references", None)
    refers = form == "columns" and asked is not None and asked(port.name)

    def call(payload: Any) -> Any:
        begin = clock()
        if not (isinstance(payload, CONTROL) or (refers and are_references(payload))):
            payload = to_columns(payload, port.type) if form == "columns" else to_items(payload, port.type.item)
        found = [*plain(payload)] if lazy else plain(payload)
        took = clock() - begin
        metrics.busy += took
        metrics.times.append(took)
        return found

    return call


def _retracted(component: Component, port: str) -> list[Punctuation | EndOfStream]:
    """Let a relay tell a merge that what it has passed on does not hold; for all others, it says nothing."""
    if component.node.slet != RELAY:
        return component.merge.on(port, RETRACTED)
    component.merge.open_anew(port)
    component.merge.retract()
    return [RETRACTED] if component.is_merged else []


def _with_control(component: Component, port: PortSpec, push: Push, late: Late, tally: Tally | None) -> LateEntry:
    """Compile an entry that handles control items: *push* gets those in the port's type; then they are merged and sent.

    For *late* and *tally* see `LateEntry`.
    """
    spec, merge, name = component.spec, component.merge, port.name
    passes_on = not spec.own_driver and not any(one.type.punctuation for one in spec.inputs)

    def show(mark: Punctuation | EndOfStream) -> None:
        if port.type.punctuation if isinstance(mark, Punctuation) else port.type.end:
            push(mark)

    def pass_on(mark: Punctuation | EndOfStream) -> None:
        for one in _retracted(component, name) if mark == RETRACTED else merge.on(name, mark):
            if isinstance(one, EndOfStream):
                _end(component)
            elif passes_on:
                component.forward(one)

    def control(mark: Punctuation | EndOfStream) -> None:
        if isinstance(mark, EndOfStream):
            if name in component.ended:  # a stream ends once, also where a cycle repeats its end
                return
            component.ended.add(name)
        try:
            show(mark)
        except Unwind as unwound:
            unwound.then(entry, "pass_on", [mark])
            raise
        pass_on(mark)

    def decoding() -> Push:  # of batches that an inbox could not decode
        push_batch = late["push_batch"]()

        def push_decoded(batch: Any) -> None:
            if type(batch) is Undecoded:
                batch = decoded(component, port, batch)
            if batch is not None:
                push_batch(batch)

        return push_decoded

    entry = LateEntry(control, {**late, "push_batch": decoding}, tally)
    entry.endpoint, entry.show, entry.pass_on = f"{component.node.name}.{name}", show, pass_on
    for tap in component.taps:
        entry.control = tap.control(port, entry.control)
    return entry


def decoded(component: Component, port: PortSpec, batch: Undecoded) -> Any | None:
    """Decode for one port what an inbox could not decode for all ports; what fails is set aside.

    Without room for more dead letters the slet is suspended, or the policy drops the oldest; at a port that pulls, and
    in a group, the oldest is dropped.
    """
    # Imported lazily: only remote connectors need the encoding.
    from exop.runtime.channels.frame_body import read_again

    try:
        found = read_again(batch, component.node, port.name, component.application)
        if component.node.group is None:
            return found
        raise WiringError("another port does not take it; `exop item retry` passes it to its owner in the group")
    except WiringError as problem:
        component.metrics.tallies[port.name].received += size_at(port, batch)
        if not (port.pulled or component.node.group):
            failure_handler(component, port)(batch, problem, lambda found: None)
        else:
            where = f"in front of {component.node.name}.{port.name}"
            leave_out(component, problem, where, [(port.name, batch)], batch.num_rows, omits=True)
            if component.aside is not None and (driver := current_driver()) is not None:  # here, a push cannot unwind
                driver.inlets.post([InFlight(*step) for step in component.aside.unsent()])
        return None


def _end(component: Component) -> None:
    """End the outputs, since every input has ended; an engine ends its outputs itself."""
    if not component.spec.own_driver:
        component.finish()
    elif not component.spec.outputs and component.allows(Event.END):
        component.on(Event.END)


def _instrumented(component: Component, timed: Entry) -> Entry:
    """Return an entry that does the same, and also measures how long ago the item left its source."""
    latencies = component.metrics.latencies

    def measured(method: Literal["push", "uncounted", "push_batch"]) -> Push:
        def push(payload: Any) -> None:
            if (driver := current_driver()) is not None and driver.origin:
                latencies.append(time.perf_counter() - driver.origin)
            getattr(timed, method)(payload)

        return push

    found = Entry(measured("push"), measured("push_batch"), timed.control, endpoint=timed.endpoint)
    found.uncounted = measured("uncounted")
    return found


def _waiting_entry(component: Component, port: PortSpec) -> Entry:
    """Compile the entry into a component that accepts no items: drivers unwind to their safe points and wait."""
    placeholder = component.port_placeholder(port)

    def ready() -> bool:
        return component.left or not (component.shut or component.unfilled)

    def held(method: Method) -> Push:
        opened: Push | None = None

        def wait(payload: Any) -> None:
            nonlocal opened
            # The component may have been resumed, with no entry compiled since.
            if opened is None and not (component.held or component.unfilled):
                opened = getattr(compile_entry(component, port), method)
            if opened is not None:
                opened(payload)
                return
            if current_driver() is None:  # a test or an embedding program pushes: no safe point at which to wait
                waits = f"{component.wait_reason}; push the items that fill it first"
                problem = waits if component.unfilled else f"it is {component.status}; resume it first"
                phase = f"taking an item at {port.name!r}"
                raise ComponentFailed(node=component.node.name, phase=phase, problem=problem)
            raise Unwind(component.wait_reason, ready, InFlight(placeholder, method, payload))

        return wait

    entry = Entry(held("push"), held("push_batch"), held("control"), endpoint=placeholder.endpoint)
    entry.show, entry.pass_on = held("show"), held("pass_on")  # the part of `control` that is still to be done
    return entry
