"""The errors that ExoP raises on purpose: one tree with one root.

The attributes of an error are its facts (`error.port`, `error.known`). The message is composed from the facts, and
states the remedy. Errors are sent to other platforms as the class name and the facts, never as a pickle.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from textwrap import indent
from typing import Any, ClassVar, Final, TypeVar

from exop.safe_repr import error_text, message

T = TypeVar("T")
#: The maximum number of known names in a message.
_SHOWN: Final = 20
#: The plugins of this project, which are installed from its folder; and the extras with the packages of PyPI.
_PLUGINS: Final = ("exop-duckdb", "exop-kafka", "exop-spark")
_EXTRAS: Final = {"pyarrow": "columns", "numpy": "columns", "cryptography": "tls", "zeroconf": "discovery"}


class ExopError(Exception):
    """The root of all errors that ExoP raises on purpose.

    The facts of an error are given as keyword arguments. They are attributes of the error, and are inserted into the
    `template` of its class, the elements of a list with `between` between them. `defaults` contains default values of
    facts. The fact called `marked` follows in lines of its own, with a mark under the fact `position`.
    """

    template: ClassVar[str] = "{text}"
    defaults: ClassVar[Mapping[str, Any]] = {}
    between: ClassVar[str] = ", "
    marked: ClassVar[str] = ""

    def __init__(self, text: str = "", **facts: Any) -> None:
        self.facts: dict[str, Any] = {**self.defaults, **({"text": text} if text else {}), **facts}
        super().__init__(text or self.compose())

    def compose(self) -> str:
        """Compose the message from the facts."""
        lists = {name: fact for name, fact in self.facts.items() if isinstance(fact, (list, tuple))}
        joined = {name: self.between.join(map(str, fact)) for name, fact in lists.items()}
        text = self.template.format_map(self.facts | joined)
        return text + _marked(self.facts[self.marked], self.facts["position"]) if self.marked else text

    def __getattr__(self, name: str) -> Any:
        if name in (facts := self.__dict__.get("facts", {})):
            return facts[name]
        raise AttributeError(name)


def install_command(package: str) -> str:
    """Return the command that installs a plugin of this project, or another package."""
    if package in _PLUGINS:
        return f"`pip install plugins/{package}` in the folder of ExoP"
    return f"`pip install 'exop[{_EXTRAS[package]}]'`" if package in _EXTRAS else f"`pip install {package}`"


def told(error: BaseException) -> str:
    """Return the message of an error that ExoP raised on purpose; for any other exception, its class as well."""
    return message(error) if isinstance(error, ExopError) else error_text(error)


class MeshError(ExopError):
    """The mesh is invalid."""


class SletError(MeshError):
    """A signature is not that of a slet, or a class is not a memento: `slet`, `what`, `problem`, `cure`."""

    template = "{slet} is no {what}: {problem}; {cure}"
    defaults: ClassVar[Mapping[str, Any]] = {"what": "slet"}


class UnknownName(MeshError):
    """A name is unknown: `place` has no `kind` called `name`; `known` contains the existing names."""

    def compose(self) -> str:
        """Name the place, and the nearest known name, all known names, or the plugin to install."""
        known = sorted(str(name) for name in self.facts.get("known", ()))
        message = f"{self.facts['place']} has no {self.facts['kind']} {self.facts['name']!r}"
        plugin = str(self.facts["name"]).partition(":")[0]
        own = [name for name in known if name.startswith((f"{plugin}:", f"{plugin}@"))]
        if self.facts["kind"] in ("slet", "kind") and f"exop-{plugin}" in _PLUGINS and not own:
            return f"{message}; run {install_command(f'exop-{plugin}')}"
        message = f"{message}; {suggest(self.facts['name'], own or known, self.facts['kind'])}"
        links = "; `exop connect URI` links it with one, `exop serve` by --peer NAME=URI, or --listen if the peer dials"
        return message + (links if self.facts["kind"] == "peer" else "")


class SettingError(MeshError):
    """The value of a setting is invalid: `place`, `setting`, `problem`."""

    template = "{place}: the setting {setting!r} does not fit: {problem}"


class ExpressionError(MeshError):
    """An expression or condition (`when`) of `place` is invalid: `expression`, `position`, `problem`."""

    template = "{place}: {problem}"
    marked = "expression"


class WiringError(MeshError):
    """Two ports are incompatible, or the mesh has an invalid structure, such as a cycle without a queue."""


class BuilderError(ExopError):
    """An application builder was called wrongly, or returned no application."""


class PlanError(ExopError):
    """The change could not be made; the old mesh continues."""


class NotNow(PlanError):
    """The change cannot be made at the moment (a host is away, another change is made); it may be possible later."""


class StaleMesh(NotNow):
    """Another change was applied after the mesh was read: `application`, `revision` (of the mesh), `current`."""

    template = (
        "{application!r} was changed meanwhile (this mesh is revision {revision}, the running one {current}); "
        "read it again with platform.mesh({application!r}) and repeat the edit, or give the `exop` command again"
    )


class StillOpening(NotNow):
    """The slets are being opened: `application`, `host`, `opened`, `total`, `waiting` (the slets and the times)."""

    template = (
        "{application!r} is still opening on the platform {host!r}: {opened} of {total} slets are open{waiting}; "
        "try again when it runs, `exop ps` shows how far it is"
    )
    defaults: ClassVar[Mapping[str, Any]] = {"waiting": ""}


class MementoError(PlanError):
    """The new slet cannot take over the state: `node`, `old`, `new`, `problem`, `cure`."""

    template = (
        "{node}: the state {old} cannot be handed over to {new}: {problem}; {cure}replace {node} with lose_state=True "
        "(`exop replace APP.{node} SLET --lose-state`), so that it starts empty"
    )
    defaults: ClassVar[Mapping[str, Any]] = {"cure": "give the new memento a `@classmethod def upgrade(cls, old)`, or "}


class HomeLost(NotNow):
    """The home of an application has returned without it: `home`, `application`, and the `host` of a part of it."""

    template = (
        "{home}, the home of {application}, has returned without it; start it again with its state directory; if that "
        "is gone, or it had none, `exop adopt {application} --on {host}` makes {host} the home, where what ran at "
        "{home} begins anew"
    )


class NotRebuildable(PlanError):
    """The state of the new slet cannot be rebuilt from a log: `node`, `problem`, `cure`."""

    template = "{node}: the state cannot be rebuilt from a log: {problem}; {cure}"


class ComponentFailed(PlanError):
    """A component could not be opened, or failed while it ran: `node`, `phase`, `problem`."""

    template = "{node} failed while {phase}: {problem}"


class ShadowFailed(PlanError):
    """The trial of the new slet failed; the old one continues: `node`, `problem`, `report`, `found` (as text)."""

    template = "{node} was not replaced: {problem}; the old one runs on{found}"
    defaults: ClassVar[Mapping[str, Any]] = {"report": {}, "found": ""}


class LifecycleError(ExopError):
    """The state of a component does not allow the event: `component`, `state`, `event`, `allowed`."""

    template = "{component} is {state}: it cannot {event}; possible now: {allowed}"


class StateError(ExopError):
    """The state directory cannot be used, for example because it is in use, of another version, or not writable."""


class StoredStateError(StateError):
    """Stored data cannot be read (damaged, newer, of missing code): `what`, `problem`, `cure`. Nothing was changed."""

    template = "{what} cannot be taken over: {problem}; nothing was changed; {cure}"


class NotStorable(ExopError):
    """A value cannot be stored: `value`, `problem`, `cure`, and `place` if the place is known."""

    defaults: ClassVar[Mapping[str, Any]] = {"place": "a stored value"}
    template = "{place}: {value} cannot be stored: {problem}; {cure}"


class NoSuchItem(ExopError):
    """A failed item does not exist: `node`, `what`, `cure`."""

    template = "{node} has no {what}: {cure}; `exop item list {node}` shows what there is"


class CheckpointError(ExopError):
    """No checkpoint could be taken; the previous one remains valid: `application`, `problem`, `cure`."""

    template = "{application}: no checkpoint was taken: {problem}; the application runs on; {cure}"


class NotCommitted(CheckpointError):
    """A checkpoint was taken, but a sink could not commit its output: `application`, `node`, `problem`."""

    template = (
        "{application}: the checkpoint is taken, and {node} could not put out what belongs to it: {problem}; "
        "nothing is lost: it tries again with the next one"
    )


class LastCheckpointFailed(CheckpointError):
    """An application ended without its last checkpoint: `application`, `outcome`, `problem`, `unwritten`, `cure`."""

    template = "{application} {outcome}, but its last checkpoint failed: {problem}; not written: {unwritten}; {cure}"


class PluginError(ExopError):
    """A plugin, or a file with an application, could not be loaded: `plugin`, `problem`, `what`."""

    template = "the {what} {plugin!r} could not be loaded: {problem}"
    defaults: ClassVar[Mapping[str, Any]] = {"what": "plugin"}

    def compose(self) -> str:
        """Add the command that installs a missing module of this project, or of its extras."""
        absent = re.search(r"No module named '(\w+)", str(self.facts["problem"]))
        name = absent[1].replace("_", "-") if absent else ""
        return super().compose() + (f"; run {install_command(name)}" if name in (*_PLUGINS, *_EXTRAS) else "")


class BundleError(ExopError):
    """A bundle is invalid, or an operation on the bundle is impossible: `bundle`, `problem`, `cure`."""

    template = "the bundle {bundle} {problem}; {cure}"


class ArchiveRefused(BundleError):
    """A file is not the archive of a bundle, or is dangerous: `archive`, `problem`, `cure`."""

    template = "{archive} is refused: {problem}; {cure}"


class RequirementMissing(BundleError):
    """Requirements of a bundle are missing: `bundle`, `missing` (each with a remedy)."""

    template = "the bundle {bundle} lacks {missing}"
    between = "; "


class BundleInUse(BundleError):
    """A bundle cannot be stopped or uninstalled while an application or bundle uses it: `bundle`, `event`, `users`."""

    template = "the bundle {bundle} cannot be {event}: it is used by {users}; replace or remove these first"


class BundleBroken(BundleError):
    """The code of a bundle could not be loaded: `bundle`, `file`, `line`, `problem`."""

    template = "{file}:{line}: the code of the bundle {bundle} could not be loaded: {problem}; correct that line"


class EngineError(ExopError):
    """An engine, or its connection with the platform, has failed."""


class FeedClosed(EngineError):
    """The feed of port `port` was closed during a push or a read."""

    template = "the feed of port {port!r} is closed: its query has stopped"


class QueryError(EngineError):
    """An engine refuses or cannot run a query: `slet`, `port`, `query`, `position` (from 0; or `None`), `problem`."""

    template = "{problem}"
    marked = "query"
    defaults: ClassVar[Mapping[str, Any]] = {"slet": "", "port": "", "query": "", "position": None}

    def compose(self) -> str:
        """Name the slet and the port."""
        place = ".".join(filter(None, (self.facts["slet"], self.facts["port"])))
        return f"{place or 'the query'}: {super().compose()}"


class QueryInterrupted(QueryError):
    """A call or `batch` took longer than `limit` seconds, and was interrupted: `slet`, `port`, `query`."""

    template = "{batch}interrupted after {limit:g} s; correct the query, or raise the setting `time_limit`"
    defaults: ClassVar[Mapping[str, Any]] = {**QueryError.defaults, "batch": ""}


class WorkerLost(QueryError):
    """The worker process of an engine has ended: `slet`, `port`, `query`, `problem`."""

    template = (
        "the worker process of the engine was lost: {problem}; the next call starts another one with the state before "
        "this call"
    )


class RegistryError(ExopError):
    """An invalid call of the registry."""


class FilterSyntaxError(RegistryError):
    """A filter is invalid: `filter`, `position`, `problem`."""

    template = "{problem}"
    marked = "filter"


class ServiceGone(RegistryError):
    """The service was unregistered: `service`."""

    template = "the service {service} is gone; look it up again or follow it with registry.track(...)"


class RemotingError(ExopError):
    """The communication with another platform failed."""


class PeerUnreachable(RemotingError):
    """No platform answers at `address`: `problem`, `cure`."""

    template = "no platform answers at {address}: {problem}; {cure}"
    defaults: ClassVar[Mapping[str, Any]] = {"cure": "start one with `exop serve`, or see `exop ps`"}


class PeerRefused(RemotingError):
    """The platform refused the connection: `address`, `problem`."""

    template = "the platform at {address} refused: {problem}"


class ProtocolMismatch(RemotingError):
    """The platform uses another protocol: `address`, `ours`, `theirs`, `release` (theirs), `our_release`."""

    template = (
        "the platform at {address} uses protocol {theirs} ({release}), this one {ours} ({our_release}); "
        "use the same release on both sides"
    )


class ConnectionLost(PeerUnreachable):
    """The connection ended before the answer arrived: `address`, `operation`, `problem`, `cure`."""

    template = "the connection to {address} ended during {operation!r} ({problem}); {cure}"
    defaults: ClassVar[Mapping[str, Any]] = {"cure": "whether it was carried out is unknown: see `exop history`"}


class CallTimeout(PeerUnreachable):
    """The answer did not arrive in time: `address`, `operation`, `seconds`, `cure`."""

    template = "{address} did not answer {operation!r} within {seconds:g} s; {cure}"
    defaults: ClassVar[Mapping[str, Any]] = {"cure": "it may still carry it out: see `exop ps` before you repeat it"}


class AddressInUse(RemotingError):
    """Another process listens at the address: `address`, `pid`."""

    template = "{address} is in use by process {pid}; stop that one (see `exop ps`) or take another state directory"


class AddressUnusable(RemotingError):
    """A socket cannot be created, or is not safe, at the address: `address`, `problem`, `cure`."""

    template = "{address} cannot be used: {problem}; {cure}"


class IdentityError(RemotingError):
    """A certificate, a key or their authority is unusable: `place`, `problem`, `cure`."""

    template = "{place}: {problem}; {cure}"


class PolicyError(RemotingError):
    """A policy file is invalid: `file`, `line`, `problem`, `cure`."""

    template = "{file}:{line}: {problem}; {cure}"


class UnknownOperation(RemotingError):
    """The platform has no such operation: `operation`, `known`."""

    def compose(self) -> str:
        """Name the nearest known operation, or all known operations."""
        name = self.facts["operation"]
        return f"the platform has no operation {name!r}; {suggest(name, self.facts['known'], 'operation')}"


class RequestInvalid(RemotingError):
    """A request is invalid for its operation: `operation`, `problem`."""

    template = "this request does not fit {operation!r}: {problem}"


class MessageTooLarge(RemotingError):
    """A message exceeds the size limit: `what`, `size`, `limit`, `cure`."""

    template = "{what} has {size} bytes, the bound is {limit}; {cure}"


class PlatformBusy(RemotingError):
    """The platform is answering too many other requests: `operation`, `problem`."""

    template = "the platform is too busy for {operation!r}: {problem}; try again"


class ConnectorLost(RemotingError):
    """A half of a remote connector has returned without its content.

    Facts: `connector`, `host`, what is `lost`, `cure`.
    """

    template = "the connector {connector} has lost its state: {host} has returned without {lost}; {cure}"


class OperationFailed(RemotingError):
    """The operation failed because of a defect of the platform: `operation`, `reference`."""

    template = "{operation!r} failed inside the platform; its log has the reason under the reference {reference}"


class ChannelClosed(ExopError):
    """The channel is closed, so that items can no longer be pushed or pulled: `channel`."""

    template = "the channel {channel} is closed"


class ChannelFull(ExopError):
    """The channel is full, and the producer must not wait: `channel`, `capacity`."""

    template = "the channel {channel} is full: its capacity is {capacity}"


def suggest(name: object, known: Iterable[str], kind: str = "name") -> str:
    """Return the second part of a message about an unknown name: the nearest known name, or all known names."""
    names = sorted({*known})
    near = get_close_matches(str(name), names, n=1, cutoff=0.5)
    more = len(names) - _SHOWN
    listed = ", ".join(names[:_SHOWN]) + (f", … and {more} more" if more > 0 else "")
    if near:
        return f"did you mean {near[0]!r}?" if len(names) == 1 else f"did you mean {near[0]!r}? known: {listed}"
    return f"known: {listed}" if names else f"there is no {kind} here"


def counted(number: int, thing: str) -> str:
    """Return a number of things as text: `1 item`, `1,234 items`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def entry(place: str, kind: str, known: Mapping[str, T], name: str) -> T:
    """Return the entry of this name, or raise an `UnknownName` that lists the known ones."""
    if name not in known:
        raise UnknownName(place=place, kind=kind, name=name, known=known)
    return known[name]


def _marked(text: str, position: int | None) -> str:
    """Return further lines of a message: *text* with a mark under the position, if that is known."""
    if position is not None:
        line, end, rest = text[position:].partition("\n")
        column = position - text.rfind("\n", 0, position) - 1
        text = f"{text[:position]}{line or '  ' * (not position)}\n{' ' * column}^{end}{rest}"
    return f"\n{indent(text, '  ')}" if text else ""
