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
from typing import Any, Final, cast

from exop.errors import ExopError
from exop.hooks import Plugins
from exop.logs import set_up

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
#: The commands that have subcommands.
FAMILIES: Final = {
    "bundle": "Install, start, update, stop and uninstall bundles of code on a running platform.",
    "memento": "Show, export and import the state of a running node.",
    "item": "List, export and retry the items for which a node has failed.",
    "certs": "Make an authority, and issue, revoke and show the certificates of platforms.",
    "state": "Examine a state directory, and accept its database after damage.",
}
#: The verbs that `exop plan` takes: commands with a dry run that change a running application.
PLANNED: Final = ("replace", "configure", "rewire", "add", "move", "suspend", "resume", "remove", "drain")
#: The options of every command, with the values that they take.
COMMON: Final = {
    "--debug": ("", "Show the traceback of an error."),
    "--log-format": ("FORMAT", "Format of the log on stderr: console (for people, the default) or json."),
    "--log-level": (
        "LEVEL",
        "Lowest level to log: debug, info (the default), warning, error; LOGGER=LEVEL for one logger.",
    ),
}

#: The group, the module (below `exop.cli.commands`) and the commands; `item.list` is the subcommand `list` of `item`,
#: implemented by `item_list`; an alias follows `=`.
_TABLE: Final = """
run    running     run
run    serving     serve
run    running     dev
look   looking     ps
look   monitoring  top
look   looking     describe slets services
look   monitoring  metrics health
look   looking     mesh history
host   hosting     peers connect disconnect discover drain resolve adopt accept
change applying    plan apply
change editing     replace rollback configure rewire add move suspend resume
look   items       memento.show
change items       memento.export memento.import
change editing     end remove=stop
bundle bundling    bundle.new bundle.install bundle.start bundle.update bundle.stop bundle.uninstall bundle.list
change items       item.list item.export item.retry
host   hosting     certs.init certs.issue certs.revoke certs.show policy
check  checking    check doctor
check  state       state.check state.accept
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
    def function(self) -> Callable[..., int | None]:
        """The function itself; reading it imports its module."""
        return cast("Callable[..., int | None]", getattr(import_module(self.module), self.name))

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


COMMANDS: Final = tuple(
    Command(f"exop.cli.commands.{module}", name.replace(".", "_"), (name.replace(".", " "), *aliases), group)
    for group, module, *words in map(str.split, _TABLE.strip().splitlines())
    for name, *aliases in (word.split("=") for word in words)
)


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
    set_up("warning")
    plugins = Plugins()
    with suppress(ExopError):
        plugins.discover()
    return plugins


def overview(of_plugins: Mapping[str, str]) -> Iterator[str]:
    """Yield the paragraphs on all commands with their summaries; *of_plugins* has the commands of plugins."""
    width = min(shutil.get_terminal_size().columns, 120)
    groups: dict[str, dict[str, str]] = {title: {} for title in GROUPS.values()}
    families = dict(FAMILIES)
    for command in COMMANDS:
        family, _, below = command.names[0].partition(" ")
        if not below:
            groups[GROUPS[command.group]][", ".join(command.names)] = command.summary
        elif family in families:  # listed with its first command
            groups[GROUPS[command.group]][family] = families.pop(family)
    groups["Commands of plugins"] = dict(of_plugins)
    groups["Options of every command"] = {f"{name} {value}".rstrip(): text for name, (value, text) in COMMON.items()}
    completion = "Let your shell complete commands, options and names (a script in your home)."
    groups["Without a command"] = {"--help, -h": "Show this overview.", "--version": "Show the version."}
    groups["Without a command"]["--install-completion"] = completion
    yield "Usage: exop COMMAND [OPTIONS]\n"
    yield textwrap.fill(HELP, width)
    for title, lines in groups.items():
        if lines:
            yield f"\n{title}:"
        for name, text in lines.items():
            indent = max(map(len, lines)) + 4
            yield textwrap.fill(text, width, initial_indent=f"  {name}".ljust(indent), subsequent_indent=" " * indent)
    yield "\n" + textwrap.fill(EPILOGUE.replace("`", ""), width)
