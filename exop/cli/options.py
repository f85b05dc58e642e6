"""Options that several commands have in common."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

from cyclopts import Parameter

from exop.errors import BuilderError
from exop.model.slets.settings import parse


def check_seconds(_: type, seconds: float | None) -> None:
    """Validate a number of seconds.

    Raises:
        ValueError: it is negative, or not a number.
    """
    if seconds is not None and not seconds >= 0:
        raise ValueError(f"{seconds:g} is no number of seconds; give 0 or more")


Json: TypeAlias = Annotated[bool, Parameter(name="--json", help="Print JSON on stdout.")]
DryRun: TypeAlias = Annotated[bool, Parameter(name="--dry-run", help="Show the plan, and change nothing.")]
Load: TypeAlias = Annotated[
    tuple[Path, ...],
    Parameter(name="--load", help="A package folder to load as an additional plugin; may be given several times."),
]
Params: TypeAlias = Annotated[
    tuple[Path, ...],
    Parameter(
        name="--params",
        help="A TOML file with parameters (NAME = VALUE); may be given several times, the last one wins. Parameters on "
        "the command line win over those in files, and these over environment variables EXOP_PARAM_NAME.",
    ),
]
State: TypeAlias = Annotated[
    Path | None,
    Parameter(name="--state", help="The state directory: applications that ran there are started again from it."),
]
Name: TypeAlias = Annotated[
    str | None, Parameter(name="--name", help="The name of this platform; the host's name by default.")
]
OnFailure: TypeAlias = Literal["wait", "stop"]
Picture: TypeAlias = Literal["mermaid", "dot", "svg", "toml", "json"]


@Parameter(name="*")
@dataclass(frozen=True)
class Where:
    """The choice of a running platform; not needed when only one runs, or only one has the application."""

    on: Annotated[
        str | None, Parameter(help="A running platform: its process id, name, socket or state directory.")
    ] = None
    state: Annotated[Path | None, Parameter(help="The state directory of a platform.")] = None


@Parameter(name="*")
@dataclass(frozen=True)
class Bounds:
    """Limits of a change."""

    timeout: Annotated[
        float | None,
        Parameter(
            help="Give up the change when drivers need more seconds than this to reach a safe point; 10 by default.",
            validator=check_seconds,
        ),
    ] = None
    pause: Annotated[
        float | None,
        Parameter(
            help="Seconds for which the hand-over of a state may stop the stream, as tried on a copy before; 0.05 by "
            "default.",
            validator=check_seconds,
        ),
    ] = None
    allow_stall: Annotated[
        bool, Parameter(help="Let a successor that cannot catch up stop the stream for longer than --pause.")
    ] = False

    def as_data(self) -> dict[str, Any]:
        """The bounds, as the change takes them."""
        return {"timeout": self.timeout, "pause": self.pause, "stall": self.allow_stall}


@Parameter(name="*")
@dataclass(frozen=True)
class Succession:
    """How a replacement treats the state of the old slet."""

    lose_state: Annotated[
        bool, Parameter(help="Start the successor with an empty state, even if it could take over the old one.")
    ] = False
    rebuild: Annotated[
        Literal["log"] | None, Parameter(help="`log`: rebuild the state from the log that the input comes from.")
    ] = None


@Parameter(name="*")
@dataclass(frozen=True)
class Trigger:
    """The point in the stream at which new settings take effect."""

    when: Annotated[
        str | None,
        Parameter(help="Apply the settings from the first item for which this condition holds: 'report.time >= 3600'."),
    ] = None
    close_windows: Annotated[
        bool, Parameter(help="Of a window channel: emit the content of the open windows then, and start them anew.")
    ] = False
    cancel: Annotated[bool, Parameter(help="Cancel pending settings; the current ones stay.")] = False


@Parameter(name="*")
@dataclass(frozen=True)
class Proof:
    """The proof before a replacement, and the predecessor that is kept after it."""

    shadow: Annotated[
        str | None,
        Parameter(
            help="Run the successor beside the old slet first, on the same items; it takes over only if its output is "
            "the same: 30s, 1000items, or 1000items,30s."
        ),
    ] = None
    divert: Annotated[
        tuple[str, ...],
        Parameter(
            help="With --shadow: NAME=VALUE, a setting of the successor during the proof, so that its effects outside "
            "of the mesh go elsewhere; may be given several times."
        ),
    ] = ()
    allow_no_output: Annotated[
        bool,
        Parameter(help="With --shadow: let the successor take over even if neither slet has emitted any output."),
    ] = False
    keep: Annotated[
        str | None,
        Parameter(help="Keep the old slet running behind its successor for this time, ready for `exop rollback`: 60s."),
    ] = None

    def as_data(self) -> dict[str, Any] | None:
        """The conditions, as a platform takes them; `None` if there are none.

        Raises:
            BuilderError, PlanError: a text that is neither a time nor a number of items.
        """
        if self.shadow is None:
            for option, given in (("--divert", self.divert), ("--allow-no-output", self.allow_no_output)):
                if given:
                    raise BuilderError(f"{option} is an option of the proof; give --shadow as well")
            if self.keep is None:
                return None
        # Imported lazily: most changes are made without a proof.
        from exop.model.meshes.shadow import Shadow
        from exop.remoting.api.wire_types import as_proof

        more = {"divert": parse(self.divert), "allow_no_output": self.allow_no_output}
        shadow = None if self.shadow is None else Shadow.parse(self.shadow, **more)
        return as_proof(shadow, None if self.keep is None else _seconds(self.keep))


def _seconds(text: str) -> float:
    try:
        found = float(text.removesuffix("s"))
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise BuilderError(f"--keep {text} is no time; write 60s")
    return found


HERE: Final = Where()
UNBOUND: Final = Bounds()
SUCCEED: Final = Succession()
NOW: Final = Trigger()
#: A replacement without a proof.
AT_ONCE: Final = Proof()
