"""`Component`: one running instance of a slet, with its state, settings, ports and driver, and the bound call."""

from __future__ import annotations

import functools
import itertools
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal
from weakref import WeakValueDictionary

from exop.errors import ComponentFailed
from exop.model.items import EndOfStream, Punctuation
from exop.model.meshes.mesh import Node
from exop.model.slets.memento import Memento
from exop.model.slets.ports import OUT, InputPorts, OutputPorts, PortSpec, PortType
from exop.model.slets.spec import DEAD, SletSpec
from exop.runtime.channels.base import Channel, ControlMerge
from exop.runtime.dataflow.entry import NOWHERE, Entry, InFlight, Step, Tap, in_order
from exop.runtime.dataflow.metrics import ComponentMetrics
from exop.runtime.drivers.base import Driver, Halted
from exop.runtime.drivers.source import EngineDriver, SourceDriver, ThreadDriver
from exop.runtime.durable.engine_journal import DiskJournal, EngineFolders, EngineJournal
from exop.runtime.lifecycle import Event, Lifecycle, State, makes_freely, sets_freely
from exop.runtime.ports import BufferedOutput, DrivenOutput, PulledInput
from exop.runtime.supervision.budget import OPENING, SETTING, UserCalls
from exop.runtime.supervision.failure_state import KeptItem, Trouble

#: Every component of this process, by `id`: so that log records name the slet that made them.
LIVE: Final[WeakValueDictionary[int, Component]] = WeakValueDictionary()
#: In which order copies of mementos were made.
_MOMENTS = itertools.count()


class Component(Lifecycle):
    """A slet that runs (paper §2.4, §4.1). Many instances of one slet live side by side; they share nothing.

    Attributes:
        left: It was replaced or removed.
        pusher: The driver that pushes into it.
        runner: The driver that runs it: its own, or the one that pushes into it.
        buffered: The further outputs of a slet that the platform drives.
        calls: For each input port, the slet bound to its state and settings.
        tried: The same behind the conversion of the port, for another try of a failed item.
        to: The entry to which each output port is bound.
        pullers: The drivers by which an engine pulls.
        aside: The output for dead letters, if the node connects it to a channel.
        ended: The input ports whose stream has ended.
        over: The slet had ended at the checkpoint from which it recovers.
        tap: Listens to its items; asked when its entries are compiled.
        trigger: Puts a trigger of the pending conditional updates in front of an entry that it compiles; given the name
            and the type of the port. `None` if none are pending.
    """

    # Beyond 30 attributes in its dictionary, an instance does not share the keys with the others.
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
            if spec.sets_aside and port.name == DEAD:  # not `buffered`: most items send nothing there
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
                self.instance.outputs = types.MappingProxyType(self.outputs)
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
        """Make a port that pulls: an engine has a driver for it alone; a slet to which items are pushed never waits."""
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
        """Make the tie of an engine; with *engines* its logs are on disk."""
        forms = {port.name: port.type.form for port in self.spec.inputs if not port.pulled}
        if engines is None:
            return EngineJournal(forms)
        folder = functools.partial(engines.folder, self.application, self.node.name)
        return DiskJournal(folder, forms, self.outputs, driver)

    def _injected(self) -> dict[str, Any]:
        """Return the arguments of an instance besides its settings: ports, memento and tie."""
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
        """Start the driver of the slet, if it has one; everything is open and bound."""
        if isinstance(self.driver, (ThreadDriver, EngineDriver)) and (self.driver.filled or not self.over):
            self.driver.start()
            if self.tie is not None:
                self.tie.start()

    def failed(self, error: BaseException, kept: KeptItem | None = None) -> None:
        """Suspend the slet after an error, on *kept* if an item caused it, until it is resumed."""
        with self._turn:
            if kept is not None:
                self.trouble.kept = kept
            self.error = error
            if self.status is not State.OPENING and self.allows(Event.FAIL):
                self.on(Event.FAIL)

    def fail_until_resumed(self, error: BaseException) -> None:
        """Take no items until it is resumed: a call beside the items has failed. Called before it is bound."""
        self.stuck = True
        self.failed(error)

    def resume(self) -> None:
        """Take items again, the kept item first."""
        with self._turn:
            self.error, self.stuck = None, False
            if self.allows(Event.RESUME):
                self.on(Event.RESUME)
            if self.node.suspended and self.allows(Event.SUSPEND):
                self.on(Event.SUSPEND)  # it had failed, and its node is suspended, too
            self._let_on()

    def configure(self, node: Node) -> None:
        """Take new settings; called while nothing is in flight here.

        Raises:
            ComponentFailed: code of the slet that takes them has not returned in time; it has the old ones.
        """
        self._take("node", node, lambda: self.node.private_settings())  # noqa: PLW0108 (of the node of then)

    def _take(self, name: Literal["node", "state"], value: Any, fields: Callable[[], Mapping[str, Any]]) -> None:
        """Take another node or state, and set fields of the instance; a late call sets the latest ones."""
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
        """Continue for a predecessor: its state, counts, and the positions of its inputs. Nothing is in flight."""
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
        """Continue with this state; called while nothing is in flight here.

        Raises:
            ComponentFailed: code of the slet that takes it has not returned in time; it has the old one.
        """
        self._take("state", state, lambda: {self.spec.state[0]: self.state} if self.spec.state else {})

    def expect(self) -> None:
        """Set the ports whose end is awaited: those with pushed items, and those from which an iterated slet takes.

        A port that a slet reads, or takes from when an item of another port comes, is no stream of its own.
        """
        pulled = [name for name, port in self.pulled.items() if port.queue is not None] if self.spec.iterated else []
        self.merge.expect([*(port.name for port in self.spec.inputs if not port.pulled), *pulled])

    def take_in_flight(self) -> list[InFlight]:
        """Take out what the slet has emitted and its own driver, which is parked, has not sent."""
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

    def wake(self) -> None:
        """Make the drivers that wait for the component check their conditions."""
        for driver in (self.driver, self.pusher, *self.pullers):
            if driver is not None:
                driver.wake()

    @property
    def unfilled(self) -> list[Channel]:
        """The channels that it reads and that are not filled yet: it takes no items meanwhile."""
        channels = [port.channel for port in self.pulled.values() if port.queue is None]
        return [channel for channel in channels if channel is not None and not channel.filled]

    @property
    def blocked(self) -> bool:
        """Whether it takes no items: it is suspended, has failed, or waits for a channel that it reads."""
        return self.status in (State.FAILED, State.SUSPENDED) or bool(self.unfilled)

    @property
    def wait_reason(self) -> str:
        """The reason why it takes no items, in words."""
        names = ", ".join(repr(channel.name) for channel in self.unfilled)
        return f"{self.node.name} waits for {names} to be filled" if names else f"{self.node.name} is suspended"

    def forget_outputs(self) -> None:
        """Drop the items that the slet pushed before it raised."""
        for output in self.buffered:
            output.forget()

    def unsent(self) -> list[Step]:
        """Take out the items that the slet has pushed by its further ports."""
        outputs = self.buffered if self.aside is None else (*self.buffered, self.aside)
        return [step for output in outputs for step in output.unsent()]

    def flush_outputs(self) -> None:
        """Send the items that the slet has pushed by its further ports."""
        in_order(self.unsent())

    def bind(self, to: Mapping[str, Entry]) -> None:
        """Bind the output ports to the entries behind them; called while nothing is in flight here."""
        self.to = dict(to)
        for name, output in self.outputs.items():
            output.entry = self.to.get(name, NOWHERE)
        if isinstance(self.driver, SourceDriver):
            self.driver.entry = self.to.get(OUT, NOWHERE)
            self.driver.flow.lead_into(self.driver.entry.tally)

    def forward(self, mark: Punctuation | EndOfStream) -> None:
        """Send a control item by every output port, behind the items that the slet has pushed there."""

        def marks() -> Iterator[Step]:
            if self.tap is not None:
                self.tap.forwarded(mark)
            for port in self.spec.outputs:
                yield self.to.get(port.name, NOWHERE), "control", mark

        in_order(itertools.chain(self.unsent(), marks()))

    def finish(self) -> None:
        """Send the end of the stream, behind everything that the slet has emitted."""
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
        """Return the iterator of the source driver; wait first until the channels that the slet reads are filled."""
        if self.driver is not None and self.unfilled:
            driver = self.driver
            driver.hold(self.wait_reason, until=lambda: not self.unfilled or driver.ending or driver.restarting)
            driver.rest()
            if driver.retired or driver.restarting:
                raise Halted
            if self.unfilled:  # it has to end
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
        """Take a control item at a port that pulls, behind all items before it."""
        if not self.spec.iterated:  # items pulled beside those that are pushed are no stream of its own
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


def bind_function(spec: SletSpec, state: Memento | None, settings: Mapping[str, Any]) -> Callable[..., Any]:
    """Return a slet function with its memento and settings as defaults.

    A plain function is cloned with other defaults, so that a call with the item alone costs no more than any call.
    A callable object or a decorated function is wrapped.
    """
    function = spec.factory
    named = dict(settings) | ({spec.state[0]: state} if spec.state else {})
    if not named:
        return function
    if not isinstance(function, types.FunctionType) or hasattr(function, "__wrapped__"):
        return functools.partial(function, **named)
    # Read from the code: the stream stands still meanwhile, and `inspect.signature` takes fifty times as long.
    code = function.__code__
    positional, others = code.co_varnames[: code.co_argcount], code.co_varnames[code.co_argcount :]
    early = spec.state is not None and spec.state[0] in positional
    if early and named.keys().isdisjoint(positional[-1:]):  # a default is for the last parameters alone
        return functools.partial(function, **named)
    defaults = (state,) if early else None
    twin = types.FunctionType(code, function.__globals__, function.__name__, defaults, function.__closure__)
    keywords = others[: code.co_kwonlyargcount]
    twin.__kwdefaults__ = (function.__kwdefaults__ or {}) | {key: named[key] for key in keywords if key in named}
    twin.__dict__.update(function.__dict__)
    twin.__qualname__ = function.__qualname__
    return twin


def bind_method(instance: Any, port: PortSpec) -> Callable[..., Any]:
    """Return the method of an instance that takes the items of a port; the method of a family also gets the name."""
    method: Callable[..., Any] = getattr(instance, port.method or port.name)
    return functools.partial(method, port.member) if port.member else method


def families(spec: SletSpec, ports: Mapping[str, Any]) -> dict[str, Any]:
    """Return the families of ports that a slet has as fields, each with its members among *ports*, by name."""
    fields = [family for family in spec.families if family.method is None]
    found: dict[str, Any] = {family.family: (InputPorts if family.pulled else OutputPorts)() for family in fields}
    for name, port in ports.items():
        family, _, member = name.partition(".")
        if member and family in found:
            found[family][member] = port
    return found


def atomic(call: Callable[[Any], Any], state: Memento, *, lazy: bool) -> Callable[[Any], Any]:
    """Restore the memento when a call fails, from a copy made before each call (for small mementos).

    With *lazy*, the call returns an iterator, which is run to its end inside.
    """

    def careful_call(item: Any) -> Any:
        before = state.copied()
        try:
            result = call(item)
            return [*result] if lazy else result
        except BaseException:
            put_back(state, before)
            raise

    return careful_call


def put_back(state: Memento, before: Memento) -> None:
    """Restore the content of a memento; the object stays, since the slet has it."""
    state.__dict__.clear()
    state.__dict__.update(before.__dict__)
