"""`Receipt`: stands for the rows that one task of a micro-batch has put into a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Receipt:
    """The reference to a file of rows, which passes through the platform in place of the rows.

    Attributes:
        query: The query's name, and Spark's number of it.
        batch, partition: The micro-batch, and the partition of its result.
        path: The URI of the Parquet file; it is complete, and is not changed.
        rows, bytes: The number of rows, and the size of the file.
        offsets: For each input, how far it had been read behind the micro-batch.
    """

    query: str
    batch: int
    partition: int
    path: str
    rows: int
    bytes: int
    offsets: dict[str, Any]

    def read(self) -> pa.Table:
        """Return the rows."""
        from pyarrow import fs, parquet

        system, path = fs.FileSystem.from_uri(self.path)
        found: pa.Table = parquet.read_table(path, filesystem=system)
        return found
