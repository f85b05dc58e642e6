"""The errors that ExoP raises on purpose: one tree with one root.

* ExopError
  x MeshError                 the mesh is invalid
    + SletError                 a signature that is no slet, a class that is no memento
    + UnknownName               an unknown slet, node, port, setting or channel kind
    + SettingError              a setting whose value does not fit its type
    + ConditionError            a `when` that is no condition; has its text and position
    + WiringError               two ports that do not fit (item types, missing host, a cycle without a queue)
  x BuilderError              an application builder was called wrongly, or gave no application
  x PlanError                 the change could not be made; the old mesh runs on
    + StaleMesh                 someone else applied first: read the mesh again
    + StillOpening              the slets of the application are being opened; it can be changed when it runs
    + MementoError              the successor cannot take over the state
    + NotRebuildable            the log does not give the successor its state
    + ComponentFailed           a component could not be opened, or failed while it ran
    + ShadowFailed              the successor was not proven to do what the old one does; that one runs on
  x LifecycleError            an event that the component's state does not allow
  x StateError                the state directory cannot be used (in use, of another version, not writable)
    + StoredStateError          stored data cannot be read: damaged, newer, or of code that is missing
  x NotStorable               a value that no checkpoint can hold
  x NoSuchItem                a failed item that is not there
  x CheckpointError           no checkpoint could be taken; the application runs on, the one before it stands
    + NotCommitted              it was taken, and a sink could not commit its output
  x PluginError               a plugin could not be loaded; has its name
  x BundleError               a bundle is wrong, or an operation on it is impossible now
    + ArchiveRefused            the file is no archive of a bundle, or a dangerous one
    + RequirementMissing        requirements of a bundle are missing; has all of them
    + BundleInUse               it cannot be stopped or uninstalled; has its users
    + BundleBroken              its code could not be loaded: file and line
  x RegistryError
    + FilterSyntaxError         has text and position
    + ServiceGone               the service was unregistered meanwhile
  x RemotingError
    + PeerUnreachable           no platform answers at this address
      - ConnectionLost            the connection ended before the answer came
      - CallTimeout               no answer in time
    + PeerRefused, ProtocolMismatch
    + AddressInUse              another process listens there already
    + AddressUnusable           a socket cannot be made there
    + UnknownOperation, RequestInvalid, MessageTooLarge, PlatformBusy
    + OperationFailed           a mistake inside the platform; its log has the traceback
  x ChannelClosed, ChannelFull  control flow of ports: siblings, so that no handler catches both by accident

An error has its facts as attributes (`error.port`, `error.known`), and composes its message, which says what to do.
It crosses the wire as its class name and facts, never as a pickle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, ClassVar, Final

#: How many of the known names a message lists.
_SHOWN: Final = 20


class ExopError(Exception):
    """The root of all errors that ExoP raises on purpose.

    A subclass has a `template`, which the keyword facts fill; they are also attributes. `defaults` are the facts that
    need not be given.
    """

    template: ClassVar[str] = "{text}"
    defaults: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, text: str = "", **facts: Any) -> None:
        self.facts: dict[str, Any] = {**self.defaults, **({"text": text} if text else {}), **facts}
        super().__init__(text or self.compose())

    def compose(self) -> str:
        """Compose the message from the facts."""
        return self.template.format_map(self.facts)

    def __getattr__(self, name: str) -> Any:
        facts = self.__dict__.get("facts", {})
        if name in facts:
            return facts[name]
        raise AttributeError(name)


class MeshError(ExopError):
    """The mesh is invalid."""


class SletError(MeshError):
    """A signature that is no slet, or a class that is no memento: `slet`, `what`, `problem`, `cure`."""

    template = "{slet} is no {what}: {problem}; {cure}"
    defaults: ClassVar[Mapping[str, Any]] = {"what": "slet"}


class UnknownName(MeshError):
    """An unknown name: `place` has no `kind` called `name`; `known` has the existing names."""

    def compose(self) -> str:
        """Name the place, the nearest known name, or all of them."""
        known = sorted(str(name) for name in self.facts.get("known", ()))
        message = f"{self.facts['place']} has no {self.facts['kind']} {self.facts['name']!r}"
        return f"{message}; {suggest(self.facts['name'], known, self.facts['kind'])}"


class SettingError(MeshError):
    """A setting whose value does not fit its type: `place`, `setting`, `problem`."""

    template = "{place}: the setting {setting!r} does not fit: {problem}"


class ConditionError(MeshError):
    """A `when` that is no condition on the items of `place`: `condition`, `position`, `problem`."""

    def compose(self) -> str:
        """Show the condition with a mark under the position."""
        return f"{self.facts['place']}: {_marked(self.facts, 'condition')}"


class WiringError(MeshError):
    """Two ports that do not fit, or a shape that cannot run."""


class BuilderError(ExopError):
    """An application builder was called wrongly, or gave no application."""


class PlanError(ExopError):
    """The change could not be made; the old mesh runs on."""


class StaleMesh(PlanError):
    """The mesh was changed meanwhile: `application`, `revision` (yours), `current`."""

    template = (
        "{application!r} was changed meanwhile (this mesh is revision {revision}, the running one {current}); "
        "read it again with platform.mesh({application!r}) and repeat the edit, or give the `exop` command again"
    )


class StillOpening(PlanError):
    """The slets are being opened: `application`, `host`, `opened`, `total`, `waiting` (for which, since when)."""

    template = (
        "{application!r} is still opening on the platform {host!r}: {opened} of {total} slets are open{waiting}; "
        "try again when it runs, `exop ps` shows how far it is"
    )
    defaults: ClassVar[Mapping[str, Any]] = {"waiting": ""}


class MementoError(PlanError):
    """The successor cannot take over the state: `node`, `old`, `new`, `problem`."""

    template = (
        "{node}: the state {old} cannot be handed over to {new}: {problem}; give the new memento a "
        "`@classmethod def upgrade(cls, old)`, or replace {node} with lose_state=True "
        "(`exop replace --lose-state`), so that it starts empty"
    )


class NotRebuildable(PlanError):
    """The state of a successor cannot be rebuilt from a log: `node`, `problem`, `cure`."""

    template = "{node}: the state cannot be rebuilt from a log: {problem}; {cure}"


class ComponentFailed(PlanError):
    """A component could not be opened, or failed while it ran: `node`, `phase`, `problem`."""

    template = "{node} failed while {phase}: {problem}"


class ShadowFailed(PlanError):
    """The successor was not proven: `node`, `problem`, `report` (all that was compared), `found` (in words)."""

    template = "{node} was not replaced: {problem}; the old one runs on{found}"
    defaults: ClassVar[Mapping[str, Any]] = {"report": {}, "found": ""}


class LifecycleError(ExopError):
    """An event that the state does not allow: `component`, `state`, `event`, `allowed`."""

    template = "{component} is {state}: it cannot {event}; possible now: {allowed}"


class StateError(ExopError):
    """The state directory cannot be used: in use, of another version, not writable."""


class StoredStateError(StateError):
    """Stored data cannot be read: `what`, `problem`, `cure`. Nothing was changed."""

    template = "{what} cannot be taken over: {problem}; nothing was changed; {cure}"


class NotStorable(ExopError):
    """A value that cannot be stored: `value`, `problem`, `cure`, and `place` where it is known."""

    defaults: ClassVar[Mapping[str, Any]] = {"place": "a stored value"}
    template = "{place}: {value} cannot be stored: {problem}; {cure}"


class NoSuchItem(ExopError):
    """A failed item that is not there: `node`, `what`, `cure`."""

    template = "{node} has no {what}: {cure}; `exop item list {node}` shows what there is"


class CheckpointError(ExopError):
    """No checkpoint could be taken: `application`, `problem`, `cure`."""

    template = "{application}: no checkpoint was taken: {problem}; the application runs on; {cure}"


class NotCommitted(CheckpointError):
    """A checkpoint was taken, and a sink has not put out what belongs to it: `application`, `node`, `problem`."""

    template = (
        "{application}: the checkpoint is taken, and {node} could not put out what belongs to it: {problem}; "
        "nothing is lost: it tries again with the next one"
    )


class PluginError(ExopError):
    """A plugin could not be loaded: `plugin`, `problem`."""

    template = "the plugin {plugin!r} could not be loaded: {problem}"


class BundleError(ExopError):
    """A bundle is wrong, or an operation on it is impossible now: `bundle`, `problem`, `cure`."""

    template = "the bundle {bundle} {problem}; {cure}"


class ArchiveRefused(BundleError):
    """The file sent is no archive of a bundle, or a dangerous one: `archive`, `problem`, `cure`."""

    template = "{archive} is refused: {problem}; {cure}"


class RequirementMissing(BundleError):
    """Requirements of a bundle are missing: `bundle`, `missing` (each with its cure)."""

    template = "the bundle {bundle} lacks {missing}"

    def compose(self) -> str:
        """Name all of them."""
        return self.template.format_map({**self.facts, "missing": "; ".join(self.facts["missing"])})


class BundleInUse(BundleError):
    """A bundle cannot be stopped or uninstalled while an application or bundle uses it: `bundle`, `event`, `users`."""

    template = "the bundle {bundle} cannot be {event}: it is used by {users}; replace or remove these first"

    def compose(self) -> str:
        """Name the users."""
        return self.template.format_map({**self.facts, "users": ", ".join(self.facts["users"])})


class BundleBroken(BundleError):
    """The code of a bundle could not be loaded: `bundle`, `file`, `line`, `problem`."""

    template = "{file}:{line}: the code of the bundle {bundle} could not be loaded: {problem}; correct that line"


class RegistryError(ExopError):
    """An invalid call of the registry."""


class FilterSyntaxError(RegistryError):
    """A text that is no filter: `filter`, `position`, `problem`."""

    def compose(self) -> str:
        """Show the filter with a mark under the position."""
        return _marked(self.facts, "filter")


class ServiceGone(RegistryError):
    """The service was unregistered meanwhile: `service`."""

    template = "the service {service} is gone; look it up again or follow it with registry.track(...)"


class RemotingError(ExopError):
    """The communication with another platform failed."""


class PeerUnreachable(RemotingError):
    """No platform answers at `address`: `problem`."""

    template = "no platform answers at {address}: {problem}; start one with `exop serve`, or see `exop ps`"


class PeerRefused(RemotingError):
    """The other platform refused: `address`, `problem`."""

    template = "the platform at {address} refused: {problem}"


class ProtocolMismatch(RemotingError):
    """The other side uses another protocol: `address`, `ours`, `theirs`, `release` (theirs), `our_release`."""

    template = (
        "the platform at {address} uses protocol {theirs} ({release}), this one {ours} ({our_release}); "
        "use the same release on both sides"
    )


class ConnectionLost(PeerUnreachable):
    """The connection ended before the answer came: `address`, `operation`, `problem`."""

    template = (
        "the connection to {address} ended during {operation!r} ({problem}); "
        "it is unknown whether it was carried out: look with `exop ps` before you repeat it"
    )


class CallTimeout(PeerUnreachable):
    """No answer in time: `address`, `operation`, `seconds`."""

    template = (
        "{address} did not answer {operation!r} within {seconds:g} s; it may still carry it out: "
        "look with `exop ps` before you repeat it"
    )


class AddressInUse(RemotingError):
    """Another process listens there: `address`, `pid`."""

    template = "{address} is in use by process {pid}; stop that one (see `exop ps`) or take another state directory"


class AddressUnusable(RemotingError):
    """A socket cannot be made, or is not safe, at this address: `address`, `problem`, `cure`."""

    template = "{address} cannot be used: {problem}; {cure}"


class UnknownOperation(RemotingError):
    """The platform has no such operation: `operation`, `known`."""

    def compose(self) -> str:
        """Name the nearest known operation, or all of them."""
        name = self.facts["operation"]
        return f"the platform has no operation {name!r}; {suggest(name, self.facts['known'], 'operation')}"


class RequestInvalid(RemotingError):
    """A request does not fit its operation: `operation`, `problem`."""

    template = "this request does not fit {operation!r}: {problem}"


class MessageTooLarge(RemotingError):
    """A message over the bound: `what`, `size`, `limit`, `cure`."""

    template = "{what} has {size} bytes, the bound is {limit}; {cure}"


class PlatformBusy(RemotingError):
    """The platform answers too many others: `operation`, `problem`."""

    template = "the platform is too busy for {operation!r}: {problem}; try again"


class OperationFailed(RemotingError):
    """A mistake inside the platform: `operation`, `reference`."""

    template = "{operation!r} failed inside the platform; its log has the reason under the reference {reference}"


class ChannelClosed(ExopError):
    """Nothing more can be pushed to, or pulled from, this channel: `channel`."""

    template = "the channel {channel} is closed"


class ChannelFull(ExopError):
    """The channel has no room now and its pusher must not wait: `channel`, `capacity`."""

    template = "the channel {channel} is full ({capacity} items)"


def suggest(name: object, known: Iterable[str], kind: str = "name") -> str:
    """The second half of a message about an unknown name: the nearest known name, or all of them."""
    names = sorted(known)
    near = get_close_matches(str(name), names, n=1, cutoff=0.5)
    more = len(names) - _SHOWN
    listed = ", ".join(names[:_SHOWN]) + (f", … and {more} more" if more > 0 else "")
    if near:
        return f"did you mean {near[0]!r}?" if len(names) == 1 else f"did you mean {near[0]!r}? known: {listed}"
    return f"known: {listed}" if names else f"there is no {kind} here"


def _marked(facts: Mapping[str, Any], name: str) -> str:
    """The problem, and below it the text that is the fact *name*, with a mark under the position."""
    return f"{facts['problem']}\n  {facts[name]}\n  {' ' * facts['position']}^"
