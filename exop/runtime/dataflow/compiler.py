"""Compiling the way into one port of a component."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from exop.errors import ComponentFailed
from exop.model.items import CONTROL, EndOfStream, Punctuation
from exop.model.slets.ports import OUT, PortSpec
from exop.runtime.component import Component
from exop.runtime.dataflow.batches import to_columns, to_items, weight
from exop.runtime.dataflow.entry import NOWHERE, Entry, InFlight, Late, LateEntry, Link, Method, Push, Unwind, in_turn
from exop.runtime.dataflow.fusion import fused, fused_batch, sender
from exop.runtime.drivers.base import current_driver
from exop.runtime.lifecycle import Event
from exop.runtime.supervision.failure_policy import anchor, aside_at, stuck_at


def compile_entry(component: Component, port: PortSpec) -> Entry:
    """Compile the way into *port*, given where the component's outputs are bound to now."""
    compiled = partial(_open_way, component, port)
    if component.trigger is None or _shut(component):
        return compiled()
    return component.trigger(port.name, port.type, compiled)


def _open_way(component: Component, port: PortSpec) -> Entry:
    """Compile the way in without the guard of pending settings."""
    call, lazy = _converting(component, port), component.spec.results.get(port.name) == "many"
    if component.tap is not None:
        call = component.tap.around(port, call, lazy=lazy)
    component.tried[port.name] = call
    to = component.to.get(OUT, NOWHERE)
    if _shut(component):
        return _holding(component, port)
    tally = component.metrics.tallies[port.name]
    tally.chained = _is_plain(component, port) and component.spec.results[port.name] != "none"
    tally.lead_into(to.tally if tally.chained else None)

    def probe() -> Entry:
        timed = component.metrics.timed(call, lazy=lazy)
        return _probing(component, _way(component, port, timed, to.probe, {}))

    return _way(component, port, call, to, {"probe": probe})


def _way(component: Component, port: PortSpec, call: Callable[[Any], Any], to: Entry, late: Late) -> Entry:
    """Compile the way in for the shape of this port: fused with the slets behind it if it takes and gives single items.

    Its callables are compiled when they are first read; so is the probe, which *late* makes.
    """
    if not _is_plain(component, port):
        return _seeing(component, port, _by_shape(component, port, _careful(component, port, call, to), late))
    entry: Entry = LateEntry(
        NOWHERE.control,
        {
            "link": lambda: _link(component, port, call, to),
            "push": lambda: fused(entry, counted=True),
            "uncounted": lambda: fused(entry, counted=False),
            "push_batch": lambda: fused_batch(entry),
            **late,
        },
        component.metrics.tallies[port.name],
    )
    return _seeing(component, port, entry)


def _link(component: Component, port: PortSpec, call: Callable[[Any], Any], to: Entry) -> Link:
    """Describe the slet as a part of a chain."""
    result, tally = component.spec.results[port.name], component.metrics.tallies[port.name]
    pauses = any(one.name == OUT and one.type.pauses for one in component.spec.outputs)

    def resend(found: Any) -> None:  # late: it compiles what follows
        sender(result, to, tally, batches=False)[0](found)

    return Link(
        call=call,
        result="some" if result == "many" and pauses else result,
        to=to,
        stuck=stuck_at(component, port),
        aside=aside_at(component, port),
        resend=resend,
        metrics=component.metrics,
        tally=tally,
        anchor=anchor(component, port),
        item=port.type.item,
    )


def _by_shape(component: Component, port: PortSpec, push: Push, late: Late) -> Entry:
    """Make an entry of *push*, which takes one payload, an item or a batch according to the port, and counts 1."""
    metrics, tally = component.metrics, component.metrics.tallies[port.name]

    def push_mark(mark: Any) -> None:
        tally.received -= 1
        push(mark)

    def push_items(batch: Any) -> None:
        metrics.batches += 1
        in_turn(entry, to_items(batch, port.type.item))

    def push_one(one: Any) -> None:
        push([one])

    def push_whole(batch: Any) -> None:
        tally.received += weight(batch) - 1
        metrics.batches += 1
        push(batch)

    one, several = (push, push_items) if port.type.form == "item" else (push_one, push_whole)
    entry = LateEntry(push_mark, {"push": lambda: one, "push_batch": lambda: several, **late})
    return entry


def _is_plain(component: Component, port: PortSpec) -> bool:
    """Whether the slet takes and gives single items by one port each: no control items, batches, or further ports."""
    spec = component.spec
    out = next((one.type for one in spec.outputs if one.name == OUT), None)
    mixed = out is not None and (out.punctuation or out.end or out.form != "item")
    return not (mixed or component.buffered or port.type.punctuation or port.type.end or port.type.form != "item")


def _careful(component: Component, port: PortSpec, call: Callable[[Any], Any], to: Entry) -> Push:
    """Compile a call of a slet of any shape: results are sent one by one, behind the pushes of its further ports."""
    spec, tally = component.spec, component.metrics.tallies[port.name]
    result = spec.results[port.name]
    out = next((one.type for one in spec.outputs if one.name == OUT), None)
    send, leave = sender(result, to, tally, batches=out is not None and out.form != "item")
    stuck, lazy = stuck_at(component, port), result == "many"

    def send_all(payload: Any) -> None:
        try:
            component.flush_outputs()
        except Unwind as unwound:
            leave(unwound, payload)
            raise
        send(payload)

    send_result = send_all if component.buffered else send

    def push(item: Any) -> None:
        tally.received += 1
        try:
            found = call(item)
            found = [*found] if lazy else found
        except BaseException as error:  # noqa: BLE001 (whatever a slet raises; the policy decides)
            stuck(item, error, send_result)
            return
        send_result(found)

    return push


def _converting(component: Component, port: PortSpec) -> Callable[[Any], Any]:
    """The slet's call behind the conversion that the port's form asks for; batches and columns are timed one by one."""
    plain, form = component.calls[port.name], port.type.form
    if form == "item":
        return plain
    metrics, lazy, clock = component.metrics, component.spec.results[port.name] == "many", time.perf_counter

    def call(payload: Any) -> Any:
        begin = clock()
        if not isinstance(payload, CONTROL):
            payload = to_columns(payload, port.type) if form == "columns" else to_items(payload, port.type.item)
        found = plain(payload)
        if lazy:
            found = [*found]
        took = clock() - begin
        metrics.busy += took
        metrics.times.append(took)
        return found

    return call


def _seeing(component: Component, port: PortSpec, entry: Entry) -> Entry:
    """Give an entry its control items: shown to a slet whose port's type names them, then merged and passed on."""
    spec, merge, name, push = component.spec, component.merge, port.name, entry.control
    sees_time = any(one.type.punctuation for one in spec.inputs)
    passes_on = not spec.own_driver and not sees_time
    entry.endpoint = f"{component.node.name}.{name}"

    def show(mark: Punctuation | EndOfStream) -> None:
        if port.type.punctuation if isinstance(mark, Punctuation) else port.type.end:
            push(mark)

    def pass_on(mark: Punctuation | EndOfStream) -> None:
        if isinstance(mark, Punctuation) and port.type.punctuation:
            return
        for one in merge.on(name, mark):
            if isinstance(one, EndOfStream):
                _end(component)
            elif passes_on:
                component.forward(one)

    def control(mark: Punctuation | EndOfStream) -> None:
        if isinstance(mark, EndOfStream):
            if name in component.ended:  # a stream ends once, however often that is said (as in a cycle)
                return
            component.ended.add(name)
        try:
            show(mark)
        except Unwind as unwound:
            unwound.then(entry, "pass_on", [mark])
            raise
        pass_on(mark)

    entry.control, entry.show, entry.pass_on = control, show, pass_on
    if component.tap is not None:
        entry.control = component.tap.control(port, control)
    return entry


def _end(component: Component) -> None:
    """Every input has ended: so have the outputs, unless the slet drives them itself."""
    if not component.spec.own_driver:
        component.finish()
    elif not component.spec.outputs and component.allows(Event.END):
        component.on(Event.END)


def _probing(component: Component, timed: Entry) -> Entry:
    """The instrumented way: notes how long ago the item left its source."""
    latencies = component.metrics.latencies

    def measured(method: Literal["push", "uncounted", "push_batch"]) -> Push:
        def push(payload: Any) -> None:
            driver = current_driver()
            if driver is not None and driver.origin:
                latencies.append(time.perf_counter() - driver.origin)
            getattr(timed, method)(payload)

        return push

    uncounted = measured("uncounted")
    return Entry(measured("push"), measured("push_batch"), timed.control, endpoint=timed.endpoint, uncounted=uncounted)


def _shut(component: Component) -> bool:
    """Whether a component lets nothing in: it is suspended, or waits for what it reads."""
    return component.held or bool(component.awaits)


def _holding(component: Component, port: PortSpec) -> Entry:
    """Compile the way into a component that lets nothing in: drivers go back to their safe points, and wait there."""
    placeholder = anchor(component, port)

    def held(method: Method) -> Push:
        opened: Push | None = None

        def wait(payload: Any) -> None:
            nonlocal opened
            if opened is None and not _shut(component):  # it goes on, and nothing was bound anew since
                opened = getattr(compile_entry(component, port), method)
            if opened is not None:
                opened(payload)
                return
            driver = current_driver()
            if driver is None:  # pushed by hand: there is no safe point to wait at
                waits = f"{component.waits}; push what fills that first"
                problem = waits if component.awaits else f"it is {component.status}; resume it first"
                raise ComponentFailed(
                    node=component.node.name, phase=f"taking an item at {port.name!r}", problem=problem
                )
            raise Unwind(
                component.waits,
                lambda: component.left or not (component.shut or component.awaits),
                InFlight(placeholder, method, payload),
            )

        return wait

    return Entry(held("push"), held("push_batch"), held("control"), endpoint=placeholder.endpoint)
