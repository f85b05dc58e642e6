"""The options of changes, and edits as they stand on a command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

from cyclopts import Parameter

from exop.cli.options import check_seconds
from exop.cli.peers import is_local
from exop.errors import BuilderError
from exop.model.slets.settings import parse

Data = dict[str, Any]


Timeout: TypeAlias = Annotated[
    float | None,
    Parameter(
        help="Give the change up when drivers need more seconds than this to come to a safe point; 10.",
        validator=check_seconds,
    ),
]


@Parameter(name="*")
@dataclass(frozen=True)
class Bounds:
    """Limits of a change."""

    timeout: Timeout = None
    pause: Annotated[
        float | None,
        Parameter(
            help="The hand-over of a state may stop the stream for so many seconds, tried on a copy before; 0.05.",
            validator=check_seconds,
        ),
    ] = None
    allow_stall: Annotated[
        bool, Parameter(help="Where a successor cannot catch up, let it stop the stream for longer than --pause.")
    ] = False

    def as_data(self) -> Data:
        """The bounds, as the change takes them."""
        return {"timeout": self.timeout, "pause": self.pause, "stall": self.allow_stall}


UNBOUND: Final = Bounds()


@Parameter(name="*")
@dataclass(frozen=True)
class How:
    """The options of a replacement."""

    lose_state: Annotated[
        bool, Parameter(help="The successor begins with an empty state, also where it could take over the old one.")
    ] = False
    rebuild: Annotated[
        Literal["log"] | None,
        Parameter(help="`log`: its state is made out of the log its input comes from."),
    ] = None
    bounds: Bounds = UNBOUND


@Parameter(name="*")
@dataclass(frozen=True)
class Point:
    """The point in the stream at which new settings take effect."""

    when: Annotated[
        str | None, Parameter(help="Exactly from the first item on for which this holds: 'report.time >= 3600'.")
    ] = None
    close_windows: Annotated[
        bool, Parameter(help="Of a window channel: what is in the open windows leaves then, and they begin anew.")
    ] = False
    cancel: Annotated[bool, Parameter(help="Nothing is to take effect any more; the settings stay.")] = False


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

    def as_data(self) -> Data | None:
        """As it is sent.

        Raises:
            BuilderError, PlanError: it is no time, or no number of items.
        """
        from exop.model.meshes.shadow import Shadow
        from exop.remoting.api.wire_types import as_proof

        if self.divert and self.shadow is None:
            raise BuilderError("--divert says where effects go while a successor is tried; it goes with --shadow")
        if self.allow_no_output and self.shadow is None:
            raise BuilderError("--allow-no-output says what a successor needs to be proven; it goes with --shadow")
        more = {"divert": parse(self.divert), "allow_no_output": self.allow_no_output}
        shadow = None if self.shadow is None else Shadow.parse(self.shadow, **more)
        return as_proof(shadow, None if self.keep is None else _seconds(self.keep))


PLAIN: Final = How()
NOW: Final = Point()
#: A replacement that is made at once.
AT_ONCE: Final = Proof()
#: The first word that an edit needs, and its meaning; an edit that is not listed takes none.
NEEDED: Final = {
    "replace": ("SLET", "the slet that takes its place, PLUGIN:NAME"),
    "configure": ("NAME=VALUE", "at least one setting"),
    "rewire": ("PORT=CHANNEL", "at least one port"),
    "add": ("SLET", "the slet to add, PLUGIN:NAME"),
}
#: The edits (`exop.remoting.api.edits`).
VERBS: Final = (*NEEDED, "suspend", "resume", "remove")


def as_edit(verb: str, words: Sequence[str], how: How = PLAIN, point: Point = NOW) -> Data:
    """Return an edit as it is sent: the platform knows the slets, and reads the texts.

    Raises:
        BuilderError: a word is missing or too many, or an option belongs to another verb.
    """
    given = [name for name, value in vars(how).items() if value != getattr(PLAIN, name)]
    if verb != "replace" and given:
        option = given[0].replace("_", "-")
        raise BuilderError(f"--{option} says how a node is replaced; it does not go with {verb}")
    if verb != "configure" and point != NOW:
        raise BuilderError(f"--when, --close-windows and --cancel are for new settings; they do not go with {verb}")
    if point.cancel and (words or point.when or point.close_windows):
        raise BuilderError("--cancel goes without settings and conditions: it takes away what is pending")
    what, meaning = NEEDED.get(verb, ("", ""))
    if words and not what:
        raise BuilderError(f"{verb} takes nothing but APP.NODE; what is {words[0]!r}?")
    if what and not words and not (point.cancel or point.close_windows):
        raise BuilderError(f"{what} is missing: exop {verb} APP.NODE {what} names {meaning}")
    edit: Data = {"edit": verb}
    if verb == "replace":
        edit |= {"slet": _identity(words[0]), "settings": parse(words[1:])}
        return edit | {"lose_state": how.lose_state, "rebuild": how.rebuild}
    if verb == "add":
        return edit | {"slet": _identity(words[0]), "given": parse(words[1:])}
    if verb == "configure":
        return edit | {"settings": parse(words), "when": point.when, "close_windows": point.close_windows}
    return edit | {"ports": parse(words)} if verb == "rewire" else edit


def _seconds(text: str) -> float:
    try:
        found = float(text.removesuffix("s"))
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise BuilderError(f"--keep {text} is no time; write 60s")
    return found


def _identity(slet: str) -> str:
    """The name of a slet; what is written as a path names the plugin that the platform has loaded from there.

    Raises:
        BuilderError: it is written as a path, and names no slet.
    """
    path, colon, name = slet.rpartition(":")
    if not colon and not is_local(slet):
        raise BuilderError(f"{slet!r} names no slet; write PLUGIN:NAME, as `exop describe PLUGIN:NAME` has it")
    if not is_local(slet):
        return slet
    place = Path(path if colon else slet)
    if not place.exists():
        raise BuilderError(f"{place} does not exist; name a slet by PLUGIN:NAME")
    package = (place if place.is_dir() else place.parent).resolve()
    if not colon or not (package / "__init__.py").is_file():
        raise BuilderError(
            f"{slet!r} is a file here, and code does not travel by itself to a running platform; put it into a bundle "
            f"(`exop bundle new`, then `exop bundle install` and `start`) or into a package that the platform loads "
            f"(`exop serve --load FOLDER`; FOLDER:NAME names a slet of it), and name the slet as PLUGIN:NAME"
        )
    return f"{package.name}:{name}"
