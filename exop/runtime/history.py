"""The history of applications: who changed what with which outcome; and the mesh that reverses a change."""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Container, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from exop.errors import ExopError, PeerRefused, PlanError
from exop.logs import logger
from exop.model.meshes.entries import missing, touched

if TYPE_CHECKING:
    from exop.model.meshes.mesh import Mesh
    from exop.runtime.durable.store import Store

F = TypeVar("F", bound=Callable[..., Any])
#: The number of entries that are stored for each application.
MOST: Final = 1000
#: The name under which operations on the platform as a whole are stored, such as those on bundles.
PLATFORM: Final = ""
#: The outcome of an operation that goes on, and what it means when the process that carried it out has ended.
UNDER_WAY, CUT_OFF = "under way", "cut off when the platform ended: `exop mesh` shows whether it was carried out"
#: The number of characters of an error that are stored.
_LENGTH: Final = 2000
#: The peer for which a thread carries out an operation, such as `platform edge-1 (ADDRESS)`; empty for the platform's
#: own process.
CALLER: Final[ContextVar[str]] = ContextVar("CALLER", default="")
#: The entries of the current operation by application; an update of a bundle has one in the history of each.
_ENTRIES: Final[ContextVar[Mapping[str, dict[str, Any]]]] = ContextVar("_ENTRIES", default=MappingProxyType({}))
#: The entries that the call of a peer has recorded; a task that the call has begun adds to them.
_RECORDED: Final[ContextVar[list[str] | None]] = ContextVar("_RECORDED", default=None)


class History:
    """The operations on a platform's applications, stored in the state directory if there is one, else in memory.

    Without a state directory, no entries are stored for applications that the platform does not have: `known` tells.
    """

    def __init__(self, known: Callable[[str], bool]) -> None:
        self.store: Store | None = None
        self.known = known
        self._counting = threading.Lock()
        self._trouble = ""
        self._process = os.urandom(8).hex()
        self._kept: defaultdict[str, deque[dict[str, Any]]] = defaultdict(lambda: deque(maxlen=MOST))

    @contextmanager
    def recorded(self, application: str, what: str, *, new: bool = False, **facts: Any) -> Iterator[dict[str, Any]]:
        """Record an operation with its outcome when the block ends, and yield its entry, to which facts can be added.

        An operation inside another one on the same application belongs to that entry. In a state directory, the entry
        is there from the beginning: a process that is killed leaves what it was doing. For an application that the
        platform does not have, only an operation that creates it (*new*) is recorded. An error of the user's code, or
        an interrupt, is an outcome like any other.
        """
        if application in (entries := _ENTRIES.get()) or not (new or self.known(application)):
            yield entries.get(application, {})
            return
        entry = {"application": application, "what": what, **_caller(), **facts}
        entry |= {"outcome": UNDER_WAY, "process": self._process}
        number = None
        if self.store is not None and what != "start":
            with self._problems_logged(application):
                number = self._put(entry)
        token = _ENTRIES.set({**entries, application: entry})
        try:
            yield entry
            entry["outcome"] = "done"
        except BaseException as error:
            entry["outcome"] = _told(error)[:_LENGTH]
            raise
        finally:
            _ENTRIES.reset(token)
            self._keep(entry, number)

    def changed(self, before: Mesh, after: Mesh, **facts: Any) -> None:
        """Add a change to the entry of the current operation on the application; without one, record the change."""
        undo = None
        if self.store is not None and before.revision:
            from exop.model.meshes.topology import section_text

            undo = {} if before.durable == after.durable else {"application/": section_text(before, "application", "")}
            for kind in ("channels", "nodes"):
                old, new = getattr(before, kind), getattr(after, kind)
                for name in (*touched(old, new), *missing(old, new)):
                    undo[f"{kind}/{name}"] = section_text(before, kind, name) if name in old else ""
        with self.recorded(after.name, "change", new=True) as entry:
            entry |= {"from": before.revision, "to": after.revision, **facts, "undo": undo}

    def noted(self, application: str, what: str, **facts: Any) -> None:
        """Record what has happened, and not by an operation."""
        self._keep({"application": application, "what": what, **_caller(), **facts, "outcome": "done"})

    def counted(self, application: str, operation: str, reason: str, times: int = 1, outcome: str = "refused") -> None:
        """Count calls of a peer that were refused, or that recorded no entries of their own.

        There is one entry per operation and outcome, and per calling platform, with the latest caller and the number of
        calls, so that calls do not displace the entries of changes. Calls that concern no application of the platform
        are counted in the history of the platform.
        """
        caller, name = _caller(), application if self.known(application) else PLATFORM
        facts: dict[str, Any] = {"what": operation, "outcome": outcome, "peer": calling_platform() or None}
        with self._counting, self._problems_logged(name):
            same = (row for row in self._rows(name).items() if "count" in row[1] and facts.items() <= row[1].items())
            number, entry = next(same, (None, {"application": name, **facts, "count": 0}))
            entry |= {**caller, "reason": reason[:_LENGTH], "count": entry["count"] + times}
            self._put(entry, number)

    @contextmanager
    def audited(self, application: str, operation: str, *, refusals_only: bool = False) -> Iterator[None]:
        """Count a call of a peer when the block ends, unless the call has recorded an entry of its own.

        With *refusals_only*, a call that is not refused is not counted.
        """
        recorded: list[str] = []
        token = _RECORDED.set(recorded)
        outcome, reason = "done", ""
        try:
            yield
        except BaseException as error:
            outcome, reason = "refused" if isinstance(error, PeerRefused) else "failed", _told(error)
            raise
        finally:
            _RECORDED.reset(token)
            if not recorded and (outcome == "refused" or not refusals_only):
                self.counted(application, operation, reason, outcome=outcome)

    def forget(self, application: str) -> None:
        """Drop the entries in memory of an application that was removed; entries in the state directory remain."""
        if not self.known(application):  # else, other hosts run all of it
            self._kept.pop(application, None)

    def of(self, application: str) -> list[dict[str, Any]]:
        """Return the entries of an application, the oldest first, each with its `number` and without `undo`."""
        return shown(self._rows(application), self._process)

    def reverse(self, mesh: Mesh, number: int, first: Collection[int] = ()) -> tuple[str, list[str]]:
        """Return the topology of *mesh* with the nodes and channels of a change as they were before this change.

        The later changes *first* are undone before it. The second result: notes on later changes of the same nodes and
        channels, which are undone as well.

        Raises:
            PlanError: the entry does not exist or has changed no mesh, or the platform has no state directory.
        """
        from exop.model.meshes.topology import section_text, sections

        rows = self._rows(mesh.name)
        if (entry := rows.get(number)) is None or not entry.get("undo"):
            if entry is None:
                why = "does not exist"
            elif self.store is None and entry.get("from"):
                why = "has no former mesh: a platform keeps former meshes only in a state directory (--state DIR)"
            elif entry["outcome"] == UNDER_WAY:
                why = f"({entry['what']}) was cut off, or goes on, and has no former mesh; make the change back by hand"
            else:
                why = f"({entry['what']}) has not changed a running mesh, so there is nothing to take back"
            raise PlanError(f"the entry {number} of {mesh.name} {why}; see `exop history {mesh.name}`")
        texts = {f"{kind}/{name}": section_text(mesh, kind, name) for kind, name in sections(mesh)}
        more = _undone(rows, number, texts)
        notes = [f"the later change {one} of {', '.join(more[one])} is undone as well" for one in sorted(more)[::-1]]
        for later in sorted(first, reverse=True):
            texts |= rows[later]["undo"]
        return "\n".join(text for text in (texts | entry["undo"]).values() if text), notes

    def obstacles(self, mesh: Mesh, number: int, slets: Container[str], fits: Callable[[list[int]], bool]) -> list[int]:
        """Return the later changes without whose reversal change *number* cannot be undone, the latest first.

        The result is empty if none helps. *fits* tells whether the mesh is valid when the given changes are undone
        first. Changes that would bring back other slets than *slets* are left out.
        """
        found, left = list[int](), list[int]()
        for later, row in self._rows(mesh.name).items():
            undo = row.get("undo") if later > number else None
            nodes = [text for part, text in (undo or {}).items() if part.startswith("nodes/") and text]
            if undo and all(text.partition('slet = "')[2].partition('"')[0] in slets for text in nodes):
                left.insert(0, later)
        while not fits(found):  # undoing ever more of the latest changes, one makes it valid, which is found by halving
            last = bisect_left(range(len(left)), True, key=lambda at: fits([*found, *left[: at + 1]]))
            if last == len(left):
                return []
            found, left = [left[last], *found], left[:last]
        for one in [*found]:
            found = rest if fits(rest := [other for other in found if other != one]) else found
        return sorted(found, reverse=True)

    def _keep(self, entry: dict[str, Any], number: int | None = None) -> None:
        name = entry["application"]
        if (recorded := _RECORDED.get()) is not None:
            recorded.append(entry["what"])
        with self._problems_logged(name):
            # If every start of a process fails, these entries must not displace more useful ones.
            counts, same = entry["what"] != "start" or entry["outcome"] == "done", ("start", entry["outcome"])
            if counts or all((one["what"], one["outcome"]) != same for one in self.of(name)[-1:]):
                self._put(entry, number)

    def _put(self, entry: dict[str, Any], number: int | None = None) -> int | None:
        """Store a new entry, or entry *number* after a change; return its number. In memory the entry was changed."""
        name = entry["application"]
        if self.store is not None:
            return self.store.record(name, entry, MOST, number)
        if number is None and (name == PLATFORM or self.known(name)):  # the application exists
            self._kept[name].append(entry)
        return None

    @contextmanager
    def _problems_logged(self, application: str) -> Iterator[None]:
        """Log a problem of the store when it begins, not for every entry that waits."""
        trouble = ""
        try:
            yield
        except ExopError as problem:
            trouble = str(problem)
        before, self._trouble = self._trouble, trouble
        if trouble not in ("", before):
            facts = {"application": application or "(the platform)", "error": trouble}
            logger("exop.runtime").error("entries of the history are not stored yet", **facts)

    def _rows(self, application: str) -> Mapping[int, dict[str, Any]]:
        if self.store is not None:
            return self.store.history(application)
        return dict(enumerate(self._kept.get(application, ()), 1))


def calling_platform() -> str:
    """Return the name of the platform for which the thread carries out an operation; empty for any other caller."""
    kind, _, name = CALLER.get().partition(" ")
    return name.partition(" (")[0].partition(", user ")[0] if kind == "platform" else ""


def shown(rows: Mapping[int, dict[str, Any]], process: str = "") -> list[dict[str, Any]]:
    """Return the entries with their numbers and without `undo`; only what this *process* does is still under way."""
    for row in rows.values():
        if row["outcome"] == UNDER_WAY and row["process"] != process:
            row["outcome"] = CUT_OFF if row["application"] else CUT_OFF.partition(":")[0]
    hidden = ("undo", "process")
    return [{"number": number, **{k: v for k, v in row.items() if k not in hidden}} for number, row in rows.items()]


def _undone(rows: Mapping[int, dict[str, Any]], number: int, texts: Mapping[str, str]) -> dict[int, list[str]]:
    """Return the later changes that are undone with change *number*, each with what it changed.

    A change after which everything has come back to what it was is none of them, nor one of a state alone, which stays.
    """
    undos = {one: row["undo"] for one, row in sorted(rows.items()) if one >= number and row.get("undo")}
    found = defaultdict[int, list[str]](list)
    for part in undos[number]:
        made = [one for one, undo in undos.items() if part in undo]
        past = [*(undos[one][part] for one in made), texts.get(part, "")]  # before each of them, and now
        at = past.index(past[-1])
        while at > 1:
            found[made[at - 1]].append(part.partition("/")[2] or "the application")
            at = past.index(past[at - 1])
    return found


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if isinstance(error, ExopError) else repr(error)


def _caller() -> dict[str, Any]:
    who = CALLER.get() or f"user {os.geteuid()} (the platform's process)"
    return {"at": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "who": who}


def recorded(function: F) -> F:
    """Decorate a method of a platform, whose first argument is an application: record calls by the method's name."""

    @wraps(function)
    def call(self: Any, application: str, *given: Any, **named: Any) -> Any:
        node = named.get("node", given[0] if given and isinstance(given[0], str) else None)
        facts = {} if node is None else {"node": node}
        with self._applications.history.recorded(application, function.__name__, **facts):
            return function(self, application, *given, **named)

    return cast("F", call)
