"""The table of the built-in commands, and `exop --help`, which imports neither commands nor the argument parser."""

from __future__ import annotations

import inspect
import shutil
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import CodeType
from typing import Any, Final

from exop.errors import ExopError
from exop.hooks import Plugins

HELP: Final = (
    "ExoP virtualizes stream processing: running operators, in any engine, are replaced while the stream runs."
)
EPILOGUE: Final = (
    "`exop COMMAND --help` shows more. Exit codes: 0 done, 1 failed while running, 2 your mistake, 3 dead letters left."
)
#: The groups of commands in the order of the overview.
GROUPS: Final = {
    "run": "Run applications",
    "look": "Look at what runs",
    "change": "Change what runs",
    "bundle": "Ship code",
    "host": "Connect hosts",
    "check": "Check beforehand",
}
#: The group of the commands that plugins add.
OF_PLUGINS: Final = "Commands of plugins"
#: The commands that have subcommands.
FAMILIES: Final = {
    "bundle": "Install, start, update, stop and uninstall bundles of code on a running platform.",
    "memento": "Show, export and import the state of a running node.",
    "item": "List, export and retry the items for which a node has failed.",
    "certs": "Make an authority, and issue, revoke and show the certificates of platforms.",
    "state": "Examine a state directory, and accept its database after damage.",
}
#: The options of every command, with the values that they take.
COMMON: Final = {
    "--debug": ("", "Show the traceback of an error."),
    "--log-format": ("FORMAT", "Format of the log on stderr: console (for people, the default) or json."),
    "--log-level": (
        "LEVEL",
        "Lowest level to log: debug, info (the default), warning, error; LOGGER=LEVEL for one logger.",
    ),
}

#: The group, the function (`module:name` below `exop.cli.commands`) and the names of each command.
_TABLE: Final = """
run    running:run                 run
run    serving:serve               serve
run    developing:dev              dev
look   looking:ps                  ps
look   top:top                     top
look   describing:describe         describe
look   describing:slets            slets
look   looking:services            services
look   monitoring:metrics          metrics
look   monitoring:health           health
look   looking:mesh                mesh
look   looking:history             history
host   hosting:peers               peers
host   hosting:connect             connect
host   hosting:discover            discover
host   hosting:drain               drain
host   hosting:resolve             resolve
host   hosting:adopt               adopt
host   hosting:accept              accept
change applying:plan               plan
change applying:apply              apply
change editing:replace             replace
change editing:rollback            rollback
change editing:configure           configure
change editing:rewire              rewire
change editing:add                 add
change editing:move                move
change editing:suspend             suspend
change editing:resume              resume
look   items:show_memento          memento show
change items:export_memento        memento export
change items:import_memento        memento import
change editing:end                 end
change editing:remove              remove, stop
bundle bundling:new_bundle         bundle new
bundle bundling:install_bundle     bundle install
bundle bundling:start_bundle       bundle start
bundle bundling:update_bundle      bundle update
bundle bundling:stop_bundle        bundle stop
bundle bundling:uninstall_bundle   bundle uninstall
bundle bundling:list_bundles       bundle list
change items:list_items            item list
change items:export_item           item export
change items:retry_items           item retry
host   certs:init_authority        certs init
host   certs:issue_certificate     certs issue
host   certs:revoke_certificate    certs revoke
host   certs:show_certificates     certs show
host   certs:check_policy          policy
check  checking:check              check
check  checking:doctor             doctor
check  state:check_state           state check
check  state:accept_state          state accept
"""


@dataclass(frozen=True)
class Command:
    """One command.

    Attributes:
        module, name: The function that implements the command.
        names: The name of the command, then aliases; `item list` is the subcommand `list` of `item`.
        group: The group of the command in the overview.
    """

    module: str
    name: str
    names: tuple[str, ...]
    group: str

    @property
    def function(self) -> Callable[..., int]:
        """The function itself; reading it imports its module."""
        found: Callable[..., int] = getattr(import_module(self.module), self.name)
        return found

    @property
    def summary(self) -> str:
        """The first sentence of the function's docstring, read from the compiled module without executing it."""
        code = next(one for one in _code_of(self.module) if one.co_name == self.name)
        text = code.co_consts[0] if isinstance(code.co_consts[0], str) else ""
        return " ".join(inspect.cleandoc(text).partition("\n\n")[0].split())


@cache
def _code_of(module: str) -> tuple[CodeType, ...]:
    """Return the compiled functions of a module, since importing it would take ten times as long."""
    loader: Any = getattr(find_spec(module), "loader", None)
    return tuple(one for one in loader.get_code(module).co_consts if isinstance(one, CodeType))


def _commands() -> Iterator[Command]:
    for line in _TABLE.strip().splitlines():
        group, path, names = line.split(maxsplit=2)
        module, _, function = path.partition(":")
        yield Command(f"exop.cli.commands.{module}", function, tuple(names.split(", ")), group)


COMMANDS: Final = tuple(_commands())


def is_wanted(arguments: Sequence[str]) -> bool:
    """Whether *arguments* name no command, and are empty or request help."""
    words = iter(arguments)
    for word in words:
        if word in ("--help", "-h"):
            return True
        if word not in COMMON:
            return False
        if COMMON[word][0]:
            next(words, None)
    return not arguments


def discovered() -> Plugins:
    """Return the installed plugins, for their commands; log only errors."""
    from exop.logs import set_up

    set_up("warning")
    plugins = Plugins()
    with suppress(ExopError):
        plugins.discover()
    return plugins


def show_overview(of_plugins: Mapping[str, str]) -> int:
    """Print all commands with their summaries; *of_plugins* has the commands of plugins."""
    print("\n".join(_paragraphs(of_plugins)), flush=True)
    return 0


def _paragraphs(of_plugins: Mapping[str, str]) -> Iterator[str]:
    width = min(shutil.get_terminal_size().columns, 120)
    groups: dict[str, dict[str, str]] = {title: {} for title in GROUPS.values()}
    families = dict(FAMILIES)
    for command in COMMANDS:
        family, _, below = command.names[0].partition(" ")
        if not below:
            groups[GROUPS[command.group]][", ".join(command.names)] = command.summary
        elif family in families:  # listed with its first command
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
    yield "\n" + textwrap.fill(EPILOGUE.replace("`", ""), width)


def _aligned(lines: Mapping[str, str], width: int) -> Iterator[str]:
    indent = max(map(len, lines)) + 4
    for name, text in lines.items():
        yield textwrap.fill(text, width, initial_indent=f"  {name}".ljust(indent), subsequent_indent=" " * indent)
