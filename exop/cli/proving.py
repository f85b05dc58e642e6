"""The command-line options for proving a replacement before it is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final

from cyclopts import Parameter

from exop.cli.building import parse
from exop.errors import BuilderError


@Parameter(name="*")
@dataclass(frozen=True)
class Proof:
    """The options for the proof before a replacement, and for keeping the predecessor after it."""

    shadow: Annotated[
        str | None,
        Parameter(
            help="Let the successor run beside the old slet first, on the same items, and take over only if it does "
            "the same: 30s, 1000items, or 1000items,30s."
        ),
    ] = None
    divert: Annotated[
        tuple[str, ...],
        Parameter(
            help="NAME=VALUE: a setting that the successor has meanwhile, so that what it does outside of the mesh "
            "goes elsewhere; may be given several times."
        ),
    ] = ()
    allow_no_output: Annotated[
        bool,
        Parameter(help="With --shadow: it may take over although neither slet has put out anything to compare."),
    ] = False
    keep: Annotated[
        str | None,
        Parameter(help="For so long the old slet runs on behind its successor, ready for `exop rollback`: 60s."),
    ] = None

    def as_data(self) -> dict[str, Any] | None:
        """As it is sent.

        Raises:
            BuilderError, PlanError: it is no time, or no number of items.
        """
        from exop.model.shadow import Shadow
        from exop.remoting.forms import as_proof

        if self.divert and self.shadow is None:
            raise BuilderError("--divert says where effects go while a successor is tried; it goes with --shadow")
        if self.allow_no_output and self.shadow is None:
            raise BuilderError("--allow-no-output says what a successor needs to be proven; it goes with --shadow")
        more = {"divert": parse(self.divert), "allow_no_output": self.allow_no_output}
        shadow = None if self.shadow is None else Shadow.parse(self.shadow, **more)
        return as_proof(shadow, None if self.keep is None else _seconds(self.keep))


#: A replacement that is made at once.
AT_ONCE: Final = Proof()


def _seconds(text: str) -> float:
    try:
        found = float(text.removesuffix("s"))
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise BuilderError(f"--keep {text} is no time; write 60s")
    return found
