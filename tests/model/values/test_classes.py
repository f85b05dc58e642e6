"""Classes of two versions of a bundle: when they are one class, and how a value changes its version."""

from __future__ import annotations

import gc
import importlib
import sys
import threading
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, is_dataclass
from itertools import count
from types import ModuleType, SimpleNamespace
from typing import Any, Literal

import pytest

from exop.errors import StoredStateError
from exop.model.types.assignable import find_mismatch
from exop.model.types.description import type_of
from exop.model.values import classes
from exop.model.values.classes import (
    Declared,
    Mover,
    NoVersion,
    class_named,
    filled,
    find_version,
    forget,
    name_of,
    named,
    package_name,
    package_of,
    same_class,
)

TYPES = """
from __future__ import annotations
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

class Mood(Enum):
    CALM = 1

class Pair(NamedTuple):
    one: int
    mood: Mood

@dataclass(frozen=True)
class Report:
    speed: float
    mood: Mood = Mood.CALM

@dataclass
class Holder:
    report: Report
    more: list[Any] = field(default_factory=list)

@dataclass
class Plain:
    numbers: dict[int, list[float]]

class Opaque:
    pass
"""
OLD, NEW = package_name("speeds", "1.0.0"), package_name("speeds", "2.0.0+dev.1")


@pytest.fixture
def old() -> Iterator[Any]:
    """The types of the old version; those of the new one are there beside it."""
    for package in (OLD, NEW):
        for name in (package, f"{package}.types"):
            sys.modules[name] = ModuleType(name)
        exec(compile(TYPES, f"{package}.py", "exec"), vars(sys.modules[f"{package}.types"]))
    yield sys.modules[f"{OLD}.types"]
    for package in (OLD, NEW):
        del sys.modules[package], sys.modules[f"{package}.types"]
    named.cache_clear()


@pytest.fixture
def new(old: Any) -> Any:
    """The types of the new version."""
    return sys.modules[f"{NEW}.types"]


@pytest.mark.parametrize("more", [(), (Any,)])
def test_items_of_both_versions_come_while_an_update_passes(old: Any, new: Any, more: tuple[Any, ...]):
    """The class of the version that is not declared is that of the one which is; a class of no bundle stays."""
    declared = Declared(new.Report, *more)
    for kind in (old.Report, new.Report):
        assert class_named(name_of(kind), "dataclass", is_dataclass, declared) is new.Report
    if not more:
        with pytest.raises(StoredStateError, match="is not declared"):
            class_named(name_of(old.Plain), "dataclass", is_dataclass, declared)


def test_packages_are_read_back():
    """Whatever the name and the version look like, it is clear where the name ends."""
    for name, version in (("speeds", "1.2.0"), ("my_v2", "1.0"), ("a", "1!2.0rc1+v3.local"), ("a_v1", "1.dev3")):
        package = package_name(name, version)
        assert package_of(f"{package}.below.deep") == (package, name)
        assert package.replace(".", "").isidentifier()
    assert package_of("tests.model") is None


def test_one_class_of_two_versions(old: Any, new: Any):
    """Bundle, module and qualified name are equal; ports of such types fit while the shape is the same."""
    assert same_class(old.Report, new.Report)
    assert find_mismatch(type_of(old.Report), type_of(new.Report)) is None
    assert find_mismatch(type_of(list[old.Report]), type_of(list[new.Report])) is None
    assert not same_class(old.Report, new.Holder)
    assert find_mismatch(type_of(old.Report), type_of(new.Plain))
    assert not same_class(Counter, new.Report)
    new.Report.__annotations__["mood"] = "int"
    forget()
    assert find_mismatch(type_of(old.Report), type_of(new.Report))


def test_values_change_their_version(old: Any, new: Any):
    """Wherever they stand in a value; the old one stays as it is."""
    report = old.Report(3.0)
    held = [{report: (report, {old.Mood.CALM})}, deque([report], maxlen=3), old.Pair(1, old.Mood.CALM)]
    holder = old.Holder(report, held)
    moved = Mover(NEW).move(holder)
    assert type(moved) is new.Holder
    assert moved == new.Holder(
        new.Report(3.0),
        [{new.Report(3.0): (new.Report(3.0), {new.Mood.CALM})}, deque([new.Report(3.0)]), new.Pair(1, new.Mood.CALM)],
    )
    assert moved.more[1].maxlen == 3
    assert holder.report is report
    assert type(holder.more[0][report][0]) is old.Report
    for mapping in (defaultdict(list, {1: [report]}), OrderedDict({1: report}), Counter({report: 2})):
        found = Mover(NEW).move(mapping)
        assert type(found) is type(mapping)
        assert new.Report(3.0) in (*found, *found.values()) or found == {1: [new.Report(3.0)]}


def test_what_holds_nothing_of_it_goes_by_reference(old: Any, new: Any):
    """Also when it is looked through; and one object stays one object."""
    plain = {1: [1.0, 2.0], "a": (1, {2})}
    assert Mover(NEW).move(plain) is plain
    report = old.Report(1.0)
    first, second = Mover(NEW).move([report, report])
    assert first is second


def test_types_tell_what_need_not_be_looked_through(old: Any):
    """What a type cannot hold is not looked for; where a type says nothing, it is."""
    mover = Mover(NEW)
    for annotation in (int, dict[int, list[float]], str | None, Literal["a"], list[bytes], ModuleType):
        assert not mover.concerns(annotation)
    for annotation in (old.Report, list[old.Report], old.Report | None, Any, object, list, dict[int, list]):
        assert mover.concerns(annotation)


def test_what_cannot_change_its_version_is_told(old: Any, new: Any):
    """A class that is gone, a field or member that is gone, a new field without a default, an object of no data."""
    del new.Plain
    with pytest.raises(NoVersion, match=r"has no .*types.Plain"):
        Mover(NEW).move([old.Plain({})])
    with pytest.raises(NoVersion, match="Opaque is neither a dataclass nor an enumeration"):
        Mover(NEW).move(old.Opaque())
    exec("@dataclass\nclass Report:\n    other: int", vars(new))
    with pytest.raises(NoVersion, match="Report has no field speed, mood; it has other"):
        Mover(NEW).move(old.Report(1.0))
    exec("@dataclass\nclass Report:\n    speed: int\n    mood: Mood\n    more: int | None", vars(new))
    forget()
    assert Mover(NEW).move(old.Report(1.0)).more is None
    exec("@dataclass\nclass Report:\n    speed: int\n    mood: Mood\n    more: int", vars(new))
    forget()
    with pytest.raises(NoVersion, match="Report lacks the field more, which has no default"):
        Mover(NEW).move(old.Report(1.0))
    exec("class Mood(Enum):\n    WILD = 1", vars(new))
    with pytest.raises(NoVersion, match="Mood has no CALM any more"):
        Mover(NEW).move(old.Mood.CALM)


def test_a_stored_name_of_a_version_that_is_gone_is_found_in_another(old: Any, new: Any):
    """What a checkpoint or a log has named before an update is read as what there is now."""
    stored = name_of(old.Report)
    assert named(stored) is old.Report
    del sys.modules[OLD]
    named.cache_clear()
    assert find_version(stored) == name_of(new.Report)
    assert named(stored) is new.Report
    sys.modules[OLD] = ModuleType(OLD)
    assert find_version("tests.model:Report") is None


def test_classes_of_unloaded_code_are_not_kept():
    """The layout of a class is forgotten with its module."""

    @dataclass
    class Gone:
        number: int

    filled(Gone, {"number": 1})
    left = weakref.ref(Gone)
    del Gone
    forget()
    gc.collect()
    assert left() is None


def test_a_class_is_found_when_the_thread_that_imports_its_module_has_done_that(tmp_path, monkeypatch):
    """Not before: the module has the first half of its classes then."""
    (tmp_path / "half_imported.py").write_text("import half_gate\nhalf_gate.pass_it()\nclass Late: pass\n")
    gate, at_gate = threading.Event(), threading.Event()
    half_gate = ModuleType("half_gate")
    half_gate.pass_it = lambda: (at_gate.set(), gate.wait(60))
    monkeypatch.setitem(sys.modules, "half_gate", half_gate)
    monkeypatch.syspath_prepend(tmp_path)
    with ThreadPoolExecutor(1) as pool:
        imported = pool.submit(importlib.import_module, "half_imported")
        assert at_gate.wait(60)
        monkeypatch.setattr(classes.time, "sleep", lambda seconds: (gate.set(), at_gate.wait(seconds)))
        try:
            assert named("half_imported:Late") is imported.result(60).Late
        finally:
            gate.set()
    forget()
    del sys.modules["half_imported"]


def test_a_module_that_is_imported_without_end_is_not_waited_for_so_long(monkeypatch):
    """After some seconds it counts as it is; the error says what to do."""
    hanging, clock = ModuleType("hanging"), count()
    hanging.__spec__ = SimpleNamespace(_initializing=True)
    monkeypatch.setitem(sys.modules, "hanging", hanging)
    monkeypatch.setattr(classes, "time", SimpleNamespace(monotonic=lambda: next(clock), sleep=lambda seconds: None))
    with pytest.raises(StoredStateError, match="hanging has no Late; .*; install the code that has hanging"):
        named("hanging:Late")
    assert 10 < next(clock) < 20
