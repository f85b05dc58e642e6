"""`exop item …` and `exop memento …`: access the failed items and the state of a running node."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from cyclopts import Parameter

from exop.cli.options import Call, Node, Request, Where
from exop.cli.outcome import show_and_make
from exop.cli.peers import find_application
from exop.cli.report import DONE
from exop.cli.text import answer, columns
from exop.errors import BuilderError, counted
from exop.safe_repr import indented

#: How many tracebacks are printed below the table.
TRACEBACKS: Final = 5
Form = Annotated[Literal["json", "msgpack"] | None, Parameter(name="--format")]


def item_list(node: Node, /, *, call: Call = Call()) -> int:
    """List the failed items of a node: the one on which it is suspended, and its dead letters.

    Example: `exop item list app.parse`
    """
    with find_application(node, call) as found:
        place = found.check_node()
        facts = found.platform.failed_items(found.application, found.node)
    return answer(facts, lambda: "\n".join(_items(facts, place)), json=call.json)


def item_export(node: Node, file: Path, /, *, dead_letter: int | None = None, call: Call = Call()) -> int:
    """Write a failed item with its memento, settings and traceback to a file, for `exop.testing.replay(FILE)`.

    Example: `exop item export app.parse bad.exop --dead-letter 3`

    Args:
        file: The file to write; it must not exist.
        dead_letter: The number of a dead letter; by default, the item on which the node is suspended.
    """
    with find_application(node, call) as found:
        place = found.check_node()
        content = found.platform.export_item(found.application, found.node, dead_letter)
    _write(file, content)
    text = f"{place}: written to {file}; replay it with `exop.testing.replay({str(file)!r})`"
    return answer({"target": place, "file": str(file)}, text, json=call.json)


def item_retry(node: Node, /, *, call: Call = Call()) -> int:
    """Retry all dead letters of a node in their order, after the items in flight.

    `exop resume` retries the item on which a node is suspended.

    Example: `exop item retry app.parse`
    """
    with find_application(node, call) as found:
        place = found.check_node()
        number = found.platform.retry_dead_letters(found.application, found.node)
    text = f"{place}: {counted(number, 'dead letter')} retried"
    return answer({"target": place, "retried": number}, text, json=call.json)


def memento_show(node: Node, /, *, where: Where = Where()) -> None:
    """Show the state of a running or suspended node between two items, as JSON.

    The annotations of the memento's fields define the format of values. A value of undeclared type is written as
    {"$tag": …}, and a value that JSON cannot represent (an array or a table) as a descriptive string.

    Example: `exop memento show app.average`
    """
    with find_application(node, where) as found:
        found.node_status()
        _, data = found.platform.export_memento(found.application, found.node, "shown")
    print(data.decode(), end="")


def memento_export(node: Node, file: Path | None = None, /, *, form: Form = None, call: Call = Call()) -> int:
    """Write the state of a running node to a file: as JSON, to be edited, or as msgpack if it has arrays or tables.

    Example: `exop memento export app.average state.json`

    Args:
        file: The file to write; it must not exist. Stdout by default.
        form: The format of the file; by default JSON if it can represent the state.
    """
    with find_application(node, call) as found:
        found.node_status()
        chosen, data = found.platform.export_memento(found.application, found.node, form)
    if file is None:
        if chosen == "msgpack" and sys.stdout.isatty():
            raise BuilderError(f"the state of {node} is msgpack, which a terminal cannot show: name a FILE")
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        return DONE
    _write(file, data)
    facts = {"file": str(file), "format": chosen, "bytes": len(data)}
    return answer(facts, f"the state of {node} is in {file} ({chosen}, {len(data)} bytes)", json=call.json)


def memento_import(node: Node, file: Path | None = None, /, *, request: Request = Request()) -> int:
    """Make a running node continue from the state in a file that was exported, and may have been edited.

    The command checks the values against the fields of the memento, shows the plan, and makes the change as a whole or
    not at all. If the node is suspended on an item, it retries the item. The former state is not kept: export it first.

    Example: `exop memento import app.average state.json --dry-run`

    Args:
        file: The file; stdin by default.
    """
    try:
        data = sys.stdin.buffer.read() if file is None else file.read_bytes()
    except OSError as problem:
        why = problem.strerror or str(problem)
        raise BuilderError(f"{file} cannot be read ({why}); name a file that `exop memento export` wrote") from problem
    with find_application(node, request) as found:
        found.node_status()
        return show_and_make(partial(found.platform.import_memento, found.application, found.node, data), request)


def _items(facts: Mapping[str, Any], place: str) -> Iterator[str]:
    kept, letters = facts["kept"], facts["dead_letters"]
    rows = [*([("kept", kept)] if kept else ()), *((str(n), one) for n, one in enumerate(letters, 1))]
    cells = []
    for number, one in rows:
        at = datetime.fromtimestamp(one["at"]).isoformat(" ", "seconds")
        cells.append((number, at, one["port"], one["item"], one["error"].split("\n")[0], one["memento"]))
    yield columns(("", "failed", "port", "item", "error", "memento"), cells) or f"{place}: no item is kept"
    for number, one in rows[:TRACEBACKS]:
        yield f"\n{number}: {indented(one['traceback'].rstrip())}"
    if len(rows) > TRACEBACKS:
        yield "\n(--json shows all tracebacks)"
    if facts.get("channel") is not None:
        yield f"its dead letters go into the channel {facts['channel']}"
    if facts["count"] > len(letters):
        yield f"… and {counted(facts['count'] - len(letters), 'more dead letter')}"
    if facts["dropped"]:
        yield f"{counted(facts['dropped'], 'older dead letter')} dropped: the option dead_letters bounds their number"


def _write(file: Path, content: bytes) -> None:
    try:
        with file.open("xb") as stream:
            stream.write(content)
    except FileExistsError:
        raise BuilderError(f"{file} exists already; name another file, or remove it") from None
    except OSError as problem:
        why, cure = problem.strerror or str(problem), "name another file, in a folder that is there"
        raise BuilderError(f"{file} cannot be written ({why}); {cure}") from problem
