"""The changes that an operator makes to the running application in the demo: the paper's §5.5, and a correction."""

from __future__ import annotations

import re
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
#: `--timeout` of a replacement, in seconds: as long as a slet may take to open without it. By default, the other waits
#: are limited to 10 s; a Spark query may need more to quiesce on a busy machine.
CHANGE = 600.0
#: Seconds after which a command is not waited for any more.
PATIENCE = 2 * CHANGE
#: So many lines of what a command printed are shown; of more, the middle is left out.
SHOWN = 40

#: How a proof refuses a slet whose output differs.
DIFFERS = r"was not replaced: (a difference|\d+ differences);"
#: How the platform says that a limit of seconds has passed, or that a slet did not keep up.
_OUT_OF_TIME = re.compile(
    r"(within|within Spark's|longer than) [\d.]+ s\b|taken too long|give it more time|too (slow|busy)\b|items behind"
)


@dataclass
class LiveChange:
    """One command line of the operator.

    Attributes:
        share: When it is given: after this share of the simulated time.
        why: What it shows.
        arguments: Of `exop`.
        refusal: What its error says (a regular expression) if it is to be refused; otherwise it is to be made.
        code: The exit code, when it has run.
        said: What it printed.
        late: Whether it was not given, or not carried out, because the application had ended.
        slow: Whether it was refused, or not waited for, because a limit of seconds had passed.
    """

    share: float
    why: str
    arguments: tuple[str, ...]
    refusal: str = ""
    code: int | None = None
    said: str = ""
    late: bool = False
    slow: bool = False

    @property
    def right(self) -> bool:
        """Whether it ended as expected."""
        return self.code == 1 and bool(re.search(self.refusal, self.said)) if self.refusal else self.code == 0

    @property
    def end(self) -> str:
        """How it ended instead of as expected."""
        if self.late:
            return "(the application had ended before)"
        if self.slow:
            return "(it ran out of time)"
        return "this was to be refused by its proof" if self.refusal else "this was to succeed"

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
            self.said, self.slow = f"it took more than {PATIENCE:g} s", True
        else:
            self.code, self.said = done.returncode, done.stdout + done.stderr
            self.slow = not self.right and self.code != 0 and bool(_OUT_OF_TIME.search(done.stderr))


def in_time(*arguments: str) -> tuple[str, ...]:
    """Return the arguments of a change that has to be made on a busy machine, too."""
    return (*arguments, "--timeout", f"{CHANGE:g}")


def shown(text: str) -> list[str]:
    """Return the lines of what a command printed; of many, the first and the last ones, which say how it ended."""
    lines, half = text.strip().splitlines(), SHOWN // 2
    if len(lines) <= SHOWN:
        return lines
    return [*lines[:half], f"… ({len(lines) - 2 * half} more lines)", *lines[-half:]]


def replacements() -> list[LiveChange]:
    """Spark's car positions are replaced by their native twin, that by a faulty one in vain, and all is taken back."""
    replace = ("replace", f"{APPLICATION}.positions")
    return [
        LiveChange(
            0.3,
            "a native twin, proven beside the Spark query on live traffic, takes its place",
            in_time(*replace, "linear_road:positions", "--shadow", "20000items,30s"),
        ),
        LiveChange(
            0.45,
            "a version with a mistake is refused by its proof",
            in_time(*replace, "linear_road:faulty_positions", "--shadow", "20s"),
            refusal=DIFFERS,
        ),
        LiveChange(
            0.55,
            "and back to Spark: the query is opened and warm first",
            in_time(*replace, "linear_road:spark_positions"),
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
            lines += [f"     {line}" for line in shown(one.said)]
            lines += ["", *([] if one.right else [f"   {one.end}", ""])]
        return "\n".join(lines)

    @property
    def right(self) -> bool:
        """Whether all changes ended as expected; those apart for which there was too little time."""
        return all(one.right or one.late or one.slow for one in self.changes)

    @property
    def missed(self) -> str:
        """The part of the verdict about the changes for which there was too little time; empty if there are none."""
        late = sum(one.late for one in self.changes)
        slow = sum(one.slow and not one.late for one in self.changes)
        said = f", {late} of the changes came after the end of the traffic" if late else ""
        return said + (f", {slow} of the changes ran out of time" if slow else "")

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
        except (ExopError, KeyError):  # it opens still, has just ended, or is being changed: there is another look
            return -1.0
        return second

    def _keep_pace(self, platform: Any, second: float, slowest: float) -> None:
        """Let the traffic go slower when the answers take too long: a setting of the source that runs."""
        speed = self.pace.look(second, slowest)
        if speed is not None:
            edit = {"node": "traffic", "edit": "configure", "settings": {"speed": str(speed)}}
            platform.plan_edits(APPLICATION, [edit]).carry_out()
            self.pace.slow_down(second, speed, slowest)
