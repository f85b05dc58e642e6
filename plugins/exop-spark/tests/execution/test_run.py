"""A query of a plan, without Spark."""

from types import SimpleNamespace

import pyarrow as pa
import pytest
from exop_spark.execution import run as module
from exop_spark.execution.run import Run
from exop_spark.plan import Plan


def test_closing_releases_spark_even_if_the_checkpoint_cannot_be_removed(monkeypatch):
    """Otherwise Spark would never stop."""
    released = []
    share = SimpleNamespace(engine=SimpleNamespace(), release=lambda: released.append(True))
    run = Run(Plan("sums", "SELECT 1", {}, pa.schema([])), share)
    run._scratch = "hdfs://away/checkpoint"

    def remove_folder(place):
        raise OSError(f"{place} does not answer")

    monkeypatch.setattr(module, "remove_folder", remove_folder)
    with pytest.raises(OSError, match="does not answer"):
        run.close()
    assert released == [True]
