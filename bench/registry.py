"""What do a look-up and a registration cost, with 10 services and with 100 000?"""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from typing import Annotated, Any, TypeAlias, TypeVar

from bench.harness import Result, Side, compare, ratio_of, timed
from exop.registry import Registration, ServiceRegistry

Properties: TypeAlias = dict[str, Any]

Target = TypeVar("Target")

FLOOR = "plain dict index"
LISTENERS = 100


class DictIndex:
    """The floor: a plain inverted index per (property, value), whose smallest set is walked. Not safe, not typed."""

    def __init__(self) -> None:
        self.services: dict[int, Properties] = {}
        self.postings: dict[tuple[str, Any], dict[int, None]] = {}
        self.last = 0

    def register(self, properties: Properties) -> int:
        """Add a service; return its number."""
        self.last += 1
        self.services[self.last] = properties
        for term in properties.items():
            self.postings.setdefault(term, {})[self.last] = None
        return self.last

    def unregister(self, number: int) -> None:
        """Remove a service."""
        for term in self.services.pop(number).items():
            posting = self.postings[term]
            del posting[number]
            if not posting:
                del self.postings[term]

    def find(self, terms: tuple[tuple[str, Any], ...]) -> list[int]:
        """The numbers of the services that have all these (property, value)."""
        smallest = min((self.postings.get(term, {}) for term in terms), key=len)
        services = self.services
        return [number for number in smallest if all(services[number].get(name) == value for name, value in terms)]


def measure(
    *,
    services: Annotated[int, "how many services the big registry holds"] = 100_000,
    rounds: Annotated[int, "how many pairs of runs"] = 15,
) -> Iterator[Result]:
    """Measure look-ups by filter text, registering with unregistering, and memory."""
    for size in (10, services):
        registry, index = fill(ServiceRegistry(), into_registry, size), fill(DictIndex(), into_index, size)
        yield lookup(f"registry/lookup/{size}", registry, index, ("kind", "host", "name"), rounds)
    yield lookup(f"registry/lookup/name/{services}", registry, index, ("name",), rounds)
    floor = timed(lambda number: churn(number, index.register, index.unregister))
    plain = timed(lambda number: churn(number, into_registry(registry), Registration.unregister))
    yield compare("registry/register", "us", floor=floor, candidate=plain, against=FLOOR, rounds=rounds)
    yield anywhere("registry/register/anywhere", services, rounds)
    yield listened("registry/register/100-listeners", services, plain, rounds)
    yield memory("registry/memory", min(services, 10_000))


def describe(number: int) -> Properties:
    """The properties of one service: some that many share, and a name of its own."""
    kind = "slet" if number % 2 else "channel"
    return {"name": f"ch-{number}", "kind": kind, "host": f"h{number % 9}", "rank": number % 100}


def into_registry(registry: ServiceRegistry) -> Callable[[Properties], Any]:
    """Registers a service, given its properties."""
    return lambda properties: registry.register("bench.Channel", None, properties)


def into_index(index: DictIndex) -> Callable[[Properties], Any]:
    """The same for the floor."""
    return index.register


def fill(target: Target, registering: Callable[[Target], Callable[[Properties], Any]], size: int) -> Target:
    """Register *size* services in *target* and return it."""
    register = registering(target)
    for number in range(size):
        register(describe(number))
    return target


def lookup(name: str, registry: ServiceRegistry, index: DictIndex, asked: tuple[str, ...], rounds: int) -> Result:
    """Look up single services by the properties *asked*, a hundred of them in turns."""
    numbers = random.Random(7).sample(range(len(registry)), min(100, len(registry)))
    terms = [tuple((key, describe(number)[key]) for key in asked) for number in numbers]
    texts = [f"(&{''.join(f'({key}={value})' for key, value in each)})" for each in terms]
    if any(
        len(registry.find(None, text)) != 1 or len(index.find(each)) != 1
        for text, each in zip(texts, terms, strict=True)
    ):
        raise RuntimeError(f"{name}: a look-up does not find its one service")

    def ask_registry(number: int) -> None:
        for text in islice(cycle(texts), number):
            registry.find(None, text)

    def ask_index(number: int) -> None:
        for each in islice(cycle(terms), number):
            index.find(each)

    return compare(name, "us", floor=timed(ask_index), candidate=timed(ask_registry), against=FLOOR, rounds=rounds)


def churn(number: int, register: Callable[[Properties], Any], unregister: Callable[[Any], object]) -> None:
    """Register a service and unregister it, *number* times."""
    properties = describe(-1)
    for _ in range(number):
        unregister(register(properties))


def anywhere(name: str, services: int, rounds: int) -> Result:
    """Unregister services from anywhere in the registry, not just the newest, and register one for each."""
    registry, index = ServiceRegistry(), DictIndex()
    register = into_registry(registry)
    registrations = [register(describe(number)) for number in range(services)]
    numbers = [index.register(describe(number)) for number in range(services)]
    places = random.Random(7).choices(range(services), k=10_000)
    properties = describe(-1)

    def in_registry(count: int) -> None:
        for place in islice(cycle(places), count):
            registrations[place].unregister()
            registrations[place] = register(properties)

    def in_index(count: int) -> None:
        for place in islice(cycle(places), count):
            index.unregister(numbers[place])
            numbers[place] = index.register(properties)

    return compare(name, "us", floor=timed(in_index), candidate=timed(in_registry), against=FLOOR, rounds=rounds)


def listened(name: str, services: int, plain: Side, rounds: int) -> Result:
    """Register and unregister where a hundred listeners with filters listen, against the same without them."""
    registry = fill(ServiceRegistry(), into_registry, services)
    for number in range(LISTENERS):
        registry.listen(f"(&(kind=slet)(host=h{number % 9})(name=ch-{number}))", lambda event: None)
    busy = timed(lambda number: churn(number, into_registry(registry), Registration.unregister))
    return compare(name, "us", floor=plain, candidate=busy, against="no listeners", rounds=rounds)


def memory(name: str, services: int) -> Result:
    """What one service occupies, its properties included."""

    def occupied(new: Callable[[], Any], registering: Callable[[Any], Callable[[Properties], Any]]) -> float:
        tracemalloc.start()
        try:
            kept = fill(new(), registering, services)
            return tracemalloc.get_traced_memory()[0] / services if kept else 0.0
        finally:
            tracemalloc.stop()

    value, base = occupied(ServiceRegistry, into_registry), occupied(DictIndex, into_index)
    return Result(name, value, "B", FLOOR, ratio_of(value, base), [(value, base)])
