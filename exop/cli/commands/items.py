"""`exop item list|export|retry`: the items for which a slet has raised."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter

from exop.cli.options import HERE, Json, Where
from exop.cli.peers import find_application
from exop.cli.report import DONE
from exop.cli.text import columns, print_json
from exop.errors import BuilderError
from exop.safe_repr import indented

#: How many tracebacks are printed below the table.
TRACEBACKS: Final = 5


def list_items(node: str, /, *, where: Where = HERE, json: Json = False) -> int:
    """List the failed items of a node: the one that it is suspended on, and those that were set aside.

    Args:
        node: APP.NODE.
    """
    with find_application(node, where) as found:
        found.check_node()
        facts = found.platform.failed_items(found.application, found.node)
    if json:
        print_json(facts)
        return DONE
    kept, letters = facts["kept"], facts["dead_letters"]
    rows = [["kept", kept] for kept in [kept] if kept] + [[str(n), one] for n, one in enumerate(letters, 1)]
    if rows:
        head = ("", "failed", "port", "item", "error", "memento")
        cells = [
            [number, _clock(one["at"]), one["port"], one["item"], one["error"].split("\n")[0], one["memento"]]
            for number, one in rows
        ]
        print(columns(head, cells))
        for number, one in rows[:TRACEBACKS]:
            print(f"\n{number}: {indented(one['traceback'].rstrip())}")
        if len(rows) > TRACEBACKS:
            print("\n(the other tracebacks: --json)")
    else:
        print(f"{found.application}.{found.node}: no item is kept")
    if facts.get("channel") is not None:
        print(f"its dead letters go into the channel {facts['channel']}")
    if facts["count"] > len(letters):
        print(f"… and {facts['count'] - len(letters)} more dead letters")
    if facts["dropped"]:
        print(f"{facts['dropped']} older dead letters were dropped: no more than so many are kept (dead_letters)")
    return DONE


def export_item(
    node: str,
    file: Path,
    /,
    *,
    dead_letter: Annotated[int | None, Parameter(help="A dead letter by its number; else the kept item.")] = None,
    where: Where = HERE,
) -> int:
    """Write a failed item with its memento, settings and traceback to a file, for `exop.testing.replay(FILE)`.

    Args:
        node: APP.NODE.
        file: Where to; it must not be there yet.
    """
    with find_application(node, where) as found:
        found.check_node()
        content = found.platform.export_item(found.application, found.node, dead_letter)
    try:
        with file.open("xb") as opened:
            opened.write(content)
    except FileExistsError:
        raise BuilderError(f"{file} is there already; give another name") from None
    print(f"{found.application}.{found.node}: written to {file}; try it by `exop.testing.replay({str(file)!r})`")
    return DONE


def retry_items(node: str, /, *, where: Where = HERE) -> int:
    """Have all dead letters of a node tried again, in their order, behind what is under way.

    The item that a slet is suspended on is tried again by `exop resume`.

    Args:
        node: APP.NODE.
    """
    with find_application(node, where) as found:
        found.check_node()
        number = found.platform.retry_dead_letters(found.application, found.node)
    print(f"{found.application}.{found.node}: {number} dead letters are tried again")
    return DONE


def _clock(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
