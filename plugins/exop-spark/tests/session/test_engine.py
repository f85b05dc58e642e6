"""The Spark of this process, without one."""

import threading
from types import SimpleNamespace

from exop_spark.session.engine import Spark


def test_outputs_are_connected_one_at_a_time():
    """The first one starts the server to which Java calls back, and another one would not wait for it."""
    spark = object.__new__(Spark)
    spark._lock = threading.Lock()
    locked = []
    writer = SimpleNamespace(foreachBatch=lambda function: locked.append(spark._lock.locked()))
    spark.deliver(SimpleNamespace(writeStream=writer), plan=None, checkpoint="", put_out=lambda *batch: True)
    assert locked == [True]
