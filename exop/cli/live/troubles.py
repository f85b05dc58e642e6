"""A node's problem as text: the item on which it is suspended, or which takes too long."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from exop.cli.text import number, seconds
from exop.safe_repr import indented


def troubles(facts: Mapping[str, Any], place: str) -> list[str]:
    """The lines on a node that needs help; none if all is well. *place* is its APP.NODE."""
    lines = []
    if "error" in facts:
        lines.append(f"error: {indented(facts['error'])}")
    if "kept" in facts:
        kept = facts["kept"]
        lines.append(f"kept item at {kept['port']!r}: {kept['item']}" if kept["port"] else "while it was iterated")
        lines += _indented(kept["traceback"])
        lines.append(f"mend it (replace, configure) or its cause (exop resume {place}): the item is tried again")
    for channel, producers in facts.get("waits_for", {}).items():
        by = ", ".join(producers)
        lines.append(f"waits for {channel} to be filled: neither the end nor a punctuation has come from {by}")
    if "hang" in facts:
        hang = facts["hang"]
        lines.append(
            f"hangs: item {number(hang['items'])} of {hang['driver']} takes {seconds(hang['seconds'])} by now "
            f"(timeout {facts['timeout']:g} s); it was at"
        )
        lines += _indented(hang["stack"])
        lines.append("end what it waits for: it cannot be changed before this call returns")
    dead = facts.get("dead_letters")
    if dead is not None and dead.get("sent"):
        lines.append(f"{number(dead['sent'])} dead letters went into the channel {dead['channel']}")
    if dead is not None and (dead["count"] or dead["dropped"]):
        dropped = f", {number(dead['dropped'])} older ones were dropped" if dead["dropped"] else ""
        last = f", the last error: {indented(facts['last_error'])}" if "last_error" in facts else ""
        lines.append(f"{number(dead['count'])} dead letters{dropped}{last}: exop item list {place}")
    return lines


def state_text(status: Mapping[str, Any]) -> str:
    """The state of an application, and while it opens, how far that is."""
    opening = status.get("opening")
    return f"opening {opening['opened']} of {opening['total']}" if opening is not None else str(status["state"])


def lasts(status: Mapping[str, Any]) -> str:
    """For how long an application has run, or has been opening."""
    return seconds(status["opening"]["seconds"] if "opening" in status else status["running_s"])


def opening_lines(status: Mapping[str, Any]) -> Iterator[str]:
    """The slets for which the opening of an application waits."""
    for node, waited in status.get("opening", {}).get("waiting", {}).items():
        yield f"{status['name']}.{node}: is being opened for {seconds(waited)}"


def call_lines(platform: Mapping[str, Any]) -> Iterator[str]:
    """The calls of slets' own code that take long, or were given up and go on."""
    for call in platform.get("calls", ()):
        place, takes = f"{call['application']}.{call['node']}", f"{call['phase']} for {seconds(call['seconds'])}"
        given_up = ", given up: its thread goes on until the call returns" if call["given_up"] else ""
        at = call["stack"].strip().splitlines()
        where = next((f"; at {line.strip()}" for line in reversed(at) if line.lstrip().startswith("File ")), "")
        yield f"{place}: {takes}{given_up}{where}"


def held_nodes(status: Mapping[str, Any]) -> str:
    """The nodes of an application that accept no items, and why, as a suffix of its state; empty if there are none.

    Failed nodes are shown by the state of the application, and separately.
    """
    held = [name for name, node in status["nodes"].items() if node["state"] == "suspended"]
    waiting = [
        f"; {name} waits for {channel} ({', '.join(producers)})"
        for name, node in status["nodes"].items()
        for channel, producers in node.get("waits_for", {}).items()
    ]
    return (f"; suspended: {', '.join(held)}" if held else "") + "".join(waiting)


def error_lines(status: Mapping[str, Any]) -> Iterator[str]:
    """A line for each slet that has raised, with its last error; also for those that were replaced or removed."""
    for name, facts in status["nodes"].items():
        if "last_error" in facts:
            yield _errors(name, facts["metrics"]["errors"], facts["last_error"])
    for one in status.get("replaced", ()):
        yield _errors(f"{one['node']} ({one['slet']}, since replaced or removed)", one["errors"], one["last_error"])


def _errors(name: str, count: int, last: str) -> str:
    last = indented(last)
    return f"{name}: 1 error: {last}" if count == 1 else f"{name}: {number(count)} errors, the last: {last}"


def application_troubles(status: Mapping[str, Any]) -> Iterator[str]:
    """The same for all nodes and channels of an application that need help."""
    for name, facts in status["nodes"].items():
        if "kept" in facts or "hang" in facts:
            place = f"{status['name']}.{name}"
            yield f"{place}:"
            yield from (f"  {line}" for line in troubles(facts, place))
    for name, facts in {**status.get("channels", {}), **status.get("inserted", {})}.items():
        if "trouble" in facts:
            yield f"{status['name']}.{name}: {facts['trouble']}"


def pending_lines(status: Mapping[str, Any]) -> Iterator[str]:
    """Format the settings pending at a point in the stream, in a whole application."""
    for name, facts in (*status["nodes"].items(), *status["channels"].items()):
        yield from (f"{status['name']}.{name}: pending: {line}" for line in facts.get("pending", []))
        if "pending_problem" in facts:
            yield f"{status['name']}.{name}: {facts['pending_problem']}"


def _indented(text: str) -> list[str]:
    return [f"  {line}" for line in text.rstrip().splitlines()]
