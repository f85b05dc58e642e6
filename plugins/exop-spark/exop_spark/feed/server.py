"""The server of the feeds: a socket from which Spark's Python workers read, with a token or a ticket."""

from __future__ import annotations

import hmac
import json
import logging
import os
import secrets
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa

from exop.engine.feed import Feed
from exop.errors import EngineError
from exop.safe_repr import error_text

from ..errors import SparkError
from . import wire
from .native import NativeFeed
from .records import Refused

_log = logging.getLogger(__name__)

#: The seconds that a client has to authenticate, and those after which a failed `accept` is repeated.
_AUTHENTICATION: Final = 30.0
_RETRY: Final = 0.2
#: The maximum number of connections that have not authenticated yet. They use file descriptors of the platform.
_UNKNOWN: Final = 64
#: The maximum size of the records that a task reports at once as omitted; a client of Kafka fetches less.
_MOST_OMITTED: Final = 256 << 20
#: Takes a micro-batch: its number, its rows (a table, or a DataFrame in this process), and its watermark in
#: milliseconds, if that is known.
Output = Callable[[int, Any, int | None], None]


class FeedServer:
    """Serves the feeds of this process; started with the first session, closed with the last.

    Without a *host*, it listens on a Unix socket in *directory*, which only its owner can enter; on systems without
    Unix sockets, on the loopback. With a *host*, it listens at this address, by TLS unless it is the loopback.
    """

    def __init__(self, directory: Path, host: str = "") -> None:
        self.token = secrets.token_hex(32)
        self._feeds: dict[str, Feed] = {}
        self._outputs: dict[str, Output] = {}
        self._reads: dict[str, _Reads] = {}
        self._unknown: dict[socket.socket, None] = {}
        self._numbers = count(1)
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._tls: ssl.SSLContext | None = None
        self._certificate = ""
        if host and not is_loopback(host):
            self._tls, self._certificate = _identity(directory / "identity", host)
        self._listener, self.address = _listening(directory, host, "tls" if self._tls else "tcp")
        self._thread = threading.Thread(target=self._accept, name="exop-spark-feeds", daemon=True)
        self._thread.start()

    def add(self, feed: Feed) -> str:
        """Serve *feed* from now on; return its key for requests."""
        with self._lock:
            key = f"{next(self._numbers)}-{feed.port}"
            self._feeds[key] = feed
            self._reads[key] = _Reads()
            return key

    def options(self, key: str) -> dict[str, str]:
        """Return the options for a reader of the feed *key*."""
        return {"address": self.address, "token": self.token, "feed": key, "certificate": self._certificate}

    def add_output(self, output: Output) -> str:
        """Pass arriving micro-batches to *output* from now on; return its key for requests."""
        with self._lock:
            key = f"{next(self._numbers)}-out"
            self._outputs[key] = output
            return key

    def read_by(self, key: str) -> dict[str, int]:
        """Return the number of rows of a feed that each executor has read; those of a repeated task count once."""
        with self._lock:
            return dict(self._reads[key].rows) if key in self._reads else {}

    def remove(self, key: str) -> None:
        """Stop to serve a feed or an output."""
        with self._lock:
            self._feeds.pop(key, None)
            self._outputs.pop(key, None)
            self._reads.pop(key, None)

    def close(self) -> None:
        """Stop listening; open connections end with their feeds."""
        self._closed.set()
        with suppress(OSError):  # Linux needs it: `close` alone leaves a thread in `accept`, and the port open
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            connection: socket.socket | None = None
            try:
                connection, _ = self._listener.accept()
                connection.settimeout(_AUTHENTICATION)
                if self._tls:
                    connection = self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
                self._admit(connection)
                threading.Thread(target=self._handle, args=(connection,), name="exop-spark-feed", daemon=True).start()
            except (OSError, RuntimeError) as error:
                if connection is not None:
                    self._forget(connection)
                    connection.close()
                if not self._closed.wait(_RETRY):  # for example, no file descriptor or thread is left
                    _log.warning("a connection to the feeds could not be accepted: %s", error)

    def _admit(self, connection: socket.socket) -> None:
        """Close the oldest connection that has not authenticated if there are too many of them."""
        with self._lock:
            self._unknown[connection] = None
            oldest = next(iter(self._unknown)) if len(self._unknown) > _UNKNOWN else None
            if oldest is None:
                return
            self._forget(oldest)
        with suppress(OSError):  # its thread ends, and closes it
            socket.socket.shutdown(oldest, socket.SHUT_RDWR)

    def _handle(self, connection: socket.socket) -> None:
        with connection:
            try:
                if isinstance(connection, ssl.SSLSocket):
                    connection.do_handshake()
                self._dispatch(connection)
            except (OSError, ValueError) as error:
                # This is how the connection of a worker ends that was killed; Spark repeats its task.
                _log.debug("a connection to the feeds ended: %s", error)
            finally:
                self._forget(connection)

    def _forget(self, connection: socket.socket) -> None:
        self._unknown.pop(connection, None)

    def _dispatch(self, connection: socket.socket) -> None:
        """Answer the planning process, which sends the token first, or one task, which sends its ticket."""
        greeting, _ = wire.receive(connection, most=0)
        self._forget(connection)
        if "ticket" in greeting:
            request = self._checked(greeting)
            if request["ask"] == "omit":  # the records follow the ticket
                wire.send(connection, {})
                request |= {"records": wire.receive(connection, most=_MOST_OMITTED)[1]}
            self._answer(connection, request)
            return
        if not _equal(greeting.get("token"), self.token):
            wire.send(connection, {"error": "the token is not that of this platform"})
            return
        wire.send(connection, {})
        # No time-out from here on: while the platform processes a micro-batch, no request arrives.
        connection.settimeout(None)
        while True:
            request, payload = wire.receive(connection)
            if request.get("ask") == "put":
                self._receive_batch(connection, request, payload)
            else:
                self._answer(connection, request)

    def _receive_batch(self, connection: socket.socket, request: wire.Header, payload: bytearray) -> None:
        """Pass a micro-batch to its query; answer when its results are sent."""
        with self._lock:
            output = self._outputs.get(str(request.get("feed")))
        answer: wire.Header = {}
        try:
            if output is None:
                raise SparkError("the query of this micro-batch has ended")
            output(int(request["batch"]), pa.ipc.open_stream(payload).read_all(), request["watermark"])
        except BaseException as error:  # noqa: BLE001 - it ends the query, which has stored the error
            answer = {"error": f"{type(error).__name__}: {error}"}
        wire.send(connection, answer)

    def _checked(self, request: wire.Header) -> wire.Header:
        """Return the request of a task if its ticket is for this range; otherwise a request that is refused."""
        feed, part = str(request.get("feed")), str(request.get("partition"))
        start, end = request.get("start"), request.get("end")
        if not (isinstance(start, int) and isinstance(end, int)):
            return {"ask": "nothing", "feed": feed}
        valid = _equal(request["ticket"], wire.ticket(self.token, feed, part, start, end))
        ask = "nothing" if not valid else request["ask"] if request.get("ask") in ("count", "omit") else "read"
        bounds = {"partition": part, "start": start, "end": end}
        return {"ask": ask, "feed": feed, **bounds, "by": str(request.get("by"))}

    def _answer(self, connection: socket.socket, request: wire.Header) -> None:
        with self._lock:
            feed = self._feeds.get(str(request.get("feed")))
        try:
            if feed is None:
                raise SparkError(f"there is no feed {request.get('feed')!r} any more")
            header, payload = _serve(feed, request)
            if request["ask"] != "omit":
                self._count(request)
        except Exception as error:  # noqa: BLE001 - Spark ends the query with it
            header, payload = {"error": str(error) if isinstance(error, EngineError) else error_text(error)}, b""
        wire.send(connection, header, payload)

    def _count(self, request: wire.Header) -> None:
        """Add the rows that a task has read, here or by itself."""
        with self._lock:
            reads = self._reads.get(str(request["feed"]))
            if reads is not None and "by" in request:
                reads.add(request)
            elif reads is not None and request["ask"] == "commit":
                reads.commit(request["end"])


class _Reads:
    """The number of rows that each executor has read; a range counts once, however often its ticket is used."""

    def __init__(self) -> None:
        self.rows = Counter[str]()
        self._ranges = set[tuple[str, int, int]]()
        self._committed: dict[str, int] = {}

    def add(self, request: wire.Header) -> None:
        """Add the range of the request of a task, unless it is known, or committed."""
        one = request["partition"], request["start"], request["end"]
        if one not in self._ranges and request["end"] > self._committed.get(request["partition"], 0):
            self._ranges.add(one)
            self.rows[request["by"]] += request["end"] - request["start"]

    def commit(self, end: Any) -> None:
        """Forget the ranges before the offset that Spark has committed; their tasks have ended."""
        self._committed = dict(end.get("at", {})) if isinstance(end, dict) else {"": end}
        self._ranges = {one for one in self._ranges if one[2] > self._committed.get(one[0], 0)}


def _equal(given: Any, known: str) -> bool:
    """Compare secrets in constant time."""
    return hmac.compare_digest(str(given).encode(errors="replace"), known.encode())


def is_loopback(host: str) -> bool:
    """Return whether data sent to *host* stays on this machine."""
    return host == "localhost" or host.startswith("127.") or host in ("::1", "[::1]")


def _listening(directory: Path, host: str, kind: str) -> tuple[socket.socket, str]:
    if not host and hasattr(socket, "AF_UNIX"):
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(os.fspath(directory / "feeds"))
        address = f"unix:{directory / 'feeds'}"
    else:
        host = host or "127.0.0.1"
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.bind((host, 0))
        address = f"{kind}:{host}:{listener.getsockname()[1]}"
    listener.listen(64)
    return listener, address


def _identity(directory: Path, host: str) -> tuple[ssl.SSLContext, str]:
    """Return an identity for the lifetime of this process, and the certificate by which others recognize it.

    Raises:
        IdentityError: the library cryptography is missing.
    """
    from exop.remoting.authority import CA, create_authority, issue

    create_authority(directory)
    folder = issue(directory, "feeds", also=[host])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "feeds.pem", folder / "feeds.key")
    return context, (folder / CA).read_text()


def _serve(feed: Feed, request: wire.Header) -> tuple[wire.Header, bytes | memoryview]:
    match request:
        case {"ask": "latest", "start": start, "limit": limit, "timeout": timeout}:
            return {"end": feed.latest(start, limit, float(timeout))}, b""
        case {"ask": "plan", "end": dict(end)} if isinstance(feed, NativeFeed):
            return {"reference": feed.plan(end)}, b""
        case {"ask": "read", "start": int(start), "end": int(end)}:
            return {}, memoryview(feed.read(start, end))
        case {"ask": "omit", "partition": part, "start": int(start), "end": int(end)} if isinstance(feed, NativeFeed):
            found = msgspec.msgpack.decode(request["records"], type=list[Refused])
            return {"omitted": feed.omit(part, [one for one in found if start <= one[0] < end])}, b""
        case {"ask": "count"}:  # what the task has read by itself
            return {}, b""
        case {"ask": "parts", "start": int(start), "end": int(end)}:
            parts = [(*part[:2], part.file.path if part.file is not None else "") for part in feed.parts(start, end)]
            return {}, json.dumps(parts).encode()
        case {"ask": "commit", "end": end}:
            feed.commit(end)
            return {}, b""
        case {"ask": "end"}:
            return {"end": feed.offset}, b""
        case _:
            raise SparkError(f"a feed cannot answer {request.get('ask')!r}, or the ticket is for another range")
