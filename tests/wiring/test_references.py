"""References to rows: whoever names them gets them, and everyone else the rows, on whatever way."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from exop import Application, Batch, Platform, Punctuation, slet
from exop.engine import Reference
from exop.errors import WiringError
from tests.rig import eventually

ROWS = pa.schema([("key", pa.int64())])
Files = Annotated[Batch[Reference], ROWS]
Rows = Annotated[pa.RecordBatch, ROWS]


def written(folder: Path, *keys: int) -> Reference:
    """A file of rows."""
    path = folder / f"{keys[0]}.parquet"
    parquet.write_table(pa.table({"key": keys}), path)
    return Reference(f"file://{path}", len(keys))


def source_of(*batches: list[Reference]) -> Any:
    """A source of references."""

    @slet
    def files() -> Iterator[Files | Punctuation]:
        yield from batches
        yield Punctuation(1)

    return files


SEEN: dict[str, list[Any]] = {}


@pytest.fixture(autouse=True)
def seen():
    """What each slet has noted."""
    SEEN.clear()
    SEEN.update({one.__name__: [] for one in (columns, items, lists, anything, names)})
    return SEEN


@slet
def columns(rows: Rows) -> None:
    """Note columns."""
    SEEN["columns"].append(rows.column("key").to_pylist())


@slet
def items(row: dict[str, int]) -> None:
    """Note rows."""
    SEEN["items"].append(row["key"])


@slet
def lists(rows: Batch[dict[str, int]]) -> None:
    """Note lists of rows."""
    SEEN["lists"].append([row["key"] for row in rows])


@slet
def anything(row: Any) -> None:
    """Note what comes."""
    SEEN["anything"].append(row)


@slet
def names(file: Reference) -> None:
    """Note references."""
    SEEN["names"].append(file.path.rpartition("/")[2])


@pytest.mark.parametrize("kind", ["direct", "queue"])
def test_each_port_gets_what_it_declares(tmp_path, kind, seen):
    """A batch of references is read as one batch of rows."""
    app = Application("a")
    channel = app.channel("files", kind)
    app.add("source", source_of([written(tmp_path, 1, 2), written(tmp_path, 3)], [written(tmp_path, 4)]), out=channel)
    for one in (columns, items, lists, anything, names):
        app.add(one.__name__, one, **{one.__slet__.inputs[0].name: channel})
    app.run()
    assert seen["columns"] == seen["lists"] == [[1, 2, 3], [4]]
    assert seen["items"] == [1, 2, 3, 4]
    assert seen["anything"] == [{"key": key} for key in (1, 2, 3, 4)]
    assert seen["names"] == ["1.parquet", "3.parquet", "4.parquet"]


@pytest.mark.parametrize(
    ("kind", "settings"),
    [("log", {}), ("table", {"key": "key"}), ("queue", {"by": "key"}), ("partitioned_log", {"by": "key"})],
)
def test_a_channel_that_looks_into_its_items_gets_the_rows(tmp_path, kind, settings, seen):
    """It stores them, or shares them out by a field; a port that names references does not fit there."""
    app = Application("a")
    channel = app.channel("files", kind, **settings)
    app.add("source", source_of([written(tmp_path, 1, 2), written(tmp_path, 3)]), out=channel)
    app.add("items", items, row=channel)
    app.run()
    assert sorted(seen["items"]) == [1, 2, 3]
    if not settings:
        with pytest.raises(WiringError, match="these are rows, and no references to them"):
            app.add("names", names, file=channel)


@pytest.mark.parametrize("kind", [columns, items], ids=["columns", "items"])
def test_a_pending_change_reads_the_rows_on_which_its_condition_depends(tmp_path, kind, seen):
    """It takes effect in the middle of a file."""

    @slet
    def shifted(row: dict[str, int], *, by: int = 0) -> dict[str, int]:
        return {"key": row["key"] + by}

    @slet
    def shifted_columns(rows: Rows, *, by: int = 0) -> Rows:
        return pa.record_batch({"key": [key + by for key in rows.column("key").to_pylist()]}, schema=ROWS)

    app = Application("a")
    files = app.add("source", source_of([written(tmp_path, 1, 2, 3), written(tmp_path, 4)]))
    both = {items: (shifted, "row"), columns: (shifted_columns, "rows")}
    slet_of, port = both[kind]
    app.add("see", items, row=app.add("shifted", slet_of, **{port: files}))
    with Platform() as platform:
        platform.apply(app.build().configure("shifted", by=10, when=f"{port}.key == 3"))
        platform.wait("a")
    assert seen["items"] == [1, 2, 13, 14]


def test_a_file_that_is_missing_suspends_the_slet_until_it_is_back(tmp_path, seen):
    """The error names the file; nothing is lost."""
    app = Application("a")
    lost = written(tmp_path, 1)
    Path(lost.path.removeprefix("file://")).rename(tmp_path / "away")
    app.add("columns", columns, rows=app.add("source", source_of([lost], [written(tmp_path, 2)])))
    with Platform() as platform:
        platform.apply(app.build())
        component = platform.deployment("a").components["columns"]
        eventually(lambda: component.error is not None)
        assert "1.parquet cannot be read" in str(component.error)
        (tmp_path / "away").rename(tmp_path / "1.parquet")
        platform.resume("a", "columns")
        platform.wait("a")
    assert seen["columns"] == [[1], [2]]
