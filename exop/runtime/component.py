"""One running instance of a slet: its state, settings, ports and life cycle, and the compiled ways into it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from weakref import WeakValueDictionary

from exop.model.items import EndOfStream, Punctuation
from exop.model.lifecycle import Event, Lifecycle, State
from exop.model.memento import Memento
from exop.model.mesh import Node
from exop.model.signature import OUT
from exop.runtime.bind import atomic, bind_function
from exop.runtime.budget import UserCalls
from exop.runtime.channel import ControlMerge
from exop.runtime.closing import Hooks
from exop.runtime.drivers.base import Driver
from exop.runtime.drivers.engine import EngineDriver
from exop.runtime.drivers.source import SourceDriver
from exop.runtime.drivers.thread import ThreadDriver
from exop.runtime.entry import NOWHERE, Entry, control_all
from exop.runtime.lines import NodeWatch
from exop.runtime.making import make_parts
from exop.runtime.metrics import ComponentMetrics, counted_by, counts_of
from exop.runtime.ports import BufferedOutput, DrivenOutput, PulledInput, flush_all
from exop.runtime.tap import Tap
from exop.runtime.tied.live import LiveTie
from exop.runtime.tied.places import EnginePlaces
from exop.runtime.trouble import Kept, Trouble
from exop.runtime.unwind import Unwind, Work

Changed = Callable[["Component"], None]
#: Every component of this process, by `id`: log records are attributed to the slet that has made them.
LIVE: Final[WeakValueDictionary[int, Component]] = WeakValueDictionary()


class Component(Hooks):
    """A slet that runs (paper §2.4, §4.1). Many instances of one slet live side by side; they share nothing.

    Attributes:
        id: Unique in the platform, also over replacements of the node.
        left: Another component has taken its place.
        driver: The driver that the component is (an α-slet, a pulling one, an engine); others have none.
        pusher: The driver that pushes into it.
        runner: The driver that runs it: its own, or the one that pushes into it.
        calls: For each input port, the slet bound to its state and settings.
        tried: The same behind its conversion: what a kept item is tried again with.
        to: For each output port, where it is bound to now.
        tie: What ties an engine to the platform; others have none.
        pullers: The drivers by which an engine pulls.
        ended: The input ports whose stream has ended.
        muted: Notifications of state changes are deferred until `announce`, because the streams stand still now.
        entered: When its opening began, by the monotonic clock.
        computed: So many seconds of the processor that has taken.
        stuck: It has failed in a call beside its items, and lets nothing in until it is resumed or replaced.
        over: The slet had ended when the checkpoint was taken that it goes on from.
        user: Calls the slet's own code, within a time.
        tap: What listens to it; asked when the ways into it are compiled.
        watch: Looks at what comes while settings are pending; `None` when there are none.
    """

    def __init__(
        self,
        component_id: str,
        application: str,
        node: Node,
        changed: Changed,
        engines: EnginePlaces | None = None,
        user: UserCalls | None = None,
    ) -> None:
        self.id = component_id
        self.application = application
        self.node = node
        self.spec = node.slet
        self.state: Memento | None = self.spec.state[1]() if self.spec.state else None
        self.lifecycle = Lifecycle(f"{application}.{node.name}")
        self.metrics = ComponentMetrics()
        self.trouble = Trouble()
        self.error: BaseException | None = None
        self.entered = self.computed = 0.0
        self.merge = ControlMerge()
        self.driver: Driver | None = None
        self.runner: Driver | None = None
        self.pusher: Driver | None = None
        self.tap: Tap | None = None
        self.instance: Any = None
        self.left = self.muted = self.over = self.stuck = False
        self.watch: NodeWatch | None = None
        self.calls: dict[str, Callable[[Any], Any]] = {}
        self.tried: dict[str, Callable[[Any], Any]] = {}
        self.to: dict[str, Entry] = {}
        self.outputs: dict[str, BufferedOutput | DrivenOutput] = {}
        self.pulled: dict[str, PulledInput] = {}
        self.pullers: list[Driver] = []
        self.ended: set[str] = set()
        self.tie: LiveTie | None = None
        self.user = user or UserCalls()
        self._changed = changed
        self._open = self._shut = False
        self._turn, self._going_on = threading.RLock(), threading.Lock()
        self._ended_ports: set[str] = set()
        make_parts(self, engines)
        self.expect()
        LIVE[id(self)] = self

    def on(self, event: Event) -> None:
        """Take a life-cycle event; the registry learns of the new state. A suspended slet of its own driver parks."""
        with self._turn:
            self.become(self.lifecycle.on(event)[0])

    def announce(self) -> None:
        """Send the notifications that were deferred while the component was muted."""
        self.muted = False
        self._changed(self)

    def become(self, lifecycle: Lifecycle) -> None:
        """Enter a state, or go back to one."""
        self.lifecycle = lifecycle
        if self.driver is not None and self.shut is not self._shut:
            self._shut = self.shut
            (self.driver.close if self.shut else self.driver.open)()
        self.tell()

    def tell(self) -> None:
        """Notify listeners that a visible property has changed; deferred while it is muted."""
        if not self.muted:
            self._changed(self)

    def begin(self) -> None:
        """Let the slet drive, if it does: everything is open and bound."""
        if isinstance(self.driver, (ThreadDriver, EngineDriver)) and (self.driver.filled or not self.over):
            self.driver.begin()
            if self.tie is not None:
                self.tie.begin()

    @property
    def held(self) -> bool:
        """Whether no items are let in: the component is suspended, or is to begin so, or is closed."""
        waiting = self.node.suspended and self.status in (State.CREATED, State.OPENING, State.READY)
        return waiting or self.shut or self.status is State.STOPPED

    @property
    def shut(self) -> bool:
        """Whether it is suspended, or has failed in a call beside its items."""
        return self.status is State.SUSPENDED or (self.stuck and self.status is State.FAILED)

    def failed(self, error: BaseException, kept: Kept | None = None) -> None:
        """Note that the slet broke, and on which item; it stays suspended until it is resumed."""
        with self._turn:
            if kept is not None:
                self.trouble.kept = kept
            self.error = error
            if self.status is not State.OPENING and Event.FAIL in self.lifecycle.allowed():
                self.on(Event.FAIL)

    def stick(self, error: BaseException) -> None:
        """Let nothing in: a call beside the items has failed. Called while nothing is in flight, before it is bound."""
        self.stuck = True
        self.failed(error)

    def resume(self) -> None:
        """Let items in again; the kept item is tried first."""
        with self._turn:
            self.error, self.stuck = None, False
            if Event.RESUME in self.lifecycle.allowed():
                self.on(Event.RESUME)
            if self.node.suspended and Event.SUSPEND in self.lifecycle.allowed():
                self.on(Event.SUSPEND)  # it was broken, and is to hold what comes all the same
            self._let_on()

    def configure(self, node: Node) -> None:
        """Take new settings; called while nothing is in flight here."""
        self.node = node
        if self.instance is not None:
            for name, value in node.private_settings().items():
                setattr(self.instance, name, value)
        self.bind_slet()

    def succeed(self, predecessor: Component, state: Memento | None) -> None:
        """Take the place of another component: its state, and how far its inputs had come. Nothing is in flight."""
        self._take(state)
        self.metrics.succeed(counted_by(self), counts_of(predecessor))
        self.merge, self.ended = predecessor.merge, predecessor.ended
        self.expect()
        self.trouble.dead = predecessor.trouble.dead
        for name, port in self.pulled.items():
            before = predecessor.pulled.get(name)
            if before is not None:
                port.succeed(before)

    def adopt(self, state: Memento) -> None:
        """Begin with a state that was stored; called before the component is bound and opened."""
        self._take(state)

    def _take(self, state: Memento | None) -> None:
        self.state = state
        if self.instance is not None and self.spec.state:
            setattr(self.instance, self.spec.state[0], state)
        self.bind_slet()

    def expect(self) -> None:
        """Note whose end the slet waits for: what is pushed to it, or what it takes where it is iterated.

        What a slet merely looks at, or takes from when an item of another port comes, is no stream of its own.
        """
        pulled = [name for name, port in self.pulled.items() if port.queue is not None] if self.spec.iterated else []
        self.merge.expect([*(port.name for port in self.spec.inputs if not port.pulled), *pulled])

    def surrender(self) -> list[Work]:
        """Give away what it has put out and its own driver, which is parked, has not sent."""
        if self.driver is None:
            return []
        outputs = [output for output in self.outputs.values() if isinstance(output, BufferedOutput)]
        return [*(work for output in outputs for work in output.surrender()), *self.driver.surrender()]

    def let_go(self) -> None:
        """Let those that wait for the component go on, by the new path: it was replaced."""
        self.left = True
        self._let_on()

    def _let_on(self) -> None:
        self.trouble.kept = None
        for driver in (self.driver, self.pusher):
            if driver is not None:
                driver.wake()

    def forget_outputs(self) -> None:
        """The slet raised: what it pushed for this item does not leave."""
        for output in self.outputs.values():
            if isinstance(output, BufferedOutput):
                output.forget()

    def flush_outputs(self) -> None:
        """Send what the slet pushed by its further ports."""
        flush_all([output for output in self.outputs.values() if isinstance(output, BufferedOutput)])

    def bind(self, to: Mapping[str, Entry]) -> None:
        """Bind the output ports to what follows them; called while nothing is in flight here."""
        self.to = dict(to)
        for name, output in self.outputs.items():
            output.entry = self.to.get(name, NOWHERE)
        if isinstance(self.driver, SourceDriver):
            self.driver.entry = self.to.get(OUT, NOWHERE)
            self.driver.flow.lead_into(self.driver.entry.tally)

    def forward(self, mark: Punctuation | EndOfStream) -> None:
        """Send a control item by every output port."""
        if self.tap is not None:
            self.tap.forwarded(mark)
        control_all(self._leaving(), mark)

    def finish(self) -> None:
        """Send the end of the stream downstream, behind everything that the slet has put out."""
        try:
            self._forward_behind(EndOfStream())
        finally:
            for port in self.pulled.values():
                port.leave()
            if Event.END in self.lifecycle.allowed():
                self.on(Event.END)

    def _forward_behind(self, mark: Punctuation | EndOfStream) -> None:
        """Send a control item by every output port, behind what the slet has pushed there."""
        try:
            self.flush_outputs()
        except Unwind as unwound:
            for entry in self._leaving():
                unwound.then(entry, "control", [mark])
            raise
        self.forward(mark)

    def _leaving(self) -> list[Entry]:
        return [self.to.get(port.name, NOWHERE) for port in self.spec.outputs]

    def bind_slet(self) -> None:
        """Bind the slet to its state and settings."""
        spec, settings = self.spec, self.node.private_settings()
        for port in (one for one in spec.inputs if not one.pulled):
            name = port.method or port.name
            call = getattr(self.instance, name) if spec.is_class else bind_function(spec, self.state, settings)
            if self.spec.atomic and self.state is not None:
                call = atomic(call, self.state, lazy=self.spec.results[port.name] == "many")
            self.calls[port.name] = call

    def iterate(self) -> Iterator[Any]:
        """Return the iterator of the source driver."""
        if self.instance is not None:
            return iter(self.instance)
        pulled = list(self.pulled.values())
        found = bind_function(self.spec, self.state, self.node.private_settings())(*pulled)
        return iter(found if found is not None else ())

    def end_outputs(self) -> None:
        """End every output port."""
        for output in self.outputs.values():
            output.end()

    def port_ended(self, port: str) -> None:
        """An output port has ended; when all have, so has the slet."""
        self._ended_ports.add(port)
        if self._ended_ports >= {spec.name for spec in self.spec.outputs} and Event.END in self.lifecycle.allowed():
            self.on(Event.END)

    def pulled_mark(self, port: str, mark: Punctuation | EndOfStream) -> None:
        """A port that pulls has come to a control item; what was before it is dealt with."""
        if not self.spec.iterated:  # only what is pulled by an iterated slet is its stream; the rest it looks at
            return
        for one in self.merge.on(port, mark):
            if isinstance(one, Punctuation) and not any(spec.type.punctuation for spec in self.spec.inputs):
                self._forward_behind(one)

    @property
    def status(self) -> State:
        """The state of the life cycle."""
        return self.lifecycle.state
