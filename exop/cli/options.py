"""Options that several commands share; the docstring of a class has the help texts of its fields."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tomllib import loads
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from cyclopts import Parameter
from cyclopts.validators import Number

from exop.errors import BuilderError
from exop.model.slets.spec import parse


def running_names(context: Any) -> list[str]:
    """Return the names by which a shell completes an argument: applications that run, their nodes, or slets."""
    # Imported lazily: only a shell that completes a name asks the platforms.
    from exop.cli.peers import each_platform

    def names(platform: Any) -> list[str]:
        if wanted == "slet":
            return [one["slet"] for one in platform.slet_summaries()]
        nodes = [f"{app}.{node}" for app in platform.applications() for node in loads(platform.topology(app))["nodes"]]
        return [*platform.applications(inactive=True), *(nodes if wanted != "app" else ())]

    wanted = context.argument.field_info.name
    return [name for _, found, _ in each_platform(names) for name in found or ()]


#: The name of something that runs; a shell completes it.
Runs: TypeAlias = Annotated[str, Parameter(completer=running_names)]
Node: TypeAlias = Annotated[str, Parameter(help="APP.NODE.", completer=running_names)]
if TYPE_CHECKING:
    Program: TypeAlias = str
else:
    Program = str | Path  # always a text; a shell completes paths
Argument: TypeAlias = Annotated[str, Parameter(help="NAME=VALUE for the builder.")]
Json: TypeAlias = Annotated[bool, Parameter(name="--json", help="Print JSON on stdout.")]
Load: TypeAlias = Annotated[
    tuple[Path, ...],
    Parameter(name="--load", help="A package or bundle folder to load, too; may be given several times."),
]
Params: TypeAlias = Annotated[
    tuple[Path, ...],
    Parameter(
        name="--params",
        help="A TOML file with parameters (NAME = VALUE); of several files, the last takes precedence. Parameters on "
        "the command line override those in files, and these override environment variables EXOP_PARAM_NAME.",
    ),
]
State: TypeAlias = Annotated[
    Path | None,
    Parameter(name="--state", help="The state directory, from which applications that ran there are restarted."),
]
Name: TypeAlias = Annotated[
    str | None, Parameter(name="--name", help="The name of this platform; the host's name by default.")
]
Seconds: TypeAlias = Annotated[float | None, Parameter(validator=Number(gte=0))]
OnFailure: TypeAlias = Literal["wait", "stop"]
Picture: TypeAlias = Literal["mermaid", "dot", "svg", "toml", "json"]


@Parameter(name="*")
@dataclass(frozen=True)
class Where:
    """The choice of a running platform; not needed when only one runs, or only one has the application.

    Attributes:
        on: A running platform: its process id, name, socket or state directory; or its address, tls://HOST:PORT or
            tcp://NAME@127.0.0.1:PORT.
        identity: The folder of your certificate, for an address with tls; see `exop certs`.
        state: The state directory of a platform.
    """

    on: str | None = None
    identity: Path | None = None
    state: Path | None = None


@Parameter(name="*")
@dataclass(frozen=True)
class Call(Where):
    """The options of a command that calls one platform: which one, and the format of the answer."""

    json: Json = False


@Parameter(name="*")
@dataclass(frozen=True)
class Request(Call):
    """The options of a command that changes an application: those of a call, and a dry run.

    Attributes:
        dry_run: Show the plan, and change nothing.
    """

    dry_run: bool = False


@Parameter(name="*")
@dataclass(frozen=True)
class Bounds:
    """Limits of a change.

    Attributes:
        timeout: Abandon the change if drivers do not reach a safe point within this many seconds; 10 by default.
        pause: Seconds by which the transfer of one node's state may lengthen the pause of the stream, as measured on a
            copy before; 0.05 by default. It does not bound the wait for safe points, which --timeout bounds.
        allow_stall: Allow a pause longer than --pause if the new slet cannot catch up.
    """

    timeout: Seconds = None
    pause: Seconds = None
    allow_stall: bool = False

    def limits(self) -> dict[str, Any]:
        """Return the limits as arguments of the change."""
        return {"timeout": self.timeout, "pause": self.pause, "stall": self.allow_stall}


@Parameter(name="*")
@dataclass(frozen=True)
class Proof(Bounds):
    """The limits of a change, the trial before it, and the time for which the old slet is kept running after it.

    Attributes:
        shadow: First run the new slet on trial, on copies of the same items; it takes over only if its output is the
            same: 30s, 1000items, or 1000items,30s.
        divert: With --shadow: NAME=VALUE, a setting of the new slet during the trial, for example to write to another
            file; may be given several times.
        allow_no_output: With --shadow: let the new slet take over even if neither slet has emitted any output.
        keep: Keep the old slet running for this time after the change, ready for `exop rollback`: 60s.
    """

    shadow: str | None = None
    divert: tuple[str, ...] = ()
    allow_no_output: bool = False
    keep: str | None = None

    def as_data(self) -> dict[str, Any] | None:
        """Return the trial as arguments of the platform; `None` if there are none.

        Raises:
            BuilderError, PlanError: an option is neither a time nor a number of items.
        """
        if self.shadow is None:
            for option, given in (("--divert", self.divert), ("--allow-no-output", self.allow_no_output)):
                if given:
                    raise BuilderError(f"{option} is an option of the trial; give --shadow as well")
        # Imported lazily: only changes need this.
        from exop.model.meshes.shadow import Shadow
        from exop.remoting.api.wire_types import as_proof

        more = {"divert": parse(self.divert), "allow_no_output": self.allow_no_output}
        shadow = None if self.shadow is None else Shadow.parse(self.shadow, **more)
        return as_proof(shadow, None if self.keep is None else _seconds(self.keep))


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if 0 < (found := float(text.removesuffix("s"))) < float("inf"):
            return found
    raise BuilderError(f"--keep {text} is no time; write 60s")
