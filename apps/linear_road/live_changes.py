"""The changes that an operator makes to the running application in the demo: the paper's §5.5, and a correction."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import dataclass, field
from typing import Any

from apps.linear_road.pace import Pace
from exop import connect
from exop.errors import ExopError

#: The application, as it is called on its platform.
APPLICATION = "linear-road"

#: So often the simulated time is looked at, in seconds.
LOOK = 0.5
#: A replacement that has to open a Spark query may take so long on a busy machine, in seconds.
PATIENCE = 120.0


@dataclass
class LiveChange:
    """One command line of the operator.

    Attributes:
        share: When it is given: after this share of the simulated time.
        why: What it shows.
        arguments: Of `exop`.
        made: Whether the change is to be made; otherwise it is to be refused.
        code: The exit code, when it has run.
        said: What it printed.
        late: Whether it was not given, or not carried out, because the application had ended.
    """

    share: float
    why: str
    arguments: tuple[str, ...]
    made: bool = True
    code: int | None = None
    said: str = ""
    late: bool = False

    @property
    def right(self) -> bool:
        """Whether it ended as expected."""
        return self.code == (0 if self.made else 1)

    @property
    def end(self) -> str:
        """How it is expected to end."""
        return "succeed" if self.made else "be refused"

    @property
    def line(self) -> str:
        """The command of the operator."""
        return f"$ exop {' '.join(self.arguments)}"

    def carry_out(self, process: int) -> None:
        """Give the command to the platform with this process id."""
        command = [sys.executable, "-m", "exop", *self.arguments, "--on", str(process)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        except subprocess.TimeoutExpired:
            self.said = f"it took more than {PATIENCE:g} s"
        else:
            self.code, self.said = done.returncode, done.stdout + done.stderr


def missed_text(missed: int) -> str:
    """Return what a verdict says of changes that came too late."""
    return f", {missed} of the changes came after the end of the traffic" if missed else ""


def replacements() -> list[LiveChange]:
    """Spark's car positions are replaced by their native twin, that by a faulty one in vain, and all is taken back."""
    node, replace = f"{APPLICATION}.positions", ("replace",)
    return [
        LiveChange(
            0.3,
            "a native twin, proven beside the Spark query on live traffic, takes its place",
            (*replace, node, "linear_road:positions", "--shadow", "20000items,30s"),
        ),
        LiveChange(
            0.45,
            "a version with a mistake is refused by its proof",
            (*replace, node, "linear_road:faulty_positions", "--shadow", "20s"),
            made=False,
        ),
        LiveChange(
            0.55,
            "and back to Spark: the query is opened and warm first",
            (*replace, node, "linear_road:spark_positions"),
        ),
    ]


@dataclass
class Operator:
    """Gives the commands while the application runs and keeps its pace between them, in a thread of its own.

    Args:
        process: The process id of the platform.
        seconds: How long the traffic is, in simulated seconds.
        pace: The speed of the traffic.
    """

    process: int
    seconds: int
    pace: Pace
    changes: list[LiveChange] = field(default_factory=replacements)

    def __post_init__(self) -> None:
        #: All commands have been given.
        self.done = threading.Event()
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._work, name="operator", daemon=True)

    def start(self) -> None:
        """Begin to look at the clock."""
        self._thread.start()

    def leave(self) -> None:
        """The application has ended; what has not been given by now is not."""
        self._left.set()
        self._thread.join(PATIENCE)

    def report(self) -> str:
        """Return the changes made, as the operator's terminal would show them."""
        lines: list[str] = []
        for one in self.changes:
            lines += [f"   {one.why}", f"   {one.line}"]
            lines += [f"     {line}" for line in one.said.strip().splitlines()[:24]]
            end = "(the application had ended before)" if one.late else f"this was to {one.end}"
            lines += ["", *([] if one.right else [f"   {end}", ""])]
        return "\n".join(lines)

    @property
    def right(self) -> bool:
        """Whether all changes ended as expected; those apart that were too late."""
        return all(one.right or one.late for one in self.changes)

    @property
    def late(self) -> int:
        """The number of changes for which the application ended too early."""
        return sum(one.late for one in self.changes)

    def _work(self) -> None:
        for one in self.changes:
            while not self._left.is_set() and self._second() < one.share * self.seconds:
                self._left.wait(LOOK)
            if not self._left.is_set():
                one.carry_out(self.process)
            one.late = not one.right and self._ended()
        self.done.set()
        while not self._left.wait(LOOK):
            self._second()

    def _ended(self) -> bool:
        """Whether the traffic has ended."""
        try:
            with connect(str(self.process)) as platform:
                return bool(platform.status(APPLICATION)["nodes"]["traffic"]["state"] == "ended")
        except ExopError:  # with its platform
            return True

    def _second(self) -> float:
        """The simulated second of the application, before the first while it opens; its pace is kept on the way."""
        try:
            with connect(str(self.process)) as platform:
                nodes = platform.metrics(APPLICATION)["nodes"]
                second = float(nodes["traffic"]["own"].get("second", -1.0))
                if second >= 0:
                    self._keep_pace(platform, second, float(nodes["answers"]["own"].get("slowest", 0.0)))
        except ExopError:  # it opens still, has just ended, or is being changed: there is another look
            return -1.0
        return second

    def _keep_pace(self, platform: Any, second: float, slowest: float) -> None:
        """Let the traffic go slower when the answers take too long: a setting of the source that runs."""
        speed = self.pace.look(second, slowest)
        if speed is not None:
            edit = {"node": "traffic", "edit": "configure", "settings": {"speed": str(speed)}}
            platform.plan_edits(APPLICATION, [edit]).carry_out()
            self.pace.slow_down(second, speed, slowest)
