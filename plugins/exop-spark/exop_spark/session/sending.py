"""The function that a Connect server calls with each micro-batch: it sends the rows to the platform.

This module is pickled by value together with `wire`: it runs in a process of the server, which needs pyspark and
pyarrow, but not ExoP.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from ..feed import wire


def sender(options: dict[str, str], offsets: str) -> Callable[[Any, int], None]:
    """Return the function for `foreachBatch`.

    Args:
        options: The options of `FeedServer.options` for the key of the output.
        offsets: The URI of the folder to which Spark writes the watermark of each batch; empty if it is not needed.
    """

    def send(frame: Any, batch: int) -> None:
        table = frame.toArrow()
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        moment = _watermark(frame, f"{offsets}/{batch}") if offsets else None
        with wire.connect(options["address"], options["certificate"]) as connection:
            wire.ask(connection, {"token": options["token"]})
            request = {"ask": "put", "feed": options["feed"], "batch": batch, "watermark": moment}
            wire.ask(connection, request, memoryview(sink.getvalue()))

    return send


def _watermark(frame: Any, uri: str) -> int:
    """Return the watermark of a batch, in milliseconds, from Spark's file: a version, the metadata, the offsets."""
    url = urlsplit(uri)
    if url.scheme == "file":
        with open(unquote(url.path), encoding="utf-8") as file:
            lines = file.read().splitlines()
    else:
        lines = [row[0] for row in frame.sparkSession.read.text(uri).collect()]
    notes = next(json.loads(line) for line in lines if "batchWatermarkMs" in line)
    return int(notes["batchWatermarkMs"])
