"""One running instance of a slet: its state, settings, ports and life cycle, and the compiled entries of it."""

from __future__ import annotations

import itertools
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Literal
from weakref import WeakValueDictionary

from exop.errors import ComponentFailed
from exop.model.items import EndOfStream, Punctuation
from exop.model.meshes.mesh import Node
from exop.model.slets.memento import Memento
from exop.model.slets.ports import OUT, PortSpec, PortType
from exop.model.slets.spec import DEAD, SletSpec
from exop.runtime.channels.base import Channel, ControlMerge
from exop.runtime.dataflow.binding import atomic, bind_function, bind_method, families
from exop.runtime.dataflow.entry import NOWHERE, Entry, InFlight, Step, Tap, in_order
from exop.runtime.dataflow.ports import BufferedOutput, DrivenOutput, PulledInput
from exop.runtime.drivers.base import Driver, Halted
from exop.runtime.drivers.engine import EngineDriver
from exop.runtime.drivers.source import SourceDriver, ThreadDriver
from exop.runtime.durable.engine_journal import DiskJournal, EngineFolders, EngineJournal
from exop.runtime.lifecycle import Event, Lifecycle, State, makes_freely, sets_freely
from exop.runtime.metrics import ComponentMetrics
from exop.runtime.supervision.budget import OPENING, SETTING, UserCalls
from exop.runtime.supervision.failure_state import KeptItem, Trouble

#: Every component of this process, by `id`: log records are attributed to the slet that has made them.
LIVE: Final[WeakValueDictionary[int, Component]] = WeakValueDictionary()
#: In which order copies of mementos were made.
_MOMENTS = itertools.count()


class Component(Lifecycle):
    """A slet that runs (paper §2.4, §4.1). Many instances of one slet live side by side; they share nothing.

    Attributes:
        left: Another component has taken its place.
        pusher: The driver that pushes into it.
        runner: The driver that runs it: its own, or the one that pushes into it.
        buffered: The outputs by which a slet pushes that the platform drives.
        calls: For each input port, the slet bound to its state and settings.
        tried: The same behind its conversion: what a kept item is tried again with.
        to: For each output port, the entry to which it is bound.
        pullers: The drivers by which an engine pulls.
        aside: The output for dead letters, if the node connects it to a channel.
        ended: The input ports whose stream has ended.
        over: The slet had ended when the checkpoint was taken that it goes on from.
        tap: Listens to it; asked when its entries are compiled.
        trigger: Puts a trigger of the pending conditional updates in front of an entry that it compiles; given the name
            and the type of the port. `None` if none are pending.
    """

    # An instance with more than 30 attributes in its dictionary does not share the keys with the others.
    __slots__ = ("calls", "ended", "merge", "metrics", "outputs", "pulled", "state", "to", "tried", "trouble")

    runner: Driver | None = None
    pusher: Driver | None = None
    tap: Tap | None = None
    trigger: Callable[[str, PortType, Callable[[], Entry]], Entry] | None = None
    left = over = False
    pullers: Sequence[Driver] = ()
    buffered: Sequence[BufferedOutput] = ()
    aside: BufferedOutput | None = None
    _ended_ports: frozenset[str] = frozenset()

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
        """Make the driver, the ports, the tie, the memento and the instance; with *engines* an engine is durable."""
        spec, name = self.spec, f"{self.application}.{self.node.name}"
        if spec.own_driver:
            self.driver = EngineDriver(name, self._end_outputs)
        elif spec.iterated:
            self.driver = self._source_driver(name)
        for port in spec.outputs:
            if spec.sets_aside and port.name == DEAD:  # not `buffered`: most items put nothing out there
                self.outputs[port.name] = self.aside = BufferedOutput(port, self.failed)
            elif isinstance(self.driver, EngineDriver):
                self.outputs[port.name] = DrivenOutput(port, self.driver, self.failed, self._port_ended)
            elif buffers(spec, port):
                self.outputs[port.name] = output = BufferedOutput(port, self.failed)
                self.buffered = (*self.buffered, output)
        self.pulled = {port.name: self._pulled_input(port) for port in spec.inputs if port.pulled}
        if spec.tie is not None and isinstance(self.driver, EngineDriver):
            self.tie = self._make_tie(self.driver, engines)
        if spec.is_class or (spec.state is not None and not makes_freely(spec.state[1])):
            self.user.run(self, "being made", self._make_instance, seconds, interruptible=True)
        else:
            self._make_instance()
        self._bind_slet()

    def _make_instance(self) -> None:
        spec = self.spec
        self.state = spec.state[1]() if spec.state else None
        if spec.is_class:
            self.instance = spec.factory(**self.node.private_settings(), **self._injected())
            if spec.specialises or spec.families:
                self.instance.outputs = MappingProxyType(self.outputs)
                self.instance.inputs = tuple(port.name for port in spec.inputs)

    def _source_driver(self, name: str) -> SourceDriver:
        """Make the driver of a slet that is iterated."""
        spec = self.spec
        yields = next((port.type for port in spec.outputs if port.name == OUT), None)
        mixed = yields is not None and (yields.punctuation or yields.end)
        batches = yields is not None and yields.form != "item"
        return SourceDriver(
            name,
            self.iterate,
            self.finish,
            unsent=self.unsent if any(buffers(spec, port) for port in spec.outputs) else None,
            form="batches" if batches else "mixed" if mixed else "items",
            pulls=any(port.pulled for port in spec.inputs),
        )

    def _pulled_input(self, port: PortSpec) -> PulledInput:
        """An engine pulls by a driver for this port alone; a slet that is pushed to does not wait when it pulls."""
        name = f"{self.node.name}.{port.name}"
        if self.spec.own_driver:
            puller = Driver(f"{self.application}.{name}")
            puller.partner = self.driver
            self.pullers = [*self.pullers, puller]
            return PulledInput(port, name, puller, self._pulled_mark, own=True)
        made = PulledInput(port, name, self.driver, self._pulled_mark)
        if self.spec.atomic and self.spec.iterated:
            # The state is looked up each time: a successor takes over another one.
            made.before = lambda: None if self.state is None else (next(_MOMENTS), self.state.copied())
        return made

    def _make_tie(self, driver: EngineDriver, engines: EngineFolders | None) -> EngineJournal:
        """Make the tie of an engine; with *engines* it is backed by logs on disk."""
        forms = {port.name: port.type.form for port in self.spec.inputs if not port.pulled}
        if engines is None:
            return EngineJournal(forms)
        folder = partial(engines.folder, self.application, self.node.name)
        return DiskJournal(folder, forms, self.outputs, driver)

    def _injected(self) -> dict[str, Any]:
        """Return the arguments of an instance besides its settings: the ports that it names, its memento, its tie."""
        spec = self.spec
        declared = typing.get_type_hints(spec.factory, include_extras=True)
        ports: dict[str, Any] = {**self.outputs, **self.pulled}
        fields = families(spec, ports) | {key: port for key, port in ports.items() if key in declared}
        if spec.state:
            fields[spec.state[0]] = self.state
        if spec.tie:
            fields[spec.tie] = self.tie
        return fields

    def reset_metrics(self) -> None:
        """Count from zero: nothing yet, or calls beside the mesh."""
        source = self.driver if isinstance(self.driver, SourceDriver) else None
        self.metrics = ComponentMetrics(self.spec, self.pulled, self.outputs, source)

    def begin(self) -> None:
        """Let the slet drive, if it does: everything is open and bound."""
        if isinstance(self.driver, (ThreadDriver, EngineDriver)) and (self.driver.filled or not self.over):
            self.driver.start()
            if self.tie is not None:
                self.tie.start()

    def failed(self, error: BaseException, kept: KeptItem | None = None) -> None:
        """Note that the slet broke, and on which item; it stays suspended until it is resumed."""
        with self._turn:
            if kept is not None:
                self.trouble.kept = kept
            self.error = error
            if self.status is not State.OPENING and self.allows(Event.FAIL):
                self.on(Event.FAIL)

    def stick(self, error: BaseException) -> None:
        """Let nothing in: a call beside the items has failed. Called while nothing is in flight, before it is bound."""
        self.stuck = True
        self.failed(error)

    def resume(self) -> None:
        """Let items in again; the kept item is tried first."""
        with self._turn:
            self.error, self.stuck = None, False
            if self.allows(Event.RESUME):
                self.on(Event.RESUME)
            if self.node.suspended and self.allows(Event.SUSPEND):
                self.on(Event.SUSPEND)  # it was broken, and its node is suspended all the same
            self._let_on()

    def configure(self, node: Node) -> None:
        """Take new settings; called while nothing is in flight here.

        Raises:
            ComponentFailed: code of the slet that takes them has not returned in time; it has the old ones.
        """
        self._take("node", node, lambda: self.node.private_settings())  # noqa: PLW0108 (of the node of then)

    def _take(self, name: Literal["node", "state"], value: Any, fields: Callable[[], Mapping[str, Any]]) -> None:
        """Take another node or state, and set fields of the instance: late, they are those of then."""
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
        """Take the place of another component: its state, and how far its inputs had come. Nothing is in flight."""
        self.adopt(state)
        self.metrics.succeed(predecessor.metrics)
        self.merge, self.ended = predecessor.merge, predecessor.ended
        self.expect()
        self.trouble.dead = predecessor.trouble.dead
        for name, port in self.pulled.items():
            before = predecessor.pulled.get(name)
            if before is not None:
                port.succeed(before)

    def adopt(self, state: Memento | None) -> None:
        """Go on with this state; called while nothing is in flight here.

        Raises:
            ComponentFailed: code of the slet that takes it has not returned in time; it has the old one.
        """
        self._take("state", state, lambda: {self.spec.state[0]: self.state} if self.spec.state else {})

    def expect(self) -> None:
        """Note whose end the slet waits for: what is pushed to it, or what it takes where it is iterated.

        A port that it reads, or takes from when an item of another port comes, is no stream of its own.
        """
        pulled = [name for name, port in self.pulled.items() if port.queue is not None] if self.spec.iterated else []
        self.merge.expect([*(port.name for port in self.spec.inputs if not port.pulled), *pulled])

    def take_in_flight(self) -> list[InFlight]:
        """Give away what it has put out and its own driver, which is parked, has not sent."""
        if self.driver is None:
            return []
        return [*(InFlight(*step) for step in self.unsent()), *self.driver.take_in_flight()]

    def let_go(self) -> None:
        """Let those that wait for the component go on, by the new path: it was replaced."""
        self.left = True
        self._let_on()

    def _let_on(self) -> None:
        self.trouble.kept = None
        self.wake()

    def wake(self) -> None:
        """Let the drivers that wait for the component look again whether they can go on."""
        for driver in (self.driver, self.pusher, *self.pullers):
            if driver is not None:
                driver.wake()

    @property
    def awaits(self) -> list[Channel]:
        """The channels that it reads and that are not filled yet; it takes no items meanwhile."""
        channels = [port.channel for port in self.pulled.values() if port.queue is None]
        return [channel for channel in channels if channel is not None and not channel.filled]

    @property
    def helpless(self) -> bool:
        """Whether it cannot work by itself: it is suspended, has failed, or waits for what it reads."""
        return self.status in (State.FAILED, State.SUSPENDED) or bool(self.awaits)

    @property
    def waits(self) -> str:
        """The reason why it lets nothing in, in words."""
        names = ", ".join(repr(channel.name) for channel in self.awaits)
        return f"{self.node.name} waits for {names} to be filled" if names else f"{self.node.name} is suspended"

    def forget_outputs(self) -> None:
        """Drop what the slet has pushed for an item for which it raised."""
        for output in self.buffered:
            output.forget()

    def unsent(self) -> list[Step]:
        """Return how to send what the slet has pushed by its further ports."""
        outputs = self.buffered if self.aside is None else (*self.buffered, self.aside)
        return [step for output in outputs for step in output.unsent()]

    def flush_outputs(self) -> None:
        """Send what the slet has pushed by its further ports."""
        in_order(self.unsent())

    def bind(self, to: Mapping[str, Entry]) -> None:
        """Bind the output ports to what follows them; called while nothing is in flight here."""
        self.to = dict(to)
        for name, output in self.outputs.items():
            output.entry = self.to.get(name, NOWHERE)
        if isinstance(self.driver, SourceDriver):
            self.driver.entry = self.to.get(OUT, NOWHERE)
            self.driver.flow.lead_into(self.driver.entry.tally)

    def forward(self, mark: Punctuation | EndOfStream) -> None:
        """Send a control item by every output port, behind what the slet has pushed there."""

        def marks() -> Iterator[Step]:
            if self.tap is not None:
                self.tap.forwarded(mark)
            for port in self.spec.outputs:
                yield self.to.get(port.name, NOWHERE), "control", mark

        in_order(itertools.chain(self.unsent(), marks()))

    def finish(self) -> None:
        """Send the end of the stream downstream, behind everything that the slet has put out."""
        try:
            self.forward(EndOfStream())
        finally:
            for port in self.pulled.values():
                if port.queue is not None:
                    port.queue.leave()
            if self.allows(Event.END):
                self.on(Event.END)

    def _bind_slet(self) -> None:
        """Bind the slet to its state and settings."""
        spec, settings = self.spec, self.node.private_settings()
        for port in (one for one in spec.inputs if not one.pulled):
            call = bind_method(self.instance, port) if spec.is_class else bind_function(spec, self.state, settings)
            if spec.atomic and self.state is not None:
                call = atomic(call, self.state, lazy=spec.results[port.name] == "many")
            self.calls[port.name] = call

    def iterate(self) -> Iterator[Any]:
        """Return the iterator of the source driver; wait first until what the slet reads is filled."""
        if self.driver is not None and self.awaits:
            driver = self.driver
            driver.hold(self.waits, until=lambda: not self.awaits or driver.ending or driver.restarting)
            driver.rest()
            if driver.retired or driver.restarting:
                raise Halted
            if self.awaits:  # it is asked to end
                return iter(())
        if self.instance is not None:
            return iter(self.instance)
        pulled = list(self.pulled.values())
        found = bind_function(self.spec, self.state, self.node.private_settings())(*pulled)
        return iter(found if found is not None else ())

    def _end_outputs(self) -> None:
        """End every output port."""
        for output in self.outputs.values():
            output.end()

    def _port_ended(self, port: str) -> None:
        """Note that an output port has ended; when all have, so has the slet."""
        self._ended_ports |= {port}
        if self._ended_ports >= {spec.name for spec in self.spec.outputs} and self.allows(Event.END):
            self.on(Event.END)

    def _pulled_mark(self, port: str, mark: Punctuation | EndOfStream) -> None:
        """Take a control item at a port that pulls; what was before it is dealt with."""
        if not self.spec.iterated:  # what a slet pulls beside the items that are pushed to it is not its stream
            return
        for one in self.merge.on(port, mark):
            if isinstance(one, Punctuation) and not any(spec.type.punctuation for spec in self.spec.inputs):
                self.forward(one)


def buffers(spec: SletSpec, port: PortSpec) -> bool:
    """Whether the slet pushes by this output, beside (or instead of) returning its results."""
    if spec.sets_aside and port.name == DEAD:
        return False
    returns = any(result != "none" for result in spec.results.values())
    return port.name != OUT or not returns or OUT in getattr(spec.factory, "__dataclass_fields__", ())
