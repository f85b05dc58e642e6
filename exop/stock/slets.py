"""The stock slets without external resources, and the list of all stock slets."""

from __future__ import annotations

from typing import Any, TypeVar

from exop.model.slets.slet import slet
from exop.stock.aggregates import Aggregate
from exop.stock.asof import Asof
from exop.stock.event_time import Clock, Watermark
from exop.stock.joins import Join
from exop.stock.order import BSort, Dedupe, Delay, Ordered
from exop.stock.rows import Filter, Map, Number, Sample, Split
from exop.stock.sinks import WriteLines, WriteParquet, WriteSqlite
from exop.stock.sources import count_up, read_csv, read_lines, read_log, read_parquet
from exop.stock.text import Tokenize

T = TypeVar("T")


@slet
def pass_on(item: T) -> T:
    """Forward every item unchanged. Use it to merge the items of several channels."""
    return item


@slet
def show(item: Any) -> None:
    """Print every item on a separate line to stdout."""
    print(item, flush=True)  # noqa: T201 (its purpose)


_SOURCES = (count_up, Clock, read_lines, read_csv, read_log, read_parquet)
_ROWS = (pass_on, show, Filter, Map, Split, Tokenize, Number, Sample)
_ORDER = (BSort, Ordered, Dedupe, Delay)
STOCK = (*_SOURCES, *_ROWS, *_ORDER, Join, Asof, Watermark, Aggregate, WriteLines, WriteSqlite, WriteParquet)
