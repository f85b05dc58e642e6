"""The engine journal: the input and output of an engine with its own threads, in memory or in logs on disk."""

from __future__ import annotations

import shutil
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partialmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from exop.errors import StoredStateError
from exop.model.items import CONTROL
from exop.model.slets.ports import OutputPort
from exop.model.slets.tie import Committed, Leaving, Tie, send
from exop.runtime.dataflow.batches import cut, weight
from exop.runtime.drivers.base import Driver, Halted, current_driver
from exop.runtime.drivers.source import EngineDriver
from exop.runtime.durable.failpoints import failpoint
from exop.runtime.log.memory import EventLog, MemoryLog, Retention

if TYPE_CHECKING:
    from exop.runtime.log.disk import DiskLog

#: The number of unsent payloads at which the engine waits.
MOST: Final = 64
#: The name of the log of the output, beside those of the input ports.
_OUTPUT: Final = ""


class EngineJournal(Tie):
    """The `Tie` that a platform passes to an engine: the events that arrive for it, and the output that it emits.

    Events are numbered: each item, each row of a batch, and each control item is one, as is a row of the port's log.

    Attributes:
        place: The folder of the journal in the state directory, in a durable application.
        replaying: Drop the results: those of the same input were sent before.
    """

    place: Path | None = None
    replaying = held = _sending = _awaited = False

    def __init__(self, forms: Mapping[str, str]) -> None:
        super().__init__()
        self._forms = dict(forms)
        self._logs: dict[str, EventLog] = {port: MemoryLog() for port in forms}
        self._arrived: dict[str, int] = {}
        self._unsent: deque[tuple[OutputPort[Any] | None, Any]] = deque()
        self._changed = threading.Condition()
        self._retired = False
        self._emitting = 0

    def take(self, port: str, payload: Any) -> Any | None:
        """Append the part of a payload that is not yet in the log, and return that part."""
        log, size, first = self._logs[port], self._size(port, payload), self.arrived(port)
        end = log.end
        known = min(end - first, size)
        fresh = None if known >= size else payload if known <= 0 else cut(payload, known, size)
        if fresh is not None:
            log.append(fresh if self._forms[port] != "item" and not isinstance(fresh, CONTROL) else [fresh])
        self._arrived[port] = first + size
        if self._awaited or first < end <= first + size:  # waking threads for each event would slow the stream
            with self._changed:
                self._changed.notify_all()
        return fresh

    def events(self, port: str, start: int | None = None) -> Iterator[tuple[int, Any]]:
        """Return the payloads of *port* from event number *start* on, each with the number of its first event."""
        if (log := self._logs.get(port)) is None:  # a port that pulls
            return
        at = max(log.start, self.committed.inputs.get(port, 0) if start is None else start)
        for batch in log.events(at, log.end):
            single = isinstance(batch, list) and (self._forms[port] == "item" or isinstance(batch[0], CONTROL))
            for payload in batch if single else (batch,):
                yield at, payload
                at += self._size(port, payload)

    def _send(self, leaving: Iterable[Leaving], batch: Committed) -> bool:
        """Emit a batch; return `False` if it is not wanted, or if the application is being closed."""
        try:
            with self._emission(batch.batch) as wanted:
                if not wanted:
                    return False
                # If the engine is stopped from here on, the platform passes the unsent part to the replacement.
                self._unsent.extend(() if self.replaying else leaving)
                self.committed = self.committed.after(batch)
                for port in self._logs.keys() & batch.inputs.keys():
                    self._logs[port].trim(batch.inputs[port])
                while self._unsent:  # only the engine's thread appends and removes
                    send(*self._unsent.popleft())  # type: ignore[arg-type]
            return True
        except Halted:
            return False

    def arrived(self, port: str) -> int:
        """Return the number of events that have arrived at *port*."""
        return self._arrived.get(port, 0)

    def await_checkpoint(self) -> None:
        """Take nothing more until a checkpoint that is captured from now on is written."""

    def open(self) -> None:
        """Open the logs, before the slet is opened."""

    def start(self) -> None:
        """Start to send the output. Called when all slets are open."""

    def close(self) -> None:
        """Close the logs, after the slet was closed."""

    def caught_up(self, timeout: float) -> bool:
        """Wait until the upstream has sent again all events that the engine took before a crash."""
        with self._changed:
            logs = self._logs.items()
            self._awaited = True  # first: an event that is in a log already may count as arrived only afterwards
            try:
                return self._changed.wait_for(lambda: all(self.arrived(port) >= log.end for port, log in logs), timeout)
            finally:
                self._awaited = False

    def hurried(self) -> bool:
        """Whether the driver that delivers events is requested to reach its safe point."""
        return (driver := current_driver()) is not None and (driver.closed or driver.halting)

    @property
    def resting(self) -> bool:
        """Whether emitted output is not sent."""
        return bool(self._unsent or self._emitting or self._sending)

    def settle(self, timeout: float | None = None) -> bool:
        """Wait until all emitted output is sent; return `False` after *timeout* seconds."""
        return True

    def hold(self, timeout: float) -> bool:
        """Make later batches wait until `release`; return whether none is being emitted within *timeout* seconds."""
        with self._changed:
            self.held = True
            return self._changed.wait_for(lambda: not self._emitting, timeout)

    def _set(self, flag: str, value: bool) -> None:
        with self._changed:
            setattr(self, flag, value)
            self._changed.notify_all()

    #: Emit the batches that wait, and later ones.
    release = partialmethod(_set, "held", False)
    #: Refuse later batches; the replacement takes the events for which no batch was emitted.
    retire = partialmethod(_set, "_retired", True)

    def take_in_flight(self) -> list[Leaving]:
        """Take out the emitted output that is not sent. The journal is retired, and its driver is parked."""
        with self._changed:
            found = [(port, payload) for port, payload in self._unsent if port is not None]
            self._unsent.clear()
            return found

    def _size(self, port: str, payload: Any) -> int:
        return 1 if isinstance(payload, CONTROL) or self._forms[port] == "item" else weight(payload)

    @contextmanager
    def _emission(self, batch: int) -> Iterator[bool]:
        """Wait while the journal is held; yield whether the batch is wanted, and count it during the block."""
        with self._changed:
            self._changed.wait_for(lambda: not self.held or self._retired)
            wanted = not (self._retired or 0 <= batch <= self.committed.batch)
            self._emitting += wanted
        try:
            yield wanted
        finally:
            with self._changed:
                self._emitting -= wanted
                self._changed.notify_all()


class DiskJournal(EngineJournal):
    """The journal of an engine in a durable application: logs on disk, and positions in them that checkpoints store.

    - Input is appended to a log before the engine receives it. After a recovery, the upstream sends the events since
      the checkpoint again; those in the log are recognized by their numbers and dropped.
    - Output is appended to a log, under the number of its batch, when the input of the batch was forced to disk, and
      before the engine commits the batch; it is sent from this log. After a recovery, it is sent from the position of
      the checkpoint on, and not computed again.

    *folder* returns the folder of the journal with a given name, or a new one; *forms* has the form of each input port.
    """

    def __init__(
        self,
        folder: Callable[[str | None], Path],
        forms: Mapping[str, str],
        outputs: Mapping[str, OutputPort[Any]],
        driver: EngineDriver,
    ) -> None:
        super().__init__(forms)
        self._folder = folder
        self._outputs = dict(outputs)
        self._driver = driver
        self._disks: dict[str, DiskLog] = {}  # of each input port, and of the output
        self._skipped = self._base = 0
        self._started = self._closed = self._waits = self._frees = False
        self._waiting: set[Driver] = set()

    def restore(self, held: Mapping[str, Any]) -> None:
        """Begin at the position of a checkpoint; called before `open`."""
        self.place = self._folder(held["place"])
        self._arrived, self._base = dict(held["arrived"]), held["passed"]
        progress = Committed(held["batch"], held["inputs"], held["note"], held.get("positions", {}))
        self.committed = self.checkpointed = progress
        self.native = {port: one for port, one in self.native.items() if port in self.committed.positions}

    def capture(self) -> dict[str, Any]:
        """Return the position of the journal as plain data; only the engine may change it meanwhile."""
        self._frees = True
        return {
            "place": self.place.name if self.place is not None else "",
            "arrived": dict(self._arrived),
            "passed": self._base + self._driver.count + self._skipped,
            **vars(self.committed),
        }

    def in_flight(self) -> list[tuple[str, Any]]:
        """Return the output that is not sent, with the names of its ports; its driver is parked, and it stays there."""
        out = self._disks[_OUTPUT]
        rows = (row for batch in out.events(self.capture()["passed"], out.end) for row in batch)
        return [(port, payload) for port, payload, _ in rows if port in self._outputs]

    def open(self) -> None:
        """Open the logs; the output after the checkpoint is unsent."""
        # Imported lazily: only durable applications need the logs on disk.
        from exop.runtime.log.disk import DiskLog

        place = self.place = self.place or self._folder(None)
        self.directory = place / "engine"
        self.directory.mkdir(mode=0o700, exist_ok=True)
        for port in self._forms:
            self._disks[port] = DiskLog(place / f"in {port}")
            self._check_end(f"the input {port!r}", self._disks[port].end, self.arrived(port))
        self._logs |= self._disks
        out = self._disks[_OUTPUT] = DiskLog(place / "out", Retention(fsync="append"))
        self._check_end("the output", out.end, self._base)
        for rows in out.events(self._base, out.end):
            for port, payload, header in rows:
                self._unsent.append((self._outputs.get(port), payload))
                if header is not None:
                    self.committed = Committed(*header)

    def await_checkpoint(self) -> None:
        """Let the drivers wait that have more; what the journal has stays."""
        self._waits, self._frees = True, False

    def take(self, port: str, payload: Any) -> Any | None:
        """Append the part of a payload that is not yet in the log, and return that part."""
        if self._waits and (driver := current_driver()) is not None:
            self._waiting.add(driver)
            place = f"{self._driver.name} waits for a checkpoint, which has the last change"
            driver.wait_inside(place, lambda: not self._waits or self._closed, (self._driver.name,), again=True)
        return super().take(port, payload)

    def start(self) -> None:
        """Start to send the output, in another thread."""
        if not self._started:
            self._started = True
            threading.Thread(target=self._send_all, name=f"exop {self._driver.name} output", daemon=True).start()

    def close(self) -> None:
        """Close the logs. Called when the engine is closed."""
        self._set("_closed", True)
        for log in self._disks.values():
            log.close()

    def events(self, port: str, start: int | None = None) -> Iterator[tuple[int, Any]]:
        """Return the payloads of *port* from event number *start* on, each with the number of its first event.

        Raise `StoredStateError` if these events, or the output for the events before *start*, are not in the logs.
        """
        log, known = self._logs[port], self.committed.inputs.get(port, 0)
        at = known if start is None else start
        if at > known or not log.start <= at <= log.end:
            held = f"its logs hold events {log.start} to {log.end}, and output up to event {known}"
            raise self._damaged("the state", f"it has come to event {at} of {port!r}; {held}")
        yield from super().events(port, at)

    def _send(self, leaving: Iterable[Leaving], batch: Committed) -> bool:
        """Append a batch to the log under its number, from which it is sent, and return when it is on disk."""
        names = {id(port): name for name, port in self._outputs.items()}
        rows = [] if self.replaying else [*leaving]
        with self._emission(batch.batch) as wanted:
            if not wanted:
                return False
            after = self.committed.after(batch)
            header = (after.batch, after.inputs, after.note, after.positions)
            named = [(names[id(port)], payload) for port, payload in rows] or [("", None)]
            entries = [(*row, header if place == 0 else None) for place, row in enumerate(named)]
            for port in batch.inputs.keys() & self._disks.keys():
                self._disks[port].sync()
            self._disks[_OUTPUT].append(entries)
            failpoint("engine-commit-before")
            self.committed = after
            with self._changed:
                if self.replaying:  # nothing is sent yet: the entry is passed over
                    self._skipped += 1
                else:
                    self._unsent.extend(rows or [(None, None)])
                self._changed.notify_all()
        with self._changed:
            while len(self._unsent) >= MOST and not (self._closed or self._driver.halting):
                self._changed.wait(0.05)  # a driver that halts does not notify
        return True

    def forget(self, port: str, event: int) -> None:
        """Drop the events before *event*, which the engine has committed, from the log."""
        failpoint("engine-commit-after")
        self._logs[port].trim(min(event, self.arrived(port)))

    def settle(self, timeout: float | None = None) -> bool:
        """Wait until all emitted output is sent; return `False` after *timeout* seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not (self._unsent or self._sending) or self._closed, timeout)

    def sync(self) -> None:
        """Force the logs to disk, for a checkpoint."""
        for log in self._disks.values():
            log.sync()

    def trim_output(self, held: Mapping[str, Any]) -> None:
        """Drop the output that was sent before a committed checkpoint, and settle the input: the rest is sent again."""
        self._waits = self._waits and not self._frees
        while self._waiting and not self._waits:
            self._waiting.pop().wake()
        if _OUTPUT in self._disks:
            self._disks[_OUTPUT].trim(held["passed"])
            for port in self._forms:
                self._disks[port].settle(held["arrived"].get(port, 0), None)

    def _send_all(self) -> None:
        """Send the output until the journal is closed, also while the engine is stopped."""
        try:
            while True:
                with self._changed:
                    self._sending = False
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: self._unsent or self._closed)
                    if self._closed:
                        return
                    self._sending = True
                    port, payload = self._unsent.popleft()
                if port is not None:
                    send(port, payload)
                else:
                    self._skipped += 1
        except Halted:
            return
        except Exception as error:  # noqa: BLE001 (an error downstream counts as a failure of this slet)
            next(iter(self._outputs.values())).fail(error)

    def _check_end(self, what: str, end: int, known: int) -> None:
        if end < known:
            raise self._damaged(what, f"it ends at {end}, and the checkpoint was taken at {known}")

    def _damaged(self, what: str, problem: str) -> StoredStateError:
        cure = "restore the whole state directory from one copy"
        return StoredStateError(what=f"{what} of the engine in {self.place}", problem=problem, cure=cure)


class EngineFolders:
    """The folders `APPLICATION/NODE/NUMBER` of the journals and commits of engines.

    A replacement gets a new folder: the last checkpoint remains valid until the next one, which names those in use.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def folder(self, application: str, node: str, name: str | None = None) -> Path:
        """Return the folder of *node* with the *name* in a checkpoint, or a new, empty folder."""
        above = self._folder / _safe(application) / _safe(node)
        if name is not None:
            return above / name
        above.mkdir(mode=0o700, parents=True, exist_ok=True)
        made = above / str(max((int(one.name) for one in above.iterdir() if one.name.isdecimal()), default=0) + 1)
        made.mkdir(mode=0o700)
        return made

    def keep(self, application: str, folders: Collection[Path]) -> None:
        """Remove all other folders of an application."""
        for found in set((self._folder / _safe(application)).glob("*/*")).difference(folders):
            shutil.rmtree(found, ignore_errors=True)

    def discard(self, application: str) -> None:
        """Remove all folders of an application."""
        shutil.rmtree(self._folder / _safe(application), ignore_errors=True)


def _safe(name: str) -> str:
    return quote(name, safe="").replace(".", "%2E")
