"""The function by which a task writes its partition of a large output to a Parquet file, and returns a receipt.

Pickled by value: it runs in Spark's Python workers, which need pyspark and pyarrow, not ExoP.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

#: The columns of a receipt, as a task returns it.
RECEIPT = pa.schema([("partition", pa.int32()), ("path", pa.string()), ("rows", pa.int64()), ("bytes", pa.int64())])


def check_folder(uri: str, slet: str, *, create: bool = False) -> None:
    """Check that the setting `stage` names a folder that can be reached; with *create*, make it if it does not exist.

    Raises:
        SparkError: it does not.
    """
    from pyarrow import fs

    from ..errors import SparkError  # not in the workers

    if not uri:
        return
    try:
        system, place = fs.FileSystem.from_uri(uri)
        if create:
            system.create_dir(place, recursive=True)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        cure = "write file:///… or another URI of pyarrow.fs"
        raise SparkError(f"{slet}: stage={uri!r} is no folder that can be used: {reason}; {cure}") from error


def stager(folder: str, declared: pa.Schema) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for `mapInArrow`: it writes the rows of one partition to a file under the URI *folder*.

    The name of the file contains the partition, the number of the attempt, and a unique part, so that simultaneous
    attempts do not collide. A partition without rows has no file and no receipt.
    """

    def stage(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        partition, attempt = (context.partitionId(), context.attemptNumber()) if context is not None else (0, 0)
        name = f"part-{partition:05d}-{attempt}-{uuid.uuid4().hex}.parquet"
        rows, size = write(batches, declared, folder, name)
        if rows:
            found = {"partition": [partition], "path": [f"{folder}/{name}"], "rows": [rows], "bytes": [size]}
            yield pa.RecordBatch.from_pydict(found, schema=RECEIPT)

    return stage


def write(batches: Iterable[pa.RecordBatch], declared: pa.Schema, folder: str, name: str) -> tuple[int, int]:
    """Write rows to a new file, and force it to disk if the folder is local; return the numbers of rows and bytes.

    Raises:
        pyarrow.ArrowInvalid: a value does not fit its declared column, or is missing.
    """
    from pyarrow import fs, parquet

    system, place = fs.FileSystem.from_uri(folder)
    path, writer, rows = f"{place}/{name}", None, 0
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            if writer is None:
                system.create_dir(place, recursive=True)
                writer = parquet.ParquetWriter(path, declared, filesystem=system)
            writer.write_batch(conform(batch, declared))
            rows += batch.num_rows
    finally:
        if writer is not None:
            writer.close()
    if writer is None:
        return 0, 0
    if isinstance(system, fs.LocalFileSystem):
        force(path)
    return rows, int(system.get_file_info(path).size)


def force(path: str) -> None:
    """Force a local file to disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def conform(rows: pa.RecordBatch | pa.Table, declared: pa.Schema) -> pa.RecordBatch:
    """Return *rows* as one record batch of exactly the *declared* columns.

    Raises:
        pyarrow.ArrowInvalid: a value does not fit, or is null in a column that is not nullable.
    """
    columns = []
    for field in declared:
        column = rows.column(field.name)
        try:
            column = (column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column).cast(field.type)
        except pa.ArrowInvalid as error:
            raise pa.ArrowInvalid(f"the column {field.name!r} is declared as {field.type}: {error}") from None
        if not field.nullable and column.null_count:
            raise pa.ArrowInvalid(f"the column {field.name!r} has {column.null_count} empty values and must have none")
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=declared)
