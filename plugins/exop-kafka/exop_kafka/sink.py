"""`kafka:write`: a sink that writes every item as a record, at least once, with keys for de-duplication."""

from __future__ import annotations

from dataclasses import field
from typing import Any, ClassVar, Self

from exop import EndOfStream, Slet, input_port
from exop.runtime.channels.partitioned import key_reader

from .source import Record


class WriteKafka(Slet, name="write"):
    """Write every item as a record of a topic.

    A `Record` is written with its key, time and headers. Other items are the value of a record: bytes unchanged, text
    as UTF-8, and items with fields as JSON. A checkpoint waits until all records before it are acknowledged, so that
    nothing is lost. After a crash, the records since the last checkpoint are written once more; a reader that keeps the
    last record of each key is not affected.

    Args:
        topic: The name of the topic.
        brokers: The addresses of some brokers, `HOST:PORT,HOST:PORT`.
        key: The field of the items that is the key of the record; empty for none. Records with one key are in one
            partition, in order.
        patience: The seconds for which a checkpoint, a change or the end waits for acknowledgements.
        client: Further settings of librdkafka, such as `compression.type`.
    """

    topic: str
    brokers: str
    key: str = ""
    patience: float = 10.0
    client: dict[str, str] = field(default_factory=dict)
    reopens: ClassVar[bool] = True

    def __enter__(self) -> Self:
        # Imported lazily: an application without Kafka does not load its client.
        from .writer import opened

        self._writer, _ = opened("kafka:write", self.topic, self.brokers, self.client)
        self._key = key_reader(self.key)
        return self

    def __exit__(self, *exc: object) -> None:
        self._writer.close(self.patience)

    @input_port
    def item(self, item: Any | EndOfStream) -> None:
        """Take one item."""
        if isinstance(item, EndOfStream):
            self.flush()
        elif isinstance(item, Record):
            more: dict[str, Any] = {"timestamp": item.time} if item.time >= 0 else {}
            self._send(item.value, item.key, **more, **({"headers": [*item.headers]} if item.headers else {}))
        else:
            self._send(self._writer.encoded(item), self._writer.key(self._key(item)))

    def flush(self) -> None:
        """Wait for acknowledgements before a checkpoint counts the records as written, and before a replacement."""
        self._writer.deliver(self.patience)

    def make_visible(self) -> None:
        """Serve the client while no items arrive."""
        self._writer.serve()

    def metrics(self) -> dict[str, int | float | str]:
        """Return the number of records, and of those without an acknowledgement."""
        writer = self._writer
        found: dict[str, int | float | str] = {"records": writer.records, "unacknowledged": writer.unacknowledged}
        return {**found, "waiting": writer.link.waiting} if writer.link.waiting else found

    def _send(self, value: bytes | None, key: bytes | None, **more: Any) -> None:
        while True:
            try:
                self._writer.send(value, key, **more)
            except BufferError:  # back-pressure: the brokers are slow, or away
                self._writer.wait()
            else:
                return
