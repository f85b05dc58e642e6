"""The application: every expected row once, with exact values, from files and from Kafka."""

import pytest
from exop_kafka import MockCluster

from apps import sensors as package
from apps.sensors import builder
from apps.sensors.builder import sensors
from apps.sensors.checker import compare, expected
from apps.sensors.feed import feed
from apps.sensors.readings import PARTITIONS, generate
from exop import Platform
from exop.errors import BuilderError
from exop.hooks import Plugins


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Eight minutes of forty sensors, with alarms and late readings."""
    made = tmp_path_factory.mktemp("readings")
    generate(made, sensors=40, minutes=8, seed=3)
    return made


@pytest.fixture(scope="module")
def wanted(folder):
    """The expected rows; there are some of each kind."""
    rows = expected(folder)
    assert all(rows.values())
    return rows


@pytest.mark.parametrize("aggregate", ["duckdb", "native"])
def test_files_are_exact_on_every_engine(folder, wanted, tmp_path, aggregate):
    """No row is lost, doubled or wrong, in a durable application."""
    known = Plugins()
    known.discover()
    known.register("sensors", package)
    with Platform(state=tmp_path / "state", control=False, plugins=known) as platform:
        sensors(folder=folder, output=tmp_path / "out.db", aggregate=aggregate, every=1.0).run(platform)
    assert all(one.right for one in compare(tmp_path / "out.db", wanted))


def test_a_topic_is_exact(folder, wanted, tmp_path):
    """The partitions of the topic are the files of the folder."""
    with MockCluster({"readings": PARTITIONS}) as cluster:
        feed(folder=folder, brokers=cluster.brokers).run()
        given = {"source": "kafka", "brokers": cluster.brokers, "follow": False}
        sensors(folder=folder, output=tmp_path / "out.db", aggregate="duckdb", **given).run()
    assert all(one.right for one in compare(tmp_path / "out.db", wanted))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"folder": "nowhere"}, r"nowhere.readings-0.csv does not exist.*apps.sensors.readings nowhere"),
        ({"output": "nowhere/out.db"}, r"the folder nowhere does not exist"),
        ({"source": "kafka"}, r"give brokers=HOST:PORT with source=kafka"),
        ({"brokers": "localhost:9092"}, r"with source=kafka only"),
        ({"speed": -1.0}, r"speed=-1.0 is not possible"),
        ({"aggregate": "flink"}, r"no engine 'flink'.*spark, duckdb, native"),
        ({"source": "http"}, r"no source 'http'.*files, kafka"),
    ],
)
def test_values_that_are_not_possible_are_refused(folder, tmp_path, wrong, message):
    """Each error names the value and the cure."""
    given = {"folder": folder, "output": tmp_path / "out.db", "aggregate": "duckdb"} | wrong
    given |= {name: type(tmp_path)(given[name]) for name in ("folder", "output")}
    with pytest.raises(BuilderError, match=message):
        sensors(**given)


def test_an_engine_that_is_not_installed_is_named_with_the_cure(folder, tmp_path, monkeypatch):
    """The error has the line to install it."""
    monkeypatch.setattr(builder, "find_spec", lambda name: None)
    with pytest.raises(BuilderError, match=r"run `pip install plugins/exop-duckdb` in"):
        sensors(folder=folder, output=tmp_path / "out.db", aggregate="duckdb")
