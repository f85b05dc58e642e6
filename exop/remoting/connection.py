"""rpyc's connection reduced to one message: `(operation, bytes) -> bytes`.

No root object, no attribute access, no reference to a remote object, no pickle, no exception class of the peer, no call
back. Built by sub-classing only; `tests/remoting/test_attacks.py` holds what each override is there for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import rpyc  # noqa: F401 (first: threads that import different modules of it would wait for each other)
from rpyc.core.protocol import Connection
from rpyc.core.service import VoidService

from exop.remoting import envelope
from exop.remoting.dispatch import Outcome
from exop.remoting.frames import BoundedChannel

_NOT_ALLOWED = (
    "allow_all_attrs",
    "allow_delattr",
    "allow_exposed_attrs",
    "allow_getattr",
    "allow_pickle",
    "allow_public_attrs",
    "allow_safe_attrs",
    "allow_setattr",
    "bind_threads",
    "import_custom_exceptions",
    "include_local_traceback",
    "include_local_version",
    "instantiate_custom_exceptions",
    "log_exceptions",
    "propagate_KeyboardInterrupt_locally",
    "propagate_SystemExit_locally",
)
# Braces beside the belt: none of the code that reads these is reachable any more.
_CONFIG: dict[str, Any] = dict.fromkeys(_NOT_ALLOWED, False) | {"safe_attrs": frozenset(), "close_catchall": True}


class Refusal(Exception):
    """The peer answered with an error: its packed form."""

    def __init__(self, payload: bytes) -> None:
        super().__init__("the peer answered with an error")
        self.payload = payload


class HardConnection(Connection):  # type: ignore[misc]
    """One peer, one message kind.

    A serving side gives `answer`; it never calls. A calling side gives none, and a request that comes to it ends the
    connection (its channel accepts replies only).
    """

    def __init__(self, channel: BoundedChannel, answer: Callable[[str, bytes], Outcome] | None = None) -> None:
        self._answer = answer
        super().__init__(VoidService(), channel, _CONFIG)

    def request(self, operation: str, payload: bytes, timeout: float) -> bytes:
        """Send one request and wait for its reply.

        Raises:
            Refusal: the peer answered with an error.
            TimeoutError: it did not answer in time.
            EOFError: the connection ended, or a message broke the profile.
        """
        answers: list[tuple[bool, object]] = []
        deadline = time.monotonic() + timeout
        self._async_request(
            envelope.OPERATION, (operation, payload), lambda failed, answer: answers.append((failed, answer))
        )
        # rpyc's own waiting goes by the wall clock.
        while not answers:
            if not self.serve(max(0.0, deadline - time.monotonic())) and time.monotonic() >= deadline:
                raise TimeoutError("no answer in time")
        failed, answer = answers[0]
        if failed and isinstance(answer, Refusal):
            raise answer
        if type(answer) is not bytes:
            raise EOFError("the reply is no byte string")
        return answer

    def close(self) -> None:
        """Close the socket. Nothing is sent: the peer sees the end of the stream."""
        if not self._closed:
            self._cleanup()

    def _cleanup(self, _anyway: bool = True) -> None:
        # rpyc's own releases locks that other threads hold.
        self._closed = True
        self._channel.close()
        self._request_callbacks.clear()

    @classmethod
    def _request_handlers(cls) -> dict[int, Callable[..., bytes]]:
        return {envelope.OPERATION: cls._handle_operation}

    def _handle_operation(self, operation: str, payload: bytes) -> bytes:
        # By exact type: a remote reference may claim to be any class when it is asked by isinstance.
        if self._answer is None or type(operation) is not str or type(payload) is not bytes:
            raise TypeError("no such message")
        outcome = self._answer(operation, payload)
        if not outcome.ok:
            raise Refusal(outcome.payload)
        return outcome.payload

    def _dispatch_request(self, seq: int, raw_args: Any) -> None:
        super()._dispatch_request(seq, raw_args)
        # It holds the frames of the failed request, and with them its payload.
        self._last_traceback = None

    def _box(self, obj: object) -> tuple[int, object]:
        plain = type(obj) is bytes or (
            type(obj) is tuple and len(obj) == 2 and type(obj[0]) is str and type(obj[1]) is bytes
        )
        if not plain:
            raise TypeError("only byte strings cross")
        return envelope.BY_VALUE, obj

    def _unbox(self, package: Any) -> Any:
        label, value = package
        if label != envelope.BY_VALUE:
            raise ValueError("only values cross")
        return value

    def _netref_factory(self, id_pack: object) -> object:
        raise TypeError("no references to remote objects here")

    def _box_exc(self, typ: type[BaseException], val: BaseException, tb: TracebackType | None) -> bytes:
        # When the answering itself broke, the peer learns that it did and nothing more.
        return val.payload if isinstance(val, Refusal) else b""

    def _unbox_exc(self, raw: object) -> Exception:
        return Refusal(raw if type(raw) is bytes else b"")
