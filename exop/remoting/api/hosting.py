"""The operations on the peers of a platform, and on the applications that span hosts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar, cast

from exop.errors import ExopError, PeerRefused, PlanError, UnknownName
from exop.remoting.transport.limits import MIB
from exop.remoting.transport.operation import LONG, PEER, operation
from exop.runtime.channels.reader import PUSH, answer, changes_content
from exop.runtime.dataflow.entry import Entry

if TYPE_CHECKING:
    from exop.wiring.applications import Applications

F = TypeVar("F", bound=Callable[..., Any])
#: A message to a slet that repeats the calls of another one.
What: TypeAlias = Literal["begin", "feed", "state", "end"]
#: Bytes of a request with a topology, also of a message about a plan, with that of a fragment.
TOPOLOGY: Final = MIB
#: Seconds for which a push into a queue waits for the end of a change.
PUSHING: Final = 2.0


def where_it_runs(method: F) -> F:
    """Carry out a method of an application and a node on the platform that runs the node, if called at the home.

    The method then also raises `PeerUnreachable`: that platform is not connected.
    """

    @wraps(method)
    def carry_out(self: Hosting, application: str, node: str, *args: Any, **given: Any) -> Any:
        if (there := self._hosts.elsewhere(application, node)) is None:
            return method(self, application, node, *args, **given)
        return getattr(there, method.__name__)(application, node, *args, **given)

    return cast("F", carry_out)


class Hosting:
    """The operations on the peers of a platform."""

    name: str
    _hosts: Any  #: The applications here and on other hosts: `exop.hosts.federation.Federation`, a floor above.
    _applications: Applications
    _peers: Mapping[str, str]  #: The addresses of other platforms with which this one was started.

    @property
    def remoting(self) -> Any:
        """The links to other platforms (`RemotingService`)."""
        raise NotImplementedError

    @operation(role="observe")
    def peers(self) -> list[dict[str, Any]]:
        """Return the peers: name, address, state, role here, round trip, and the connectors with credits and lag."""
        return list(self.remoting.status())

    @operation(patience=LONG, long=True)
    def connect_peer(self, uri: str, name: str | None = None) -> dict[str, Any]:
        """Link the platform with the platform at *uri*, which must be called *name*, if given. Return the peer.

        A platform with a state directory links itself again at every start.

        Raises:
            PeerUnreachable: no platform answers at the address.
            PeerRefused: the platform there has another name, or refuses this one.
        """
        peer = self.remoting.connect(uri, name).peer
        if self._applications.store is not None:
            self._applications.store.remember_peer(peer, uri)
        return next(one for one in self.remoting.status() if one["peer"] == peer)

    @operation
    def forget_peer(self, name: str) -> str | None:
        """Do not link the platform with a peer at the next start; the link itself stays until the platform stops.

        Return the address at which the arguments of the platform link it with the peer all the same, if they do.

        Raises:
            UnknownName: no `connect_peer` with the peer is stored.
        """
        if (store := self._applications.store) is not None and name in store.peers():
            store.remember_peer(name, None)
            return self._peers.get(name)
        given = f": start {self.name!r} again without --peer {name}={self._peers.get(name)}" * (name in self._peers)
        cure = f"the present one ends when {self.name!r} stops{given}"
        if not self.remoting.peers[name].uri:
            there = f"`exop disconnect {self.name} --on {name}`, or start {name!r} again without --peer {self.name}=…"
            cure = f"{name!r} dials: give the command there, {there}"
        raise UnknownName(f"{self.name!r} has stored no link with {name!r}; {cure}")

    @operation(patience=LONG, long=True)
    def discover(self, seconds: float = 3.0) -> list[dict[str, Any]]:
        """Listen for *seconds*, and return the platforms that announce themselves on the local network.

        Each has a name, an address and a state: `peer`, `usable` or `unusable`, the last one with the reason.

        Raises:
            AddressUnusable: the network does not permit multicast, or zeroconf is not installed.
        """
        return list(self.remoting.discover(seconds))

    @operation(role=None, max_request=TOPOLOGY)
    def protocol(self, application: str, message: bytes) -> None:
        """Process a message of another platform about an application that spans hosts.

        A home needs the role `operate` at its hosts; their answers need no role at the home.
        """
        caller = PEER.get()
        leads = caller is None or self.remoting.access.may(caller, "operate", "")
        self._hosts.receive(application, message, caller.name if caller is not None else "", leads=leads)

    @operation(role="operate", max_request=TOPOLOGY)
    def follow(self, application: str, node: str, plan: str, what: What, content: bytes) -> bytes:
        """Let a slet here repeat calls of a slet on the calling platform, for a trial or as a standby of a move.

        Return the outcomes so far; nothing if no slet here follows that node for that *plan*.
        """
        twin = self._hosts.here.twins.get((application, node))
        return bytes(twin.answer(what, content)) if twin is not None and twin.place.plan == plan else b""

    @operation(role=None, max_request=TOPOLOGY)
    def call_channel(self, application: str, channel: str, method: str, arguments: bytes) -> bytes:
        """Call a method of a channel; `channel()` of the caller encodes the arguments, and decodes the result.

        Raises:
            PeerRefused: the policy does not permit the caller to read the channel, or to write to it.
        """
        peer, found = PEER.get(), None
        with suppress(ExopError):
            deployment = self._applications.get(application)
            there = *deployment.channels.values(), *deployment.leaving  # until a change of several hosts is committed
            found = next((one for one in there if one.name == channel), None)
        access = "write" if found is not None and changes_content(type(found), method) else "read"
        # Before it learns which applications and channels there are, a peer needs the right to this one.
        if peer and peer.certificate and not self.remoting.access.may(peer, access, f"{application}/{channel}"):
            problem = f"the policy does not permit this peer to {access} the channel {application}/{channel}"
            raise PeerRefused(address=self.name, problem=problem)
        deployment = self._applications.get(application)
        if found is None:
            raise UnknownName(place=application, kind="channel", name=channel, known=deployment.channels)

        def into(*, pushed: bool = True) -> Entry:
            """Return the entry into the channel, unless what it took would be lost."""
            entry, there = deployment.entries.get(f"channel {channel}"), deployment.channels.get(channel)
            if entry is None or there is not found or found in deployment.leaving:
                raise PlanError(f"a change of {application} removes or moves the channel {channel!r}; try again")
            if pushed:  # no source emits it again, and no checkpoint is captured before it is in the channel
                deployment.await_checkpoint()
            return entry

        if access == "write":
            into(pushed=False)
        elif peer and not found.filled:  # the slet that reads it there waits, and asks again
            raise PlanError(f"the channel {channel!r} of {application} is not filled yet; try again")
        ends = (*deployment.mesh.producers(channel), *deployment.mesh.consumers(channel))
        with ExitStack() as held:
            if method == PUSH and deployment.mesh.durable is not None:
                if not deployment.changing.acquire(timeout=PUSHING):
                    raise PlanError(f"a change or a checkpoint of {application} is being made; try again")
                held.callback(deployment.changing.release)
            return answer(found, into, [node.slet.ports[port].type for node, port in ends], method, arguments)

    @operation(role="operate", patience=LONG, long=True)
    def accept_loss(self, application: str, channel: str = "") -> list[str]:
        """Let a connector that has lost its state go on with the oldest event that its outbox stores.

        Without *channel*, at the home of the application: let all of them go on, and let the fragments that hosts have
        lost begin anew. Return the names of these hosts and of the outboxes.

        Raises:
            UnknownName: the application has no such outbox here.
            PlanError: nothing is lost, or that is not known before a connector is connected: repeat it then.
        """
        return list(self._hosts.accept_loss(application, channel))

    @operation
    def resolve(self, application: str, *, commit: bool) -> None:
        """Settle a plan that is in doubt on this host, because its home does not return: commit it, or abort it.

        All hosts in doubt must be resolved alike. What moves may be lost if the home has decided otherwise.

        Raises:
            PlanError: no plan of the application is in doubt here.
        """
        self._hosts.resolve(application, commit=commit)

    @operation(role="observe")
    def fragment(self, application: str) -> dict[str, Any]:
        """Return what this platform knows of an application of which it runs a fragment: for a host that adopts it."""
        found = vars(self._hosts.fragment(application))
        return {name: one for name, one in found.items() if one is not False}  # earlier releases do not know it

    @operation(patience=LONG, long=True)
    def adopt(self, application: str) -> int:
        """Become the home of an application whose home is gone for good. Return the revision of the whole mesh.

        The last committed mesh is put into force. What ran at the former home begins anew here, without its state.

        Raises:
            UnknownName: no fragment of the application runs here.
            PlanError: a plan is in doubt, or another host cannot be reached.
        """
        return int(self._hosts.adopt(application))
