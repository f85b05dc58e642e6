"""Files of a folder as a stream: each once, by reference, also those that come later."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from exop import Application, Platform
from exop.engine import Reference
from exop.errors import SettingError
from exop.stock.files import Emitted, read_parquet
from exop.testing import check_source, feed
from tests.rig import collector, eventually


def write(folder: Path, name: str, *keys: int) -> Reference:
    """Write a file of rows."""
    parquet.write_table(pa.table({"key": pa.array(keys, pa.int64())}), folder / name)
    return Reference((folder / name).as_uri(), len(keys))


def test_each_file_is_emitted_once_in_the_order_of_the_names(tmp_path):
    """It goes on behind the files that it has emitted; unfinished and empty ones are skipped."""
    wanted = [[write(tmp_path, f"{number}.parquet", number, 7)] for number in (1, 2, 3)]
    write(tmp_path, "0.parquet")
    for name in (".4.parquet", "_5.parquet", "readme.txt"):
        write(tmp_path, name, 4)
    settings: dict[str, Any] = {"path": tmp_path, "columns": "key bigint"}
    assert check_source(read_parquet, **settings) == wanted
    emitted = Emitted(names=["1.parquet", "2.parquet", "gone.parquet"])
    assert feed(read_parquet, emitted=emitted, **settings) == wanted[2:]


def test_a_followed_folder_is_a_stream_of_rows(tmp_path):
    """New files are found; slets that name no references get the rows."""
    write(tmp_path, "a.parquet", 1, 2)
    app, seen = Application("a"), list[Any]()
    rows = app.add("files", "stock:read_parquet", path=tmp_path, columns="key bigint", follow=True)
    app.add("see", collector(seen), item=rows)
    with Platform() as platform:
        platform.apply(app.build())
        eventually(lambda: seen == [{"key": 1}, {"key": 2}])
        write(tmp_path, "b.parquet.new", 3)
        (tmp_path / "b.parquet.new").rename(tmp_path / "b.parquet")
        eventually(lambda: seen == [{"key": 1}, {"key": 2}, {"key": 3}])


def test_what_does_not_fit_is_an_error(tmp_path):
    """Other columns, by name or type; columns that nobody can read; no folder."""
    write(tmp_path, "a.parquet", 1)
    with pytest.raises(ValueError, match="a.parquet has the columns key int64, not key int32"):
        feed(read_parquet, path=tmp_path, columns="key int")
    with pytest.raises(SettingError, match="'key what' is no column"):
        Application("a").add("files", read_parquet, path=tmp_path, columns="key what")
    with pytest.raises(NotADirectoryError, match="correct the setting `path`"):
        feed(read_parquet, path=tmp_path / "none", columns="key int")
