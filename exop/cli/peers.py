"""Resolves the running platform and the application to which a command applies."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeVar

from exop.cli.options import Where
from exop.cli.report import Failure
from exop.errors import BuilderError, ExopError, NotNow, PeerUnreachable, RemotingError, UnknownName, entry
from exop.remoting.api.connecting import connect
from exop.remoting.transport.rundir import RunningPlatform, find_platforms

if TYPE_CHECKING:
    from exop.remoting.api.remote_platform import RemotePlatform

T = TypeVar("T")


@dataclass(frozen=True)
class Found:
    """An application on a running platform; `node` is empty if the user has named only the application."""

    platform: RemotePlatform
    application: str
    node: str = ""

    def check_node(self) -> str:
        """Return APP.NODE; raise `BuilderError` unless a node is named."""
        if not self.node:
            app = self.application
            raise BuilderError(f"{app!r} names an application; write {app}.NODE, as `exop describe {app}` lists them")
        return f"{self.application}.{self.node}"

    def check_whole(self, given: str) -> None:
        """Raise `BuilderError` if a node is named."""
        if self.node:
            raise BuilderError(f"{given!r} names a node; this command takes an application, {self.application!r}")

    def node_status(self) -> dict[str, Any]:
        """Return the status of the node, with that of its slet on trial or standby as `beside`.

        Raises:
            BuilderError: it is a channel.
            UnknownName: there is no such node.
            StillOpening: what runs on the platform is not known yet.
        """
        self.check_node()
        status, name, application = self.platform.status(self.application), self.node, self.application
        nodes, channels, hosts = {**status["nodes"]}, {*status["channels"]}, status.get("hosts", {})
        for host, one in hosts.items():
            nodes |= {node: {**facts, "host": host} for node, facts in one.get("nodes", {}).items()}
            channels |= one.get("channels", {}).keys()
        if name in channels and name not in nodes:
            raise BuilderError(
                f"{name!r} is a channel of {application}, not a node; `exop describe {application}` shows its figures, "
                f"`exop mesh {application}` its connections, and `exop configure {application}.{name} NAME=VALUE` "
                f"changes its settings, if its kind allows it (a window)"
            )
        if name not in nodes and status.get("opening", {}).get("total") == 0:
            self.platform.failed_items(application, name)  # raises `StillOpening`, unless it is open by now
            raise NotNow(f"{application} has just been opened: give the command again")
        if name not in nodes and any("nodes" not in one for one in hosts.values()):
            placed = self.platform.mesh(application).nodes.get(name)
            if placed is not None and (problem := hosts.get(placed.host or "", {}).get("problem")):
                raise NotNow(f"{application}.{name} is on {placed.host}: {problem}")
        node = entry(f"the application {application!r}", "node", nodes, name)
        beside = {what: {name: status[what][name]} for what in ("shadow", "kept") if name in status.get(what, {})}
        return {**node, "beside": beside}


@contextmanager
def the_platform(where: Where) -> Iterator[RemotePlatform]:
    """Connect to the platform that *where* selects, or to the only one.

    Raises:
        PeerUnreachable: no platform answers, or several run and none was named.
        Failure: the platform, or a peer that it needs, cannot be reached any more.
    """
    # Absolute: a platform may have the name of a folder.
    with connect(where.on if where.state is None else where.state.absolute(), identity=where.identity) as platform:
        try:
            yield platform
        except PeerUnreachable as away:
            raise Failure(away) from away


@contextmanager
def find_application(text: str | None, where: Where) -> Iterator[Found]:
    """Find the application that `APP` or `APP.NODE` names, on the platform that runs it; if `None`, only a platform.

    Raises:
        UnknownName: no platform runs it.
        PeerUnreachable: no platform answers, or several run it and none was named.
    """
    if text is not None and not (where.on or where.state):
        where = Where(on=_address_of(text))
    with the_platform(where) as platform:
        known = platform.applications(inactive=True)
        application, node = split(text or "", known)
        if text is not None and not application:
            raise _unknown(f"the platform {platform.name!r}", text, known)
        try:
            yield Found(platform, application, node)
        except UnknownName as unknown:
            home = platform.status(application).get("home") if node else None
            if unknown.facts.get("kind") in ("node", "channel") and home not in (None, platform.name):
                part = f"{platform.name!r} runs a part of {application}"
                unknown.add_note(f"{part}; give the command to its home, which has the whole: --on {home}")
            raise


def bundles_here() -> list[dict[str, Any]]:
    """Return the bundles of all platforms of this host that answer."""
    return [row for _, rows, _ in each_platform(lambda platform: platform.list_bundles()) for row in rows or ()]


def started_slets(name: str, bundles: Callable[[], Iterable[Mapping[str, Any]]] = bundles_here) -> list[str]:
    """Return the slets of this name that started bundles offer, each as `BUNDLE@VERSION:NAME`."""
    offered = [one for row in bundles() if row["state"] == "started" for one in row["slets"]]
    return [one for one in offered if one.rpartition(":")[2] == name]


def runs(text: str, where: Where) -> bool:
    """Whether APP is a running application: the user has named a platform, or one runs APP and APP is not a path."""
    return bool(where.on or where.state or (not is_local(text) and split(text, running())[0]))


def running() -> list[str]:
    """Return the names of all applications on all platforms that answer."""
    return sorted({name for names in _applications().values() for name in names})


def is_local(given: str) -> bool:
    """Whether APP is written as a path, which names neither a running application nor a builder of a plugin."""
    return "/" in given or given.endswith((".py", ".toml")) or ".py:" in given


def split(text: str, applications: Iterable[str]) -> tuple[str, str]:
    """Split `APP.NODE`, where both parts may contain dots; both are empty if no application matches."""
    fitting = [name for name in applications if text == name or text.startswith(f"{name}.")]
    application = max(fitting, key=len, default="")
    return application, text[len(application) + 1 :] if application else ""


def _unknown(place: str, text: str, known: Collection[str]) -> UnknownName:
    """Return the error for APP or APP.NODE whose application is not known: the part that is most like a known one."""
    parts = [*accumulate(text.split("."), "{}.{}".format)]
    name = max(parts, key=lambda part: max((SequenceMatcher(None, part, one).ratio() for one in known), default=0.0))
    return UnknownName(place=place, kind="application", name=name, known=known)


def _address_of(text: str) -> str | None:
    """Return the address of the platform that runs an application, or leads it; `None` if at most one platform runs."""
    found = _applications()
    having = [address for address, names in found.items() if split(text, names)[0]]
    leading = [one for one in having if _leads(one, split(text, found[one])[0])] if len(having) > 1 else having
    if len(having := leading or having) > 1:
        raise PeerUnreachable(f"{text!r} runs on several platforms: {', '.join(having)}; name one of them by --on")
    if not having and len(found) > 1:
        known = {name for names in found.values() for name in names}
        raise _unknown("the set of running platforms", text, known)
    return having[0] if having else None


def _leads(address: str, application: str) -> bool:
    """Whether a platform is the home of an application, and does not run a part of one that another platform leads."""
    with suppress(ExopError), connect(address) as platform:
        return platform.status(application).get("home") in (None, platform.name)
    return True  # it tells why it does not run there


def _applications() -> dict[str, list[str]]:
    """Return the applications of every platform that answers, by address; also those that could not be restarted."""
    found = each_platform(lambda platform: platform.applications(inactive=True))
    return {str(one.address): known for one, known, _ in found if known is not None}


def each_platform(ask: Callable[[RemotePlatform], T]) -> Iterator[tuple[RunningPlatform, T | None, str]]:
    """Call *ask* with every running platform; yield one that does not answer or ends meanwhile with the problem."""
    for one in find_platforms():
        found, problem = None, one.problem
        if not problem:
            try:
                with connect(one.address) as platform:
                    found = ask(platform)
            except RemotingError as error:
                problem = str(error)
        yield one, found, problem
