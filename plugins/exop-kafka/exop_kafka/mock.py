"""A Kafka cluster in this process for tests and examples: the mock of librdkafka, with the real protocol on loopback.

It keeps 5 MiB of each partition, in memory, and has no transactions. `python -m exop_kafka.mock numbers:4` runs one
until its input ends, and prints the address.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import sys
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, Self

import confluent_kafka

_PRODUCER, _POINTER = 0, ctypes.c_void_p
#: Seconds before each request to the cluster: it may process a request that follows another one at once a second later.
_REST: Final = 0.01
#: The return type of each function of the library.
_RESULTS: dict[str, Any] = {
    "conf_new": _POINTER,
    "conf_set": ctypes.c_int,
    "destroy": None,
    "mock_broker_set_down": ctypes.c_int,
    "mock_broker_set_up": ctypes.c_int,
    "mock_cluster_bootstraps": ctypes.c_char_p,
    "mock_cluster_destroy": None,
    "mock_cluster_new": _POINTER,
    "mock_push_request_errors_array": None,
    "mock_topic_create": ctypes.c_int,
    "new": _POINTER,
}


class MockCluster:
    """A mock cluster, which runs while the `with` block does.

    Attributes:
        brokers: The addresses of the brokers.
    """

    brokers: str

    def __init__(self, topics: Mapping[str, int] | None = None, *, brokers: int = 1) -> None:
        self._topics, self._number = topics or {}, brokers

    def __enter__(self) -> Self:
        settings = _call("conf_new")
        _call("conf_set", settings, b"log_level", b"0", None, ctypes.c_size_t(0))
        self._client = _POINTER(_call("new", _PRODUCER, _POINTER(settings), None, ctypes.c_size_t(0)))
        self._cluster = _POINTER(_call("mock_cluster_new", self._client, self._number))
        self.brokers = _call("mock_cluster_bootstraps", self._cluster).decode()
        for topic, partitions in self._topics.items():
            self.create(topic, partitions)
        return self

    def __exit__(self, *exc: object) -> None:
        self._ask("cluster_destroy")
        _call("destroy", self._client)

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic."""
        self._ask("topic_create", topic.encode(), partitions, 1)

    def down(self) -> None:
        """Close the connections to all brokers, and accept none."""
        for number in range(1, self._number + 1):
            self._ask("broker_set_down", number)

    def refuse_writes(self, error: int, times: int = 1) -> None:
        """Answer the next requests to write with this error code of Kafka's protocol."""
        codes = (ctypes.c_int * times)(*[error] * times)
        self._ask("push_request_errors_array", ctypes.c_int16(0), ctypes.c_size_t(times), codes)

    def up(self) -> None:
        """Accept connections again."""
        for number in range(1, self._number + 1):
            self._ask("broker_set_up", number)

    def _ask(self, request: str, *arguments: Any) -> None:
        time.sleep(_REST)
        _call(f"mock_{request}", self._cluster, *arguments)


def _call(name: str, *arguments: Any) -> Any:
    function = getattr(_library(), f"rd_kafka_{name}")
    function.restype = _RESULTS[name]
    given = [_POINTER(one) if type(one) is int and one > 2**31 else one for one in arguments]
    found = function(*given)
    if _RESULTS[name] is ctypes.c_int and found:
        raise OSError(f"rd_kafka_{name} has failed with {found}")
    return found


@cache
def _library() -> ctypes.CDLL:
    """Return the librdkafka of confluent-kafka, or that of the machine."""
    package = Path(confluent_kafka.__file__).parent
    there = [*package.with_name("confluent_kafka.libs").glob("librdkafka*"), *package.glob(".dylibs/librdkafka*")]
    name = str(there[0]) if there else ctypes.util.find_library("rdkafka")
    if name is None:
        raise OSError("librdkafka was not found: the mock cluster needs a wheel of confluent-kafka, or the library")
    return ctypes.CDLL(name)


def main() -> None:
    """Run a cluster until the input ends."""
    topics = {name: int(number or 1) for name, _, number in (one.partition(":") for one in sys.argv[1:])}
    with MockCluster(topics) as cluster:
        sys.stdout.write(f"{cluster.brokers}\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main()
