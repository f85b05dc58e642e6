"""From packed request to packed reply: the operations behind every kind of connection."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from exop.errors import (
    ExopError,
    MessageTooLarge,
    OperationFailed,
    PeerRefused,
    PlatformBusy,
    RequestInvalid,
    UnknownOperation,
)
from exop.remoting.transport import faults
from exop.remoting.transport.codec import BadMessage, Request, pack, unpack
from exop.remoting.transport.limits import Limits
from exop.remoting.transport.operation import ROLES, Operation, Role
from exop.safe_repr import RAISED

_log = logging.getLogger("exop.remoting")
_OVERHEAD = 200
"""Bytes that the envelope may add."""
_LONG = 5.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a request: the packed reply, or the packed error."""

    ok: bool
    payload: bytes


class Dispatcher:
    """Run the operation that a message names, if the peer's role allows it, and pack its result.

    At most `Limits.in_flight` run at a time.
    """

    def __init__(self, operations: Mapping[str, Operation], limits: Limits, role: Role = "admin") -> None:
        self._operations = dict(operations)
        self._role = role
        self._limits = limits
        self._slots = threading.BoundedSemaphore(limits.in_flight)

    def answer(self, name: str, payload: bytes) -> Outcome:
        """Answer one message; never raises."""
        try:
            return Outcome(True, self._run(name, payload))
        except ExopError as error:
            failure = error
        except RAISED:
            # The peer gets a number, the log the traceback: what broke inside is not the peer's to see.
            reference = secrets.token_hex(4)
            _log.exception("operation %r failed (reference %s)", name, reference)
            failure = OperationFailed(operation=name, reference=reference)
        return self._failed(failure)

    def busy(self, name: str) -> Outcome:
        """The answer to a request that was carried out, when its reply cannot be sent for the others' sake."""
        return self._failed(PlatformBusy(operation=name, problem="too many large replies are being sent"))

    def _failed(self, error: ExopError) -> Outcome:
        return Outcome(False, faults.describe(error, self._limits.fault))

    def _run(self, name: str, payload: bytes) -> bytes:
        operation = self._find(name)
        request = self._request(operation, payload)
        if not self._slots.acquire(timeout=self._limits.queue_time):
            raise PlatformBusy(operation=name, problem=f"it waited {self._limits.queue_time:g} s for its turn")
        started = time.monotonic()
        try:
            reply = pack(operation.handler(request))
        finally:
            self._slots.release()
        if (taken := time.monotonic() - started) > _LONG:
            _log.warning("operation %r took %.1f s; it should be short", name, taken)
        largest = self._limits.frame - _OVERHEAD
        if len(reply) > largest:
            raise MessageTooLarge(
                what=f"the reply to {name!r}", size=len(reply), limit=largest, cure="ask for it in pages"
            )
        return reply

    def _find(self, name: str) -> Operation:
        found = self._operations.get(name)
        if found is None:
            raise UnknownOperation(operation=name, known=sorted(self._operations))
        if ROLES.index(found.role) > ROLES.index(self._role):
            raise PeerRefused(
                f"{name!r} needs the role {found.role}, and peers of this connection may {self._role} only"
            )
        return found

    def _request(self, operation: Operation, payload: bytes) -> Request:
        if len(payload) > operation.max_request:
            raise MessageTooLarge(
                what=f"the request to {operation.name!r}",
                size=len(payload),
                limit=operation.max_request,
                cure="send less at a time",
            )
        try:
            return unpack(payload, operation.request)
        except BadMessage as problem:
            raise RequestInvalid(operation=operation.name, problem=str(problem)) from None
