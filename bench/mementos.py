"""Does reading hostile bytes as a memento, an item, a message, a file or a bundle do any harm?

Every case makes one input: a sound one that is changed, or one that is made of hostile parts. A child process decodes
it in a thread with a stack of 512 kB. The outcome is a value or an `ExopError`; another exception, an import, a process
or file that the input causes, ten seconds of CPU and the death of the child are failures.
"""

from __future__ import annotations

import atexit
import enum
import io
import json
import multiprocessing
import random
import resource
import sys
import threading
import time
import traceback
import zipfile
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple
from zoneinfo import ZoneInfo

import msgpack
import numpy as np
import pyarrow as pa

from bench.cases import carry_out
from bench.harness import Result
from exop import Batch, Memento
from exop.bundle.manifest import read_manifest
from exop.bundle.store import read_archive
from exop.errors import ExopError
from exop.model.meshes.mesh import Mesh
from exop.model.slets.memento import check_fields, check_parts
from exop.model.slets.stored_memento import declared_by, dump_memento, export_memento, header, import_memento
from exop.model.types.conversion import convert
from exop.model.values.encoding import MARK, Tag, decode, encode, fields_of, zones
from exop.remoting.api.management import Management
from exop.remoting.api.service import ManagementService
from exop.remoting.api.wire_types import WIRE
from exop.remoting.transport import codec
from exop.remoting.transport.codec import NoRequest
from exop.remoting.transport.operation import operations
from exop.runtime.supervision.failure_state import FailedItem

#: Seconds of CPU that one input may take, and the address space of the child.
SLOWEST, MEMORY = 10.0, 12 * 2**30
#: The events that reading must not cause, by the beginnings of the names that `sys.audit` reports.
FORBIDDEN: Final = ("import", "os.", "subprocess", "socket", "tempfile", "shutil", "ctypes", "pty")


class Colour(enum.Flag):
    """Members that combine."""

    RED = 1
    BLUE = 2


class Pair(NamedTuple):
    """A named tuple."""

    left: int
    right: Any = None


@dataclass
class Order:
    """A dataclass with a nested one, and a default that is made."""

    price: Decimal = Decimal(0)
    next: Order | None = None
    tags: list[str] = field(default_factory=list)


class State(Memento):
    """A state with a bit of everything."""

    by_segment: dict[int, list[float]] = field(default_factory=dict)
    keyed: dict[tuple[int, str], Pair] = field(default_factory=dict)
    seen: set[frozenset[int]] = field(default_factory=set)
    orders: deque[Order] = field(default_factory=deque)
    colour: Colour = Colour.RED
    at: datetime | None = None
    counts: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    cells: np.ndarray | None = None
    rows: pa.Table | None = None
    anything: Any = None


SOUND: Final = State(
    by_segment={n: [n / 2, 1e300] for n in range(5)},
    keyed={(1, "a"): Pair(2**70, (1, (2, ())))},
    seen={frozenset({1, 2})},
    orders=deque([Order(Decimal("1.5"), Order(tags=["x"]))], 3),
    colour=Colour.RED | Colour.BLUE,
    at=datetime(2026, 1, 2, tzinfo=ZoneInfo("Europe/Berlin")),
    counts=defaultdict(int, a=1),
    anything=[Counter("ab"), OrderedDict(a=date(2026, 1, 1)), Batch([1]), datetime(2026, 1, 1, tzinfo=UTC), Path("a")],
)
COLUMNS: Final = State(
    cells=np.zeros(4, dtype=[("a", "i4"), ("b", "f8", (2,))]), rows=pa.table({"a": ["x", "yy"], "b": [[1], None]})
)
NAMES: Final = (
    *("tempfile:TemporaryDirectory", "os:system", "subprocess:Popen", "builtins:exec", "antigravity:fly", "this:d"),
    *("bench.mementos:Order", "bench.mementos:Pair", "bench.mementos:Colour", "bench.mementos:State", "builtins:list"),
    *("http.server:Nowhere", "threading:Thread", "exop.errors:ExopError", "exop.model.items:Punctuation", "x" * 3000),
    *(
        "typing:NamedTuple",
        "enum:Enum",
        "collections:Counter",
        "xml.dom:Node",
        "bench.harness:Result",
        "",
        ":",
        "a:b.c",
    ),
)
LEAVES: Final = (
    *(None, 0, -1, 2**63, 2**40, 1.5, float("nan"), "", "a", b"", b"\xff" * 9, "1E+999999999", "9" * 5000),
    *("../../etc/passwd", "2026-01-01", "zone", "|O", "<f8"),
)
HEADS: Final = tuple(
    bytes.fromhex(one) for one in ("ddffffffff", "df7fffffff", "c6ffffffff", "c9ffffffff01", "c1", "d44001", "d440")
)
MANIFEST: Final = 'name = "speeds"\nversion = "1.0.0"\nslets = ["slets:add_up"]\n[properties]\na = [1, {b = "c"}]\n'


def _archive() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bundle.toml", MANIFEST)
        archive.writestr("slets.py", "def add_up(): ...\n")
    return buffer.getvalue()


ARCHIVE: Final = _archive()


def _tree(chance: random.Random, depth: int = 0) -> Any:
    """A hostile value as msgpack has it: marks where they stand and where not, and unknown extensions."""
    if depth > 6 or chance.random() < 0.3:
        return chance.choice([*LEAVES, chance.choice(NAMES)])
    inner = [_tree(chance, depth + 1) for _ in range(chance.randrange(5))]
    tag = chance.choice(list(Tag))
    name = chance.choice(NAMES)
    kind = chance.randrange(7)
    if kind < 3:
        return [msgpack.ExtType(MARK, bytes([tag])), *([name] if chance.random() < 0.5 else []), *inner]
    if kind == 3:
        content = [name, {"a": inner}] if chance.random() < 0.5 else inner
        return msgpack.ExtType(chance.choice([int(tag), 99]), _packed(content))
    return {chance.choice(["next", "tags", "left", "anything", 1]): one for one in inner} if kind == 4 else inner


def _packed(value: Any) -> bytes:
    try:
        found: bytes = msgpack.packb(value)
    except (ValueError, OverflowError):
        return b"\xc0"
    return found


def _deep(chance: random.Random) -> bytes:
    levels = chance.choice((99, 100, 101, 110, 111, 112, 230, 1023, 1025, 5000, 100_000))
    opening = chance.choice((b"\x91", b"\x81\x01", b"\x81", b"\x92\xd4\x40\x01", b"\x92\xd4\x40\x03"))
    return opening * levels + chance.choice((b"\x01", b"", b"\x90"))


def _colliding(chance: random.Random) -> bytes:
    count = chance.choice((100, 1000, 8000))
    keys: Iterable[int] = chance.choice(
        [
            [n * (2**61 - 1) for n in range(count)],
            [n << 40 for n in range(count)],
            [n << 60 for n in range(count)],
        ]
    )
    marked = [[msgpack.ExtType(MARK, b"\x05"), n.to_bytes(12, "big")] for n in keys]
    if chance.random() < 0.5:
        return _packed([msgpack.ExtType(MARK, bytes([Tag.SET])), *marked])
    return b"\xdf" + count.to_bytes(4, "big") + b"".join(_packed(one) + b"\0" for one in marked)


def _changed(chance: random.Random, data: bytes) -> bytes:
    """A sound input with a few changes."""
    for _ in range(chance.randrange(1, 6)):
        at, size = chance.randrange(len(data) + 1), chance.randrange(1, 12)
        flipped = bytes(one ^ (1 << chance.randrange(8)) for one in data[at : at + 1])
        parts = [chance.randbytes(size), b"", data[at : at + size] * 3, chance.choice(HEADS), flipped]
        parts += [_packed(_tree(chance)), chance.choice(NAMES).encode()]
        part = chance.choice(parts)
        data = data[:at] + part + data[at + chance.choice((0, 1, len(part), size)) :]
    return data[: chance.randrange(len(data) + 1)] if chance.random() < 0.1 else data


def _hostile(chance: random.Random, sound: bytes) -> bytes:
    """An input: mostly a sound one that is changed."""
    makers: list[Callable[[], bytes]] = [
        *[lambda: _changed(chance, sound)] * 5,
        *[lambda: _packed(_tree(chance))] * 3,
        lambda: _deep(chance),
        lambda: _colliding(chance) if chance.random() < 0.1 else chance.randbytes(chance.randrange(300)),
    ]
    return chance.choice(makers)()


def _own(chance: random.Random) -> None:
    decode(_hostile(chance, chance.choice(ENCODED)))


def _value(chance: random.Random) -> None:
    decode(_hostile(chance, chance.choice(ENCODED)), declared=declared_by(State))


def _memento(chance: random.Random) -> None:
    """The file of an export: changed as a whole, or with a body that is."""
    data = dump_memento(chance.choice((SOUND, COLUMNS)), "a.b")
    if chance.random() < 0.7:
        stored = header(data, "a.b")
        bodies = [_hostile(chance, stored.body), b"\x81\xa8anything" + _hostile(chance, encode(SOUND.anything))]
        bodies.append(_packed({name: _tree(chance) for name in chance.sample([*stored.fields], 3)}))
        body = chance.choice(bodies)
        data = encode([1, stored.kind, 1, stored.fields, body])
    else:
        data = _hostile(chance, data)
    _sound(import_memento(data, State, "a.b"))


def _as_json(chance: random.Random) -> None:
    """A file of an export: its text is changed, or a value in it."""
    text = TEXT
    names = [chance.choice(NAMES) for _ in range(4)]
    kinds = ("enum", "defaultdict", "dataclass", "namedtuple")
    pieces = [f'{{"${kind}": ["{name}", {{"a": 1}}]}}' for kind, name in zip(kinds, names, strict=True)]
    pieces += ["9" * 5000, "1e999", "NaN", '"x"', "null", '{"$path": 1}', '{"$deque": [1]}', '{"$set": [[1]]}']
    pieces += ['{"$datetime": ["2026-01-01", 0, "../x"]}', '{"$timedelta": [1e99]}', '{"$decimal": "1E+999999999"}']
    pieces += ["[" * levels + "]" * levels for levels in (1, 99, 101, 400)] + ["[" * 5000, '"', "}"]
    if chance.random() < 0.7:
        found = json.loads(text)
        holder = chance.choice([found, found["fields"], found["fields"], found["fields"]["anything"]])
        key = chance.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        holder[key] = "HERE"
        text = json.dumps(found).replace('"HERE"', chance.choice(pieces))
    else:
        at = chance.randrange(len(text))
        text = text[:at] + chance.choice(pieces) + text[at + chance.choice((0, 1)) :]
    _sound(import_memento(text.encode(), State, "a.b"))


def _item(chance: random.Random) -> None:
    parts = msgpack.unpackb(ITEM)
    if chance.random() < 0.7:
        part = chance.choice(list(parts))
        parts[part] = chance.choice((_hostile(chance, ENCODED[0]), _tree(chance)))
        data = _packed(parts)
    else:
        data = _hostile(chance, ITEM)
    failed = FailedItem.from_bytes(data)
    failed.summary()
    failed.to_bytes()


def _message(chance: random.Random) -> None:
    sound = codec.encode_message({"number": "ab", "data": b"x" * 20, "application": "a", "node": "b"})
    kinds: list[Any] = [Any, *REQUESTS]
    try:
        codec.decode_message(_hostile(chance, sound), chance.choice(kinds))
    except codec.BadMessage as problem:
        raise ExopError(str(problem)) from None


def _bundle(chance: random.Random) -> None:
    read_archive(_changed(chance, ARCHIVE), "sent.zip")


def _toml(chance: random.Random) -> None:
    pieces = ["[" * chance.choice((101, 3000)), "{a=" * 200, "a." * 300 + "b = 1\n", '"', "]", "1e400", "9" * 5000]
    pieces += ["= 1\n", "\n[a]\n", "\n[nodes.a]\nslet = 1\n", "\n[application]\nname = 'a'\n"]
    text = MANIFEST
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(text))
        text = text[:at] + chance.choice(pieces) + text[at + chance.randrange(3) :]
    read_manifest(text, "a") if chance.random() < 0.5 else Mesh.from_toml(text, {})


def _setting(chance: random.Random) -> None:
    opening, closing = chance.choice((("[", "]"), ("{a=", "}"), ("[", ""), ("{a.b=", "}")))
    levels = chance.choice((1, 50, 99, 101, 1000))
    try:
        convert(
            opening * levels + chance.choice(("1", "", '"', "9" * 5000)) + closing * levels,
            chance.choice((list[Any], dict[str, Any])),
        )
    except ValueError as problem:  # which the mesh reports as a `SettingError`
        raise ExopError(str(problem)) from None


def _sound(memento: Memento) -> None:
    """Check that the memento read is of its class, fits its annotations, and can be stored."""
    assert type(memento) is State
    check_fields(fields_of(memento), State, "a.b")
    check_parts(memento, "a.b")
    dump_memento(memento, "a.b")


LEGIBLE: Final = State(**{**fields_of(SOUND), "anything": SOUND.anything[:2], "colour": Colour.RED})
TEXT: Final = export_memento(LEGIBLE, "a.b", "json")[1].decode()
ENCODED: Final = (encode(fields_of(SOUND)), encode(fields_of(COLUMNS)))
ITEM: Final = FailedItem(item=SOUND.anything, settings={"a": Order()}, memento=b"x", code="os:system").to_bytes()
REQUESTS: Final = [
    one.request
    for one in (operations(Management, wire=WIRE) | operations(ManagementService)).values()
    if one.request is not NoRequest
]
READERS: Final[dict[str, Callable[[random.Random], None]]] = {
    "own": _own,
    "value": _value,
    "memento": _memento,
    "json": _as_json,
    "item": _item,
    "message": _message,
    "bundle": _bundle,
    "toml": _toml,
    "setting": _setting,
}


def attempt(seed: str) -> tuple[str, str | None]:
    """One case: its outcome, and what was broken."""
    chance = random.Random(seed)
    name = chance.choice(list(READERS))
    found: list[tuple[str, str | None]] = []

    def run() -> None:
        begun, _watched.events = time.thread_time(), []
        try:
            READERS[name](chance)
            outcome, broken = f"{name} taken", None
        except ExopError:
            outcome, broken = f"{name} refused", None
        except BaseException:  # noqa: BLE001 (whatever it is, it is a finding)
            outcome, broken = name, traceback.format_exc()
        if _watched.events:
            broken = f"{name}: reading caused {_watched.events}\n{broken or ''}"
        if (taken := time.thread_time() - begun) > SLOWEST:
            broken = f"{name}: it took {taken:.1f} s of CPU"
        _watched.events = None
        found.append((outcome, broken))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


_watched: Any = threading.local()


def _audit(event: str, details: tuple[Any, ...]) -> None:
    events = getattr(_watched, "events", None)
    if events is not None and event.startswith(FORBIDDEN) and not _harmless(event, details):
        events.append((event, str(details)[:200]))


def _harmless(event: str, details: tuple[Any, ...]) -> bool:
    """Python itself imports and compiles when it formats a traceback or makes a named tuple; a child warms these up."""
    return event == "import" and details[0] in sys.modules


def work(pipe: Connection) -> None:
    """The child process: decodes what it is asked for until the pipe ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    threading.stack_size(512 * 1024)
    zones()
    for name in READERS:  # what is imported on the way is imported before it counts
        for n in range(15):
            attempt(f"warm {name} {n}")
    sys.addaudithook(_audit)
    pipe.send("ready")
    while True:
        try:
            seed = pipe.recv()
        except EOFError:
            return
        pipe.send(attempt(seed))


class Child:
    """A process that decodes; begun anew after a death."""

    def __init__(self) -> None:
        self._process: Any = None
        self._pipe: Any = None
        atexit.register(self.end)

    def ask(self, seed: str) -> tuple[str, str | None]:
        """Let it decode one input.

        Raises:
            AssertionError: it died, or did not answer.
        """
        if self._process is None:
            context = multiprocessing.get_context("spawn")
            self._pipe, other = context.Pipe()
            self._process = context.Process(target=work, args=(other,), daemon=True)
            self._process.start()
            other.close()
            assert self._pipe.recv() == "ready"
        try:
            self._pipe.send(seed)
            assert self._pipe.poll(120), "the child did not answer within two minutes"
            answer: tuple[str, str | None] = self._pipe.recv()
        except (EOFError, BrokenPipeError):
            self._process.join()
            code = self._process.exitcode
            self.end()
            raise AssertionError(f"the child died with exit code {code} at seed {seed!r}") from None
        return answer

    def end(self) -> None:
        """End the process."""
        if self._process is not None:
            self._pipe.close()
            self._process.kill()
            self._process.join()
            self._process = None


_child = Child()


def hostile(chance: random.Random) -> str:
    """One case: an input that a child decodes."""
    seed = f"{chance.getrandbits(64):x}"
    outcome, broken = _child.ask(seed)
    assert broken is None, f"seed {seed}: {broken}"
    return outcome


def measure(
    *,
    runs: Annotated[int, "how many inputs"] = 2000,
    seed: Annotated[int, "another seed is another campaign"] = 0,
    record: Annotated[Path | None, "a file of the outcomes, from which a second run goes on"] = None,
    only: Annotated[int | None, "the number of one case, to repeat it"] = None,
) -> Iterable[Result]:
    """Count what becomes of hostile inputs."""
    yield from carry_out("mementos", hostile, runs=runs, seed=seed, record=record, only=only)
    _child.end()
