"""A query that is tried on a copy of a state, without Spark."""

from types import SimpleNamespace
from unittest.mock import Mock

import pyarrow as pa
import pytest
from exop_spark.errors import QueryFailed, SparkError
from exop_spark.execution.run import Run
from exop_spark.plan import Plan
from exop_spark.slets import dry_run as module


@pytest.mark.parametrize("durable", [True, False])
def test_the_copy_of_a_state_on_disk_is_on_disk(tmp_path, monkeypatch, durable):
    """It may be too large for the memory, in which the states of other queries are. It is removed in any case."""
    disk, memory = tmp_path / "disk", tmp_path / "memory"
    (disk / "spark" / "commits").mkdir(parents=True)
    (disk / "spark" / "commits" / "3").touch()
    memory.mkdir()
    plan = Plan("sums", "SELECT 1", {}, pa.schema([]))
    run = Run(plan, SimpleNamespace(engine=SimpleNamespace(checkpoint=lambda _: memory)))
    run.directory = disk / "spark"
    monkeypatch.setattr(Run, "active", True)
    places = []

    def attempt(plan, master, place, tie):
        assert (place / "spark" / "commits" / "3").exists()
        places.append(place)

    monkeypatch.setattr(module, "_attempt", attempt)
    old = SimpleNamespace(engine=run, tie=SimpleNamespace(directory=disk if durable else None))
    new = SimpleNamespace(plan=lambda: plan, master="local")
    assert "as of micro-batch 3" in module.dry_run(old, new)
    assert [disk in places[0].parents, places == [memory]] == [durable, not durable]
    assert not places[0].exists()


def test_a_spark_that_is_too_busy_does_not_count_as_one_that_refuses_the_state(monkeypatch):
    """The plan names the cures."""
    monkeypatch.setattr(module, "_PATIENCE", 0.0)
    monkeypatch.setattr(module, "Run", Mock())
    monkeypatch.setattr(module, "lease", Mock())
    with pytest.raises(SparkError, match=r"within 0 s; try again when Spark is less busy, or set dry_run=") as found:
        module._attempt(Plan("sums", "SELECT 1", {}, pa.schema([])), "local", None, Mock())
    assert not isinstance(found.value, QueryFailed)
