"""Options that several commands have in common."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from cyclopts import Parameter


def check_seconds(_: type, seconds: float | None) -> None:
    """Refuse what is no number of seconds, as a validator of options does.

    Raises:
        ValueError: it is negative, or not a number.
    """
    if seconds is not None and not seconds >= 0:
        raise ValueError(f"{seconds:g} is no number of seconds; give 0 or more")


Json: TypeAlias = Annotated[bool, Parameter(name="--json", help="Print JSON on stdout.")]
Load: TypeAlias = Annotated[
    tuple[Path, ...],
    Parameter(name="--load", help="A package folder to load as a plugin as well; may be given several times."),
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
    str | None, Parameter(name="--name", help="How this platform is called; the host's name by default.")
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
    state: Annotated[Path | None, Parameter(help="The state directory of a running platform.")] = None


HERE = Where()
