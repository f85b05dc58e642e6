"""Edits of a running mesh as they stand on a command line, and as they are sent; their names are understood there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

from cyclopts import Parameter

from exop.cli.building import parse
from exop.cli.options import check_seconds
from exop.cli.peers import is_local
from exop.errors import BuilderError, suggest

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


PLAIN: Final = How()
NOW: Final = Point()


def replace_edit(words: Sequence[str], how: How = PLAIN) -> Data:
    """SLET [NAME=VALUE …]: another slet in the node's place."""
    slet, *settings = _first(words, "replace", "SLET", "the slet that takes its place, PLUGIN:NAME")
    said = {"lose_state": how.lose_state, "rebuild": how.rebuild}
    return {"edit": "replace", "slet": _identity(slet), "settings": parse(settings), **said}


def configure_edit(words: Sequence[str], how: How = PLAIN) -> Data:
    """NAME=VALUE …: other settings."""
    _first(words, "configure", "NAME=VALUE", "at least one setting")
    return {"edit": "configure", "settings": parse(words)}


def pointed_edit(words: Sequence[str], point: Point) -> Data:
    """[NAME=VALUE …]: other settings, with what is said of the point where they take effect.

    Raises:
        BuilderError: nothing would change, or it is said of nothing.
    """
    if point.cancel and (words or point.when or point.close_windows):
        raise BuilderError("--cancel goes without settings and conditions: it takes away what is pending")
    if not point.cancel and not point.close_windows:
        _first(words, "configure", "NAME=VALUE", "at least one setting")
    at = {"when": point.when, "close_windows": point.close_windows}
    return {"edit": "configure", "settings": parse(words), **at}


def rewire_edit(words: Sequence[str], how: How = PLAIN) -> Data:
    """[NODE.]PORT=CHANNEL …: other channels, also for ports of further nodes; CHANNEL:KIND makes a new one."""
    _first(words, "rewire", "PORT=CHANNEL", "at least one port")
    ports: Data = {}
    further: dict[str, Data] = {}
    for place, to in parse(words).items():
        node, _, port = place.rpartition(".")
        (further.setdefault(node, {}) if node else ports)[port] = _channel(to)
    return {"edit": "rewire", "ports": ports, "further": further}


def add_edit(words: Sequence[str], how: How = PLAIN) -> Data:
    """SLET [NAME=VALUE …]: one more node, with channels for its ports and values for its settings."""
    slet, *given = _first(words, "add", "SLET", "the slet to add, PLUGIN:NAME")
    return {"edit": "add", "slet": _identity(slet), "given": parse(given)}


def plain_edit(verb: str) -> Callable[[Sequence[str], How], Data]:
    """An edit that needs the name of the node alone."""

    def made(words: Sequence[str], how: How = PLAIN) -> Data:
        if words:
            raise BuilderError(f"{verb} takes nothing but APP.NODE; what is {words[0]!r}?")
        return {"edit": verb}

    return made


#: The functions that make the edits, by verb.
EDITS: Final[dict[str, Callable[[Sequence[str], How], Data]]] = {
    "replace": replace_edit,
    "configure": configure_edit,
    "rewire": rewire_edit,
    "add": add_edit,
    "suspend": plain_edit("suspend"),
    "resume": plain_edit("resume"),
    "remove": plain_edit("remove"),
}


def check_how(verb: str, how: How, point: Point) -> None:
    """Refuse options of a replacement, or of new settings, for another verb.

    Raises:
        BuilderError: one was given.
    """
    given = [name for name, value in vars(how).items() if value != getattr(PLAIN, name)]
    if verb != "replace" and given:
        option = given[0].replace("_", "-")
        raise BuilderError(f"--{option} says how a node is replaced; it does not go with {verb}")
    if verb != "configure" and point != NOW:
        raise BuilderError(f"--when, --close-windows and --cancel are for new settings; they do not go with {verb}")


def _first(words: Sequence[str], verb: str, what: str, meaning: str) -> Sequence[str]:
    if not words:
        raise BuilderError(f"{what} is missing: exop {verb} APP.NODE {what} names {meaning}")
    return words


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


def _channel(text: str) -> str | Data:
    """CHANNEL, or CHANNEL:KIND[,NAME=VALUE…] for a new one."""
    name, colon, rest = text.partition(":")
    if not colon:
        return text
    kind, *settings = rest.split(",")
    return {"name": name, "kind": kind, "settings": parse(settings)}


def find_edit(verb: str) -> Callable[[Sequence[str], How], Data]:
    """Return the function that makes the edit of a verb.

    Raises:
        BuilderError: there is no such edit.
    """
    if verb not in EDITS:
        raise BuilderError(f"{verb!r} is no edit and no topology file; {suggest(verb, EDITS, 'edit')}")
    return EDITS[verb]
