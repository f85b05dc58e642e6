"""`write_parquet`: a folder of Parquet files, one for each checkpoint, each there whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Self

from exop.model.items import EndOfStream
from exop.model.slets.slet import input_port
from exop.stock.held import HoldingSink


class WriteParquet(HoldingSink, name="write_parquet"):
    """Write the items as rows of Parquet files in a folder: their fields are the columns.

    In a durable application each checkpoint with new items makes one file, exactly once; otherwise every `lot` items
    do. Files are called `RUN-NUMBER.parquet`, and never change.
    """

    path: Path
    lot: int = 100_000

    def __enter__(self) -> Self:
        super().__enter__()
        self._arrow, self._parquet = _libraries()
        self.path.mkdir(parents=True, exist_ok=True)
        self.check_place(self.path)
        return self

    @input_port
    def item(self, item: Any | EndOfStream) -> None:
        """Take one item."""
        self.take(item)

    def put_out(self, run: str, number: int, rows: list[dict[str, Any]]) -> None:
        """Write the file beside its place, and put it there when the disk has it."""
        place = self._place(run, number)
        unfinished = place.with_name(f".{place.name}.unfinished")
        self._parquet.write_table(self._arrow.Table.from_pylist(rows), unfinished)
        for path in (unfinished, self.path):
            number_of_file = os.open(path, os.O_RDONLY)
            try:
                os.fsync(number_of_file)
            finally:
                os.close(number_of_file)
            if path is unfinished:
                os.replace(unfinished, place)

    def last_out(self, run: str) -> int:
        """The number of the last file."""
        names = (path.stem.partition("-")[2] for path in self.path.glob(f"{run[:8]}-*.parquet"))
        return max((int(number) for number in names if number.isdecimal()), default=0)

    def is_out(self, run: str, number: int) -> bool:
        """Whether the file is there."""
        return self._place(run, number).exists()

    def _place(self, run: str, number: int) -> Path:
        return self.path / f"{run[:8]}-{number:08d}.parquet"


def _libraries() -> tuple[Any, Any]:
    """The libraries, which a platform without columns runs without.

    Raises:
        ImportError: they are not installed.
    """
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as problem:
        cure = "install it with: pip install 'exop[columns]'"
        raise ImportError(f"write_parquet needs pyarrow, which is not installed; {cure}") from problem
    return pa, parquet
