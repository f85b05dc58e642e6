"""An application in which the code of a slet hangs or raises at any point, and the changes that are made to it."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exop import Memento, Platform, Slet, hookimpl, input_port, slet
from exop.errors import ExopError, LastCheckpointFailed
from exop.hooks import Plugins
from exop.model.meshes.mesh import Mesh, Node
from exop.model.slets.slet import spec_of
from exop.runtime.supervision.budget import UserCall
from tests.change.tools import chain, grows, plain, plain_too, steady
from tests.rig import PATIENCE, eventually

#: So long a change waits for an item that hangs, in seconds; and for a listener.
SHORT = 0.3
POINTS = ("enter", "exit", "item", "upgrade", "memento", "commit", "listener", "metrics")
MODES = ("hangs", "raises")


@dataclass
class Trouble:
    """The point at which the code of the slet hangs or raises now, if there is one."""

    at: str = ""
    mode: str = ""
    gate: threading.Event = field(default_factory=threading.Event)
    met: threading.Event = field(default_factory=threading.Event)
    hanging: set[threading.Thread] = field(default_factory=set)

    def meet(self, at: str) -> None:
        """Hang or raise, if that is the point."""
        if at == self.at:
            if self.mode == "hangs":
                self.hanging.add(threading.current_thread())
            self.met.set()
            if self.mode == "raises":
                raise SystemExit(f"trouble in {at}")  # as `sys.exit` in a library does: the worst that code can raise
            self.gate.wait(PATIENCE)

    def begin(self, at: str, mode: str) -> None:
        """From now on."""
        self.gate.clear()
        self.met.clear()
        self.hanging.clear()
        self.at, self.mode = at, mode

    @property
    def patience(self) -> float:
        """How long a change waits, in seconds: briefly only for an item that hangs, of which it cannot know."""
        return SHORT if (self.at, self.mode) == ("item", "hangs") else PATIENCE

    def wait(self, call: UserCall[Any]) -> bool:
        """Wait for a call of user code instead of `UserCall.wait`: its time is over as soon as it hangs, not before."""
        eventually(lambda: _WAIT(call, 0.01) or call.abandoned or call._thread in self.hanging, "the end of a call")
        return call.over

    def end(self) -> None:
        """No more; what hangs goes on."""
        self.at = ""
        self.gate.set()


_WAIT = UserCall.wait
TROUBLE = Trouble()


class Total(Memento):
    """The state of before."""

    total: int = 0


class Sums(Memento):
    """The state that it becomes."""

    total: int = 0

    @classmethod
    def upgrade(cls, old: Total) -> "Sums":
        """Take it over."""
        TROUBLE.meet("upgrade")
        return cls(total=old.total)


class Bad(Slet):
    """A slet in whose code there may be trouble."""

    kept: Total
    step: int = 1

    def __enter__(self) -> "Bad":
        TROUBLE.meet("enter")
        return self

    def __exit__(self, *exc: object) -> None:
        TROUBLE.meet("exit")

    @input_port
    def x(self, x: int) -> int:
        """Pass on."""
        TROUBLE.meet("item")
        return x

    def flush(self) -> None:
        """The memento is taken next."""
        TROUBLE.meet("memento")

    def commit_checkpoint(self, number: int) -> None:
        """A checkpoint is committed."""
        TROUBLE.meet("commit")

    def metrics(self) -> dict[str, int | float | str]:
        """Figures."""
        TROUBLE.meet("metrics")
        return {"total": self.kept.total}


class BadToo(Bad):
    """Its successor, with another state."""

    kept: Sums  # type: ignore[assignment]


SEEN: list[int] = []


@slet
def write(x: int) -> None:
    """Write down what arrives."""
    SEEN.append(x)


class Offered:
    """The plugin of these slets."""

    @staticmethod
    @hookimpl
    def register_slets() -> list[Any]:
        """All of them."""
        return [steady, plain, plain_too, write, Bad, BadToo]


def running(state: Path) -> Platform:
    """A platform on which the application runs."""
    plugins = Plugins()
    plugins.register("outcomes", Offered())
    platform = Platform(state=state, control=False, plugins=plugins).start()
    app = chain("app", steady, Bad, plain, write)
    app.durable(every=3600)
    SEEN.clear()
    platform.apply(app.build())
    platform.checkpoint("app")
    grows(SEEN, 1)
    return platform


def _edited(edit: Callable[[Mesh], Mesh]) -> Callable[[Platform], object]:
    return lambda platform: platform.apply(edit(platform.mesh("app")), timeout=TROUBLE.patience, stall=True)


def _resumed(platform: Platform) -> None:
    platform.apply(platform.mesh("app").suspend("c"), timeout=TROUBLE.patience)
    platform.apply(platform.mesh("app").resume("c"), timeout=TROUBLE.patience)


#: What is done to the application while there is trouble in its node `b`.
CHANGES: dict[str, Callable[[Platform], object]] = {
    "replace": _edited(lambda mesh: mesh.replace("b", BadToo)),
    "add": _edited(lambda mesh: mesh.add(Node("e", spec_of(BadToo), ports={"x": mesh.node("b").ports["out"]}))),
    "remove": _edited(lambda mesh: mesh.rewire("c", x=mesh.node("a").ports["out"]).remove("b")),
    "rewire": _edited(lambda mesh: mesh.rewire("c", x=mesh.node("a").ports["out"])),
    "configure": _edited(lambda mesh: mesh.configure("b", step=2)),
    "suspend, resume": _resumed,
    "checkpoint": lambda platform: platform._applications.checkpoints.takers["app"].take(TROUBLE.patience),
    "remove all": lambda platform: platform.remove("app", timeout=TROUBLE.patience),
    "close": lambda platform: platform.close(),
}


def outcome(platform: Platform, at: str, mode: str, change: str) -> str:
    """Carry out a change while there is trouble; return what becomes of it, in words."""
    if at == "listener":
        platform.registry.listen(None, lambda event: TROUBLE.meet("listener"))
    TROUBLE.begin(at, mode)
    component = platform.deployment("app").components["b"]
    if at == "item":
        assert TROUBLE.met.wait(PATIENCE)
        if mode == "raises":
            eventually(lambda: component.status == "failed")
    if at == "metrics":
        platform.status("app")
    try:
        CHANGES[change](platform)
    except LastCheckpointFailed:  # it names what the sinks have not written
        found = "refused" if "app" in platform.applications() else "made"
    except ExopError:
        found = "refused"
    else:
        found = "made"
    stuck = component.status == "failed" and at != "item"
    given_up = any(call["given_up"] for call in platform.components.user.plain())
    return found + (", suspended" if stuck else "") + (", given up" if given_up else "")
