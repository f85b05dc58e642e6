"""Supervises one run until its end: signals, failures, progress, and the report."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, Final, Literal

from exop.cli.options import OnFailure
from exop.cli.report import DONE, FAILED, LETTERS, TICK, Stopping, say
from exop.cli.status_text import holds_up
from exop.cli.view import View
from exop.errors import ComponentFailed, ExopError, LastCheckpointFailed, UnknownName, counted
from exop.logs import is_json, logger
from exop.report import totals_of
from exop.runtime.supervision.watchdog import awaited
from exop.safe_repr import error_text, safe_repr

if TYPE_CHECKING:
    from exop.platform import Platform
    from exop.runtime.deployment import Deployment

#: Seconds without progress after which the slets are named for which the end of a run waits.
SLOW: Final = 3.0


@dataclass
class Watch:
    """Supervises an application that runs in this process.

    Attributes:
        policy: Whether to wait for the repair of a slet that an error has suspended, or to end with exit code 1.
        drain_timeout: Seconds for which suspended nodes may delay the end of the run.
        error: The error that ended the run.
    """

    platform: Platform
    application: str
    view: View
    stopping: Stopping
    policy: OnFailure
    drain_timeout: float
    error: ComponentFailed | LastCheckpointFailed | None = None
    outcome: Literal["finished", "drained", "stopped", "failed", "removed"] = "finished"
    _status: dict[str, Any] = field(default_factory=dict)
    _shown: float = field(default_factory=time.monotonic)
    _held: tuple[str, ...] = ()
    _held_since: float = 0.0
    _moved: object = None
    _moved_at: float = 0.0
    _reported: list[BaseException] = field(default_factory=list)
    _ending: bool = False

    def until_the_end(self) -> dict[str, Any]:
        """Supervise the application until its end, and return the report of the run."""
        # The first metrics are reported after 0.3 s, later ones at the interval of the view.
        self._shown = time.monotonic() - self.view.every + 0.3
        self._status = self.platform.status(self.application)
        while not self._ended():
            self.show(self.view.every)
        self._look()
        report: dict[str, Any] = {"outcome": self.outcome, "status": self._status}
        if self.error is not None:
            nodes = self._status["nodes"].items()
            failed = {name: {"error": one["error"], **one.get("kept", {})} for name, one in nodes if "error" in one}
            report["error"] = {"error": str(self.error), "nodes": failed}
        return report

    def show(self, every: float) -> None:
        """Show the status, at most once in *every* seconds."""
        if time.monotonic() - self._shown >= every:
            self._look()
            if self._status:
                self.view.show(self._status)
            self._shown = time.monotonic()

    def _look(self) -> None:
        """Read the status; the last one remains if the application was removed, or is not opening yet."""
        with suppress(ExopError):
            self._status = self.platform.status(self.application)

    @property
    def exit_code(self) -> int:
        """Return the exit code of the run: 0 if all items were processed, also after a Ctrl-C."""
        if self.outcome in ("finished", "drained"):
            return LETTERS if totals_of(self._status)["dead"] else DONE
        return self.stopping.exit_code if self.outcome == "stopped" else FAILED

    @property
    def keeps(self) -> bool:
        """Whether the state directory has a checkpoint of the application, with which the next run continues."""
        return self.platform.state is not None and self.platform.deployment(self.application).mesh.durable is not None

    def _ended(self) -> bool:
        """Wait for one interval; return whether the run has ended, and set its outcome."""
        try:
            if not self.platform.wait(self.application, TICK):
                return self._asked_to_stop()
            gone = self.application not in self.platform.applications()
            self.outcome = "removed" if gone else "drained" if self._ending else "finished"
        except UnknownName:
            self.outcome = "removed"
        except ComponentFailed as error:
            return self._failed(error)
        except LastCheckpointFailed as error:
            self.error, self.outcome = error, "failed"
        return True

    def _failed(self, error: ComponentFailed) -> bool:
        """Report new failures; return whether they end the run."""
        deployment = self.platform.deployment(self.application)
        waits = self.policy == "wait" and not deployment.crashed() and not self.stopping.count
        cure = "fix the cause, then `exop resume {}` retries the item; or stop with Ctrl-C" if waits else ""
        report_failures(deployment, self._reported, cure)
        if waits:
            time.sleep(TICK)
            return False
        self.error, self.outcome = error, "failed"
        return True

    def _asked_to_stop(self) -> bool:
        if self.stopping.count >= 2:
            self.outcome = "stopped"
            return True
        if self.stopping.count and not self._ending:
            self._ending = True
            again = f"{self.stopping.key} again stops at once"
            say(f"{self.application}: the sources end, items in flight are processed; {again}")
            self.platform.end(self.application)
        return self._held_up()

    def _held_up(self) -> bool:
        """Name what delays the end of the run; return whether suspended nodes do so for the drain timeout."""
        deployment, now = self.platform.deployment(self.application), time.monotonic()
        if not (self._ending or deployment.delivering):
            return False
        drivers, unsent = deployment.drivers(), deployment.undelivered()
        if (moved := (sum(driver.count + driver.rows for driver in drivers), unsent)) != self._moved:
            self._moved, self._moved_at = moved, now
        elif now - self._moved_at >= SLOW and (names := [*awaited(deployment.components, drivers), *unsent]):
            self._moved_at = inf  # it is told once
            more = "that its peer has not acknowledged"
            kept = {name: f" ({counted(count, 'event')} {more})" for name, count in unsent.items()}
            which = " and ".join(f"{self.application}.{name}{kept.get(name, '')}" for name in names)
            cure = f"{self.stopping.key} {'again' if self._ending else 'twice'} stops at once"
            say(f"waiting for {which}: nothing has left for {SLOW:g} s; {cure}")
        held = tuple(f"{self.application}.{name}" for name, one in deployment.components.items() if one.held)
        if held != self._held:
            self._held, self._held_since = held, now
            for node in held:
                say(f"{holds_up(node)}; after {self.drain_timeout:g} s the run stops anyway")
        if not held or now - self._held_since < self.drain_timeout:
            return False
        self.outcome = "stopped"
        left = "are kept, and the next run continues with them" if self.keeps else "are lost"
        items = f"the items that wait for {', '.join(held)} {left}"
        say(f"{self.application}: stopped after {self.drain_timeout:g} s: {items}")
        return True


def report_failures(deployment: Deployment, reported: list[BaseException], cure: str) -> None:
    """Report the failures that are not *reported* yet, with item and traceback; they are from now on.

    *cure* is what the stream waits for, if it does; `{}` in it is the node.
    """
    for component in deployment.failures():
        error, kept = component.error, component.trouble.kept
        if error is None or any(error is one for one in reported):
            continue
        reported.append(error)
        place = f"{deployment.name}.{component.node.name}"
        title = f"{place} has failed: {error_text(error)}"
        if is_json():
            facts = {"port": kept.port, "item": safe_repr(kept.item), "traceback": kept.text} if kept else {}
            at = {"application": deployment.name, "node": component.node.name}
            logger("exop.run").error(title, **at, waits=bool(cure), **facts)
            continue
        lines = [title]
        if kept is not None and kept.port:
            lines.append(f"  with the item {safe_repr(kept.item)} at its port {kept.port!r}; the item is kept")
        if kept is not None:
            lines += [f"  {line}" for line in kept.text.rstrip().splitlines()]
        if cure:
            lines.append(f"  everything upstream waits: {cure.format(place)}")
        say("\n".join(lines))
