"""The code that hosts lack for their fragments: found out when a change is planned, and sent as bundles before it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from exop.errors import ExopError, NotNow, PeerUnreachable, PlanError, UnknownName
from exop.logs import logger
from exop.model.meshes.mesh import Mesh
from exop.model.slets.spec import Absent

if TYPE_CHECKING:
    from exop.hosts.moves.ahead import Links

#: For each host, the bundles (`name@version`) that it lacks, each with the slets that need it.
Lacking: TypeAlias = dict[str, dict[str, list[str]]]
#: Returns the facts of a bundle and, before it, those from which it imports: `digest`, `imports_from`, `archive`.
Code: TypeAlias = Callable[[str], Mapping[str, Mapping[str, Any]]]
#: Seconds to wait until the slets of a bundle that goes are closed.
LEAVING: Final = 5.0


@dataclass(frozen=True)
class Supply:
    """Sends bundles from the platform *name* to its peers."""

    name: str
    links: Links
    code: Code

    def lacking(self, before: Mapping[str, Mesh], after: Mapping[str, Mesh]) -> Lacking:
        """Return what the hosts lack for their new fragments; asks only those that get slets that they did not have.

        Raises:
            PlanError: a host lacks the code of a slet that is in no bundle of this platform.
        """
        found: Lacking = {}
        for host, part in after.items():
            fresh = identities(part) - (identities(before[host]) if host in before else set())
            for identity in sorted(self._unknown(host, fresh)) if host != self.name and fresh else ():
                if "@" not in (plugin := identity.rpartition(":")[0]) or not self.code(plugin):
                    raise PlanError(f"{part.name}: on {host}, {Absent(identity, '').refusal}")
                found.setdefault(host, {}).setdefault(plugin, []).append(identity)
        return found

    @contextmanager
    def sent(self, application: str, lacking: Lacking) -> Iterator[None]:
        """Install and start the bundles that hosts lack; stop and remove them if the block raises a `PlanError`.

        Raises:
            PlanError: a host refuses a bundle, for example since the role of this platform there does not permit it.
                Its notes tell what could not be stopped or removed.
        """
        sent = list[tuple[str, str, str]]()
        try:
            for host, bundles in lacking.items():
                for bundle in bundles:
                    self._send(host, bundle, sent)
            yield
        except PlanError as problem:
            for each in reversed(sent):
                if left := self.withdraw(application, *each):
                    problem.add_note(left)
            raise

    def withdraw(self, application: str, host: str, bundle: str, verb: str = "stop") -> str:
        """Stop or uninstall a bundle at a host when the slets of an application have gone, unless others use it.

        Return an empty text, or what stays there, and the cure.
        """
        until = time.monotonic() + LEAVING
        while True:
            try:
                with suppress(UnknownName):  # it has never been there
                    getattr(self.links()[host].platform(), f"{verb}_bundle")(bundle)
                return ""
            except ExopError as problem:
                users = problem.facts.get("users", ())
                if time.monotonic() < until and any(user.startswith(f"{application}.") for user in users):
                    time.sleep(0.05)  # they are being closed
                    continue
                log = logger("exop.hosts").info if users else logger("exop.hosts").warning
                log("a bundle stays there", host=host, bundle=bundle, problem=str(problem))
                cure = f"when that is over, `exop bundle {verb} {bundle} --on {host}`"
                return f"the bundle {bundle}, which the change needed, stays on {host} ({problem}); {cure}"

    def _send(self, host: str, bundle: str, sent: list[tuple[str, str, str]]) -> None:
        """Install and start a bundle at a host, and those that it needs; note in *sent* how to leave that as it was."""
        try:
            peer = self.links()[host].platform()
            before = {one["bundle"]: one["state"] for one in peer.list_bundles()}
            for name, one in self.code(bundle).items():
                if before.get(name) != "started":
                    sent.append((host, name, "stop" if name in before else "uninstall"))
                peer.install_bundle(one["archive"](), name)
                peer.start_bundle(name, tuple(one["imports_from"]))  # as here: items have the classes of these versions
        except ExopError as problem:
            away = isinstance(problem, PeerUnreachable)
            cure = f"install and start it there, `exop bundle install FILE`, `exop bundle start {bundle}`"
            cure = "no application was changed; repeat this when the host is back" if away else cure
            fact = f"{host} lacks the bundle {bundle}, and does not take it from {self.name}"
            raise (NotNow if away else PlanError)(f"{fact}: {problem}; {cure}") from problem

    def _unknown(self, host: str, slets: set[str]) -> set[str]:
        """Return the slets that a host does not know, or of whose bundle it has other files or imports at this version.

        None if it cannot be asked, and so cannot prepare the change.
        """
        try:
            there = {one["slet"] for one in self.links()[host].call("slet_summaries")}
            rows = self.links()[host].call("list_bundles") if any("@" in slet for slet in slets) else ()
        except PeerUnreachable:
            return set()
        known = {one["bundle"]: one for one in rows if "digest" in one}

        def differs(name: str, here: Mapping[str, Any]) -> bool:
            there = known.get(name, here)
            return there["digest"] != here["digest"] or not {*here["imports_from"]} <= {*there["imports_from"]}

        codes = {slet: self.code(slet.rpartition(":")[0]).items() for slet in slets & there}
        return {slet for slet in slets if slet not in there or any(differs(*one) for one in codes[slet])}


def identities(part: Mesh) -> set[str]:
    """Return the slets of a fragment that a platform may lack."""
    return {node.slet.identity for node in part.nodes.values() if node.slet.plugin not in (None, "exop")}


def notes_of(lacking: Lacking) -> Iterator[str]:
    """Describe the bundles that travel."""
    for host, bundles in lacking.items():
        for bundle, slets in bundles.items():
            yield f"the bundle {bundle} travels to {host}, which lacks {', '.join(slets)}"
