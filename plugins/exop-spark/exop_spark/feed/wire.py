"""The protocol between Spark's Python workers and the feeds: length-prefixed messages, by a Unix socket, TCP or TLS.

This module is pickled by value together with `source`: it runs in worker processes without ExoP, and therefore needs
the standard library only.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import socket
import ssl
import struct
from typing import Any

_LENGTHS = "!IQ"
#: The maximum size of a header, which has a few names and numbers, in bytes.
_MAX_HEADER = 64 * 1024

Header = dict[str, Any]


class WireError(ConnectionError):
    """The connection was closed, the request was refused, or what has arrived is no message."""


def executor() -> str:
    """Return the name of the executor of this Python worker: its host, and the process that forks its workers."""
    return f"{socket.gethostname()}:{os.getppid()}"


def connect(address: str, certificate: str = "", timeout: float | None = None) -> socket.socket:
    """Connect to *address*, `unix:PATH`, `tcp:HOST:PORT` or `tls:HOST:PORT`.

    For TLS, *certificate* (PEM) is that of the authority that has issued the server's certificate.
    """
    kind, _, place = address.partition(":")
    if kind == "unix":
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(timeout)
        connection.connect(place)
        return connection
    host, _, port = place.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=timeout)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if kind == "tls":
        return ssl.create_default_context(cadata=certificate).wrap_socket(connection, server_hostname=host)
    return connection


def ticket(token: str, feed: str, partition: str, start: int, end: int) -> str:
    """Return the signature with which a task, which does not have the token, may read this range of a feed."""
    return hmac.new(token.encode(), f"{feed} {partition} {start} {end}".encode(), hashlib.sha256).hexdigest()


def send(connection: socket.socket, header: Header, payload: bytes | memoryview = b"") -> None:
    """Send one message: a JSON header, and a payload of bytes."""
    encoded = json.dumps(header).encode()
    connection.sendall(struct.pack(_LENGTHS, len(encoded), len(payload)) + encoded)
    if payload:
        connection.sendall(payload)


def receive(connection: socket.socket, most: int | None = None) -> tuple[Header, bytearray]:
    """Receive one message with a payload of at most *most* bytes.

    Raises:
        WireError: the connection was closed, or this is no message, or it is larger than it may be.
    """
    length, size = struct.unpack(_LENGTHS, _exactly(connection, struct.calcsize(_LENGTHS)))
    if length > _MAX_HEADER or (most is not None and size > most):
        raise WireError(f"a message of {length} + {size} bytes is larger than those of a feed")
    try:
        header = json.loads(_exactly(connection, length))
    except (ValueError, RecursionError) as error:
        raise WireError(f"the header of a message is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise WireError(f"the header of a message is {type(header).__name__}, not an object")
    return header, _exactly(connection, size)


def ask(connection: socket.socket, header: Header, payload: bytes | memoryview = b"") -> tuple[Header, bytearray]:
    """Send a request, with its payload if it has one, and return the answer.

    Raises:
        WireError: the request was refused; the message has the reason.
    """
    send(connection, header, payload)
    answer, received = receive(connection)
    if "error" in answer:
        raise WireError(answer["error"])
    return answer, received


def _exactly(connection: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = connection.recv_into(view)
        if not count:
            raise WireError("the other side has closed the connection")
        view = view[count:]
    return data
