"""The door of the feeds: a private local socket that Spark's Python workers ask through, behind a token."""

from __future__ import annotations

import hmac
import logging
import os
import secrets
import socket
import threading
from itertools import count
from pathlib import Path
from typing import Final

from exop.engine.feed import Feed
from exop.errors import EngineError

from . import wire
from .errors import SparkError

_log = logging.getLogger(__name__)

#: Who connects has so long to show the token.
_PATIENCE: Final = 30.0


class FeedServer:
    """Serves the feeds of this process; started with the first session, closed with the last.

    A Unix socket in *directory*, which is the owner's alone, where there is such a thing; the loopback otherwise. The
    token is asked for on both.
    """

    def __init__(self, directory: Path) -> None:
        self.token = secrets.token_hex(32)
        self._feeds: dict[str, Feed] = {}
        self._numbers = count(1)
        self._lock = threading.Lock()
        self._listener, self.address = _listening(directory)
        self._thread = threading.Thread(target=self._accept, name="exop-spark-feeds", daemon=True)
        self._thread.start()

    def add(self, feed: Feed) -> str:
        """Serve *feed* from now on; return the key by which it is asked for."""
        with self._lock:
            key = f"{next(self._numbers)}-{feed.port}"
            self._feeds[key] = feed
            return key

    def remove(self, key: str) -> None:
        """Serve the feed no longer."""
        with self._lock:
            self._feeds.pop(key, None)

    def close(self) -> None:
        """Stop listening; conversations that are under way end with their feeds."""
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._converse, args=(connection,), name="exop-spark-feed", daemon=True).start()

    def _converse(self, connection: socket.socket) -> None:
        with connection:
            connection.settimeout(_PATIENCE)
            try:
                greeting, _ = wire.receive(connection, most=0)
                if not hmac.compare_digest(str(greeting.get("token", "")), self.token):
                    wire.send(connection, {"error": "the token is not that of this platform"})
                    return
                wire.send(connection, {})
                # From now on it may be silent for long: while the platform holds a micro-batch, nothing is asked.
                connection.settimeout(None)
                while True:
                    request, _ = wire.receive(connection, most=0)
                    self._answer(connection, request)
            except (OSError, ValueError) as error:
                # A worker that goes away ends its conversation so; what it was doing, Spark does again.
                _log.debug("a feed conversation ended: %s", error)

    def _answer(self, connection: socket.socket, request: wire.Header) -> None:
        with self._lock:
            feed = self._feeds.get(str(request.get("feed")))
        try:
            if feed is None:
                raise SparkError(f"there is no feed {request.get('feed')!r} any more")
            header, payload = _serve(feed, request)
        except EngineError as error:
            header, payload = {"error": str(error)}, b""
        wire.send(connection, header, payload)


def _listening(directory: Path) -> tuple[socket.socket, str]:
    if hasattr(socket, "AF_UNIX"):
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(os.fspath(directory / "feeds"))
        address = f"unix:{directory / 'feeds'}"
    else:  # pragma: no cover - no such platform in the tests
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.bind(("127.0.0.1", 0))
        address = f"tcp:127.0.0.1:{listener.getsockname()[1]}"
    listener.listen(64)
    return listener, address


def _serve(feed: Feed, request: wire.Header) -> tuple[wire.Header, bytes | memoryview]:
    match request:
        case {"ask": "latest", "start": int(start), "limit": limit, "timeout": timeout}:
            return {"end": feed.latest(start, limit, float(timeout))}, b""
        case {"ask": "read", "start": int(start), "end": int(end)}:
            return {}, memoryview(feed.read(start, end))
        case {"ask": "commit", "end": int(end)}:
            feed.commit(end)
            return {}, b""
        case {"ask": "end"}:
            return {"end": feed.offset}, b""
        case _:
            raise SparkError(f"a feed cannot answer {request.get('ask')!r}")
