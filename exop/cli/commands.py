"""The table of the built-in commands: their functions, names and groups. Importing it loads nothing heavy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cyclopts import Group

from exop.cli.applying import apply, plan
from exop.cli.beside import rollback
from exop.cli.bundling import (
    install_bundle,
    list_bundles,
    new_bundle,
    start_bundle,
    stop_bundle,
    uninstall_bundle,
    update_bundle,
)
from exop.cli.changing import end, remove, resume
from exop.cli.checking import check, doctor
from exop.cli.describing import describe
from exop.cli.developing import dev
from exop.cli.editing import add, configure, replace, rewire, suspend
from exop.cli.items import export_item, list_items, retry_items
from exop.cli.looking import mesh, ps, services
from exop.cli.mementos import export_memento, import_memento, show_memento
from exop.cli.running import run, serve
from exop.cli.top import top

GROUPS: Final = {
    "run": Group("Run applications", sort_key=1),
    "look": Group("Look at what runs", sort_key=2),
    "change": Group("Change what runs", sort_key=3),
    "bundle": Group("Ship code", sort_key=4),
    "check": Group("Check beforehand", sort_key=5),
}


@dataclass(frozen=True)
class Command:
    """One command: what carries it out, and under which names; `item list` is the command `list` below `item`."""

    function: Callable[..., int]
    names: tuple[str, ...]
    group: str


#: What the commands of a group are about.
FAMILIES: Final = {
    "bundle": "Bundles: install, start, update, stop and uninstall code on a running platform.",
    "memento": "Show the state of a running node, export it, import it after an edit.",
    "item": "Look at failed items of a node, take them out, have them tried again.",
}

COMMANDS: Final = (
    Command(run, ("run",), "run"),
    Command(serve, ("serve",), "run"),
    Command(dev, ("dev",), "run"),
    Command(ps, ("ps",), "look"),
    Command(top, ("top",), "look"),
    Command(describe, ("describe",), "look"),
    Command(services, ("services",), "look"),
    Command(mesh, ("mesh",), "look"),
    Command(plan, ("plan",), "change"),
    Command(apply, ("apply",), "change"),
    Command(replace, ("replace",), "change"),
    Command(rollback, ("rollback",), "change"),
    Command(configure, ("configure",), "change"),
    Command(rewire, ("rewire",), "change"),
    Command(add, ("add",), "change"),
    Command(suspend, ("suspend",), "change"),
    Command(resume, ("resume",), "change"),
    Command(show_memento, ("memento show",), "look"),
    Command(export_memento, ("memento export",), "change"),
    Command(import_memento, ("memento import",), "change"),
    Command(end, ("end",), "change"),
    Command(remove, ("remove", "stop"), "change"),
    Command(new_bundle, ("bundle new",), "bundle"),
    Command(install_bundle, ("bundle install",), "bundle"),
    Command(start_bundle, ("bundle start",), "bundle"),
    Command(update_bundle, ("bundle update",), "bundle"),
    Command(stop_bundle, ("bundle stop",), "bundle"),
    Command(uninstall_bundle, ("bundle uninstall",), "bundle"),
    Command(list_bundles, ("bundle list",), "bundle"),
    Command(list_items, ("item list",), "change"),
    Command(export_item, ("item export",), "change"),
    Command(retry_items, ("item retry",), "change"),
    Command(check, ("check",), "check"),
    Command(doctor, ("doctor",), "check"),
)
