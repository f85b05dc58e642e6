"""The cost of opening slets: measured whenever one is opened, and predicted before the first time.

Time that an opening waits costs the streams nothing; time that it computes or imports is the interpreter's, which they
share with it. So a plan says what the last opening took, or what the code says that the first one will.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from exop.errors import ComponentFailed, StillOpening
from exop.model.lifecycle import State
from exop.model.slet import Slet
from exop.model.spec import SletSpec
from exop.runtime.budget import OPENING
from exop.runtime.component import Component
from exop.shown import RAISED, described, message

if TYPE_CHECKING:
    from exop.runtime.deployment import Deployment


@dataclass(frozen=True)
class Opening:
    """The duration of an opening, and how much of that its thread has computed, in seconds."""

    seconds: float
    computing: float


class Openings:
    """The applications that are being opened on one platform, and the last opening of each slet.

    Attributes:
        deployments: What is being opened, or waits for its turn, by the name of the application.
    """

    def __init__(self) -> None:
        self.deployments: dict[str, Deployment] = {}
        self._last: dict[str, Opening] = {}

    def enter(self, component: Component, seconds: float | None = None) -> None:
        """Open a component, within so many seconds, and remember the cost.

        Raises:
            ComponentFailed: it raised, or has not opened in time.
        """
        begin = time.perf_counter()
        try:
            component.enter(OPENING if seconds is None else seconds)
        except ComponentFailed:
            raise
        except RAISED as error:
            problem = message(error) or described(error)
            raise ComponentFailed(node=component.node.name, phase="opening", problem=problem) from error
        self._last[component.spec.identity] = Opening(time.perf_counter() - begin, component.computed)

    def check(self, application: str, host: str) -> None:
        """Refuse what needs an application that runs.

        Raises:
            StillOpening: its slets are being opened.
        """
        deployment = self.deployments.get(application)
        if deployment is not None:
            told = progress(deployment)
            waiting = "".join(f", {node} since {seconds:.0f} s" for node, seconds in told["waiting"].items())
            opened, total = told["opened"], told["total"]
            raise StillOpening(application=application, host=host, opened=opened, total=total, waiting=waiting)

    def last(self, spec: SletSpec) -> Opening | None:
        """Return the cost of opening this slet the last time; `None` if it was never opened here."""
        return self._last.get(spec.identity)


def progress(deployment: Deployment) -> dict[str, Any]:
    """Return the progress of an opening: the slets open, of how many, and those being opened, with their seconds."""
    now, components = time.monotonic(), deployment.components
    begun = [one.entered for one in components.values() if one.entered]
    return {
        "seconds": round(now - min(begun, default=now), 1),
        "opened": sum(one.status not in (State.CREATED, State.OPENING) for one in components.values()),
        "total": len(components),
        "waiting": {
            name: round(now - one.entered, 1) for name, one in components.items() if one.status is State.OPENING
        },
    }


def opens(spec: SletSpec) -> bool:
    """The slet has something to open."""
    return spec.is_class and any(
        getattr(spec.factory, name, None) is not getattr(Slet, name, None) for name in ("__enter__", "ready")
    )


def imports_to_open(spec: SletSpec) -> list[str]:
    """List the modules that opening will import and that are not imported yet, as far as the code shows.

    Read from `__enter__`, and from what it calls in its own class and module.
    """
    found: dict[str, None] = {}
    todo, seen = [getattr(spec.factory, "__enter__", None)], set[CodeType]()
    while todo:
        function = todo.pop()
        if not isinstance(function, FunctionType) or function.__code__ in seen:
            continue
        seen.add(function.__code__)
        for code in _nested(function.__code__):
            found |= dict.fromkeys(_imported(code, function.__globals__.get("__package__") or ""))
            todo += [getattr(spec.factory, name, None) for name in code.co_names]
            near = [function.__globals__.get(name) for name in code.co_names]
            todo += [one for one in near if getattr(one, "__module__", None) == function.__module__]
    return [name for name in found if name not in sys.modules]


def _nested(code: CodeType) -> Iterator[CodeType]:
    """The code of a function and of those that it defines."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def _imported(code: CodeType, package: str) -> Iterator[str]:
    """The modules that the import statements in *code* name, in full."""
    # Imported lazily: only plans that open a class need it.
    import dis
    from importlib.util import resolve_name

    steps = list(dis.get_instructions(code))
    for place, step in enumerate(steps):
        if step.opname == "IMPORT_NAME":
            level = steps[place - 2].argval
            name = "." * level + step.argval if isinstance(level, int) else step.argval
            if package or not name.startswith("."):
                yield resolve_name(name, package)
