"""Writes the references of the command line and of the management interface: `python -m tests.docs.cli_page`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, Final

from cyclopts import App

from exop.cli.entry import PLAIN, add_common_options, make_app
from exop.cli.overview import COMMANDS
from exop.remoting import operations
from exop.remoting.api.management import Management
from exop.remoting.api.wire_types import WIRE
from exop.remoting.transport.operation import ROLES
from tests.docs.snippets import ROOT

CLI = ROOT / "docs" / "reference" / "cli.md"
OPERATIONS = ROOT / "docs" / "reference" / "operations.md"
#: Above these lines the pages are written by hand.
CLI_BEGIN: Final = "## Options of every command\n"
OPERATIONS_BEGIN: Final = "| operation |"

#: The form of a command's last words, where they are not NAME=VALUE.
_REST: Final = {
    "PORTS": "PORT=CHANNEL …",
    "ALSO": "[ALSO …]",
    "WORDS": "[…]",
    "GIVEN": "[PORT=CHANNEL …] [NAME=VALUE …]",
}


def reference() -> str:
    """The page of the command line."""
    app = make_app()
    add_common_options(app)
    parts = [CLI_BEGIN, *_table(app.meta), ""]
    for name in _names(app):
        parts += [*_command(_at(app, name), name), ""]
    return CLI.read_text().partition(CLI_BEGIN)[0] + "\n".join(parts).rstrip() + "\n"


def operations_reference() -> str:
    """The page of the management interface."""
    rows = []
    for one in sorted(operations(Management, wire=WIRE).values(), key=lambda one: (_rank(one.role), one.name)):
        fields = [f"`{name}`" for name in one.request.__struct_fields__]
        rows.append(f"| `{one.name}` | {one.role or '-'} | {', '.join(fields)} | {one.doc.splitlines()[0]} |")
    head = OPERATIONS.read_text().partition(OPERATIONS_BEGIN)[0]
    return head + "\n".join([f"{OPERATIONS_BEGIN} role | parameters | meaning |", "|---|---|---|---|", *rows]) + "\n"


def _rank(role: str | None) -> int:
    """The place of a role in the table; operations without one come last."""
    return len(ROLES) if role is None else ROLES.index(role)


def _names(app: App) -> Iterator[str]:
    """The commands in the order of their table, each once."""
    yield from (command.names[0] for command in COMMANDS if command.names[0].split()[0] in app)


def _at(app: App, name: str) -> App:
    """The command of this name, in its group if it has one."""
    for word in name.split():
        app = app[word]
    return app


def _command(command: App, name: str) -> Iterator[str]:
    row = next(row for row in COMMANDS if row.names[0] == name)
    yield f"## exop {name}"
    yield ""
    yield f"    exop {name}{_usage(command)}"
    yield ""
    if len(row.names) > 1:
        yield f"Also: {', '.join(f'`exop {other}`' for other in row.names[1:])}."
        yield ""
    yield _described(row.function)
    yield ""
    yield from _table(command)


def _usage(command: App) -> str:
    given = [argument for argument in _arguments(command) if not _is_option(argument)]
    words = [_word(argument) for argument in given]
    options = " [OPTIONS]" if any(_is_option(argument) for argument in _arguments(command)) else ""
    return "".join(f" {word}" for word in words) + options


def _word(argument: Any) -> str:
    name = argument.names[0].upper()
    if argument.field_info.kind is inspect.Parameter.VAR_POSITIONAL:
        return _REST.get(name, "[NAME=VALUE …]")
    return name if argument.required else f"[{name}]"


def _table(command: App) -> list[str]:
    rows = [f"| {_shown(argument)} | {_help(argument)} |" for argument in _arguments(command)]
    return ["| argument or option | meaning |", "|---|---|", *rows] if rows else ["It takes no options."]


def _arguments(command: App) -> list[Any]:
    """List the arguments of a command, as the help shows them."""
    found = command.assemble_argument_collection(default_parameter=PLAIN, parse_docstring=True)
    return [argument for argument in found if argument.show]


def _shown(argument: Any) -> str:
    if not _is_option(argument):
        return f"`{argument.names[0].upper()}`"
    return ", ".join(f"`{name}`" for name in argument.names) + _value(argument)


def _value(argument: Any) -> str:
    if argument.hint is bool:
        return ""
    choices = argument.get_choices()
    return f" {', '.join(choices)}" if choices else " VALUE"


def _help(argument: Any) -> str:
    return " ".join((argument.parameter.help or "").split()).replace("|", "\\|")


def _is_option(argument: Any) -> bool:
    return bool(argument.names[0].startswith("-"))


def _described(function: Any) -> str:
    """The docstring without its list of arguments, which stands in the table."""
    return (inspect.getdoc(function) or "").partition("\nArgs:")[0].rstrip()


if __name__ == "__main__":
    CLI.write_text(reference())
    OPERATIONS.write_text(operations_reference())
