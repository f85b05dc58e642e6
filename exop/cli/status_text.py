"""Formats statuses and descriptions of applications, nodes, slets and builders as text, with their problems."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from exop.cli.text import columns, number, pairs, pause, seconds
from exop.errors import counted
from exop.safe_repr import indented

Facts = Mapping[str, Any]


def state_text(status: Facts) -> str:
    """Return the state of an application; while it opens, with the progress."""
    opening = status.get("opening")
    return f"opening {opening['opened']} of {opening['total'] or '?'}" if opening is not None else str(status["state"])


def lasts(status: Facts) -> str:
    """Return the time for which an application has run, or has been opening."""
    return seconds(status["opening"]["seconds"] if "opening" in status else status["running_s"])


def held_nodes(status: Facts) -> str:
    """Return the suspended and waiting nodes of an application as a suffix of its state; empty if there are none."""
    suspended = [name for name, node in status["nodes"].items() if node["state"] == "suspended"]
    waiting = [name for name, node in status["nodes"].items() if node.get("waits_for")]
    held = {"suspended": suspended, "waiting": waiting}
    return "".join(f"; {how}: {', '.join(names)}" for how, names in held.items() if names)


def holds_up(place: str) -> str:
    """Return what keeps an application from ending: a suspended node, APP.NODE."""
    return f"{place} is suspended, and keeps the run from ending; `exop resume {place}` lets it go on"


def problem_lines(status: Facts, without: Collection[str] = ()) -> Iterator[str]:
    """Yield the lines on the problems of an application on all its hosts, except those of other hosts *without*."""
    parts = [one for host, one in status.get("hosts", {}).items() if "nodes" in one and host not in without]
    yield from dict.fromkeys(line for one in (status, *parts) for line in attention_lines(one))


def attention_lines(status: Facts, *, brief: bool = False) -> Iterator[str]:
    """Yield the lines on the problems of an application; the *brief* ones are without tracebacks, and without waits."""
    for name, node in () if brief else status["nodes"].items():
        for channel, producers in node.get("waits_for", {}).items():
            yield f"{status['name']}.{name} waits for {channel} ({', '.join(producers)})"
    for node, waited in status.get("opening", {}).get("waiting", {}).items():
        yield f"{status['name']}.{node}: has been opening for {seconds(waited)}"
    for name, facts in (*status["nodes"].items(), *status["channels"].items()):
        yield from (f"{status['name']}.{name}: pending: {line}" for line in facts.get("pending", []))
        if "pending_problem" in facts:
            yield f"{status['name']}.{name}: {facts['pending_problem']}"
    yield from (f"{status['name']}: {name} has crashed: {why}" for name, why in status["crashed"].items())
    for name, facts in status["nodes"].items():
        place = f"{status['name']}.{name}"
        if brief:
            yield from _brief_troubles(facts, place)
        elif "kept" in facts or "hang" in facts or any(map(facts.get("dead_letters", {}).get, ("count", "dropped"))):
            yield f"{place}:"
            yield from (f"  {line}" for line in troubles(facts, place))
    for name, facts in {**status["channels"], **status["inserted"]}.items():
        if facts.get("trouble"):
            yield f"{status['name']}.{name}: {facts['trouble']}"
    if status["state"] == "delivering":
        yield from (f"{status['name']}: has to deliver {line}" for line in undelivered(status))
    yield from beside_lines(status)
    yield from host_lines(status)
    yield from checkpoint_lines(status)


def undelivered(status: Facts) -> Iterator[str]:
    """Yield what each outbox has for its peer, with its state; nothing if the application spans hosts."""
    for name, facts in status["channels"].items() if not status.keys() & {"hosts", "home"} else ():
        if facts.get("lag"):
            peer, state = facts.get("peer"), facts.get("state")
            yield f"{counted(facts['lag'], 'event')} of {name} that {peer} has not acknowledged; connector: {state}"


def checkpoint_lines(status: Facts, failures: int = 1) -> Iterator[str]:
    """Yield a line for each host on which the last *failures* checkpoints of an application have failed."""
    for where, one in [(f" on {host}", one) for host, one in status.get("hosts", {}).items()] or [("", status)]:
        if (found := one.get("checkpoints", {})).get("trouble") and found.get("failing", 1) >= failures:
            held = ", ".join(f"{counted(left, 'item')} of {node}" for node, left in found.get("unwritten", {}).items())
            why = found["trouble"].removeprefix(f"{status['name']}: no checkpoint was taken: ")
            yield f"{status['name']}: no checkpoints{where}: {why}{held and f'; not written: {held}'}"


def host_lines(status: Facts) -> Iterator[str]:
    """Yield a line for each host of an application that does not answer for its fragment, and for a lost home."""
    if "problem" in status:
        yield f"{status['name']}: {status['problem']}"
    for host, one in status.get("hosts", {}).items():
        if "nodes" not in one:
            where = f"the host {host} cannot be reached: " if one["state"] == "unreachable" else ""
            yield f"{status['name']}: {where}{one['problem']}"


def _brief_troubles(facts: Facts, place: str) -> Iterator[str]:
    """Yield a line for each problem of a node; *place* is its APP.NODE."""
    if "error" in facts:
        kept = facts.get("kept")
        item = f" on the item {kept['item']:.200} at {kept['port']!r}" if kept and kept["port"] else ""
        yield f"{place} is {facts['state']}{item}: {facts['error']}; fix the cause, then `exop resume {place}`"
    if "hang" in facts:
        yield f"{place} hangs: an item has taken {facts['hang']['seconds']:.1f} s so far, see `exop describe {place}`"
    if dead := facts.get("dead_letters", {}).get("count", 0):
        yield f"{place}: {counted(dead, 'dead letter')}, see `exop item list {place}`"


def troubles(facts: Facts, place: str) -> list[str]:
    """Return the lines on the problems of a node, if any. *place* is its APP.NODE."""
    lines = []
    if "error" in facts:
        lines.append(f"error: {indented(facts['error'])}")
    if "kept" in facts:
        kept = facts["kept"]
        lines.append(f"kept item at {kept['port']!r}: {kept['item']}" if kept["port"] else "while it was iterated")
        lines += _indented(kept["traceback"])
        lines.append(
            f"fix the slet (exop replace, exop configure) or the cause; `exop resume {place}` then retries the item"
        )
    for channel, producers in facts.get("waits_for", {}).items():
        by = ", ".join(producers)
        missing = f"{channel} to be filled: neither an end nor a punctuation has come from {by}"
        lines.append(f"waits for {by if ': ' in by else missing}")
    if "hang" in facts:
        hang = facts["hang"]
        lines.append(
            f"hangs: item {number(hang['items'])} of {hang['driver']} has taken {seconds(hang['seconds'])} so far "
            f"(timeout {facts['timeout']:g} s), at"
        )
        lines += _indented(hang["stack"])
        lines.append("end the operation it waits for: the node cannot be changed before this call returns")
    if (dead := facts.get("dead_letters")) is not None and dead.get("sent"):
        lines.append(f"{counted(dead['sent'], 'dead letter')} went into the channel {dead['channel']}")
    if dead is not None and (dead["count"] or dead["dropped"]):
        dropped = f", {counted(dead['dropped'], 'older one')} dropped" if dead["dropped"] else ""
        last = f", the last error: {indented(facts['last_error'])}" if "last_error" in facts else ""
        lines.append(f"{counted(dead['count'], 'dead letter')}{dropped}{last}; `exop item list {place}` shows them")
    return lines


def error_lines(status: Facts) -> Iterator[str]:
    """Yield a line for each slet that has raised, replaced and removed ones included, with its last error."""
    found = [(name, one["metrics"]["errors"], one) for name, one in status["nodes"].items() if "last_error" in one]
    gone = [(f"{one['node']} ({one['slet']}, since replaced or removed)", one) for one in status.get("replaced", ())]
    for name, count, one in (*found, *((name, one["errors"], one) for name, one in gone)):
        last = ", the last" if count > 1 else ""
        yield f"{name}: {counted(count, 'error')}{last}: {indented(one['last_error'])}"


def call_lines(platform: Facts) -> Iterator[str]:
    """Yield a line for each call of user code that takes long, or was abandoned and still runs."""
    for call in platform.get("calls", ()):
        place, takes = f"{call['application']}.{call['node']}", f"{call['phase']} for {seconds(call['seconds'])}"
        given_up = ", given up: its thread goes on until the call returns" if call["given_up"] else ""
        at = call["stack"].strip().splitlines()
        where = next((f"; at {line.strip()}" for line in reversed(at) if line.lstrip().startswith("File ")), "")
        yield f"{place}: {takes}{given_up}{where}"


def access_lines(platform: Facts) -> Iterator[str]:
    """Yield a line for a new policy or certificate that a platform cannot use."""
    for what, one in platform.get("access", {}).items():
        if one["problem"]:
            yield f"{platform['platform']}: the previous {what} remains in force: {one['problem']}"


def shadow_progress(node: str, one: Facts) -> str:
    """Return the progress of a node's trial."""
    came = f"{number(one['items'])} of " if one["asked"] else ""
    items = f"{came}{counted(one['asked'] or one['items'], 'item')}, {counted(one['compared'], 'output')} compared"
    return f"shadow {node}: {items} in {one['seconds']:.1f} s (of {one['limit']:g} s)"


def proof_lines(found: Facts) -> Iterator[str]:
    """Yield the result of a successful trial, a line for each node."""
    for node, one in found.items():
        old, new = (one.get("busy_ms", {}).get(which, {}) for which in ("old", "new"))
        ms = "  ".join(f"{name} {old[name]:g} → {new[name]:g}" for name in (old if new else ()))
        equal = "equal" if one["compared"] else "no difference"
        compared = f"{counted(one['items'], 'item')}, {counted(one['compared'], 'output')} compared"
        yield f"shadow {node}: {equal} on {compared} in {one['seconds']:.1f} s{ms and '; ms per item, old → new: '}{ms}"


def beside_lines(status: Facts) -> Iterator[str]:
    """Yield a line for each slet on trial, and for each old slet that is kept running."""
    for node, one in status.get("shadow", {}).items():
        yield f"{status['name']}.{node}: {one['slet']} is on trial; {shadow_progress(node, one)}"
    for node, one in status.get("kept", {}).items():
        place = f"{status['name']}.{node}"
        yield f"{place}: the predecessor {one['slet']} is kept until {one['until']} (exop rollback {place})"


def as_text(facts: Facts) -> list[str]:
    """Return the paragraphs of a description of an application, a node, a slet, a builder, a folder or a file."""
    if "nodes" in facts:
        return _application_text(facts)
    for key, paragraph in (("node", _node_text), ("builder", _builder_text), ("slet", _slet_text)):
        if key in facts:
            return [paragraph(facts)]
    parts = [*map(_builder_text, facts["builders"]), *map(_slet_text, facts["slets"])]
    return parts or [f"{facts['of']} offers neither a builder nor a slet"]


def _slet_text(facts: Facts) -> str:
    lines = [f"{facts['slet']}  ({facts['role']}){'' if facts['here'] else '  (its code is not here)'}"]
    lines += _indented(facts["doc"])
    rows = [[one["direction"], one["port"], one["type"] + "  (pulled)" * one["pulled"]] for one in facts["ports"]]
    lines += [columns(("", "", ""), rows, indent="  ")] if rows else []
    lines += _settings(facts["settings"])
    if facts["memento"]:
        version, types = facts["state"]["version"], facts["state"]["schema"]
        lines.append(f"  memento: {facts['memento']}" + (f"  version {version}" if version != 1 else ""))
        lines += [f"    {field}: {types[place]['name']}" for field, place, *_ in types[0].get("fields", ())]
    if "exclusive" in facts["traits"]:
        lines.append("  exclusive: only one can be open, so a change closes the old one before it opens the new one")
    return "\n".join([*lines, *_guarantee(facts["on_error"], facts)])


def _builder_text(facts: Facts) -> str:
    head, settings = f"{facts['builder']}  (application builder)", _settings(facts["settings"], "parameters")
    return "\n".join([head, *_indented(facts["doc"]), *settings])


def _settings(settings: list[dict[str, Any]], title: str = "settings") -> list[str]:
    lines = [f"    {one['text']}{'  (required)' if one['required'] else ''}" for one in settings]
    return [f"  {title}:", *lines] if lines else []


def _guarantee(policy: str, facts: Facts) -> list[str]:
    timeout = [] if facts["timeout"] is None else [f"  timeout: {facts['timeout']:g} s per item"]
    return [f"  on_error: {policy}", *(f"    {part}" for part in facts["guarantee"].split("; ")), *timeout]


def _application_text(facts: Facts) -> list[str]:
    title = f"{facts['name']}  {state_text(facts)} for {lasts(facts)}{held_nodes(facts)}"
    title += f"  on {facts['platform']}  revision {facts['revision']}{' of this part' if 'home' in facts else ''}"
    if facts.get("last_change"):
        title += f"  (the last change paused the stream for {pause(facts['last_change']['paused_ms'])})"
    hosts = {host: one for host, one in facts.get("hosts", {}).items() if "nodes" in one}
    tables = [part for host, one in hosts.items() for part in (f"  on {host}:", *_tables(one))] or _tables(facts)
    return [*filter(None, (title, *tables, "\n".join(problem_lines(facts))))]


def _tables(facts: Facts) -> Iterator[str]:
    """Yield the tables of the nodes, channels, groups and inserted queues that run on one host, if there are any."""
    nodes = [
        [name, one["role"], one["state"], one["slet"], number(one["metrics"]["items_in"]), one.get("error", "")]
        for name, one in facts["nodes"].items()
    ]
    channels = [
        [name, one["kind"], one.get("schema", {}).get("type", ""), pairs(_numbers(one))]
        for name, one in facts["channels"].items()
    ]
    groups = [
        [group, f"{name} by {one['by']}", owned]
        for name, one in facts["channels"].items()
        for group, owned in one.get("groups", {}).items()
    ]
    queues = [[place, one["reason"]] for place, one in facts["inserted"].items()]
    yield columns(("node", "role", "state", "slet", "in", ""), nodes, "  ")
    yield columns(("channel", "kind", "type", ""), channels, "  ")
    yield columns(("group", "shares", "partitions"), groups, "  ")
    yield columns(("inserted queue", "because"), queues, "  ")


def _node_text(facts: Facts) -> str:
    where = f"  on {facts['host']}" if "host" in facts else ""
    lines = [f"{facts['node']}  {facts['state']}{where}  {facts['slet']}  ({facts['role']})  {facts['id']}"]
    rows = [[one["direction"], one["port"], one["type"], one["channel"]] for one in facts["ports"]]
    lines.append(columns(("", "port", "type", "channel"), rows, "  "))
    lines += [f"  {name} = {value!r}" for name, value in facts["settings"].items()]
    lines += [f"  group: {facts['group']}"] if "group" in facts else []
    lines += [f"  pending: {line}" for line in facts.get("pending", [])]
    lines += [f"  {facts['pending_problem']}"] if "pending_problem" in facts else []
    lines += _guarantee(facts["policy"], facts)
    figures = facts["metrics"]
    marked = {f"~{name}" if name in figures["sampled"] else name: value for name, value in figures.items()}
    lines.append("  " + pairs(_numbers(marked)))
    shown = ("items", "~service_ms", "~latency_ms", "own")
    lines += [f"  {kind}  {pairs(marked[kind])}" for kind in shown if marked.get(kind)]
    lines += [f"  {line}" for line in troubles(facts, facts["node"])]
    lines += [f"  {line}" for line in beside_lines({"name": facts["application"], **facts["beside"]})]
    for one in facts.get("dead_letters", {}).get("first", []):
        lines.append(f"  dead letter at {one['port']!r}: {one['item']}: {indented(one['error'])}")
    return "\n".join(lines)


def _numbers(figures: Facts) -> dict[str, Any]:
    return {name: value for name, value in figures.items() if isinstance(value, (int, float))}


def _indented(text: str) -> list[str]:
    return [f"  {line}".rstrip() for line in text.rstrip().splitlines()]
