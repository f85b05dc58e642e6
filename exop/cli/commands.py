"""The table of the built-in commands. Importing it imports none of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Final

#: The groups of commands in the order of the overview.
GROUPS: Final = {
    "run": "Run applications",
    "look": "Look at what runs",
    "change": "Change what runs",
    "bundle": "Ship code",
    "check": "Check beforehand",
}


@dataclass(frozen=True)
class Command:
    """One command: the function that carries it out, and its names; `item list` is the command `list` below `item`.

    Attributes:
        path: The function, as `module:name` below `exop.cli`.
        names: Its name, then other names for it.
        group: Its place in the overview.
        summary: The first sentence of the function's docstring, so that the overview needs no import.
    """

    path: str
    names: tuple[str, ...]
    group: str
    summary: str = ""

    @property
    def function(self) -> Callable[..., int]:
        """The function itself; reading it imports its module."""
        module, _, name = self.path.partition(":")
        found: Callable[..., int] = getattr(import_module(f"exop.cli.{module}"), name)
        return found


#: The commands that have others below them.
FAMILIES: Final = {
    "bundle": "Bundles: install, start, update, stop and uninstall code on a running platform.",
    "memento": "Show the state of a running node, export it, import it after an edit.",
    "item": "Look at failed items of a node, take them out, have them tried again.",
    "state": "State directories: look for damage, accept what is there.",
}

COMMANDS: Final = (
    Command("running:run", ("run",), "run", "Run an application until its sources end, showing its progress."),
    Command("running:serve", ("serve",), "run", "Start a platform that waits for applications: see `exop apply`."),
    Command(
        "developing:dev",
        ("dev",),
        "run",
        "Run the application of a folder, and apply every edit to it when it is saved, while the stream runs.",
    ),
    Command("looking:ps", ("ps",), "look", "List the running platforms of this user and their applications."),
    Command(
        "top:top",
        ("top",),
        "look",
        "Show what runs on a platform, live: rates, busy shares, latencies, queues, errors, what waits for a repair.",
    ),
    Command(
        "describing:describe",
        ("describe",),
        "look",
        "Describe a running application or node, a slet, or what a folder or file offers.",
    ),
    Command(
        "looking:services",
        ("services",),
        "look",
        "List the services of a platform: its components, ports and channels, with their properties.",
    ),
    Command(
        "monitoring:metrics",
        ("metrics",),
        "look",
        "Print the figures of running applications: items, errors, times of each node, and what its channels hold.",
    ),
    Command(
        "monitoring:health",
        ("health",),
        "look",
        "Tell whether a running platform is alive, or ready: exit code 0 or 1, and a line that says why.",
    ),
    Command("looking:mesh", ("mesh",), "look", "Print the mesh of an application as a picture or as a topology file."),
    Command(
        "looking:history",
        ("history",),
        "look",
        "List the operations on a running application: who, what, from which revision to which, its pause and outcome.",
    ),
    Command(
        "applying:plan",
        ("plan",),
        "change",
        "Show what a change would do to a running application, node by node; nothing happens.",
    ),
    Command(
        "applying:apply",
        ("apply",),
        "change",
        "Deploy an application on a running platform (`exop serve`), or make one that runs what the file says now.",
    ),
    Command(
        "editing:replace",
        ("replace",),
        "change",
        "Put another slet in a node's place while the stream runs: no item is lost, doubled or reordered.",
    ),
    Command(
        "beside:rollback",
        ("rollback",),
        "change",
        "Let the predecessor of a node take over again with its current state: see `exop replace … --keep 60s`.",
    ),
    Command(
        "editing:configure",
        ("configure",),
        "change",
        "Change settings of a running node or a window channel: now, between two items, or at a point in the stream.",
    ),
    Command(
        "editing:rewire",
        ("rewire",),
        "change",
        "Connect ports of a running node, and of further nodes of its application, to other channels: in one plan.",
    ),
    Command(
        "editing:add",
        ("add",),
        "change",
        "Add a node to a running application; it is open before the stream reaches it.",
    ),
    Command(
        "editing:suspend",
        ("suspend",),
        "change",
        "Hold items in front of a node, until `exop resume`; what is upstream waits when its queues are full.",
    ),
    Command(
        "changing:resume",
        ("resume",),
        "change",
        "Let items into a suspended slet again; the item that it is suspended on is tried first.",
    ),
    Command("mementos:show_memento", ("memento show",), "look"),
    Command("mementos:export_memento", ("memento export",), "change"),
    Command("mementos:import_memento", ("memento import",), "change"),
    Command(
        "changing:end",
        ("end",),
        "change",
        "End the sources of a running application; what is under way is still processed.",
    ),
    Command(
        "changing:remove",
        ("remove", "stop"),
        "change",
        "Stop an application at once, between two items, and forget it; or take one node out of it.",
    ),
    Command("bundling:new_bundle", ("bundle new",), "bundle"),
    Command("bundling:install_bundle", ("bundle install",), "bundle"),
    Command("bundling:start_bundle", ("bundle start",), "bundle"),
    Command("bundling:update_bundle", ("bundle update",), "bundle"),
    Command("bundling:stop_bundle", ("bundle stop",), "bundle"),
    Command("bundling:uninstall_bundle", ("bundle uninstall",), "bundle"),
    Command("bundling:list_bundles", ("bundle list",), "bundle"),
    Command("items:list_items", ("item list",), "change"),
    Command("items:export_item", ("item export",), "change"),
    Command("items:retry_items", ("item retry",), "change"),
    Command(
        "checking:check",
        ("check",),
        "check",
        "Build an application and check it without running it: slets, types, wiring, plugins.",
    ),
    Command(
        "checking:doctor",
        ("doctor",),
        "check",
        "Look at the installation: Python, packages, Java, plugins, platforms; each thing missing with its cure.",
    ),
    Command("state:check_state", ("state check",), "check"),
    Command("state:accept_state", ("state accept",), "check"),
)
