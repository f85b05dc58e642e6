"""The Python data source by which Spark's tasks read a native channel: a log on a shared disk, or a Kafka topic.

Pickled by value together with `records`, `source` and `wire`. A task that reads a log needs ExoP in its Python, one
that reads a topic confluent-kafka and msgspec; neither gets rows from the platform.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from . import wire
from .records import CURE, Record, Refused, decoder, problem_with
from .source import BATCH_ROWS, POLL_SECONDS, FeedPartition, FeedReader, numbered, plain

#: Seconds without a record after which a task that reads a topic fails.
TIMEOUT = 60.0


class Slice(FeedPartition):
    """A range of one partition for a task: the rows from *start* up to, and without, *end*."""

    def __init__(self, reference: Mapping[str, Any], partition: str, start: int, end: int) -> None:
        super().__init__(start, end)
        self.reference = dict(reference)
        self.partition = partition


class Marker(InputPartition):
    """A marker for a task: one row, which only moves the watermark."""

    def __init__(self, moment: float) -> None:
        super().__init__(None)
        self.moment = moment


class NativeReader(FeedReader):
    """Asks the platform for the ends of the partitions; its copies in the tasks read the partitions."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the offset before the first micro-batch, from which the platform decides where to begin."""
        return {}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next micro-batch, after a wait for rows."""
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        answer, _ = self._ask({"ask": "latest", "start": start, "limit": most, "timeout": POLL_SECONDS})
        return dict(answer["end"])

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the end of the channel, for Spark's own progress report."""
        return dict(self._ask({"ask": "end"})[0]["end"])

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Any]:
        """Return a range for each partition with new rows, and a marker if the watermark has to move."""
        answer, _ = self._ask({"ask": "plan", "end": end})
        if not start:
            return []
        reference = answer["reference"]
        places = reference.pop("partitions", {})
        found: list[FeedPartition] = []
        for part, after in end["at"].items():
            first = start["at"].get(part, 0)
            if after > first:
                here = {**reference, "place": places[part]} if part in places else reference
                found.append(Slice(here, part, first, after))
        marker = [Marker(end["moment"])] if end["mark"] > start["mark"] else []
        return [*self._signed(found), *marker]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a range, or make the row of a marker; called in a task."""
        from pyspark.sql.pandas.types import to_arrow_schema

        assert self._schema is not None
        schema = to_arrow_schema(self._schema, timezone="UTC")
        if isinstance(partition, Marker):
            time = self._options["time"]
            values = {name: [partition.moment if name == time else None] for name in schema.names[:-1]}
            yield numbered(pa.RecordBatch.from_pydict(values, schema=plain(schema)), schema, -1)
            return
        one = cast("Slice", partition)
        if one.reference["format"] == "log":
            rows = read_log(one, plain(schema))
        else:
            rows = read_topic(one, plain(schema), lambda refused: self._omit(one, refused))
        for batch in _together(rows):
            yield numbered(batch, schema, 0)
        self._report(one)

    def _omit(self, part: Slice, refused: list[Refused]) -> bool:
        """Tell the platform which records are not rows; return whether the policy of the slet omits them."""
        with self._connected() as connection:
            wire.ask(connection, self._request("omit", part))
            answer, _ = wire.ask(connection, {}, msgspec.msgpack.encode(refused))
        return bool(answer["omitted"])

    def commit(self, end: dict[str, Any]) -> None:
        """Tell the platform what Spark has committed."""
        self._ask({"ask": "commit", "end": end})


class NativeSource(DataSource):
    """`spark.readStream.format("exop-native")`: a channel of a platform, read by the tasks."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "exop-native"

    def streamReader(self, schema: StructType) -> NativeReader:  # noqa: N802
        """Return the reader for these options and columns."""
        return NativeReader(dict(self.options), schema)


def read_log(ticket: Slice, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Read a range of a log on disk.

    Raises:
        ValueError: the log ends before the range does.
    """
    from pathlib import Path

    from exop.model.items import CONTROL
    from exop.runtime.dataflow.batches import cut, weight
    from exop.runtime.log.memory import Position
    from exop.runtime.log.reader import LogReader

    with LogReader(Path(ticket.reference["place"])) as log:
        place = Position(ticket.start)
        while place.offset < ticket.end:
            found, after = log.events(place, min(BATCH_ROWS, ticket.end - place.offset))
            if after == place:
                raise ValueError(f"the log {ticket.reference['place']} ends at row {place.offset}, not {ticket.end}")
            offset, place = place.offset, after
            for payload in found:
                if isinstance(payload, CONTROL) or offset >= ticket.end:
                    continue
                size = weight(payload)
                whole = payload if offset + size <= ticket.end else cut(payload, 0, ticket.end - offset)
                offset += size
                yield _as_columns(whole, schema)


def read_topic(
    ticket: Slice, schema: pa.Schema, omit: Callable[[list[Refused]], bool] = lambda _: False
) -> Iterator[pa.RecordBatch]:
    """Read a range of a partition of a Kafka topic, whose values are JSON objects; records without a value are no rows.

    *omit* gets the records that are something else, and returns whether they are left out.

    Raises:
        ValueError: the broker does not answer, or refuses; or a record is something else, and not left out.
    """
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    reference = ticket.reference
    fixed = {"bootstrap.servers": reference["brokers"], "group.id": "exop", "enable.auto.commit": False}
    consumer = Consumer(
        {**reference.get("client", {}), **fixed, "auto.offset.reset": "error", "enable.partition.eof": True}
    )
    place = TopicPartition(reference["topic"], int(ticket.partition), ticket.start)
    try:
        consumer.assign([place])
        at = ticket.start
        while at < ticket.end:
            first = consumer.poll(TIMEOUT)  # `consume` alone would wait for a full batch
            if first is None:
                place = f"{reference['topic']!r}, partition {ticket.partition}, from offset {at} on"
                cure = "start the brokers, and change a setting of the slet (`exop configure`)"
                raise ValueError(f"no record of {place}, came within {TIMEOUT:g} s; {cure}")
            records, found = list[Record](), [first, *consumer.consume(BATCH_ROWS - 1, 0)]
            for record in found:
                problem = record.error()
                if problem is None:
                    at = record.offset() + 1
                    if record.offset() < ticket.end and record.value() is not None:
                        records.append((record.offset(), record.value()))
                elif problem.code() == KafkaError._PARTITION_EOF:  # the last offsets may be marks of transactions
                    at = max(at, record.offset())
                else:
                    raise ValueError(f"the topic {reference['topic']!r} cannot be read: {problem.str()}")
            if records:
                yield _checked(records, schema, ticket, omit)
    finally:
        consumer.close()


def _checked(
    records: list[Record], schema: pa.Schema, ticket: Slice, omit: Callable[[list[Refused]], bool] = lambda _: False
) -> pa.RecordBatch:
    """Return the rows of records, without those that *omit* takes."""
    rows, refused = decoder(schema)(records)
    if refused and not omit(refused):
        raise ValueError(f"{problem_with(ticket.reference['topic'], ticket.partition, refused[0])}; {CURE}")
    return pa.concat_batches(rows or [pa.RecordBatch.from_pylist([], schema=schema)])


def _as_columns(payload: Any, schema: pa.Schema) -> pa.RecordBatch:
    """Return a stored batch with the columns of *schema*; a value that does not fit is refused, as by the platform."""
    from exop.model.slets.ports import PortType
    from exop.runtime.dataflow.batches import to_columns

    return to_columns(payload, PortType(pa.RecordBatch, "columns", schema)).select(schema.names)


def _together(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join small batches: each costs Spark as much as a large one."""
    waiting, rows = list[pa.RecordBatch](), 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= BATCH_ROWS:
            yield pa.concat_batches(waiting)
            waiting, rows = [], 0
    if waiting:
        yield pa.concat_batches(waiting)
