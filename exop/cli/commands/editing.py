"""Commands that change a running application: those that edit nodes, `resume`, `rollback`, `end` and `remove`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal

from exop.cli.options import Call, Node, Proof, Request, Runs
from exop.cli.outcome import changed_facts, code_is_there, show_and_make
from exop.cli.peers import Found, find_application, is_local, started_slets
from exop.cli.report import Failure, say
from exop.cli.status_text import holds_up, undelivered
from exop.cli.text import answer, paused
from exop.errors import BuilderError, ComponentFailed, ExopError, PeerUnreachable, UnknownName, entry
from exop.model.slets.spec import parse
from exop.report import whole


def replace(
    node: Node,
    slet: Runs,
    /,
    *settings: str,
    lose_state: bool = False,
    rebuild: Literal["log"] | None = None,
    proof: Proof = Proof(),
    request: Request = Request(),
) -> int:
    """Replace the slet of a node while the stream runs: no item is lost, doubled or reordered.

    The new slet takes over the state, the ports, and the settings that were set explicitly; other settings get the new
    slet's defaults, and the plan lists all settings that change. If the old slet is suspended on an item, the new one
    retries the item. If the change fails, the exit code is 1, and the old slet continues to run.

    Example: `exop replace app.average windows:median size=100 --shadow 1000items`

    Args:
        slet: The new slet, PLUGIN:NAME; FOLDER:NAME for a slet of a package that the platform has loaded.
        settings: NAME=VALUE for the new slet.
        lose_state: Start the new slet with an empty state, even if it could take over the old one.
        rebuild: `log`: rebuild the state from the `log` channel at the input.
    """
    edit = {"edit": "replace", "slet": _identity(slet), "settings": parse(settings), "lose_state": lose_state}
    return edit_node(node, edit | {"rebuild": rebuild}, request, proof)


def configure(
    node: Runs,
    /,
    *settings: str,
    when: str | None = None,
    close_windows: bool = False,
    cancel: bool = False,
    request: Request = Request(),
) -> int:
    """Change settings of a running node or window channel, either now (between two items) or at a point in the stream.

    Without --when, the command also cancels pending settings.

    Example: `exop configure app.filter below=20 --when 'report.time >= 3600'`

    Args:
        node: APP.NODE, or APP.CHANNEL; APP.channel:CHANNEL if a node has the same name.
        settings: NAME=VALUE; lists and tables as in a topology file: sizes=[1, 2]; on_error=POLICY.
        when: Apply the settings from the first item for which this condition holds: 'report.time >= 3600'.
        close_windows: For a window channel: emit the content of the open windows at that point, and start new ones.
        cancel: Cancel pending settings; the current ones remain.
    """
    if cancel and (settings or when or close_windows):
        raise BuilderError("--cancel goes without settings and conditions: it cancels those that are pending")
    if not (settings or cancel or close_windows):
        raise BuilderError("NAME=VALUE is missing: exop configure APP.NODE NAME=VALUE sets at least one setting")
    edit = {"edit": "configure", "settings": parse(settings), "when": when, "close_windows": close_windows}
    return edit_node(node, edit, request)


def rewire(node: Node, /, *ports: str, request: Request = Request()) -> int:
    """Connect ports of a running node, and of other nodes of its application, to other channels in one change.

    Items remain in their channel; a channel without any connection is drained and removed.

    Example: `exop rewire app.tag out=buffer:queue,capacity=100 sink.item=buffer` inserts a queue between two nodes.

    Args:
        ports: PORT=CHANNEL for a channel of the mesh (`exop mesh APP` shows them), PORT=CHANNEL:KIND[,NAME=VALUE…] for
            a new one; NODE.PORT=CHANNEL for a port of another node. PORT= disconnects a port.
    """
    if not ports:
        raise BuilderError("PORT=CHANNEL is missing: exop rewire APP.NODE PORT=CHANNEL connects at least one port")
    return edit_node(node, {"edit": "rewire", "ports": parse(ports)}, request)


def add(node: str, slet: Runs, /, *given: str, request: Request = Request()) -> int:
    """Add a node to a running application; its slet is opened before items reach it.

    Example: `exop add app.log stock:write_lines item=averages path=averages.txt`

    Args:
        node: APP.NODE with a new name.
        slet: The slet, PLUGIN:NAME.
        given: PORT=CHANNEL for every input port, and NAME=VALUE for settings; an output port that is not given gets a
            new channel, named after the node; FAMILY.MEMBER= for a port of a family; group=NAME for a member of a
            group; host=NAME for a node on another platform.
    """
    return edit_node(node, {"edit": "add", "slet": _identity(slet), "given": parse(given)}, request)


def move(
    node: Runs, host: str, /, *also: str, lose_state: bool = False, proof: Proof = Proof(), request: Request = Request()
) -> int:
    """Move a node with its state, or a channel with its content, to another host while the stream runs.

    No item is lost, doubled or reordered. If the change fails, the exit code is 1, and the slet continues to run where
    it was. With --shadow, the slet runs on trial at the new host first, on copies of the items, until it has caught up;
    then it takes over with the state that it has there. With --keep, `exop rollback` moves it back at once.

    Example: `exop move app.average edge-2 --shadow 1000items --keep 60s`

    Args:
        node: APP.NODE, or APP.CHANNEL; APP.channel:CHANNEL if a node has the same name.
        host: The platform to which it moves; `exop peers` lists those that are connected.
        also: Further nodes and channels of the application that move in the same change.
        lose_state: Start the nodes that move with empty states, for example those whose states cannot move.
    """
    return edit_node(node, {"edit": "move", "to": host, "also": list(also), "lose_state": lose_state}, request, proof)


def suspend(node: Node, /, *, request: Request = Request()) -> int:
    """Suspend a node until `exop resume`: items wait in front of it, and upstream nodes wait when queues are full.

    Example: `exop suspend app.average`
    """
    return edit_node(node, {"edit": "suspend"}, request)


def remove(app: Runs, /, *, request: Request = Request()) -> int:
    """Stop an application at once, between two items, and delete its checkpoint; or remove one of its nodes.

    With --state, if no platform uses the state directory, remove the application from this directory.

    Example: `exop remove app.log`

    Args:
        app: The name of the application; APP.NODE for a node, whose unused channels are removed with it.
    """
    if request.state is not None and not request.dry_run and (lost := _forgotten(app, request.state)) is not None:
        facts = {"application": app, "removed": True, "dropped": lost}
        return answer(facts, "; dropped: ".join([f"{app}: forgotten", *lost]), json=request.json)
    with find_application(app, request) as found:
        if found.node:
            return edit_found(found, {"edit": "remove"}, request)
        if request.dry_run:
            status, text = found.platform.status(found.application), "would be stopped at once, and removed"
            if status["state"] == "adopted":
                text = f"only what runs on {found.platform.name} {text}: {status['problem']}"
            elif "home" in status:
                found.platform.plan_topology(found.platform.topology(found.application))  # refused, as the removal
            facts = {"application": found.application, "removed": False}
            return answer(facts, f"{found.application}: {text}", json=request.json)
        dropped = list[str]()
        with suppress(ExopError):  # it is down
            dropped += undelivered(found.platform.status(found.application))
        left = found.platform.remove(found.application)
    text = f"{found.application}: removed" + ("" if left else "; a slet, or a host, has not answered yet")
    facts = {"application": found.application, "removed": True, "left": left, "dropped": dropped}
    return answer(facts, "; dropped: ".join([text, *dropped]), json=request.json)


def end(app: Runs, /, *, wait: bool = False, call: Call = Call()) -> int:
    """End the sources of a running application; items in flight are still processed.

    Of a durable application, a checkpoint is taken when they have ended. If they have not after 5 seconds, as they wait
    for room in a queue, the answer says so: until the next checkpoint, a kill lets them go on.

    Example: `exop end app --wait`

    Args:
        app: The name of the application.
        wait: Return when all items have been processed.
    """
    with find_application(app, call) as found:
        found.check_whole(app)
        done = "its sources end, items in flight are processed"
        if not found.platform.end(found.application, 0.0 if wait else 5.0):
            done += "; a kill before the next checkpoint lets the sources go on (`exop end APP --wait` waits for it)"
        if wait:
            done = "finished"
            try:
                for name, node in whole(found.platform.status(found.application))["nodes"].items():
                    if node["state"] == "suspended" and "error" not in node:
                        say(holds_up(f"{found.application}.{name}"))
                found.platform.wait(found.application)
            except (UnknownName, PeerUnreachable):  # `exop run` ends after it has printed its report
                done = "ended, and its platform has left"
        return _done(found.application, done, json=call.json)


def resume(node: Runs, /, *, request: Request = Request()) -> int:
    """Resume a suspended node, which first retries the item on which it was suspended.

    An application that could not be restarted is started now. The exit code is 1 if the item fails again at once.

    Example: `exop resume app.average`

    Args:
        node: APP.NODE; APP for an application that is down.
    """
    with find_application(node, request) as found:
        would = "would be " if request.dry_run else ""
        if not found.node:
            status, name = found.platform.status(), found.application
            if "opening" in status["applications"].get(name, ()):
                return _done(name, "it is opening: nothing to do, `exop ps` shows how far it is", json=request.json)
            if name in status["failed_to_restart"]:
                if not would:
                    found.platform.restart(name)
                return _done(name, f"{would}started again", json=request.json)
        place = found.check_node()
        if (before := found.node_status())["state"] == "active":
            return _done(place, "it is not suspended: nothing to do", json=request.json)
        if would and before["state"] == "suspended":
            return edit_found(found, {"edit": "resume"}, request)
        if would:
            return _done(place, f"{would}resumed", json=request.json)
        found.platform.resume(found.application, found.node)
        if (again := _failed_again(found, before)) is not None:
            problem = f"{again}; fix the slet (exop replace, exop configure) or the cause first"
            raise Failure(ComponentFailed(node=place, phase="retrying its item", problem=problem))
        return _done(place, "resumed", json=request.json)


def _done(place: str, done: str, *, json: bool) -> int:
    return answer({"target": place, "done": done}, f"{place}: {done}", json=json)


def rollback(node: Runs, /, *, abandon: bool = False, call: Call = Call()) -> int:
    """Switch a node back to its previous slet, which `exop replace … --keep 60s` has kept running.

    The previous slet has processed the same items as its replacement, so that its state is current. No item is lost,
    doubled or reordered; if the replacement is suspended on an item, the previous slet retries the item. If the change
    fails, the exit code is 1.

    Example: `exop rollback app.average`

    Args:
        node: APP.NODE; APP with --abandon.
        abandon: Cancel the trial of the application APP (--shadow); the old slets keep running.
    """
    with find_application(node, call) as found:
        application = found.application
        if abandon and found.node:
            raise BuilderError(f"a trial belongs to a whole change; write exop rollback --abandon {application}")
        if abandon:
            ended = found.platform.abandon_proof(application)
            done = "the trial is cancelled, the old slets keep running" if ended else "no trial runs: nothing to do"
            return answer({"application": application, "abandoned": ended}, f"{application}: {done}", json=call.json)
        found.check_node()
        kept = found.node in found.platform.status(found.application).get("kept", {})
        try:
            changed = found.platform.ask("rollback", application=found.application, node=found.node)
        except ExopError as error:
            if not kept:
                raise
            raise Failure(error) from error
    runs = f"revision {changed.revision} runs, with the predecessor of {found.node}"
    return answer(changed_facts(changed), f"{changed.application}: {runs}{paused(changed.paused_ms)}", json=call.json)


def edit_node(target: str, edit: dict[str, Any], request: Request, proof: Proof = Proof()) -> int:
    """Plan one edit of APP.NODE, show the plan, and make the change."""
    proof.as_data()  # a mistake in it is reported before any platform is asked
    with find_application(target, request) as found:
        return edit_found(found, edit, request, proof)


def edit_found(found: Found, edit: dict[str, Any], request: Request, proof: Proof = Proof()) -> int:
    """Plan one edit of the node that was found, show the plan, and make the change."""
    found.check_node()
    given = {name: value for name, value in edit.items() if value not in (None, False)}  # earlier releases know fewer
    edits, trial = [{"node": found.node, **given}], proof.as_data()
    with code_is_there():
        return show_and_make(partial(found.platform.plan_edits, found.application, edits, proof=trial), request, proof)


def _identity(slet: str) -> str:
    """Return the name of a slet; a path refers to the plugin that the platform has loaded from this path.

    Raises:
        BuilderError: *slet* names no slet.
    """
    path, colon, name = slet.rpartition(":")
    if not is_local(slet):
        if not colon:
            raise BuilderError(f"{slet!r} names no slet; write PLUGIN:NAME, as `exop slets` lists them")
        return slet
    if not (place := Path(path if colon else slet)).exists():
        raise BuilderError(f"{place} does not exist; name a slet by PLUGIN:NAME")
    package = (place if place.is_dir() else place.parent).resolve()
    if not colon or not (package / "__init__.py").is_file():
        cure = " or ".join(f"name that of the started bundle, {one}" for one in started_slets(name)) or (
            "make a bundle of it (`exop bundle new NAME --from FILE.py`, `exop bundle install NAME --start`), or put "
            "it into a package that the platform loads (`exop serve --load FOLDER`; FOLDER:NAME names a slet of it), "
            "and name the slet as `exop slets --on PLATFORM` lists it"
        )
        raise BuilderError(f"{slet!r} is a file here, and code does not travel by itself to a running platform; {cure}")
    return f"{package.name}:{name}"


def _failed_again(found: Found, before: Mapping[str, Any]) -> str | None:
    """Return the error of a node that fails again within a second after it was resumed; `None` if the node continues.

    A node that was suspended without an error has no item to retry.
    """
    deadline = time.monotonic() + 1.0
    with suppress(UnknownName, PeerUnreachable):  # the application has ended, and so has `exop run`
        while before["state"] == "failed" and time.monotonic() < deadline:
            now = found.node_status()
            if now["state"] == "failed" and "error" in now:
                return str(now["error"])
            if now["metrics"]["items_in"] > before["metrics"]["items_in"] + 1 or now["state"] == "ended":
                return None  # the node has processed that item
            time.sleep(0.05)
    return None


def _forgotten(app: str, state: Path) -> list[str] | None:
    """Remove an application from a state directory; return what is not delivered; `None` if a platform uses it."""
    from exop.remoting.transport.client import ControlClient
    from exop.runtime.durable.snapshot import unacknowledged
    from exop.runtime.durable.store import Store

    if not (state / "platform.sqlite").exists():
        return None
    with suppress(PeerUnreachable), ControlClient(state):
        return None
    dropped = list[str]()
    with closing(Store(state)) as store:
        known = {one.name: one for one in store.applications()}
        name = entry(f"the state directory {state}", "application", known, app).name
        with suppress(ExopError):  # its checkpoint is damaged
            if (last := store.checkpoints.read(name)) is not None:
                dropped += unacknowledged(last)
        store.forget(name)
    return dropped
