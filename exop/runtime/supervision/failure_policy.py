"""The failure policies: `skip`, `dead-letter` (sent to a channel, or stored up to a limit), `retry`, `suspend`.

A failed call has emitted no output. `failure_handler` is for the compiled entry of a port, `handle_source_failure` for
a source driver, `guarded_entry` for the entry of a channel that may refuse an item, and `suspend_on_defect` for a
driver after an error outside of any slet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal, NoReturn, TypeAlias

from exop.errors import ComponentFailed, NoSuchItem, NotStorable, PlanError, WiringError, counted
from exop.logs import logger
from exop.model.items import CONTROL, DeadLetter, Punctuation
from exop.model.slets.ports import OUT, PortSpec, node_at
from exop.model.slets.spec import DEAD
from exop.model.values.classes import name_of
from exop.runtime.channels.base import Channel
from exop.runtime.channels.partitioned import shared_out
from exop.runtime.channels.wire import Undecoded
from exop.runtime.component import Component
from exop.runtime.dataflow.batches import to_items, weight
from exop.runtime.dataflow.entry import NOWHERE, Entry, InFlight, Method, Push, Unwind, in_order, in_turn, placeholder
from exop.runtime.deployment import Deployment
from exop.runtime.drivers.base import CutShort, Driver, Halted, current_driver
from exop.runtime.lifecycle import Event, State
from exop.runtime.pause import Pause
from exop.runtime.slet_code import put_back
from exop.runtime.supervision.failure_state import NONE, FailedItem, KeptItem, NotStored
from exop.safe_repr import add_note, error_text, safe_repr, traceback_of, without_own_frames

#: The number of retries, and the seconds before the first one; the delay doubles with each further retry.
TRIES = 3
BACK_OFF = 0.1
#: A memento of more bytes is not stored with every dead letter.
LARGEST: Final = 65536
#: The note on a memento next to a failed item.
FOUND, LEFT = "as the call found it", "as the failed call left it"
_TOO_LARGE: Final = f"not kept: it is larger than {LARGEST // 1024} KB"
#: A component, and the name of the output port by which it pushes.
Producer: TypeAlias = "tuple[Component, str]"
#: Returns the producers of a channel.
Producers: TypeAlias = Callable[[], Sequence[Producer]]
#: Exceptions that the platform itself raises for a slet that has failed, or for a driver that unwinds or stops.
_PASSING = (ComponentFailed, Unwind, Halted)


def leave_out(
    component: Component, error: BaseException, where: str, items: Sequence[tuple[str, Any]], count: int, *, omits: bool
) -> bool:
    """Count a failure; if the policy *omits* the items, skip them or set them aside, each with its port."""
    component.metrics.failed(error)
    add_note(error, where)
    if omits:  # after a restart, the slet may not fail
        component.before_omission()
    if omits and component.node.policy == "skip":
        component.metrics.skipped += count
    elif omits:
        for port, item in items:
            set_aside(component, port, item, error)
    return omits


def omit(component: Component, port: str, failed: Iterable[tuple[Any, Exception]]) -> bool:
    """Apply the policy to items that an engine has read by itself at *port*; return whether the policy omits items."""
    for item, error in failed:
        where = f"in the slet {component.node.name!r}, port {port!r}"
        leave_out(component, error, where, [(port, item)], 1, omits=component.omits(item))
    return component.omits(None)


def _send_letters(component: Component, unwound: Unwind | None = None, marks: Sequence[Any] = ()) -> None:
    """Send the dead letters that go into a channel, then *marks*; if the driver unwinds, add all to *unwound*."""
    steps = component.aside.unsent() if component.aside is not None else []
    steps += [(component.to.get(OUT, NOWHERE), "control", mark) for mark in marks]
    if unwound is not None:
        unwound.in_flight += [InFlight(*step) for step in steps]
    else:
        in_order(steps)


def omission_handler(component: Component, port: PortSpec) -> Callable[..., bool]:
    """Return the handler that counts a failure at *port*, and returns whether the policy omits the item."""
    name, tally = port.name, component.metrics.tallies[port.name]
    announces = any(one.name == OUT and one.type.punctuation for one in component.spec.outputs)

    def aside(item: Any, error: BaseException, unwound: Unwind | None = None) -> bool:
        # `sys.exit` in a slet is a failure, too. Not `isinstance`, which would read an attribute of the error.
        if issubclass(type(error), (Unwind, Halted)):
            raise error
        try:
            component.forget_outputs()
            if type(error) is CutShort:
                return False
            without_own_frames(error)
            where = f"in the slet {component.node.name!r}, port {name!r}, for the item {safe_repr(item)}"
            omits = component.omits(item)
            left_out = leave_out(component, error, where, [(name, item)], size_at(port, item), omits=omits)
        except BaseException as defect:  # noqa: BLE001 (such as a lack of memory: the slet is suspended)
            problem, node = error_text(defect), component.name
            logger("exop.runtime").error("an item could not be set aside", node=node, problem=problem)
            return False
        tally.stopped += left_out
        # The slet has not sent the punctuation, and the stream behind it must not wait for it.
        due = left_out and announces and isinstance(item, Punctuation)
        _send_letters(component, unwound, component.merge.on(name, item) if due else ())
        return left_out

    return aside


def _omit_rows(component: Component, error: BaseException, rows: Sequence[tuple[str, Any]] | None) -> bool:
    """See `EngineSlet.omit_rows`. The call succeeds, so that the dead letters leave before its results."""
    omits = component.omits(rows)
    if omits and rows is not None and (component.runner is not None or current_driver() is None):  # no follower
        where, count = f"in the slet {component.node.name!r}", sum(weight(batch) for _, batch in rows)
        leave_out(component, error, where, rows, count, omits=True)
    return omits


def failure_handler(component: Component, port: PortSpec) -> Callable[[Any, BaseException, Push], None]:
    """Return the handler of items for which the slet raises at *port*; it unwinds the driver to suspend the slet."""
    name = port.name
    lazy = component.spec.results.get(name) == "many"
    aside, tally = omission_handler(component, port), component.metrics.tallies[name]
    if hasattr(type(component.instance), "omit_rows"):
        component.instance.omit_rows = partial(_omit_rows, component)

    def stuck(item: Any, error: BaseException, send: Push) -> None:
        tries = 0
        try:
            while not aside(item, error):
                if type(error) is CutShort:
                    tally.stopped += 1
                    raise Unwind(error.where, error.ready, again(component, port, item))
                if component.node.policy != "retry" or tries == TRIES or isinstance(item, Undecoded):
                    _suspend(component, port, KeptItem(name, item, error))
                _back_off(component, port, item, BACK_OFF * 2**tries)
                tries += 1
                try:
                    result = component.tried[name](item)
                    result = [*result] if lazy else result
                except (Unwind, Halted):
                    raise
                except BaseException as failure:  # noqa: BLE001 (the policy decides again)
                    error = failure
                else:
                    tally.stopped += 1
                    break
            else:
                return
        except _PASSING:
            raise
        except BaseException:  # noqa: BLE001 (such as a lack of memory: the slet is suspended)
            _suspend(component, port, KeptItem(name, item, error))
        send(result)

    return stuck


def _back_off(component: Component, port: PortSpec, item: Any, seconds: float) -> None:
    """Wait before the next retry; at the safe point if the driver has to park."""
    if (driver := current_driver()) is None:
        return
    driver.wait_for(lambda: driver.closed, timeout=seconds)
    if driver.closed:
        component.metrics.tallies[port.name].stopped += 1
        work = again(component, port, item)
        raise Unwind(f"{component.node.name} tries again", lambda: False, work, patience=seconds)


def again(component: Component, port: PortSpec, item: Any) -> InFlight:
    """Return the in-flight item for a retry, and correct the counts."""
    whole = port.type.form != "item" or isinstance(item, Undecoded)
    method: Method = "show" if isinstance(item, CONTROL) else "push_batch" if whole else "push"
    component.metrics.tallies[port.name].returned += size_at(port, item)
    component.metrics.batches -= method == "push_batch"
    return InFlight(component.port_placeholder(port), method, item)


def size_at(port: PortSpec, payload: Any) -> int:
    """Return the number of items in a payload of a port; a control item does not count."""
    return 0 if isinstance(payload, CONTROL) else 1 if port.type.form == "item" else weight(payload)


def _suspend(component: Component, port: PortSpec, kept: KeptItem) -> NoReturn:
    """Store the item, and return the driver to its safe point until the component is resumed."""
    component.metrics.tallies[port.name].stopped += 1
    if current_driver() is None:  # pushed without a driver: the caller gets the error
        phase, problem = f"taking an item at {kept.port!r}", error_text(kept.error)
        raise ComponentFailed(node=component.node.name, phase=phase, problem=problem) from kept.error
    raise _held(component, kept, again(component, port, kept.item), "is suspended on an item")


def _held(component: Component, kept: KeptItem, work: InFlight, why: str) -> Unwind:
    """Suspend a component on an item, which its driver processes when it is resumed."""
    component.failed(kept.error, kept)
    return Unwind(f"{component.node.name} {why}", lambda: component.trouble.kept is not kept, work)


def suspend_on_defect(
    deployment: Deployment, driver: Driver, error: BaseException, item: InFlight | None
) -> Unwind | None:
    """Suspend the component that a driver was about to call when an error arose outside of any slet.

    The driver continues when it is resumed or replaced. Return `None` if all components of the driver have ended.
    """
    node, port = node_at(item.entry.endpoint if item is not None else "", deployment.components)
    there = deployment.components.get(node)
    run = [one for one in deployment.components.values() if driver in (one.driver, one.runner)]
    component = next((one for one in (there, *run) if one is not None and one.allows(Event.FAIL)), None)
    if component is None:
        return None
    add_note(error, f"in the driver {driver.name!r}, outside of any slet: a defect, please report it")
    facts = {"driver": driver.name, "node": component.node.name}
    logger("exop.runtime").error("a defect outside of any slet: the driver waits for a resume", **facts, exc_info=error)
    work = item or InFlight(NOWHERE, "push", None)
    place = port if component is there else next(iter(component.spec.ports), "")
    kept = component.trouble.kept or KeptItem(place, work.payload, error)
    return _held(component, kept, work, f"is suspended: {driver.name} could not go on")


def handle_source_failure(component: Component, driver: Driver, error: BaseException) -> bool:
    """Handle an error of an iterated slet; return whether to iterate the slet again, from its memento.

    With `retry`, the slet is iterated again after a delay; with `suspend`, it is iterated again when it is resumed.
    With `skip` and `dead-letter`: if the slet reads its inputs itself, it continues after the items that it read last;
    if it is a source, its stream ends.
    """
    taken = _put_back(component)  # first, so that the items are not lost if a later step fails
    component.forget_outputs()
    trouble, name = component.trouble, component.node.name
    if type(error) is CutShort:
        driver.hold(error.where, until=lambda: error.ready() or driver.ending or driver.restarting)
        return not (driver.ending or driver.retired)
    without_own_frames(error)
    where = f"in the slet {name!r}, while it was iterated"
    count, omits = sum(map(len, taken.values())) or 1, component.omits(taken)
    if leave_out(component, error, where, [("", taken)], count, omits=omits):
        for port, items in taken.items():
            for _ in items:
                component.pulled[port].taken.popleft()
        if component.aside is not None:
            driver.stand_by()
            try:
                _send_letters(component)
            except BaseException as problem:  # noqa: BLE001 (a defect suspends the driver)
                driver.unwound(problem)
            driver.rest()
        if not taken:
            facts = {"node": component.name, "error": error_text(error)}
            logger("exop.runtime").warning("a source has raised: its stream ends", **facts)
        return bool(taken)
    sent = driver.count + driver.rows
    trouble.tries = trouble.tries + 1 if sent == trouble.sent else 1
    trouble.sent = sent
    if component.node.policy == "retry" and trouble.tries <= TRIES:
        seconds = BACK_OFF * 2 ** (trouble.tries - 1)
        driver.hold(f"{name} is tried again", until=lambda: driver.ending or driver.retired, timeout=seconds)
    else:
        trouble.tries = 0
        kept = KeptItem("", taken, error)
        component.failed(error, kept)
        driver.hold(f"{name} is suspended", until=lambda: trouble.kept is not kept or driver.ending)
    return not (driver.ending or driver.retired)


def _put_back(component: Component) -> dict[str, list[Any]]:
    """Put back the items that the slet has pulled last; if it is atomic, restore the memento from before."""
    found = {name: port.put_back() for name, port in component.pulled.items()}
    befores = [before for items, before in found.values() if items and before is not None]
    if befores and component.state is not None:
        put_back(component.state, min(befores, key=lambda one: one[0])[1])
    return {name: items for name, (items, _) in found.items() if items}


def guarded_entry(channel: Channel, entry: Entry, place: str, producers: Producers) -> Entry:
    """Return the entry into a channel at *place*, with the policy of the producer for items that the channel refuses.

    Every slet downstream has its own policy, so that an exception comes from the channel (no key, a full disk).
    """
    refuse = partial(refused, channel, place, producers)

    def guarded(method: Method) -> Push:
        take = getattr(entry, method)

        def push(payload: Any) -> None:
            try:
                take(payload)
            except _PASSING:
                raise
            except BaseException as error:  # noqa: BLE001 (any exception of a channel, or of a property of an item)
                if method == "push_batch" and channel.refuses_whole and not isinstance(payload, Undecoded):
                    in_turn(made, to_items(payload))  # it has taken no item: try each separately
                else:
                    refuse(method, payload, error)

        return push

    made = Entry(guarded("push"), guarded("push_batch"), guarded("control"), store=entry.store)
    if entry.probe is not entry:
        made.probe = guarded_entry(channel, entry.probe, place, producers)
    return made


def refused(
    channel: Channel, place: str, producers: Producers, method: Method, payload: Any, error: BaseException
) -> None:
    """Apply the policy of the producer of an item that is refused at *place*; without a producer, it is dropped.

    A control item is never left out: the channel alone can pass it on.
    """
    driver, found, item = current_driver(), producers(), safe_repr(payload)
    if not found:  # an item on which a removed slet was suspended
        facts = {"channel": channel.name, "item": item, "problem": error_text(error)}
        logger("exop.runtime").error("an item is dropped: a channel refuses it, and its producer was removed", **facts)
        return
    items = to_items(payload) if method == "push_batch" and not isinstance(payload, Undecoded) else [payload]
    letter = items[0] if isinstance(items[0], DeadLetter) else None
    own = [one for one in found if letter is not None and (one[0].node.name, one[1]) == (letter.node, DEAD)]
    component, port = next((one for one in own or found if one[0].runner is driver), (own or found)[0])
    where = f"in the channel {channel.name!r} ({channel.kind}), behind {component.node.name}.{port}"
    omits, failed = method != "control" and component.omits(payload), [(port, one) for one in items]
    if leave_out(component, error, f"{where}, for the item {item}", failed, len(items), omits=omits):
        if driver is component.runner:
            _send_letters(component)
        return
    if driver is None:  # pushed without a driver: the caller gets the error
        phase = f"pushing into the channel {channel.name!r}"
        raise ComponentFailed(node=component.node.name, phase=phase, problem=error_text(error)) from error
    if driver not in (component.driver, component.pusher, *component.waiting):
        component.waiting = (*component.waiting, driver)
    why = f"is suspended: the channel {channel.name!r} does not take its item"
    raise _held(component, KeptItem(port, payload, error), InFlight(placeholder(place), method, payload), why)


def _to_owners(deployment: Deployment, component: Component, work: InFlight, port: PortSpec) -> Iterator[InFlight]:
    """Yield the in-flight item of a member of a group for the current owners of the partitions."""
    partitioning, group = deployment.channels[component.node.ports[port.name]].partitioning, component.node.group
    if isinstance(work.payload, Undecoded) and group is not None:
        from exop.runtime.channels.frame_body import read_again

        with suppress(WiringError):  # this member refuses it again
            work = replace(work, payload=read_again(work.payload, component.node, port.name, component.application))
    if partitioning is None or group is None or isinstance(work.payload, (Undecoded, *CONTROL)):
        yield work
        return
    names = (node.name for node in deployment.mesh.nodes.values() if node.group == group)
    members = {name: placeholder(f"{name}.{port.name}") for name in names}
    for step in shared_out(partitioning, members, work.method, work.payload):
        yield InFlight(*step)


def retry_dead_letters(deployment: Deployment, node: str) -> int:
    """Retry all dead letters of a node in order, and return their number; those that a restart has lost stay.

    The node's driver pushes them after the in-flight items, at its next safe point; the policy applies again.
    """
    deployment.component(node)  # an unknown name is refused before any driver stops
    with deployment.changing, Pause(deployment) as pause:
        pause.stop()
        runner, dead = (component := deployment.component(node)).runner, component.trouble.dead
        if not dead and component.aside is not None:
            where = f"go into the channel {component.node.ports[DEAD]!r}: push the items again from its consumer"
            raise PlanError(f"the dead letters of {deployment.name}.{node} {where}")
        if not dead:
            return 0
        if runner is None or component.status not in (State.ACTIVE, State.SUSPENDED, State.FAILED):
            raise PlanError(
                f"the stream of {deployment.name}.{node} has ended, so that no output can leave; export its "
                f"{counted(len(dead), 'dead letter')} by `exop item export`, or run the application again"
            )
        letters = [one for one in dead if not isinstance(one.item, (NotStored, *CONTROL))]  # control items have passed
        if all(isinstance(one.item, NotStored) for one in dead):
            raise PlanError(
                f"a restart has lost the items of {counted(len(dead), 'dead letter')} of {deployment.name}.{node}, "
                f"which could not be stored; list them by `exop item list`, and push the items again from their source"
            )
        work, pulled, ports = list[InFlight](), component.pulled.keys(), component.node.ports.keys()
        for letter in letters:
            there = ports if isinstance(letter.item, Undecoded) else ports - pulled
            if lost := {letter.port} - there if letter.port else letter.item.keys() - pulled:
                raise PlanError(
                    f"a dead letter of {deployment.name}.{node} is from the port {min(lost)!r}, which is not connected "
                    f"any more, or takes its items in another way; connect such a port, or use `exop item export`"
                )
        deployment.await_checkpoint()
        for letter in letters:
            port = component.spec.ports.get(letter.port)
            if port is not None and port.direction == "out":  # the channel downstream had refused the item
                entry = deployment.entries[f"channel {component.node.ports[port.name]}"]
                work.append(InFlight(entry, "push", letter.item))
            elif port is not None and (queue := component.pulled[port.name].queue if port.pulled else None) is not None:
                queue.put_first([("push_batch", letter.item)])
            elif port is not None:
                work += _to_owners(deployment, component, again(component, port, letter.item), port)
        deployment.inlets.post(work)
        for letter in letters:  # those for a slet that pulls: its next pull returns them
            for name, items in letter.item.items() if not letter.port else ():
                component.pulled[name].taken.extend(items)
        dead[:] = [one for one in dead if isinstance(one.item, NotStored)]
    return len(letters)


def kept_item(component: Component) -> FailedItem | None:
    """Return the item on which a component is suspended, with the memento, which does not change during suspension."""
    kept = component.trouble.kept
    return None if kept is None else _failed_item(component, "kept", kept, _memento(component))


def failed_item(component: Component, dead_letter: int | None = None) -> FailedItem:
    """Return the item on which a slet is suspended, or a dead letter by number (from 1), or raise `NoSuchItem`."""
    kept, letters = kept_item(component), list(component.trouble.dead)
    if dead_letter is None:
        if kept is not None:
            return kept
        there = f"it has {counted(len(letters), 'dead letter')}"
        what, cure = "kept item", there if letters else "nothing of it has failed"
    else:
        if 1 <= dead_letter <= len(letters):
            return letters[dead_letter - 1]
        what = f"dead letter {dead_letter}"
        cure = f"give a number from 1 to {len(letters)}" if letters else "none was set aside"
    raise NoSuchItem(node=component.name, what=what, cure=cure)


def set_aside(component: Component, port: str, item: Any, error: BaseException) -> None:
    """Send an item, as a dead letter, to the dead-letter channel of the slet.

    If there is none, or the channel has refused the letter, store the item with the current memento.
    """
    if (aside := component.aside) is not None and not component.has_ended and port != DEAD:
        place, trace = (component.application, component.node.name, port), traceback_of(error, without=Unwind)
        letter = DeadLetter(*place, item, error_text(error), trace, time.time())
        if (driver := current_driver()) in (None, component.runner):
            aside.push(letter)
        else:  # a channel has refused the item from the driver of a queue downstream: the slet's driver sends it
            aside.rows += 1
            driver.inlets.post([InFlight(aside.entry, "push", letter)])
        return
    dead, most = component.trouble.dead, component.node.letters
    if len(dead) >= most and not dead.dropped:
        cure = "name a channel for them: dead_letters=channel"
        logger("exop.runtime").warning("dead letters are dropped", node=component.name, kept=most, cure=cure)
    if not most:
        dead.dropped += 1
        return
    large = bool(dead) and dead[-1].told == _TOO_LARGE  # it is not encoded again for every item
    memento = (None, _TOO_LARGE) if large else _memento(component, LARGEST)
    dead.add(_failed_item(component, "dead letter", KeptItem(port, item, error), memento), most)


def _failed_item(
    component: Component, kind: Literal["kept", "dead letter"], failed: KeptItem, memento: tuple[bytes | None, str]
) -> FailedItem:
    spec = component.spec
    code: str | None = None
    with suppress(NotStorable, AttributeError):
        code = name_of(spec.factory)
    where = (component.application, component.node.name, spec.identity, code, failed.port)
    settings, text = dict(component.node.settings), error_text(failed.error)
    return FailedItem(kind, *where, failed.item, settings, *memento, text, failed.text, time.time())


def _memento(component: Component, most: int | None = None) -> tuple[bytes | None, str]:
    """Return the memento in stored form, or `None` if it is larger than *most* bytes; and a remark on it."""
    if component.state is None:
        return None, NONE
    from exop.model.slets.stored_memento import dump_memento

    try:
        packed = dump_memento(component.state, component.name)
    except NotStorable as problem:
        return None, f"not kept: {problem}"
    if most is not None and len(packed) > most:
        return None, _TOO_LARGE
    return packed, FOUND if component.spec.atomic else LEFT
