"""The reference of figures names what a running platform reports, and nothing else."""

from __future__ import annotations

import re

import pytest

from exop import Application, Platform, Slet, input_port
from exop.cli.commands.monitoring import prometheus_text
from exop.cli.view import RUN, TOP
from exop.runtime.channels import BUILT_IN, Inbox, Outbox, Reader
from tests.docs.snippets import ROOT

PAGE = (ROOT / "docs" / "reference" / "figures.md").read_text(encoding="utf-8")


def documented(heading: str) -> set[str]:
    """The names in the first cells of the tables under a heading."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return {name for cell in re.findall(r"^\| ([^|]*)", section, re.MULTILINE) for name in re.findall(r"`(.*?)`", cell)}


class Metered(Slet):
    """A slet with a figure of its own."""

    @input_port
    def item(self, item: int) -> int:
        """Pass it on."""
        return item

    def metrics(self) -> dict[str, int]:
        """One figure."""
        return {"gauge": 1}


@pytest.fixture(scope="module")
def platform(tmp_path_factory):
    """A platform on which an application with a channel of every kind has ended."""
    app = Application("figures")
    settings = {"window": {"count": 2}, "table": {"key": "real"}, "log": {"path": tmp_path_factory.mktemp("log")}}
    settings["partitioned_log"] = {"by": "real", "path": tmp_path_factory.mktemp("logs")}
    source = app.add("source", "stock:count_up", to=3)
    for kind in BUILT_IN:
        channel = app.channel(kind.kind, kind.kind, **settings.get(kind.kind, {}))
        app.add(f"to-{kind.kind}", Metered, item=source, out=channel)
        app.add(f"from-{kind.kind}", "stock:pass_on", item=channel)
    with Platform() as platform:
        platform.apply(app.build())
        platform.wait("figures")
        yield platform


def test_the_figures_of_nodes(platform):
    """Those of `metrics()`, and of the status."""
    nodes = platform.metrics("figures", quantiles=True)["nodes"].values()
    found = {name for node in nodes for name in node}
    assert documented("Nodes") == found
    status = platform.status("figures")["nodes"].values()
    assert {name for node in status for name in node["metrics"]} <= found


def test_the_figures_of_channels(platform):
    """Of every kind, also those of remote connectors; `trouble` is there when something is wrong."""
    status = platform.status("figures")
    described = {"schema", "by", "partitions", "groups", "reason"}
    parts = (*status["channels"].values(), *status["inserted"].values())
    connectors = (
        Outbox("out", peer="b", key="key").metrics(),
        Inbox("in", peer="b", key="key").metrics(),
        Reader("read", peer="b", channel="rows", reads="table").metrics(),
    )
    assert documented("Channels") == {name for one in (*parts, *connectors) for name in one} - described | {"trouble"}


def test_the_figures_of_applications(platform, tmp_path):
    """Those of `metrics()`; and of a durable application those of its checkpoints."""
    assert set(platform.metrics("figures")) <= documented("Applications")
    app = Application("durable")
    app.add("shown", "stock:pass_on", item=app.add("source", "stock:count_up", to=1))
    app.durable(60)
    with Platform(state=tmp_path) as durable:
        durable.apply(app.build())
        durable.wait("durable")
        figures = {f"checkpoints.{name}" for name in durable.status("durable")["checkpoints"]}
    assert {name for name in documented("Applications") if name.startswith("checkpoints.")} == figures


def test_the_columns_of_tables():
    """Those of `exop top` and of a run."""
    assert documented("Columns of tables") == {*TOP, *RUN}


def test_the_metrics_of_prometheus(platform):
    """Every family; those of channels by one row."""
    families = re.findall(r"^# TYPE (\w+) (\w+)$", prometheus_text(platform.metrics(quantiles=True)), re.MULTILINE)
    found = {"exop_channel_…" if name.startswith("exop_channel_") else name: kind for name, kind in families}
    rows = re.findall(r"^\| `(exop_[^`]*)` \| (\w+) \|", PAGE, re.MULTILINE)
    timed = {"exop_service_seconds": "summary", "exop_latency_seconds": "summary"}  # if a sample was taken
    assert dict(rows) == found | timed
