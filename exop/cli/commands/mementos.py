"""`exop memento show|export|import`: the state of a running node is shown, written to a file, and taken from one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from exop.cli.commands.describing import check_no_channel
from exop.cli.commands.editing import DryRun
from exop.cli.options import HERE, Json, Where
from exop.cli.peers import Found, find_application
from exop.cli.report import DONE
from exop.cli.text import print_json
from exop.errors import BuilderError

Form = Annotated[
    Literal["json", "msgpack"] | None,
    Parameter(name="--format", help="The form of the file; by default JSON where that can hold the state."),
]


def show_memento(node: str, /, *, where: Where = HERE) -> int:
    """Show the state of a running node as JSON, as it is between two items; also that of a slet that is suspended.

    Values are written by the annotations of the memento's fields, as {"$tag": …} where these do not tell the type, and
    as text where JSON has no form for them (arrays, tables).

    Args:
        node: APP.NODE.
    """
    with _node(node, where) as found:
        _, data = found.platform.export_memento(found.application, found.node, "shown")
    print(data.decode())
    return DONE


def export_memento(
    node: str, file: Path | None = None, /, *, form: Form = None, where: Where = HERE, json: Json = False
) -> int:
    """Write the state of a running node to a file: JSON that can be edited, or msgpack where it holds arrays or tables.

    Args:
        node: APP.NODE.
        file: Where to; it must not be there yet. Stdout by default.
    """
    with _node(node, where) as found:
        chosen, data = found.platform.export_memento(found.application, found.node, form)
    if file is None:
        if chosen == "msgpack" and sys.stdout.isatty():
            raise BuilderError(f"the state of {node} is msgpack, which no terminal shows: name a FILE")
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        return DONE
    try:
        with file.open("xb") as stream:
            stream.write(data)
    except FileExistsError:
        raise BuilderError(f"{file} is there already; name another file, or remove it") from None
    if json:
        print_json({"file": str(file), "format": chosen, "bytes": len(data)})
    else:
        print(f"the state of {node} is in {file} ({chosen}, {len(data)} bytes)")
    return DONE


def import_memento(
    node: str, file: Path | None = None, /, *, dry_run: DryRun = False, where: Where = HERE, json: Json = False
) -> int:
    """Let a running node go on from the state in a file that was exported, and perhaps edited.

    A change like any other: the values are checked against the fields of the memento, the plan is shown, and made as a
    whole or not at all. An item on which the slet is suspended is tried again.

    Args:
        node: APP.NODE.
        file: The file; stdin by default.
    """
    from exop.cli.outcome import show_and_make

    data = _content(file)
    with _node(node, where) as found:
        plan = found.platform.import_memento(found.application, found.node, data)
        return show_and_make(plan, dry_run=dry_run, json=json)


def _content(file: Path | None) -> bytes:
    try:
        return sys.stdin.buffer.read() if file is None else file.read_bytes()
    except OSError as problem:
        told = problem.strerror or str(problem)
        raise BuilderError(f"{file} cannot be read ({told}); name a file that `exop memento export` wrote") from problem


@contextmanager
def _node(target: str, where: Where) -> Iterator[Found]:
    with find_application(target, where) as found:
        found.check_node()
        check_no_channel(found, found.platform.status(found.application))
        yield found
