"""Descriptions as text, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from exop.cli.commands.shadows import beside_lines
from exop.cli.live.troubles import (
    application_troubles,
    held_nodes,
    lasts,
    opening_lines,
    pending_lines,
    state_text,
    troubles,
)
from exop.cli.text import columns, number, pairs, pause
from exop.safe_repr import indented


def as_text(facts: Mapping[str, Any]) -> list[str]:
    """The paragraphs of a description."""
    if "nodes" in facts:
        return _application_text(facts)
    if "node" in facts:
        return _node_text(facts)
    if "builder" in facts:
        return _builder_text(facts)
    if "slet" in facts:
        return _slet_text(facts)
    parts = [paragraph for one in facts["builders"] for paragraph in _builder_text(one)]
    parts += [paragraph for one in facts["slets"] for paragraph in _slet_text(one)]
    return parts or [f"{facts['of']} offers neither a builder nor a slet"]


def _slet_text(facts: Mapping[str, Any]) -> list[str]:
    lines = [f"{facts['slet']}  ({facts['role']}){'' if facts['here'] else '  (its code is not here)'}"]
    lines += [f"  {line}".rstrip() for line in facts["doc"].splitlines()]
    rows = [
        [one["direction"], one["port"], one["type"] + ("  (pulled)" if one["pulled"] else "")] for one in facts["ports"]
    ]
    lines += [columns(("", "", ""), rows, indent="  ")] if rows else []
    lines += _settings(facts["settings"])
    lines += _memento(facts["memento"], facts["state"]) if facts["memento"] else []
    return ["\n".join([*lines, *_guarantee(facts["on_error"], facts["guarantee"]), *_timeout(facts["timeout"])])]


def _memento(name: str, state: Mapping[str, Any]) -> list[str]:
    version = f"  version {state['version']}" if state["version"] != 1 else ""
    types = state["schema"]
    fields = [f"    {field}: {types[place]['name']}" for field, place, *_ in types[0].get("fields", ())]
    return [f"  memento: {name}{version}", *fields]


def _builder_text(facts: Mapping[str, Any]) -> list[str]:
    lines = [f"{facts['builder']}  (application builder)"]
    lines += [f"  {line}".rstrip() for line in facts["doc"].splitlines()]
    return ["\n".join([*lines, *_settings(facts["settings"], "parameters")])]


def _guarantee(policy: str, text: str) -> list[str]:
    return [f"  on_error: {policy}", *(f"    {part}" for part in text.split("; "))]


def _timeout(seconds_per_item: float | None) -> list[str]:
    return [] if seconds_per_item is None else [f"  timeout: {seconds_per_item:g} s per item"]


def _settings(settings: list[dict[str, Any]], title: str = "settings") -> list[str]:
    if not settings:
        return []
    return [f"  {title}:", *(f"    {one['text']}{'  (required)' if one['required'] else ''}" for one in settings)]


def _application_text(facts: Mapping[str, Any]) -> list[str]:
    title = f"{facts['name']}  {state_text(facts)} for {lasts(facts)}{held_nodes(facts)}"
    title += f"  on {facts['platform']}  revision {facts['revision']}"
    if facts.get("last_change"):
        title += f"  (the last change stood still for {pause(facts['last_change']['paused_ms'])})"
    nodes = [
        [name, one["role"], one["state"], one["slet"], number(one["metrics"]["items_in"]), one.get("error", "")]
        for name, one in facts["nodes"].items()
    ]
    channels = [
        [
            name,
            one["kind"],
            one.get("schema", {}).get("type", ""),
            pairs({key: value for key, value in one.items() if isinstance(value, (int, float))}),
        ]
        for name, one in facts["channels"].items()
    ]
    parts = [title, columns(("node", "role", "state", "slet", "in", ""), nodes, "  ")]
    parts.append(columns(("channel", "kind", "type", ""), channels, "  "))
    shared = [(name, one["by"], one["groups"]) for name, one in facts["channels"].items() if one.get("groups")]
    groups = [[group, f"{name} by {by}", owned] for name, by, found in shared for group, owned in found.items()]
    parts += [columns(("group", "shares", "partitions"), groups, "  ")] if groups else []
    if facts["inserted"]:
        queues = [[place, one["reason"]] for place, one in facts["inserted"].items()]
        parts.append(columns(("inserted queue", "because"), queues, "  "))
    pending = list(pending_lines(facts))
    parts += ["\n".join(pending)] if pending else []
    parts += [f"a driver has crashed: {name}: {error}" for name, error in facts["crashed"].items()]
    wrong = [*opening_lines(facts), *application_troubles(facts), *beside_lines(facts)]
    return [*parts, "\n".join(wrong)] if wrong else parts


def _node_text(facts: Mapping[str, Any]) -> list[str]:
    lines = [f"{facts['node']}  {facts['state']}  {facts['slet']}  ({facts['role']})  {facts['id']}"]
    rows = [[one["direction"], one["port"], one["type"], one["channel"]] for one in facts["ports"]]
    lines.append(columns(("", "port", "type", "channel"), rows, "  "))
    lines += [f"  {name} = {value!r}" for name, value in facts["settings"].items()]
    lines += [f"  group: {facts['group']}"] if "group" in facts else []
    lines += [f"  pending: {line}" for line in facts.get("pending", [])]
    lines += [f"  {facts['pending_problem']}"] if "pending_problem" in facts else []
    lines += _guarantee(facts["policy"], facts["guarantee"])
    lines += _timeout(facts["timeout"])
    figures = facts["metrics"]
    marked = {f"~{name}" if name in figures["sampled"] else name: value for name, value in figures.items()}
    lines.append("  " + pairs({name: value for name, value in marked.items() if isinstance(value, (int, float))}))
    shown = ("items", "~service_ms", "~latency_ms", "own")
    lines += [f"  {kind}  {pairs(marked[kind])}" for kind in shown if marked.get(kind)]
    lines += [f"  {line}" for line in troubles(facts, facts["node"])]
    beside = {"name": facts["node"].partition(".")[0], **facts["beside"]}
    lines += [f"  {line}" for line in beside_lines(beside)]
    for one in facts.get("dead_letters", {}).get("first", []):
        lines.append(f"  dead letter at {one['port']!r}: {one['item']}: {indented(one['error'])}")
    return ["\n".join(lines)]
