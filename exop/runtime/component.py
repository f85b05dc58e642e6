"""`Component`: one running instance of a slet, with its state, settings, ports and driver, and the bound call."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal
from weakref import WeakValueDictionary

from exop.errors import ComponentFailed
from exop.model.items import CONTROL, EndOfStream, Punctuation
from exop.model.meshes.mesh import Node
from exop.model.slets.memento import Memento
from exop.model.slets.ports import OUT, PortSpec, PortType
from exop.model.slets.spec import DEAD
from exop.runtime.channels.base import Channel, ControlMerge
from exop.runtime.channels.wire import Undecoded
from exop.runtime.dataflow.entry import NOWHERE, Entry, InFlight, Step, Tap, Unwind, in_order, placeholder
from exop.runtime.dataflow.metrics import ComponentMetrics
from exop.runtime.drivers.base import Driver, Halted
from exop.runtime.drivers.source import EngineDriver, Puller, SourceDriver, ThreadDriver
from exop.runtime.durable.engine_journal import DiskJournal, EngineFolders, EngineJournal
from exop.runtime.lifecycle import Event, Lifecycle, State, makes_freely, sets_freely
from exop.runtime.ports import BufferedOutput, DrivenOutput, PulledInput
from exop.runtime.slet_code import atomic, bind_function, bind_method, families, make_instance
from exop.runtime.supervision.budget import OPENING, SETTING, UserCalls
from exop.runtime.supervision.failure_state import UNDECODED, KeptItem, Trouble

if TYPE_CHECKING:
    from exop.runtime.conditional_updates import PendingUpdates

#: Every component of this process, by `id`, so that log records can name the slet that makes them.
LIVE: Final[WeakValueDictionary[int, Component]] = WeakValueDictionary()
#: Numbers that give the order in which copies of mementos are made.
_MOMENTS = itertools.count()


class Component(Lifecycle):
    """A running instance of a slet (paper §2.4, §4.1). Instances of the same slet share nothing.

    Attributes:
        left: The component was replaced or removed.
        before_omission: Called before an item is left out: skipped, or set aside.
        pusher: The driver that pushes items into the component.
        runner: The driver that runs the component: its own, or its `pusher`.
        buffered: The further outputs of a slet that the platform drives.
        calls: For each input port, the slet's call with state and settings.
        tried: The same calls with the conversion of the port, for a retry of a failed item.
        to: The entry to which each output port is bound.
        pullers: The drivers for the ports from which an engine pulls.
        waiting: Other drivers, which wait until the component is resumed: those of channels that refuse its items.
        aside: The output port for dead letters, if the node connects this port to a channel.
        ended: The input ports whose stream has ended.
        ended_outputs: The output ports by which an engine has sent the end of the stream.
        over: The slet has sent the end of its stream, perhaps before the checkpoint from which it was restored.
        is_merged: The control items of its last output are merged with those of others.
        taps: Listen to the component's items, each around the one before; consulted when entries are compiled.
        updates: The pending conditional updates, whose triggers come before entries; `None` if no update is pending.
    """

    # CPython shares the keys of instance dictionaries only up to 30 attributes.
    __slots__ = ("calls", "ended", "merge", "metrics", "outputs", "pulled", "state", "to", "tried", "trouble")

    before_omission: Callable[[], object] = bool
    runner: Driver | None = None
    pusher: Driver | None = None
    taps: tuple[Tap, ...] = ()
    updates: PendingUpdates | None = None
    left = over = is_merged = False
    pullers: Sequence[Driver] = ()
    waiting: Sequence[Driver] = ()
    buffered: Sequence[BufferedOutput] = ()
    aside: BufferedOutput | None = None
    ended_outputs: frozenset[str] = frozenset()

    def __init__(
        self,
        component_id: str,
        application: str,
        node: Node,
        changed: Callable[[Component], None],
        engines: EngineFolders | None = None,
        user: UserCalls | None = None,
        seconds: float | None = None,
    ) -> None:
        super().__init__(component_id, application, node, changed, user or UserCalls())
        self.state: Memento | None = None
        self.trouble = Trouble()
        self.merge = ControlMerge()
        self.calls: dict[str, Callable[[Any], Any]] = {}
        self.tried: dict[str, Callable[[Any], Any]] = {}
        self.to: dict[str, Entry] = {}
        self.outputs: dict[str, BufferedOutput | DrivenOutput] = {}
        self.pulled: dict[str, PulledInput] = {}
        self.ended: set[str] = set()
        self._make(engines, OPENING if seconds is None else seconds)
        self.reset_metrics()
        self.expect()
        LIVE[id(self)] = self

    def _make(self, engines: EngineFolders | None, seconds: float) -> None:
        """Make the driver, the ports, the tie, the memento and the instance; *engines* makes an engine durable."""
        spec, name = self.spec, f"{self.application}.{self.node.name}"
        if spec.own_driver:
            self.driver = EngineDriver(name, self._end_outputs, self._feeders)
        returns = any(result != "none" for result in spec.results.values())
        for port in spec.outputs:
            if spec.sets_aside and port.name == DEAD:  # not `buffered`: most items send nothing there
                self.outputs[port.name] = self.aside = BufferedOutput(port, self.failed)
            elif isinstance(self.driver, EngineDriver):
                self.outputs[port.name] = DrivenOutput(port, self.driver, self.failed, self._port_ended)
            elif port.name != OUT or not returns or OUT in getattr(spec.factory, "__dataclass_fields__", ()):
                self.outputs[port.name] = output = BufferedOutput(port, self.failed)
                self.buffered = (*self.buffered, output)  # pushed besides returning results, or instead
        if spec.iterated and self.driver is None:
            yields = next((port.type for port in spec.outputs if port.name == OUT), PortType())
            unsent, pulls = self.unsent if self.buffered else None, any(port.pulled for port in spec.inputs)
            self.driver = SourceDriver(name, self.iterate, self.finish, yields=yields, unsent=unsent, pulls=pulls)
        self.pulled = {port.name: self._pulled_input(port) for port in spec.inputs if port.pulled}
        if spec.tie is not None and isinstance(self.driver, EngineDriver):
            forms = {port.name: port.type.form for port in spec.inputs if not port.pulled}
            self.tie = EngineJournal(forms)
            if engines is not None:  # it gives the folder for the logs
                folder = functools.partial(engines.folder, self.application, self.node.name)
                self.tie = DiskJournal(folder, forms, self.outputs, self.driver)
        if spec.is_class or (spec.state is not None and not makes_freely(spec.state[1])):
            self.user.run(self, "being made", self._make_instance, seconds, interruptible=True)
        else:
            self._make_instance()
        self._bind_slet()

    def _make_instance(self) -> None:
        spec = self.spec
        self.state = spec.state[1]() if spec.state else None
        if spec.is_class:
            ports: dict[str, Any] = {**self.outputs, **self.pulled}
            fields = families(spec, ports) | ports
            self.instance = make_instance(spec, self.node.private_settings(), fields, self.state, self.tie)

    def _pulled_input(self, port: PortSpec) -> PulledInput:
        """Make a pulled port: an engine has a separate driver for it; other slets that get pushed items never wait."""
        name = f"{self.node.name}.{port.name}"
        if isinstance(self.driver, EngineDriver):
            puller = Puller(f"{self.application}.{name}", self.driver)
            self.pullers = self.driver.pullers = [*self.driver.pullers, puller]
            return PulledInput(port, name, puller, self._pulled_mark)
        made = PulledInput(port, name, self.driver, self._pulled_mark)
        if self.spec.atomic and self.spec.iterated:
            # The state is looked up each time, since a replacement takes over another one.
            made.before = lambda: None if self.state is None else (next(_MOMENTS), self.state.copied())
        return made

    def read_natively(self, channels: Mapping[str, Channel], before: Component | None = None) -> None:
        """Let an engine that is to be opened itself read the channels that it can; a successor as the old slet did."""
        asked = getattr(self.instance, "native_engine", None)
        if self.tie is None or asked is None or self.node.group is not None:
            return
        known = None if before is None else before.tie.native if before.tie is not None else {}
        for port, name in self.node.inputs().items():
            channel: Any = channels.get(name)
            engine = asked(port)
            if channel is None or engine is None or channel.native(engine) is None:
                continue
            if known is None or known.get(port) is channel:
                self.tie.native[port] = channel
                if known is None:  # a successor begins where its predecessor ends
                    self.tie.begin_reading(port, channel.oldest())

    def reset_metrics(self) -> None:
        """Reset all metrics, since the component is new or has processed items outside of the mesh."""
        source = self.driver if isinstance(self.driver, SourceDriver) else None
        self.metrics = ComponentMetrics(self.spec, self.pulled, self.outputs, source)

    def begin(self) -> None:
        """Start the driver of the slet, if it has one. Called when all slets are open and bound."""
        if isinstance(self.driver, ThreadDriver) and self.over and self.driver.end_thread():
            return  # what is posted to it later starts its thread
        goes_on = self.driver is not None and (self.driver.filled or not self.over)
        if isinstance(self.driver, EngineDriver) or (isinstance(self.driver, ThreadDriver) and goes_on):
            self.driver.start()  # that of an engine also delivers what is posted to it when it has ended
            if self.tie is not None and goes_on:
                self.tie.start()

    def failed(self, error: BaseException, kept: KeptItem | None = None) -> None:
        """Suspend the slet after an error until it is resumed; *kept* is the item that caused it, if any."""
        with self._turn:
            if kept is not None:
                self.trouble.kept = kept
            self.error = error
            if self.status is not State.OPENING and self.allows(Event.FAIL):
                self.on(Event.FAIL)

    def omits(self, payload: Any) -> bool:
        """Whether the policy omits a payload for which the slet raises: never a control item that an engine needs.

        In place of other slets, the platform itself passes on the punctuation or the end. Any policy omits what cannot
        be decoded, as far as there is room.
        """
        if isinstance(payload, Undecoded) and len(dead := self.trouble.dead) < self.node.letters:
            return dead.undecoded + len(payload.body) <= UNDECODED or self.node.policy == "skip"
        needed = isinstance(payload, CONTROL) and (self.spec.own_driver or hasattr(type(self.instance), "omit_rows"))
        return not needed and self.node.policy in ("skip", "dead-letter")

    def fail_until_resumed(self, error: BaseException) -> None:
        """Accept no items until the slet is resumed, since a call without an item has failed. Called before `bind`."""
        self.stuck = True
        self.failed(error)

    def resume(self) -> None:
        """Accept items again, first the one on which the slet was suspended; a closed one is first to be replaced."""
        if self.closed:
            return
        with self._turn:
            self.error, self.stuck = None, False
            if self.allows(Event.RESUME):
                self.on(Event.RESUME)
            if self.node.suspended and self.allows(Event.SUSPEND):
                self.on(Event.SUSPEND)  # the slet had failed, and its node is suspended as well
            if self.over and self.allows(Event.END):
                self.on(Event.END)  # it had failed on what it sent last, and nothing else ends it
            self._let_on()

    def open_anew(self, port: str, *, continued: bool) -> None:
        """Begin another stream, or expect the *continued* one to end again; what was dropped suspends it no more."""
        self.ended.discard(port)
        (self.merge.take_back_end if continued else self.merge.open_anew)(port)
        dropped = EndOfStream if continued else CONTROL
        if port in self.pulled:
            self.pulled[port].open_anew(dropped)
        if (kept := self.trouble.kept) is not None and kept.port == port and isinstance(kept.item, dropped):
            self.resume()

    def configure(self, node: Node) -> None:
        """Set new settings, while no item is in flight in the component; raises as `adopt`."""
        self._take("node", node, lambda: self.node.private_settings())  # noqa: PLW0108 (of the node at the time of the call)

    def _take(self, name: Literal["node", "state"], value: Any, fields: Callable[[], Mapping[str, Any]]) -> None:
        """Set another node or state, and fields of the instance; a late call sets the latest fields."""
        before = getattr(self, name)
        setattr(self, name, value)

        def assign() -> None:
            for field, one in fields().items():
                setattr(self.instance, field, one)

        try:
            if self.instance is not None and sets_freely(type(self.instance), fields()):
                assign()
            elif self.instance is not None:
                self.user.run(self, "taking its settings", assign, SETTING, assign)
        except ComponentFailed:
            setattr(self, name, before)
            raise
        self._bind_slet()

    def succeed(self, predecessor: Component, state: Memento | None) -> None:
        """Continue with *state* and the counts and input positions of the replaced component; nothing is in flight."""
        self.adopt(state)
        self.metrics.succeed(predecessor.metrics)
        self.merge, self.ended = predecessor.merge, predecessor.ended
        self.ended_outputs = predecessor.ended_outputs
        self.expect()
        self.trouble.dead = predecessor.trouble.dead
        for name, port in self.pulled.items():
            if (before := predecessor.pulled.get(name)) is not None:
                port.succeed(before)

    def adopt(self, state: Memento | None) -> None:
        """Continue with this state, while no item is in flight in the component.

        Raises:
            ComponentFailed: code of the slet that sets it did not return in time; what was before remains.
        """
        self._take("state", state, lambda: {self.spec.state[0]: self.state} if self.spec.state else {})

    def expect(self) -> None:
        """Set the ports whose end is awaited: those with pushed items, and those from which an iterated slet pulls.

        Other ports, which a slet reads or pulls from when an item arrives by another port, do not count.
        """
        pulled = [name for name, port in self.pulled.items() if port.queue is not None] if self.spec.iterated else []
        self.merge.expect([*(port.name for port in self.spec.inputs if not port.pulled), *pulled])

    def take_in_flight(self) -> list[InFlight]:
        """Take out the items that the slet has emitted and its own driver, which is parked, has not sent."""
        if self.driver is None:
            return []
        return [*(InFlight(*step) for step in self.unsent()), *self.driver.take_in_flight()]

    def let_go(self) -> None:
        """Release the drivers that wait for the component, since it was replaced or removed."""
        self.left = True
        self._let_on()

    def _let_on(self) -> None:
        self.trouble.kept = None
        self.wake()
        self.waiting = ()

    def wake(self) -> None:
        """Make the drivers that wait for the component check their conditions again."""
        for driver in (self.driver, self.pusher, *self.pullers, *self.waiting):
            if driver is not None:
                driver.wake()

    @property
    def has_ended(self) -> bool:
        """Whether the slet emits nothing more, even if it has failed since; an engine that has failed may do so."""
        over = self.over and (not self.spec.own_driver or self.closed or self.status is State.CREATED)
        return over or self.status is State.ENDED

    @property
    def unfilled(self) -> list[Channel]:
        """The channels that the component reads and that are not filled yet; until then, it accepts no items."""
        channels = [port.channel for port in self.pulled.values() if port.queue is None]
        return [channel for channel in channels if channel is not None and not channel.filled]

    @property
    def can_call_again(self) -> bool:
        """Whether a call in progress can be ended and made again, and nothing is left of the first one."""
        pulls = any(port.queue is not None for port in self.pulled.values())
        return not (pulls or self.spec.iterated) and (self.state is None or self.spec.atomic)

    @property
    def blocked(self) -> bool:
        """Whether the component accepts no items: it is suspended, has failed, or waits for a channel that it reads."""
        return self.status in (State.FAILED, State.SUSPENDED) or bool(self.unfilled)

    @property
    def wait_reason(self) -> str:
        """The reason why the component accepts no items, in words."""
        waits = ", ".join(channel.away or f"{channel.name!r} to be filled" for channel in self.unfilled)
        return f"{self.node.name} waits for {waits}" if waits else f"{self.node.name} is suspended"

    def forget_outputs(self) -> None:
        """Drop the items that the slet pushed before it raised."""
        for output in self.buffered:
            output.pushed.clear()

    def unsent(self) -> list[Step]:
        """Take out the items that the slet has pushed by its further ports."""
        outputs = self.buffered if self.aside is None else (*self.buffered, self.aside)
        return [step for output in outputs for step in output.unsent()]

    def flush_outputs(self) -> None:
        """Send the items that the slet has pushed by its further ports."""
        in_order(self.unsent())

    def port_placeholder(self, port: PortSpec) -> Entry:
        """Return an entry that represents the one into a port."""
        return placeholder(f"{self.node.name}.{port.name}")

    def bind(self, to: Mapping[str, Entry]) -> None:
        """Bind the output ports to the entries downstream. Called while no item is in flight in the component."""
        self.to = dict(to)
        for name, output in self.outputs.items():
            output.entry = self.to.get(name, NOWHERE)
        if isinstance(self.driver, SourceDriver):
            self.driver.entry = self.to.get(OUT, NOWHERE)
            self.driver.flow.lead_into(self.driver.entry.tally)

    def forward(self, mark: Punctuation | EndOfStream) -> None:
        """Send a control item by every output port, after the items that the slet has pushed."""

        def marks() -> Iterator[Step]:
            for tap in self.taps:
                tap.forwarded(mark)
            for port in self.spec.outputs:
                yield self.to.get(port.name, NOWHERE), "control", mark

        in_order(itertools.chain(self.unsent(), marks()))

    def finish(self) -> None:
        """Send the end of the stream, after everything that the slet has emitted."""
        try:
            self.forward(EndOfStream())
        finally:
            for port in self.pulled.values():
                if port.queue is not None:
                    port.queue.leave()
            self.over = True
            if self.allows(Event.END):
                self.on(Event.END)

    def _bind_slet(self) -> None:
        spec, settings = self.spec, self.node.private_settings()
        for port in (one for one in spec.inputs if not one.pulled):
            call = bind_method(self.instance, port) if spec.is_class else bind_function(spec, self.state, settings)
            if spec.atomic and self.state is not None:
                call = atomic(call, self.state, lazy=spec.results[port.name] == "many")
            self.calls[port.name] = call

    def iterate(self) -> Iterator[Any]:
        """Wait until the channels that the slet reads are filled; then return the iterator of the source driver."""
        if (driver := self.driver) is not None and self.unfilled:
            driver.hold(self.wait_reason, until=lambda: not self.unfilled or driver.ending or driver.restarting)
            driver.rest()
            if driver.retired or driver.restarting:
                raise Halted
            if self.unfilled:  # the driver has to end
                return iter(())
        if self.instance is not None:
            return iter(self.instance)
        found = bind_function(self.spec, self.state, self.node.private_settings())(*self.pulled.values())
        return iter(found if found is not None else ())

    def _end_outputs(self) -> None:
        for output in self.outputs.values():
            output.end()

    @property
    def resting(self) -> bool:
        """Whether items rest inside: taken and not processed, emitted and not sent, or not answered by an engine."""
        places = (*(port.unfinished for port in self.pulled.values()), *(output.pushed for output in self.buffered))
        own = [one.resting for one in (self.driver, self.tie) if one is not None]
        try:
            inside = self.inside() if self.spec.own_driver else 0
        except Exception as error:  # noqa: BLE001 (any error of the slet)
            self.failed(error)
            return True
        if inside is None:  # each item is to have one result
            counts = self.metrics.counts().items()
            inside = sum(items if way == "in" else -items for (way, _), items in counts) - self.metrics.skipped
        return any(places) or any(own) or inside != 0

    def _feeders(self) -> Iterable[Driver]:
        """The drivers for whose items an engine waits; none while it has items."""
        return () if self.resting else filter(None, (self.pusher, *self.pullers))

    def _port_ended(self, port: str) -> None:
        """Record that an output port has ended; if all have, the slet has ended."""
        self.ended_outputs |= {port}
        if self.ended_outputs >= {spec.name for spec in self.spec.outputs} and self.allows(Event.END):
            self.on(Event.END)

    def _pulled_mark(self, port: str, mark: Punctuation | EndOfStream) -> None:
        """Take a control item at a pulled port, after all items before it."""
        if not self.spec.iterated:  # the end of a port that is pulled when items arrive elsewhere does not count
            return
        sees_time, driver = any(spec.type.punctuation for spec in self.spec.inputs), self.pulled[port].driver
        try:
            for one in self.merge.on(port, mark):
                if isinstance(one, Punctuation) and not sees_time:
                    self.forward(one)
        except Unwind as unwound:  # must not be raised through the slet that pulls
            if driver is None:
                raise
            driver.unwound(unwound)
