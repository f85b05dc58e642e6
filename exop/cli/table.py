"""The table of the built-in commands. Importing it imports none of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
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

#: The group, the function and the names of each command; below it, unless it belongs to a family, its summary.
_TABLE: Final = """
run    commands.running:run                 run
    Run an application until its sources end, showing its progress.
run    commands.running:serve               serve
    Start a platform that waits for applications: see `exop apply`.
run    commands.developing:dev              dev
    Run the application of a folder, and apply every edit to it when it is saved, while the stream runs.
look   commands.looking:ps                  ps
    List the running platforms of this user and their applications.
look   live.top:top                     top
    Show what runs on a platform, live: rates, busy shares, latencies, queues, errors, what waits for a repair.
look   commands.describing:describe         describe
    Describe a running application or node, a slet, or what a folder or file offers.
look   commands.looking:services            services
    List the services of a platform: its components, ports and channels, with their properties.
look   commands.monitoring:metrics          metrics
    Print the figures of running applications: items, errors, times of each node, and what its channels hold.
look   commands.monitoring:health           health
    Tell whether a running platform is alive, or ready: exit code 0 or 1, and a line that says why.
look   commands.looking:mesh                mesh
    Print the mesh of an application as a picture or as a topology file.
look   commands.looking:history             history
    List the operations on an application: who, what, from which revision to which, its pause and outcome.
change commands.applying:plan               plan
    Show what a change would do to a running application, node by node; nothing happens.
change commands.applying:apply              apply
    Deploy an application on a running platform (`exop serve`), or make one that runs what the file says now.
change commands.editing:replace             replace
    Put another slet in a node's place while the stream runs: no item is lost, doubled or reordered.
change commands.shadows:rollback             rollback
    Let the predecessor of a node take over again with its current state: see `exop replace … --keep 60s`.
change commands.editing:configure           configure
    Change settings of a running node or a window channel: now, between two items, or at a point in the stream.
change commands.editing:rewire              rewire
    Connect ports of a running node, and of further nodes of its application, to other channels: in one plan.
change commands.editing:add                 add
    Add a node to a running application; it is open before the stream reaches it.
change commands.editing:suspend             suspend
    Hold items in front of a node, until `exop resume`; what is upstream waits when its queues are full.
change commands.changing:resume             resume
    Let items into a suspended slet again; the item that it is suspended on is tried first.
look   commands.mementos:show_memento       memento show
change commands.mementos:export_memento     memento export
change commands.mementos:import_memento     memento import
change commands.changing:end                end
    End the sources of a running application; what is under way is still processed.
change commands.changing:remove             remove, stop
    Stop an application at once, between two items, and forget it; or take one node out of it.
bundle commands.bundling:new_bundle         bundle new
bundle commands.bundling:install_bundle     bundle install
bundle commands.bundling:start_bundle       bundle start
bundle commands.bundling:update_bundle      bundle update
bundle commands.bundling:stop_bundle        bundle stop
bundle commands.bundling:uninstall_bundle   bundle uninstall
bundle commands.bundling:list_bundles       bundle list
change commands.items:list_items            item list
change commands.items:export_item           item export
change commands.items:retry_items           item retry
check  commands.checking:check              check
    Build an application and check it without running it: slets, types, wiring, plugins.
check  commands.checking:doctor             doctor
    Look at the installation: Python, packages, Java, plugins, platforms; each thing missing with its cure.
check  commands.state:check_state           state check
check  commands.state:accept_state          state accept
"""


def _commands() -> Iterator[Command]:
    for entry in re.split(r"\n(?=\S)", _TABLE.strip()):
        line, _, summary = entry.partition("\n")
        group, path, names = line.split(maxsplit=2)
        yield Command(path, tuple(names.split(", ")), group, summary.strip())


COMMANDS: Final = tuple(_commands())
