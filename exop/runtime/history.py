"""The history of applications: each operation on one with its caller, revisions and outcome; the last are kept."""

from __future__ import annotations

import os
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from exop.errors import ExopError, PlanError
from exop.logs import logger
from exop.model.entries import missing, touched

if TYPE_CHECKING:
    from exop.model.mesh import Mesh
    from exop.runtime.store import Store

F = TypeVar("F", bound=Callable[..., Any])
#: The number of entries that are kept of each application.
MOST: Final = 1000
#: The peer on whose behalf a thread works; empty for the platform's own process.
CALLER: Final[ContextVar[str]] = ContextVar("CALLER", default="")
#: The entry of the operation that is under way, which an operation that it calls completes.
_ENTRY: Final[ContextVar[dict[str, Any] | None]] = ContextVar("_ENTRY", default=None)
_PARTS: Final = ("channels", "nodes")


class History:
    """The operations on the applications of a platform: in the state directory if it has one, else in memory.

    Operations on applications that the platform does not know (*knows*) are not recorded: a peer may name any.
    """

    def __init__(self, knows: Callable[[str], bool]) -> None:
        self.store: Store | None = None
        self._knows = knows
        self._kept: defaultdict[str, deque[dict[str, Any]]] = defaultdict(lambda: deque(maxlen=MOST))

    @contextmanager
    def recorded(self, application: str, what: str, **facts: Any) -> Iterator[None]:
        """Record an operation with its outcome when the block ends; inside of another operation only that is recorded.

        An error of the user's code, or an interrupt, is an outcome like any other.
        """
        if _ENTRY.get() is not None or not self._knows(application):
            yield
            return
        entry = {"application": application, "what": what, **_caller(), **facts}
        token = _ENTRY.set(entry)
        try:
            yield
            entry["outcome"] = "done"
        except BaseException as error:
            entry["outcome"] = f"{type(error).__name__}: {error}" if isinstance(error, ExopError) else repr(error)
            raise
        finally:
            _ENTRY.reset(token)
            self._keep(entry)

    def changed(self, before: Mesh, after: Mesh, **facts: Any) -> None:
        """Complete the entry of the operation under way by the change that it has made, or record the change."""
        undo = None
        if self.store is not None and before.revision:
            from exop.model.topology import section_text

            keeps = before.durable == after.durable
            undo = {} if keeps else {"application/": section_text(before, "application", "")}
            for kind in _PARTS:
                old, new = getattr(before, kind), getattr(after, kind)
                for name in (*touched(old, new), *missing(old, new)):
                    undo[f"{kind}/{name}"] = section_text(before, kind, name) if name in old else ""
        found = {"from": before.revision, "to": after.revision, **facts, "undo": undo}
        entry = _ENTRY.get()
        if entry is not None and entry["application"] == after.name:
            entry |= found
        else:
            self._keep({"application": after.name, "what": "change", **_caller(), **found, "outcome": "done"})

    def forget(self, application: str) -> None:
        """Forget what is in memory of an application that was removed; what is stored stays."""
        self._kept.pop(application, None)

    def of(self, application: str) -> list[dict[str, Any]]:
        """The entries of an application, the oldest first, each with its `number`; `undo` is left out."""
        rows = self._rows(application)
        return [{"number": number, **{k: v for k, v in row.items() if k != "undo"}} for number, row in rows.items()]

    def reverse(self, mesh: Mesh, number: int) -> str:
        """The topology of *mesh* with the nodes and channels of a change as they were before it.

        Raises:
            PlanError: there is no such entry, it has changed nothing, or the platform has no state directory.
        """
        from exop.model.topology import section_text, sections

        entry = self._rows(mesh.name).get(number)
        if entry is None or not entry.get("undo"):
            why = "has changed no mesh that was kept" if entry is not None else "is not there"
            raise PlanError(
                f"the entry {number} of {mesh.name} {why}; see `exop history {mesh.name}`, and note that a platform "
                f"without a state directory keeps no former meshes"
            )
        texts = {f"{kind}/{name}": section_text(mesh, kind, name) for kind, name in sections(mesh)}
        return "\n".join(text for text in (texts | entry["undo"]).values() if text)

    def _keep(self, entry: dict[str, Any]) -> None:
        if self.store is None:
            if self._knows(entry["application"]):  # it was not removed meanwhile
                self._kept[entry["application"]].append(entry)
            return
        try:
            self.store.record(entry["application"], entry, MOST)
        except ExopError as problem:
            logger("exop.runtime").error("an entry of the history was not stored", error=str(problem))

    def _rows(self, application: str) -> Mapping[int, dict[str, Any]]:
        if self.store is not None:
            return self.store.history(application)
        return dict(enumerate(self._kept[application], 1))


def _caller() -> dict[str, Any]:
    who = CALLER.get() or f"user {os.geteuid()} (the platform's process)"
    return {"at": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "who": who}


def recorded(function: F) -> F:
    """Record the calls of a method of a platform, whose first argument is an application, under the method's name."""

    @wraps(function)
    def call(self: Any, application: str, *given: Any, **named: Any) -> Any:
        node = named.get("node", given[0] if given and isinstance(given[0], str) else None)
        facts = {} if node is None else {"node": node}
        with self._applications.history.recorded(application, function.__name__, **facts):
            return function(self, application, *given, **named)

    return cast("F", call)
