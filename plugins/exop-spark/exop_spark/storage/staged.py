"""The staged output of a query: files of the tasks, and for each micro-batch a manifest that makes them visible.

    FOLDER/QUERY/BATCH/part-PARTITION-ATTEMPT-….parquet      written by the tasks; by itself it counts for nothing
    FOLDER/QUERY/BATCH.pending                               the receipts of a micro-batch that is not put out yet
    FOLDER/QUERY/BATCH.json                                  the same, once the platform has put it out

A micro-batch that Spark does again finds its receipts there, and its files are not written again. Files that no
manifest names, of attempts that failed or lost, are removed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyarrow import fs

from . import staging
from .receipt import Receipt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PENDING, _VISIBLE = "pending", "json"
_COLUMNS: Final = "partition int, path string, rows long, bytes long"


class Stage:
    """The folder of one query; *name* tells it from all others."""

    def __init__(self, folder: str, name: str) -> None:
        self.name = name
        self.folder = f"{folder.rstrip('/')}/{name}"
        self._system, self._place = fs.FileSystem.from_uri(self.folder)

    def put(self, frame: DataFrame, batch: int, columns: pa.Schema, offsets: Mapping[str, Any]) -> list[Receipt]:
        """Let the tasks write the rows of a micro-batch, and return their receipts: those of then, if it is done again.

        Only the receipts pass through the driver.
        """
        known = self._receipts(batch, _PENDING) or self._receipts(batch, _VISIBLE)
        if known is not None:
            compute(frame)
            return known
        from pyspark import cloudpickle

        cloudpickle.register_pickle_by_value(staging)  # type: ignore[no-untyped-call]
        staged = frame.mapInArrow(staging.stager(f"{self.folder}/{batch}", columns), _COLUMNS)
        rows = sorted(staged.toArrow().to_pylist(), key=lambda one: one["partition"])
        found = [Receipt(query=self.name, batch=batch, offsets=dict(offsets), **one) for one in rows]
        self._write(f"{batch}.{_PENDING}", json.dumps([asdict(one) for one in found]).encode())
        return found

    def settle(self, batch: int, *, sent: bool) -> None:
        """Make a micro-batch visible that was sent, forget one that was not, and remove the files of other attempts."""
        pending = f"{self._place}/{batch}.{_PENDING}"
        if self._system.get_file_info(pending).type is fs.FileType.File:
            if sent:
                self._system.move(pending, f"{self._place}/{batch}.{_VISIBLE}")
            else:
                self._system.delete_file(pending)
        for number in (batch - 1, batch):
            self._sweep(number)

    def _receipts(self, batch: int, kind: str) -> list[Receipt] | None:
        path = f"{self._place}/{batch}.{kind}"
        if self._system.get_file_info(path).type is not fs.FileType.File:
            return None
        with self._system.open_input_stream(path) as file:
            return [Receipt(**one) for one in json.loads(file.read())]

    def _sweep(self, batch: int) -> None:
        """Remove the files of a micro-batch that its manifest does not name."""
        named = {one.path.rpartition("/")[2] for one in self._receipts(batch, _VISIBLE) or ()}
        there = fs.FileSelector(f"{self._place}/{batch}", allow_not_found=True)
        for one in self._system.get_file_info(there):
            if one.base_name not in named:
                self._system.delete_file(one.path)

    def _write(self, name: str, data: bytes) -> None:
        """Write a manifest in one step, as far as the file system has such a step."""
        path = f"{self._place}/{name}"
        self._system.create_dir(self._place, recursive=True)
        with self._system.open_output_stream(f"{path}.new") as file:
            file.write(data)
        if isinstance(self._system, fs.LocalFileSystem):
            staging.force(f"{path}.new")
        self._system.move(f"{path}.new", path)


def compute(frame: DataFrame) -> None:
    """Compute a micro-batch for the state that Spark keeps, and drop its rows where they are."""
    frame.write.format("noop").mode("overwrite").save()
