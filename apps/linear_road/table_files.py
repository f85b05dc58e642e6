"""Writes tables of integers, atomically, as CSV (plain, .gz, .xz) or Parquet, chosen by the suffix of the file."""

from __future__ import annotations

import gzip
import lzma
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from exop.errors import ExopError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: Suffixes that promise a packing nobody here knows; any other than these and the known ones is plain CSV.
UNKNOWN_PACKINGS = {".zst", ".zip", ".bz2", ".lz4", ".7z", ".br"}
#: Three times as fast as the default, and the file is hardly larger.
XZ_LEVEL = 1


class UnwritableFile(ExopError):
    """A file that cannot be written: `path`, `problem`, `cure`."""

    template = "{path}: {problem}; {cure}"


class TableWriter(Protocol):
    """Takes a table piece by piece."""

    def write(self, rows: NDArray[np.int32]) -> None:
        """Append rows."""


@contextmanager
def table_file(path: Path, columns: Sequence[str]) -> Iterator[TableWriter]:
    """Write a file under a temporary name; it gets its own when the block ends well, and is removed when not."""
    _check(path)
    device = path.exists() and not path.is_file()  # a pipe or a device is written to, never replaced
    written = path if device else path.with_name(f".{path.name}.partial")
    try:
        with _Writer(written, path.suffix, columns) as writer:
            yield writer
        if not device:
            written.replace(path)
    except OSError as error:
        cure = "look at the directory, its permissions and the free space"
        problem = f"it cannot be written ({error.strerror or error})"
        raise UnwritableFile(path=path, problem=problem, cure=cure) from error
    finally:
        if not device:
            written.unlink(missing_ok=True)


def _check(path: Path) -> None:
    if path.suffix in UNKNOWN_PACKINGS:
        known = "known are .csv, .csv.gz, .csv.xz and .parquet"
        raise UnwritableFile(path=path, problem=f"{path.suffix} is no packing that is written here", cure=known)
    if not path.parent.is_dir():
        cure = f"make it: mkdir -p {path.parent}"
        raise UnwritableFile(path=path, problem=f"there is no directory {path.parent}", cure=cure)
    if path.is_dir():
        raise UnwritableFile(path=path, problem="this is a directory", cure="name a file in it")


class _Writer:
    """One open file; Arrow does the formatting, the standard library the packing."""

    def __init__(self, path: Path, suffix: str, columns: Sequence[str]) -> None:
        import pyarrow as pa  # here, so that a wrong option is told before a second has passed

        self._arrow: Any = pa
        self._schema = pa.schema([pa.field(column, pa.int32(), nullable=False) for column in columns])
        self._path, self._suffix = path, suffix
        self._closing = ExitStack()

    def __enter__(self) -> _Writer:
        with ExitStack() as opened:
            if self._suffix == ".parquet":
                from pyarrow import parquet

                self._sink: Any = opened.enter_context(parquet.ParquetWriter(self._path, self._schema))
            else:
                from pyarrow import csv

                options = csv.WriteOptions(include_header=False)
                stream = opened.enter_context(_packed(opened.enter_context(self._path.open("wb")), self._suffix))
                self._sink = opened.enter_context(csv.CSVWriter(stream, self._schema, write_options=options))
            self._closing = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def write(self, rows: NDArray[np.int32]) -> None:
        arrays = [self._arrow.array(column) for column in rows.T.copy()]
        self._sink.write_table(self._arrow.Table.from_arrays(arrays, schema=self._schema))


def _packed(raw: IO[bytes], suffix: str) -> Any:
    """Pack what is written to *raw*; no name and no time go into the file, so that equal traffic is equal bytes."""
    if suffix == ".gz":
        return gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=raw, mtime=0)
    return lzma.LZMAFile(raw, "wb", preset=XZ_LEVEL) if suffix == ".xz" else raw
