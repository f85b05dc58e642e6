"""Platforms on several hosts: links, certificates and rights (`exop certs`, `policy`), and repairs of their plans."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

from cyclopts import Parameter
from cyclopts.validators import Number

from exop.cli.options import Bounds, Call, Json, Request, Runs
from exop.cli.outcome import changed_facts, made
from exop.cli.peers import split, the_platform
from exop.cli.report import Failure, say
from exop.cli.text import answer, columns, number, pause
from exop.errors import BuilderError, ExopError, PlanError, suggest
from exop.model.meshes.fragments import Placement
from exop.model.meshes.nodes import CHANNEL, DIRECT
from exop.remoting.policy import read_policy

if TYPE_CHECKING:
    from exop.remoting.api.remote_platform import RemotePlatform

Authority: TypeAlias = Annotated[
    Path,
    Parameter(name="--authority", env_var="EXOP_AUTHORITY", help="The folder of the authority: by default, certs."),
]
Days: TypeAlias = Annotated[int, Parameter(validator=Number(gte=1, lte=36_500))]
PlatformName: TypeAlias = Annotated[str, Parameter(help="The name of the platform.")]
_CERTS: Final = Path("certs")


def peers(*, call: Call = Call()) -> int:
    """List the peers of a platform: state, address, role, round trip, and the remote connectors with credits and lag.

    Events are items, and control items such as the end of a stream. Lag: the events that the receiver has not
    acknowledged yet, sent or not. Credit: those that it still accepts.

    Example: `exop peers --on a --json`
    """
    with the_platform(call) as platform:
        found = platform.peers()
    return answer(found, lambda: peers_text(found), json=call.json)


def connect(uri: str, /, name: str | None = None, *, call: Call = Call()) -> int:
    """Link a platform with the platform at URI; the link reconnects by itself.

    A platform with a state directory links itself again at every start, until `exop disconnect`.

    Example: `exop connect tls://b@10.0.0.7:7700 --on a`

    Args:
        uri: The address at which the other platform listens: tls://HOST:PORT; on this host tcp://NAME@127.0.0.1:PORT.
        name: The name that the platform there must have.
    """
    with the_platform(call) as platform:
        found = platform.connect_peer(uri, name)
        text = f"{platform.name} is linked with {found['peer']} at {uri}"
    return answer(found, text, json=call.json)


def disconnect(peer: str, /, *, call: Call = Call()) -> int:
    """Do not link a platform with PEER at its next start; the link itself stays until the platform stops.

    A platform that was started with --peer links itself again all the same, if it is started with that again.

    Example: `exop disconnect b --on a`

    Args:
        peer: The name of a platform that was linked by `exop connect`.
    """
    with the_platform(call) as platform:
        given, name = platform.forget_peer(peer), platform.name
    text = f"{name} does not link itself with {peer} any more at its next start"
    text += f", if it is started without --peer {peer}={given}" if given else ""
    return answer({"peer": peer, "given": given}, text, json=call.json)


def discover(*, seconds: Annotated[float, Parameter(validator=Number(gte=0))] = 3.0, call: Call = Call()) -> int:
    """List the platforms that announce themselves on the local network, and whether the platform can use them.

    A platform is usable if both have certificates of the same authority; for the others, the reason is shown.

    Example: `exop discover --on a`

    Args:
        seconds: Seconds to listen for announcements; 3 by default.
    """
    with the_platform(call) as platform:
        found, command = platform.discover(seconds), f"exop connect {{}} --on {platform.name}"
    head = ("name", "uri", "exop", "state", "problem")
    rows = [(*(one[key] for key in head), command.format(one["uri"]) * (one["state"] == "usable")) for one in found]
    none = "no platform announces itself here; `exop serve --announce` does"
    return answer(found, lambda: columns(("name", "address", "exop", "state", "", ""), rows) or none, json=call.json)


def resolve(app: Runs, /, *, commit: bool = False, abort: bool = False, call: Call = Call()) -> int:
    """Settle a change over several hosts that is in doubt on one of them, because its home does not return.

    A host in doubt has agreed to the change, and waits for the decision of the home; `exop ps` shows `in doubt`. Give
    the same answer on every host in doubt. If the home returns, and has decided otherwise, the states of the nodes that
    the change moves, and items on their way between hosts, may be lost.

    Example: `exop resolve road --abort --on b`

    Args:
        app: The name of the application.
        commit: Commit the change, if the home has decided so.
        abort: Abort the change, if the home has decided so.
    """
    if commit == abort:
        raise BuilderError("give one of --commit and --abort, as the home has decided; see `exop resolve --help`")
    with the_platform(call) as platform:
        platform.resolve(app, commit=commit)
        text = f"{app}: the change is {'committed' if commit else 'aborted'} on {platform.name}"
    return answer({"application": app, "commit": commit}, text, json=call.json)


def adopt(app: Runs, /, *, call: Call = Call()) -> int:
    """Make a platform the home of an application whose home is gone for good.

    The last committed mesh is put into force. What ran at the former home begins anew, without its state. Plans of the
    former home are refused from then on.

    Example: `exop adopt road --on b`

    Args:
        app: The name of the application, of which the platform runs a part.
    """
    with the_platform(call) as platform:
        revision = platform.adopt(app)
        text = f"{app}: {platform.name} is its home, revision {revision}"
    return answer({"application": app, "revision": revision}, text, json=call.json)


def accept(app: Runs, /, *, call: Call = Call()) -> int:
    """Let an application go on after a host has returned without its state; what the host has lost stays lost.

    Give the command at the home: a part of the application that a host has lost begins anew there, without state, and
    connectors in the state `state lost` go on. The state of all other hosts is kept. Repeat it if it names connectors
    that are not connected yet. With APP.OUTBOX, on the platform that sends, only this connector goes on.

    Example: `exop accept road --on a`

    Args:
        app: APP, or APP.OUTBOX, as `exop peers` shows it.
    """
    with the_platform(call) as platform:
        application, outbox = split(app, platform.applications())
        found = platform.accept_loss(application or app, outbox)
    text = f"{application}: goes on without what is lost: {', '.join(found)}"
    return answer({"application": application, "accepted": found}, text, json=call.json)


def drain(host: str, /, *, to: str | None = None, bounds: Bounds = Bounds(), request: Request = Request()) -> int:
    """Move everything that applications have on HOST to another platform, while the streams run.

    Each application of the platform is one change: all of it moves, or none. What cannot move is named, and the other
    applications are moved; then the exit code is 1.

    Example: `exop drain edge-2 --to edge-3`

    Args:
        host: The platform that is to run nothing of these applications afterwards.
        to: The platform to which everything moves, by default the home.
    """
    found: list[dict[str, Any]] = []
    with the_platform(request) as platform:
        if (target := to or platform.name) == host:
            at = sorted({one.get("home", host) for one in platform.status()["applications"].values()} - {host})
            cure = f"give the command to the home, --on {' or '.join(at)}" if at else "name another one, --to HOST"
            raise BuilderError(f"{host} is the platform to which everything would move; {cure}")
        for application in platform.applications():
            if not (names := _placed(platform, application, host)):
                continue
            edit = {"edit": "move", "node": names[0], "to": target, "also": names[1:]}
            moved: list[str] = []
            try:
                changed = made(partial(platform.plan_edits, application, [edit]), request, bounds)[1]
                more = {} if changed is None else changed_facts(changed)
                left = [] if request.dry_run else _placed(platform, application, host)
                moved = [name for name in names if name not in left]
                if left:  # another change has placed it there meanwhile
                    raise PlanError(f"{', '.join(left)} is still on {host}; drain it again")
                found.append({"application": application, "moved": moved} | more)
            except (ExopError, Failure) as failed:
                problem = failed.args[0] if isinstance(failed, Failure) else failed
                say(f"exop: {problem}" if str(problem).startswith(application) else f"exop: {application}: {problem}")
                found.append({"application": application, "moved": moved, "problem": str(problem)})
        if not found and host not in (known := [platform.name, *(one["peer"] for one in platform.peers())]):
            raise BuilderError(f"no platform is called {host!r} there; {suggest(host, known)}")
    done = "would move" if request.dry_run else "moved"
    lines = [f"{one['application']}: {', '.join(one['moved'])} {done} to {target}" for one in found if one["moved"]]
    text = "\n".join(lines) if found else f"no application whose home is {platform.name} has anything on {host}"
    return answer(found, text, json=request.json) or int(any("problem" in one for one in found))


def _placed(platform: RemotePlatform, application: str, host: str) -> list[str]:
    """The nodes and channels on a host, as `exop move` names them; a direct channel goes with all its producers."""
    mesh = platform.mesh(application)
    placement = Placement(mesh, platform.name)
    nodes = [name for name, node in mesh.nodes.items() if placement.of(node) == host]
    made = {name: {placement.of(node) for node, _ in mesh.producers(name)} for name in mesh.channels}
    stays = [name for name, one in mesh.channels.items() if one.kind != DIRECT or one.host or made[name] != {host}]
    channels = [name for name in stays if placement.channels[name] == host]
    return sorted([*nodes, *(f"{CHANNEL}{name}" if name in mesh.nodes else name for name in channels)])


def certs_init(directory: Path = _CERTS, /, *, days: Days = 3650, json: Json = False) -> int:
    """Create an authority, which issues the certificates by which platforms know each other.

    Keep the folder, and a backup of it, on a host that only administrators can use: with `ca.key`, any platform can be
    imitated. Platforms accept only the certificates of their own authority.

    Example: `exop certs init certs`

    Args:
        directory: The new folder: by default, certs.
        days: Days of validity: 3650 by default.
    """
    from exop.remoting.authority import create_authority

    create_authority(directory, days=days)
    text = f"{directory}: authority made; `exop certs issue NAME --authority {directory}` makes an identity"
    return answer({"authority": str(directory)}, text, json=json)


def certs_issue(
    name: PlatformName,
    /,
    *,
    authority: Authority = _CERTS,
    days: Days | None = None,
    also: tuple[str, ...] = (),
    renew: bool = False,
    json: Json = False,
) -> int:
    """Issue a key and a certificate for the platform NAME, in the folder NAME of the authority.

    Copy the folder to the host of the platform, for `exop serve --name NAME --identity FOLDER`. The certificate is
    valid from an hour ago, because the clocks of hosts differ.

    Example: `exop certs issue edge-1`

    Args:
        days: Days of validity: by default 365, or with --renew those of the last certificate.
        also: A host name or IP address to put into the certificate, for other tools; with --renew, by default those of
            the last certificate.
        renew: Replace a valid certificate, which remains valid until it expires.
    """
    from exop.remoting.authority import issue

    folder = issue(authority, name, days=days, also=also, renew=renew)
    text = f"{folder}: copy this folder to its host; `exop serve --name {name} --identity {folder.name}` uses it"
    return answer({"name": name, "identity": str(folder)}, text, json=json)


def certs_revoke(name: PlatformName, /, *, authority: Authority = _CERTS, json: Json = False) -> int:
    """Revoke all certificates of the platform NAME.

    Copy the new `revoked.pem` to the identity of every other platform: within 10 s, these close the connections of the
    revoked platform, and accept no others. No restart is needed.

    Example: `exop certs revoke edge-1`
    """
    from exop.remoting.authority import REVOKED, revoke

    serials = revoke(authority, name)
    text = f"{name}: revoked {', '.join(serials)}; copy {authority / REVOKED} to the identities on all other hosts"
    return answer({"name": name, "revoked": serials, "list": str(authority / REVOKED)}, text, json=json)


def certs_show(*, authority: Authority = _CERTS, json: Json = False) -> int:
    """List the certificates that an authority has issued, with their validity.

    Example: `exop certs show --json`
    """
    from exop.remoting.authority import certificates

    found = certificates(authority)
    head = ("name", "state", "since", "until", "serial")
    rows = ([one[fact] for fact in head] for one in found)
    return answer(found, lambda: columns(head, rows) or "no certificate is issued", json=json)


def policy(file: Path, /, *, json: Json = False) -> int:
    """Check a policy file, and show the role and the channels of each peer.

    A running platform reads its policy again when the file changes; an invalid file changes nothing.

    Example: `exop policy policy.toml`

    Args:
        file: The policy file: the argument of `exop serve --policy FILE`.
    """
    peers = read_policy(file)
    facts: dict[str, dict[str, Any]] = {name: rights._asdict() for name, rights in peers.items()}
    rows = [(name, one.role or "-", *(", ".join(to) or "-" for to in one[1:])) for name, one in peers.items()]
    none = "no peer may do anything"
    return answer(facts, lambda: columns(("peer", "role", "reads", "writes"), rows) or none, json=json)


def peers_text(found: list[dict[str, Any]]) -> str:
    """Return the tables of the peers and of their connectors."""
    if not found:
        return "no peers; `exop connect URI` links the platform with another one, `exop discover` lists those nearby"
    rows, connectors, problems = [], [], []
    for one in found:
        trip = "" if one.get("round_trip_ms") is None else pause(one["round_trip_ms"])
        rows.append((one["peer"], one["state"], one["address"], one.get("role") or "", trip, one.get("problem", "")))
        for row in one.get("connectors", ()):
            counts = (number(row[key]) for key in ("events", "lag", "credit"))
            connectors.append((one["peer"], row["connector"], row["direction"], *counts, row["state"]))
            problems += [row["problem"]] if "problem" in row else []
    text = columns(("peer", "state", "address", "role", "round trip", ""), rows)
    head = ("peer", "connector", "direction", "events", "lag", "credit", "state")
    return "\n\n".join(filter(None, (text, columns(head, connectors), *problems)))
