"""`exop --help`: all commands at a glance, without importing any of them, nor the parser of arguments."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from exop.cli.table import COMMANDS, FAMILIES, GROUPS
from exop.errors import ExopError
from exop.hooks import Plugins

HELP: Final = (
    "ExoP virtualizes stream processing: running operators, in any engine, are replaced while the stream runs."
)
EPILOGUE: Final = (
    "exop COMMAND --help tells more. Exit codes: 0 done, 1 failed while running, 2 your mistake, 3 dead letters left."
)
#: The group of the commands that plugins add.
OF_PLUGINS: Final = "Commands of plugins"
#: The options of every command, with the value that each takes.
COMMON: Final = {
    "--debug": ("", "Show the traceback of an error."),
    "--log-format": ("FORMAT", "Log lines on stderr for people (console, the default) or as JSON (json)."),
    "--log-level": (
        "LEVEL",
        "Log from this level on: debug, info (the default), warning or error; LOGGER=LEVEL for one logger.",
    ),
}


def is_wanted(arguments: Sequence[str]) -> bool:
    """Whether *arguments* name no command and ask for help, or for nothing."""
    words = iter(arguments)
    for word in words:
        if word in ("--help", "-h"):
            return True
        if word not in COMMON:
            return False
        if COMMON[word][0]:
            next(words, None)
    return not arguments


def show_overview() -> int:
    """Print the overview, with the commands of plugins."""
    print("\n".join(_paragraphs(_of_plugins())), flush=True)
    return 0


def discovered() -> Plugins:
    """The installed plugins, for their commands; only those that are broken are logged."""
    from exop.logs import set_up

    set_up("warning")
    plugins = Plugins()
    with suppress(ExopError):
        plugins.discover()
    return plugins


def _of_plugins() -> dict[str, str]:
    plugins = discovered()
    offers: list[tuple[str, Any]] = [(plugin, offer) for plugin, offer in plugins.ask("register_commands") if offer]
    if not offers:
        return {}
    # The parser, which takes most of the time of a command, is needed to tell whether it can read them.
    from exop.cli.entry import add_plugin_commands, make_app

    added = add_plugin_commands(make_app(), plugins, offers)
    return {name: (function.__doc__ or "").strip().partition("\n")[0] for name, function in added.items()}


def _paragraphs(of_plugins: Mapping[str, str]) -> Iterator[str]:
    width = min(shutil.get_terminal_size().columns, 120)
    groups: dict[str, dict[str, str]] = {title: {} for title in GROUPS.values()}
    families = dict(FAMILIES)
    for command in COMMANDS:
        family, _, below = command.names[0].partition(" ")
        if not below:
            groups[GROUPS[command.group]][", ".join(command.names)] = command.summary
        elif family in families:  # it stands where its first command belongs
            groups[GROUPS[command.group]][family] = families.pop(family)
    groups[OF_PLUGINS] = dict(of_plugins)
    groups["Options of every command"] = {f"{name} {value}".rstrip(): text for name, (value, text) in COMMON.items()}
    groups["Without a command"] = {"--help, -h": "Show this overview.", "--version": "Show the version."}
    yield "Usage: exop COMMAND [OPTIONS]\n"
    yield textwrap.fill(HELP, width)
    for title, lines in groups.items():
        if lines:
            yield f"\n{title}:"
            yield from _aligned(lines, width)
    yield "\n" + textwrap.fill(EPILOGUE, width)


def _aligned(lines: Mapping[str, str], width: int) -> Iterator[str]:
    indent = max(map(len, lines)) + 4
    for name, text in lines.items():
        yield textwrap.fill(text, width, initial_indent=f"  {name}".ljust(indent), subsequent_indent=" " * indent)
