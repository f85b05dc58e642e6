"""An existing streaming script runs unchanged as a slet: its ends are the ports."""

import sys
from pathlib import Path

import pyarrow as pa
import pytest
from exop_spark import EventTime, Input, script

from exop import EndOfStream, Punctuation
from exop.errors import EngineError, SletError

READINGS = pa.schema([("time", pa.int64()), ("sensor", pa.string()), ("value", pa.float64())])
MEANS = pa.schema([("until", pa.int64()), ("sensor", pa.string()), ("mean", pa.float64())])
SCRIPT = '''
"""Mean values for each sensor, from Kafka to the console."""
import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import avg, col, udf, unix_seconds, window


@udf("double")
def fahrenheit(value):
    return value * 1.8 + 32


def main():
    spark = SparkSession.builder.master("spark://elsewhere:7077").appName("means").getOrCreate()
    readings = spark.readStream.format("kafka").option("subscribe", sys.argv[1]).load()
    timed = readings.withWatermark("timestamp", "1 second").withColumn("value", fahrenheit("value"))
    means = timed.groupBy(window("timestamp", "10 seconds"), "sensor").agg(avg("value").alias("mean"))
    shown = means.select(unix_seconds(col("window.end")).alias("until"), "sensor", "mean")
    query = shown.writeStream.outputMode("append").format("console").option("checkpointLocation", "/nowhere").start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
'''


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The script."""
    place = tmp_path / "means.py"
    place.write_text(SCRIPT)
    return place


def means(path: Path, **given):
    """The slet."""
    settings = {"warm_up": 0, "watermark": "1 second", "arguments": ["readings"], **given}
    inputs = {"readings": Input(READINGS, EventTime("time", alias="timestamp"))}
    return script("means", path, out=MEANS, inputs=inputs, **settings)


def test_a_script_that_is_not_there_is_told(tmp_path: Path):
    """When the slet is made."""
    with pytest.raises(SletError, match=r"its script cannot be read: .*nothing.py"):
        means(tmp_path / "nothing.py")


@pytest.mark.edges
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_a_script_runs_unchanged(path: Path, out):
    """With its function, its window and its command line; the platform's own settings are as before."""
    before = list(sys.argv)
    with means(path)(out=out) as opened:
        arrays = [pa.array([3, 8, 12], pa.int64()), pa.array(["a"] * 3), pa.array([0.0, 10.0, 20.0])]
        opened.readings(pa.RecordBatch.from_arrays(arrays, schema=READINGS))
        opened.readings(Punctuation(11))
        out.wait_for(lambda: len(out.table()) == 1)
        opened.readings(EndOfStream())
        out.wait_for(lambda: out.ended)
    assert (out.table(), out.error) == ([(10, "a", 41.0), (20, "a", 68.0)], None)
    assert sys.argv == before


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("spark.stop()", "shown.writeStream.start()", "starts 2 queries"),
        (
            "spark.readStream.format",
            "spark.readStream.load(); spark.readStream.format",
            "more streams than the 1 inputs",
        ),
        ('outputMode("append")', 'outputMode("update")', "give the slet mode='update'"),
        ('"1 second"', '"9 seconds"', "give the slet watermark='9 seconds'"),
        ("spark.stop()", "sys.exit('no luck')", "has exited: no luck"),
    ],
)
def test_a_script_that_cannot_be_a_slet_is_refused(path: Path, old: str, new: str, problem: str):
    """With what to do about it."""
    path.write_text(SCRIPT.replace(old, new))
    with pytest.raises(EngineError, match=problem):
        means(path).deep_check({}, {})
