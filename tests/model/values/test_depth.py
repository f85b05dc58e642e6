"""One bound for nesting, of 100 levels: at the bound every format works on a small stack, beyond it each refuses."""

from __future__ import annotations

import functools
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest

from exop import Batch, Memento
from exop.bundle.manifest import read_manifest
from exop.errors import BundleError, MeshError, NotStorable, StoredStateError
from exop.model.slets.stored_memento import dump_memento, export_memento, import_memento, load_memento
from exop.model.types.conversion import convert, to_toml_value
from exop.model.values.depth import DEPTH, deep_place, read_toml
from exop.model.values.encoding import decode, encode
from exop.remoting.transport.codec import BadMessage
from exop.remoting.transport.codec import decode_message as received
from exop.remoting.transport.codec import encode_message as sent
from exop.runtime.log.disk import DiskLog
from exop.runtime.log.memory import Retention
from exop.runtime.log.reader import LogReader
from exop.runtime.supervision.failure_state import FailedItem

T = TypeVar("T")


@dataclass(frozen=True)
class Link:
    """A chain of dataclasses."""

    next: Any


class Pair(NamedTuple):
    """A chain of named tuples."""

    first: Any
    rest: Any


class Chain(Memento):
    """A state that is one chain."""

    head: Any = None


@dataclass
class Typed:
    """A chain whose annotations tell what it is."""

    next: Typed | None = None


class TypedChain(Memento):
    """A state that is a chain by its annotations."""

    head: Typed | None = None


KINDS: dict[str, Callable[[Any], Any]] = {
    "list": lambda inner: [inner],
    "tuple": lambda inner: (inner,),
    "dict": lambda inner: {"a": inner},
    "set": lambda inner: frozenset({inner}),
    "dataclass": Link,
    "named tuple": lambda inner: Pair(1, inner),
    "batch": lambda inner: Batch([inner]),
    "deque": lambda inner: deque([inner], 3),
    "defaultdict": lambda inner: defaultdict(list, {1: inner}),
    "ordered": lambda inner: OrderedDict(a=inner),
    "counter": lambda inner: Counter({"a": inner}),
    "key": lambda inner: {(1, inner) if isinstance(inner, int) else tuple(inner): 1},
    "memento": lambda inner: Chain(head=inner),
}


def nested(kind: Callable[[Any], Any], levels: int) -> Any:
    """A value of so many levels."""
    return functools.reduce(lambda inner, _: kind(inner), range(levels), 1)


def on_a_small_stack(call: Callable[[], T]) -> T:
    """Call it in a thread that has 512 kB."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append((call(), None))
        except BaseException as problem:  # noqa: BLE001 (it is raised again by who waits)
            found.append((None, problem))

    before = threading.stack_size(512 * 1024)
    try:
        thread = threading.Thread(target=run)
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    made, problem = found[0]
    if problem is not None:
        raise problem
    return made  # type: ignore[no-any-return]


def alternating(levels: int) -> Any:
    """Every kind in every other."""
    kinds = [kind for name, kind in KINDS.items() if name not in ("set", "key")]
    return functools.reduce(lambda inner, n: kinds[n % len(kinds)](inner), range(levels), 1)


@pytest.mark.parametrize("kind", [*KINDS, "alternating"])
def test_a_value_at_the_bound_and_beyond(kind: str) -> None:
    """100 levels come back; 101 are refused where they would be written, by their place, and where they are read."""
    make = alternating if kind == "alternating" else functools.partial(nested, KINDS[kind])
    if kind == "key":
        make = lambda levels: {nested(KINDS["tuple"], levels - 1): 1}  # noqa: E731
    # Compared by their bytes: nested counters compare in exponential time.
    assert on_a_small_stack(lambda: encode(decode(encode(make(DEPTH))))) == encode(make(DEPTH))
    with pytest.raises(NotStorable, match="is nested more than 100 levels deep") as refused:
        on_a_small_stack(lambda: encode(make(DEPTH + 1)))
    assert "the value at " in str(refused.value)
    deeper = encode(make(DEPTH + 1), levels=DEPTH + 1)
    with pytest.raises(StoredStateError, match="nested more than 100 levels deep"):
        on_a_small_stack(lambda: decode(deeper))


@pytest.mark.parametrize("levels", [230, 5000, 100_000])
def test_a_chain_without_end(levels: int) -> None:
    """However deep it is: neither the one who writes it nor the one who reads it crashes."""
    for kind in ("list", "tuple", "dataclass"):
        value = nested(KINDS[kind], levels)
        with pytest.raises(NotStorable, match="nested more than 100"):
            on_a_small_stack(lambda value=value: encode(value))  # type: ignore[misc]
        while isinstance(value, (list, tuple, Link)):  # taken apart by hand: Python itself would recurse
            value = value.next if isinstance(value, Link) else value[0]
    for data in (b"\x91" * levels + b"\x01", b"\x81\x01" * levels + b"\x01", b"\x81" * levels):
        with pytest.raises(StoredStateError):
            on_a_small_stack(lambda data=data: decode(data))  # type: ignore[misc]


def test_a_memento() -> None:
    """As a checkpoint keeps it, and as the file of an export, in either form; the field is named."""
    at = Chain(head=nested(KINDS["tuple"], DEPTH - 1))
    typed = TypedChain(head=functools.reduce(lambda inner, _: Typed(inner), range(DEPTH - 1), None))

    def there_and_back() -> None:
        assert load_memento(dump_memento(at, "a.b"), Chain, "a.b") == at
        for form in ("json", "msgpack"):
            for memento in (at, typed):
                assert import_memento(export_memento(memento, "a.b", form)[1], type(memento), "a.b") == memento  # type: ignore[arg-type]

    on_a_small_stack(there_and_back)
    beyond = Chain(head=nested(KINDS["tuple"], DEPTH))
    for write in (
        lambda: dump_memento(beyond, "a.b"),
        lambda: export_memento(beyond, "a.b"),
        lambda: export_memento(beyond, "a.b", "json"),
    ):
        with pytest.raises(NotStorable, match=r"^a\.b: the value at head\[0\]\[0\].*100 levels.*keep a chain as"):
            on_a_small_stack(write)


def test_a_file_of_a_memento() -> None:
    """JSON by hand that is nested too deeply, plainly or by tags, is refused by name."""
    text = '{"kind": "exop memento", "format": 1, "memento": "x:Chain", "version": 1, "fields": {"head": %s}}'
    inner = "1"
    for _ in range(DEPTH):
        inner = f'{{"$tuple": [{inner}]}}'
    brackets = '"]]\\"[[["'  # those in a text do not count
    for head in ("[" * DEPTH + brackets + "]" * DEPTH, inner, "[" * 100_000, "[" * 100_000 + "]" * 100_000):
        with pytest.raises(StoredStateError, match=r"nested more than 100 levels deep|is no JSON"):
            on_a_small_stack(lambda head=head: import_memento((text % head).encode(), Chain, "a.b"))  # type: ignore[misc]
    fits = "[" * (DEPTH - 1) + brackets + "]" * (DEPTH - 1)
    assert on_a_small_stack(lambda: import_memento((text % fits).encode(), Chain, "a.b")) is not None


def test_items(tmp_path: Path) -> None:
    """In a log, and in the file of a failed item; the batch around a row does not count."""
    at, beyond = nested(KINDS["tuple"], DEPTH), nested(KINDS["tuple"], DEPTH + 1)
    log = DiskLog(tmp_path / "log", Retention())

    def there_and_back() -> None:
        log.append([at])
        assert log.events(0, 1) == [[at]]
        with LogReader(tmp_path / "log") as reader:
            assert reader.read(0, 1) == [at]
        assert FailedItem.from_bytes(FailedItem(item=at).to_bytes()).item == at

    on_a_small_stack(there_and_back)
    for write in (lambda: log.append([beyond]), FailedItem(item=beyond).to_bytes):
        with pytest.raises(NotStorable, match="is nested more than 10[01] levels deep"):
            on_a_small_stack(write)
    data = FailedItem(item=at).to_bytes()
    harm = data.replace(encode(at), encode(beyond, levels=DEPTH + 1)) if len(encode(at)) < 256 else b""
    with pytest.raises(StoredStateError):
        on_a_small_stack(lambda: FailedItem.from_bytes(harm))
    log.close()


def test_toml() -> None:
    """A setting in a topology, a parameter as text, a property in `bundle.toml`."""
    lists, tables = "[" * DEPTH + "1" + "]" * DEPTH, "{a = " * DEPTH + "1" + "}" * DEPTH

    def there_and_back() -> None:
        assert convert(lists, list[Any]) == nested(KINDS["list"], DEPTH)
        for text in (lists, tables):
            value = read_toml(f"[nodes.a.settings]\nx = {text}")["nodes"]["a"]["settings"]["x"]
            assert to_toml_value("the setting", value) == value

    on_a_small_stack(there_and_back)
    with pytest.raises(MeshError, match="the setting is nested more than 100 levels deep"):
        on_a_small_stack(lambda: to_toml_value("the setting", nested(KINDS["list"], DEPTH + 1)))
    dotted = ".".join(["a"] * 2000)
    for deep in (f"[{lists}]", "[" * 5000, "{a=" * 5000 + "1" + "}" * 5000):
        with pytest.raises(ValueError, match="nested more than 101 levels deep|as TOML writes it"):
            on_a_small_stack(lambda deep=deep: convert(deep, list[Any]))  # type: ignore[misc]
        with pytest.raises(BundleError, match="that is no TOML"):
            on_a_small_stack(
                lambda deep=deep: read_manifest(f'name="a"\nversion="1"\n[properties]\nx = {deep * 20}', "a")  # type: ignore[misc]
            )
    with pytest.raises(BundleError, match="that is no TOML: it is nested more than"):
        on_a_small_stack(lambda: read_manifest(f"{dotted} = 1", "a"))


def test_control_messages() -> None:
    """What is sent and what has come, whatever its declared type leaves open."""
    value = nested(KINDS["list"], DEPTH)
    assert on_a_small_stack(lambda: received(sent(value), Any)) == value
    with pytest.raises(ValueError, match="nested more than"):
        on_a_small_stack(lambda: sent(nested(KINDS["list"], 200)))
    for data in (b"\x91" * 200 + b"\x01", b"\x91" * 100_000, b"\x81\xa1a" * 4000 + b"\x01"):
        with pytest.raises(BadMessage, match="nested|incomplete|"):
            on_a_small_stack(lambda data=data: received(data, Any))  # type: ignore[misc]


def test_the_place() -> None:
    """It leads through fields, keys and positions."""
    inner = nested(KINDS["list"], 3)
    assert deep_place({"head": Link(Pair(1, {"a b": inner}))}, 4) == "head.next.rest['a b']"
    assert deep_place({"head": inner}, 4) is None


@pytest.mark.parametrize("parts", [1, 2000])
def test_large_values_are_looked_at_as_well(parts):
    """The bound also holds beside large data, whether it is in few parts or in many."""
    large: Any = [bytes(2_000_000 // parts)] * parts
    chain: Any = functools.reduce(lambda inner, _: [inner], range(DEPTH - 1), None)
    assert decode(encode([large, chain])) == [large, chain]
    with pytest.raises(NotStorable, match="nested more than 100 levels deep"):
        encode([large, [chain]])
