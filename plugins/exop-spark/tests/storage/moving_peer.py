"""A platform in a process of its own, with a query on Spark: `python moving_peer.py ADDRESS` links it with another."""

import sys
from typing import Any

import pyarrow as pa
from exop_spark import EventTime, Input, aggregate, query

from exop import Platform, hookimpl
from exop.hooks import Plugins

ROWS = pa.schema([pa.field("time", pa.int32(), nullable=False), pa.field("value", pa.int32())])
WINDOWS = """
SELECT CAST(unix_seconds(window.end) AS INT) AS time, CAST(sum(value) AS INT) AS value
FROM rows GROUP BY window(event, '10 seconds')
"""
sums = query("sums", WINDOWS, inputs={"rows": Input(ROWS, EventTime("time"))}, out=ROWS, warm_up=0)


class Offered:
    """The slets of the plugin of this test."""

    def __init__(self, *slets: Any) -> None:
        self.slets = list(slets)

    @hookimpl
    def register_slets(self) -> list[Any]:
        """Offer them."""
        return self.slets


def platform(name: str, *slets: Any, **options: Any) -> Platform:
    """Make a platform that has the query, the aggregate, and these slets."""
    plugins = Plugins()
    plugins.register("moving", Offered(sums, aggregate, *slets))
    return Platform(name=name, control=False, plugins=plugins, **options)


if __name__ == "__main__":
    with platform("b", peers={"a": sys.argv[1]}):
        sys.stdin.read()
