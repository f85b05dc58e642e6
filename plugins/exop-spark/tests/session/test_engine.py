"""The Spark of this process, without one."""

import threading
from contextlib import ExitStack
from types import SimpleNamespace

from exop_spark.session import engine
from exop_spark.session.engine import Spark, _Shared
from exop_spark.session.scratch import shared


def test_outputs_are_connected_one_at_a_time():
    """The first one starts the server to which Java calls back, and another one would not wait for it."""
    spark = object.__new__(Spark)
    spark._lock = threading.Lock()
    locked = []
    writer = SimpleNamespace(foreachBatch=lambda function: locked.append(spark._lock.locked()))
    spark.deliver(SimpleNamespace(writeStream=writer), plan=None, checkpoint="", put_out=lambda *batch: True)
    assert locked == [True]


def test_the_checkpoints_of_a_lost_spark_are_there_for_the_next_one(monkeypatch):
    """A query that has failed with it continues with its checkpoint when a setting is changed."""
    spark = object.__new__(Spark)
    spark.master, spark._lost, spark._opened = "local[2]", True, ExitStack()
    all_shares = _Shared()
    all_shares._engine = spark
    place = spark.checkpoint()
    monkeypatch.setattr(engine, "_spark", lambda _: SimpleNamespace(master="local[2]", answers=lambda: True))
    assert all_shares.take("local[2]").engine is not spark
    assert place.is_dir()
    assert place.parent == shared().path
    place.rmdir()
