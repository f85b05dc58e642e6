"""The policy of a platform: the role of each peer, and the channels that it may read and write, from a TOML file.

    [peers.edge-1]
    role = "operate"                # observe, operate or admin; without it, none
    read = ["traffic/jams"]         # APPLICATION/CHANNEL; * stands for any characters
    write = ["traffic/reports*"]

A peer that the file does not name may do nothing.
"""

from __future__ import annotations

import math
import os
import re
import threading
import time
import tomllib
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from exop.errors import PeerRefused, PolicyError
from exop.logs import logger
from exop.remoting.identity import Identity, file_stamps
from exop.remoting.transport.operation import ROLES, Role
from exop.remoting.transport.sockets import Peer
from exop.runtime.history import CALLER

Access: TypeAlias = Literal["read", "write", "operate"]
#: Records what was refused: the application, what was asked for, the reason of the last refusal, and their number.
Record: TypeAlias = Callable[[str, str, str, int], None]
#: A kind of refusal: the application, the operation, and the name of the platform, empty for all other callers.
_Refusal: TypeAlias = tuple[str, str, str]
#: Seconds between two records of refusals of one kind; those between are counted.
_RECORD_INTERVAL: Final = 1.0
#: Seconds between two lines of the log on refusals of one caller for one reason; those between are counted.
_LOG_INTERVAL: Final = 60.0
#: Seconds after which the connections of revoked, expired and unknown peers are looked for again.
_WATCH_INTERVAL: Final = 3.0
#: Seconds for which the file is not looked at again.
_INTERVAL: Final = 1.0
#: Characters of a name from a peer that a record contains.
_SHOWN: Final = 100
_PATTERNS: Final = 'give a list of APPLICATION/CHANNEL, such as ["traffic/*"]'


class Rights(NamedTuple):
    """The rights of one peer; a pattern is a pair of expressions for application and channel."""

    role: Role | None = None
    read: Sequence[str] = ()
    write: Sequence[str] = ()

    def allow(self, access: Literal["read", "write"], application: str, channel: str) -> bool:
        """Whether the peer may read or write a channel."""
        for pattern in getattr(self, access):
            # The names are matched apart: a slash in a name must not make another application of it.
            parts = zip(pattern.split("/", 1), (application, channel), strict=True)
            if all(re.fullmatch(".*".join(map(re.escape, part.split("*"))), name, re.DOTALL) for part, name in parts):
                return True
        return False


class Policy:
    """The rights of peers by their names; the file is read again when it changes.

    If the new file is invalid, the previous rights remain in force, and the log and `problem` contain the reason.

    Raises:
        PolicyError: the file is invalid; the error contains the line.
    """

    def __init__(self, path: str | os.PathLike[str], clock: Callable[[], float] = time.monotonic) -> None:
        self.path = Path(path)
        self.problem = ""
        self._clock, self._lock = clock, threading.Lock()
        self._looked, self._stamp = clock(), file_stamps([self.path])
        self._peers = read_policy(self.path)

    @property
    def peers(self) -> dict[str, Rights]:
        """The rights of the peers that the file names."""
        if (now := self._clock()) - self._looked >= _INTERVAL:
            with self._lock:  # who comes meanwhile gets the new rights, or their problem
                self._look(now)
        return self._peers

    def _look(self, now: float) -> None:
        self._looked = now
        if (stamp := file_stamps([self.path])) != self._stamp:
            self._stamp, log = stamp, logger("exop.remoting")
            try:
                self._peers, self.problem = read_policy(self.path), ""
                log.info("the policy was read again", file=str(self.path), peers=sorted(self._peers))
            except PolicyError as error:
                self.problem = str(error)
                log.error("the new policy is invalid; the previous one applies", error=str(error))

    def rights(self, peer: str) -> Rights:
        """Return the rights of a peer; none for one that the file does not name."""
        return self.peers.get(peer, Rights())


@dataclass(eq=False)
class AccessControl:
    """Decides, at each use, what the peers of a platform may do: the owner everything, a platform what the policy says.

    The owner of the platform is identified by the kernel, and another platform by its certificate.
    """

    policy: Policy | None = None
    identity: Identity | None = None
    record: Record = lambda *_: None
    clock: Callable[[], float] = time.monotonic
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _recorded: dict[_Refusal, float] = field(default_factory=dict)
    _pending: dict[_Refusal, tuple[str, str, int]] = field(default_factory=dict)
    # By operation, platform and reason: when the last line was logged, and the number of refusals since.
    _logged: dict[_Refusal, tuple[float, int]] = field(default_factory=dict)

    def status(self) -> dict[str, Any]:
        """Return the identity and the policy as plain data, each with the `problem` of newer files, if any."""
        identity, policy = self.identity, self.policy
        found: dict[str, Any] = {}
        if identity is not None:
            until = f"{datetime.fromtimestamp(identity.files().own.expires, UTC):%F %T%z}"
            found["identity"] = {"folder": str(identity.folder), "until": until, "problem": identity.problem}
        if policy is not None:
            found["policy"] = {"file": str(policy.path), "peers": sorted(policy.peers), "problem": policy.problem}
        return found

    def role(self, peer: Peer) -> Role | None:
        """Return the role of a peer; raises `PeerRefused` for one that may not be connected."""
        if problem := self.objection(peer):
            raise PeerRefused(address=peer.address, problem=problem)
        return "admin" if peer.certificate is None or self.policy is None else self.policy.rights(peer.name).role

    def objection(self, peer: Peer) -> str:
        """Return why a peer may not be connected (any more), or an empty string."""
        if peer.certificate is None:
            return "" if peer.trusted else "only its owner may connect without a certificate"
        if self.identity is not None and (problem := self.identity.objection(peer.certificate)):
            return problem
        if self.policy is None:
            return "the platform has no policy, so that other platforms may do nothing; give it one: --policy FILE"
        if peer.name not in self.policy.peers:
            return f"the policy of the platform gives {peer.name} no rights; add a section [peers.{peer.name}]"
        return ""

    def may(self, peer: Peer, access: Access, key: str) -> bool:
        """Whether a peer may use a connector: `read` what the platform sends, `write` what the platform receives.

        The *key* of a connector is `APPLICATION/CHANNEL/SOURCE>TARGET`. `operate` is for states.
        """
        if peer.certificate is None or self.policy is None:
            return not self.objection(peer)
        if access == "operate":
            return self.policy.rights(peer.name).role in ROLES[1:]
        application, channel, *_ = (*key.split("/"), "", "")
        if self.policy.rights(peer.name).allow(access, application, channel):
            return True
        # A peer may ask for any names: they make no kind of refusals of their own.
        problem = f"the policy does not permit it for the channel {application[:_SHOWN]}/{channel[:_SHOWN]}"
        self.refused(application[:_SHOWN], access, problem, str(peer))
        return False

    def refused(self, application: str, operation: str, problem: str, caller: str) -> None:
        """Record something that a caller may not do: at once, or with others of its kind within a second."""
        name = caller.partition(" (")[0] if caller.startswith("platform ") else ""
        kind, now = (application, operation, name), self.clock()
        with self._lock:
            self._pending[kind] = problem, caller, self._pending.get(kind, ("", "", 0))[2] + 1
            due = now - self._recorded.get(kind, -math.inf) >= _RECORD_INTERVAL
        if due:
            self._record_pending([kind])

    def watch(self, hang_up: Callable[[Callable[[Peer], bool]], int], stopped: threading.Event) -> None:
        """Every few seconds until *stopped*, end the connections of peers that may not be connected any more.

        Those of a peer whose channels have changed end as well: it connects again with its new rights.
        """
        rights = self._rights()
        while not stopped.wait(_WATCH_INTERVAL):
            try:
                before, now = rights, self._rights()
                changed = {name for name, one in now.items() if name in before and one[1:] != before[name][1:]}
                hang_up(partial(self._must_go, changed))
                rights = now
                if self.identity is not None:
                    self.identity.warn()
                with self._lock:
                    past = self.clock() - _RECORD_INTERVAL
                    self._recorded = {kind: at for kind, at in self._recorded.items() if at > past}
                self._record_pending(list(self._pending))
            except Exception:  # noqa: BLE001 (the connections of other peers are still looked at)
                logger("exop.remoting").exception("the connections of peers could not be checked")

    def _rights(self) -> dict[str, Rights]:
        return self.policy.peers if self.policy is not None else {}

    def _must_go(self, changed: Container[str], peer: Peer) -> bool:
        if peer.certificate is None:
            return False
        if problem := self.objection(peer):
            self.refused("", "stay connected", problem, str(peer))
        return bool(problem) or peer.name in changed

    def _record_pending(self, kinds: Sequence[_Refusal]) -> None:
        for kind in kinds:
            application, operation, name = kind
            with self._lock:
                self._recorded[kind] = now = self.clock()
                if (pending := self._pending.pop(kind, None)) is None:
                    continue
                problem, caller, times = pending
                key = operation, name, problem
                at, before = self._logged.pop(key, (-math.inf, 0))
                self._logged[key] = (now, 0) if now - at >= _LOG_INTERVAL else (at, before + times)
                for old in [*self._logged][:-100]:  # so many reasons are told apart
                    del self._logged[old]
            if now - at >= _LOG_INTERVAL:
                facts = {"caller": caller, "operation": operation, "times": before + times, "reason": problem}
                logger("exop.remoting").warning("refused", **facts)
            token = CALLER.set(caller)
            try:
                self.record(application, operation, problem, times)
            finally:
                CALLER.reset(token)


def read_policy(path: Path) -> dict[str, Rights]:
    """Return the rights of the peers in a policy file.

    Raises:
        PolicyError: the file cannot be read, or has an invalid entry; the error contains the line.
    """
    try:
        if (mode := path.stat().st_mode) & 0o022:
            problem = f"other users can write it (mode {mode & 0o777:o})"
            raise PolicyError(file=str(path), line=1, problem=problem, cure=f"chmod go-w {path}")
        text = path.read_text(encoding="utf-8")
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r" \(at line (\d+), .*\)$", str(error))
        line, problem = (int(found[1]), str(error)[: found.start()]) if found else (text.count("\n") + 1, str(error))
        raise PolicyError(file=str(path), line=line, problem=problem, cure="correct this line") from None
    except (OSError, UnicodeDecodeError) as error:
        problem = f"it cannot be read: {getattr(error, 'strerror', None) or error}"
        raise PolicyError(file=str(path), line=1, problem=problem, cure="give a TOML file with [peers.NAME]") from None

    def check(valid: object, problem: str, cure: str, *place: str) -> None:
        if not valid:
            raise PolicyError(file=str(path), line=_line(text, place), problem=problem, cure=cure)

    peers: Any = content.pop("peers", {})
    for name in content:
        check(False, f"{name!r} is no section of a policy", "give one section [peers.NAME] per peer", name)
    check(isinstance(peers, dict), "`peers` is no table", "give one section [peers.NAME] per peer", "peers")
    for peer, rights in peers.items():
        check(isinstance(rights, dict), f"{peer!r} is no table", f"write [peers.{peer}]", peer)
        for key, value in rights.items():
            place = f"{key!r} of the peer {peer!r}"
            dotted = isinstance(value, dict)
            cure = f'quote a name with dots: [peers."{peer}.{key}"]' if dotted else "known: role, read, write"
            check(key in Rights._fields, f"{place} is unknown", cure, peer, key)
            if key == "role":
                check(value in ROLES, f"{place} is {value!r}", f"take {', '.join(ROLES)}", peer, key)
                continue
            check(isinstance(value, list), f"{place} is {value!r}", _PATTERNS, peer, key)
            for one in value:
                valid = isinstance(one, str) and all(one.partition("/"))
                check(valid, f"{place} contains {one!r}", _PATTERNS, peer, key, str(one))
    return {peer: Rights(**rights) for peer, rights in peers.items()}


def _line(text: str, words: tuple[str, ...]) -> int:
    """Return the number of the line with the last word; each word is searched from the line of the previous word."""
    lines, at = text.splitlines(), 0
    for word in words:
        found = re.compile(rf"(?<![\w-]){re.escape(word)}(?![\w-])")
        at = next((number for number in range(at, len(lines)) if found.search(lines[number].partition("#")[0])), at)
    return at + 1
