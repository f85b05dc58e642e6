"""Conditions mean the same as in Python; an error points at the place of a mistake."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, NamedTuple, TypedDict

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from exop import slet
from exop.errors import ConditionError, MeshError
from exop.model.meshes.conditional_updates import (
    DEEPEST,
    LONGEST,
    PUNCTUATION,
    ConditionNames,
    applied,
    node_names,
    read_condition,
    still_pending,
)
from exop.model.meshes.mesh import Mesh
from exop.model.meshes.nodes import Node
from exop.model.slets.ports import PortType
from exop.model.slets.slet import spec_of


@dataclass
class Report:
    """An item."""

    time: int
    speed: float = 0.0
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def fast(self) -> bool:
        """A computed property."""
        return self.speed > 100


class Pair(NamedTuple):
    """Another one."""

    time: int
    rest: int


class Row(TypedDict):
    """A third one."""

    time: int


NAMES = ConditionNames(
    "jams", {"report": PortType(Report), "other": PortType(), PUNCTUATION: PortType()}, ("below", "tags")
)


def holds(text: str, item: Any, names: ConditionNames = NAMES, **values: Any) -> Any:
    """The value of a condition."""
    return read_condition(text, names).test({"below": 12, "tags": ["a"], **values})(item)


numbers = st.sampled_from(["0", "1", "-3", "2.5", "7", "below"])
texts = st.sampled_from(["'a'", "'bc'", "report.name", "report.row['name']", "''"])
plain = numbers | texts | st.sampled_from(["None", "True", "report", "report.time", "report.row", "tags", "[1, 'a']"])


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    two = st.tuples(inner, inner)
    return st.one_of(
        two.flatmap(lambda p: st.sampled_from(["+", "-", "*", "/", "//", "%"]).map(lambda o: f"({p[0]}) {o} ({p[1]})")),
        two.flatmap(
            lambda p: st.sampled_from(["<", "<=", "==", "!=", ">", ">=", "in", "not in", "is", "is not"]).map(
                lambda o: f"({p[0]}) {o} ({p[1]})"
            )
        ),
        two.flatmap(lambda p: st.sampled_from(["and", "or"]).map(lambda o: f"({p[0]}) {o} ({p[1]})")),
        st.tuples(st.sampled_from(["-", "+", "not "]), inner).map(lambda p: f"{p[0]}({p[1]})"),
        st.tuples(inner, inner, inner).map(lambda p: f"({p[0]}) < ({p[1]}) <= ({p[2]})"),
        two.map(lambda p: f"({p[0]})[{p[1]}]"),
        two.map(lambda p: f"({p[0]})[:{p[1]}]"),
        st.lists(inner, max_size=3).map(lambda p: f"[{', '.join(p)}]"),
        st.lists(inner, min_size=1, max_size=3).map(lambda p: f"({', '.join(p)},)"),
        two.map(lambda p: f"{{({p[0]}): {p[1]}}}"),
    )


expressions = st.recursive(plain, _larger, max_leaves=12)


def outcome(compute: Any) -> Any:
    """Return the value, or the class of the error."""
    try:
        found = compute()
    except Exception as error:  # noqa: BLE001 (whatever it is: both sides must raise the same)
        return type(error)
    return "nan" if isinstance(found, float) and math.isnan(found) else repr(found)


@settings(max_examples=150, deadline=None)
@given(expressions, st.integers(-5, 5))
@example("report.time >= below and report.row['name'] in ('a', 'bc')", 3)
@pytest.mark.filterwarnings("ignore::SyntaxWarning")
def test_a_condition_means_what_python_means(text, time):
    """For any expression of the language: the same value, or an error of the same class, as Python's own eval."""
    item = SimpleNamespace(time=time, name="bc", row={"name": "a", "time": time})
    values = {"below": 12, "tags": ["a", 1]}
    whole = f"report.time == 0 or ({text})"
    condition = read_condition(whole, ConditionNames("jams", {"report": PortType()}, tuple(values)))
    expected = outcome(lambda: eval(whole, {"__builtins__": {}, **values, "report": item}))
    assert outcome(lambda: condition.test(values)(item)) == expected


@pytest.mark.parametrize(
    ("text", "item", "expected"),
    [
        ("report.time >= 3600", Report(3600), True),
        ("report.time >= 3600", Report(3599), False),
        ('report["time"] == 1', Report(1), True),
        ("report.fast and report.speed < below * 10", Report(1, 119.0), True),
        ("report.more.depth == 3 and report.more['depth'] == 3", Report(1, more={"depth": 3}), True),
        ("other.time == 1", {"time": 1}, True),
        ('other["time"] == 1', {"time": 1}, True),
        ("other.keys == 1", {"keys": 1}, True),
        ("other.time == 1", Pair(1, 2), True),
        ("other in tags", "a", True),
        ("punctuation >= 10", 10.0, True),
    ],
)
def test_items(text, item, expected):
    """Fields of classes, keys of rows and of nested ones, settings, time: `a.b` and `a["b"]` read either."""
    assert holds(text, item) is expected


def test_settings_are_those_of_now():
    """The same condition with other settings is another test."""
    condition = read_condition("report.time > below", NAMES)
    assert condition.test({"below": 1})(Report(5))
    assert not condition.test({"below": 9})(Report(5))


@pytest.mark.parametrize(
    ("text", "subject", "fields"),
    [
        ("report.time > 1 and report['speed'] > 2 and report.time < 9", "report", ("time", "speed")),
        ("other == 1", "other", None),
        ("other.x in other", "other", None),
        ("punctuation > 1", "punctuation", None),
    ],
)
def test_what_a_condition_looks_at(text, subject, fields):
    """One port; and the fields of it that are needed, unless it is needed whole."""
    found = read_condition(text, NAMES)
    assert (found.subject, found.fields) == (subject, fields)


@pytest.mark.parametrize(
    ("text", "at", "told"),
    [
        ("report.tme > 1", "tme", "Report has no field 'tme'; did you mean 'time'? known: more, speed, time"),
        ("report['tme'] > 1", "'tme'", "did you mean 'time'"),
        ("1 < reprt.time", "reprt", "no port or setting is called 'reprt'; did you mean 'report'?"),
        ("len(report) > 1", "len", "calls nothing"),
        ("report.__class__ == 1", "__class__", "is private"),
        ("report._x == 1", "_x", "is private"),
        ("report.time > other.time", "other", "'report' and 'other' are two"),
        ("below > 3", "below", "it looks at no item; name one of report, other, punctuation"),
        ("report.time ** 2 > 1", "** 2", "multiply"),
        ("report.time > 1 & 2", "& 2", "write `and`"),
        ("report.time | 2", "| 2", "write `or`"),
        ("report.time >> 2", ">> 2", "a condition has"),
        ("~report.time", "~", "write `not`"),
        ("report.time = 3", "=", "no expression"),
        ("(report := 3)", "report :=", "nothing is assigned"),
        ("1 if report else 2", "1 if", "a condition has"),
        ("[x for x in report]", "[x", "a condition has"),
        ("lambda: report", "lambda", "a condition has"),
        ("f'{report}'", "f'", "a condition has"),
        ("report == ...", "...", "a condition has"),
        ("{**report}", "{**", "a condition has"),
        ("'ü' == reprt", "reprt", "did you mean 'report'"),
        ("report.time >", "", "no expression"),
        ("", "", "no expression"),
        ("not " * (DEEPEST + 1) + "report", "not", "nested"),
        ("(" * 300 + "report" + ")" * 300, "", "no expression"),
        ("report == '" + "x" * LONGEST + "'", "", "at most"),
        ("report == '\x00'", "", "no expression"),
    ],
)
def test_what_is_no_condition(text, at, told):
    """The error says what is wrong, and its mark stands under the place."""
    with pytest.raises(ConditionError) as caught:
        read_condition(text, NAMES)
    error = caught.value
    assert told in str(error)
    if at:
        assert error.condition[error.position :].startswith(at)
    shown, mark = str(error).splitlines()[-2:]
    assert mark == "  " + " " * error.position + "^"
    assert len(mark) <= len(shown) + 1


@pytest.mark.parametrize(
    ("carried", "known"), [(Pair, True), (Row, True), (dict, False), (Mapping, False), (Any, False)]
)
def test_which_types_tell_their_fields(carried, known):
    """If the type declares its fields, a wrong one is an error at once; otherwise when an item comes."""
    names = ConditionNames("jams", {"x": PortType(carried)})
    read_condition("x.time == 1", names)
    if known:
        with pytest.raises(ConditionError, match="has no field 'tim'"):
            read_condition("x.tim == 1", names)
    else:
        read_condition("x.tim == 1", names)


def test_columns_tell_their_fields():
    """A port with a schema knows its columns."""
    pa = pytest.importorskip("pyarrow")
    names = ConditionNames("jams", {"x": PortType(pa.RecordBatch, "columns", pa.schema([("time", pa.int64())]))})
    assert read_condition("x.time == 1", names).test({})({"time": 1})
    with pytest.raises(ConditionError, match="has no field 'speed'"):
        read_condition("x.speed == 1", names)


def test_nothing_else_can_be_reached():
    """No builtin stands behind a name, and an item whose field raises passes its error on."""
    for text in ("print", "__import__", "__builtins__", "report.time + __name__"):
        with pytest.raises(ConditionError):
            read_condition(text, NAMES)
    with pytest.raises(ZeroDivisionError):
        holds("1 / report.time", Report(0))


@slet
def numbered() -> Iterator[int]:
    """Emit numbers."""
    yield 1


@slet
def first(x: int, *, a: int = 0, b: int = 0, c: int = 0) -> None:
    """A slet with settings."""


@slet
def second(x: int, *, a: int = 0, b: int = 0, c: int = 0) -> None:
    """One with the same."""


@slet
def third(x: int, *, a: int = 0, b: int = 0) -> None:
    """One that lacks a setting."""


def processed(node: Node, items: range) -> tuple[Node, list[dict[str, Any]]]:
    """Return a node after these items, with the settings that each of them met."""
    met = []
    for x in items:
        while node.pending:
            update = node.pending[0]
            if not read_condition(update.when, node_names("n", node.slet)).test(node.settings)(x):
                break
            node = applied(node, update)
        met.append(dict(node.settings))
    return node, met


def armed(mesh: Mesh, chance: random.Random, points: list[int]) -> Mesh:
    """The mesh with one more pending update, at a later point."""
    point = points.pop(0)
    when = chance.choice((f"x >= {point}", f"x == {point}", f"x >= {point} and a == {chance.randrange(3)}"))
    names = chance.sample([name for name in "abc" if name in mesh.node("n").settings], chance.choice((1, 1, 2)))
    return mesh.configure("n", when=when, **{name: chance.randrange(3) for name in names})


def edited(mesh: Mesh, chance: random.Random, points: list[int]) -> tuple[str, Mesh]:
    """Some edit of the node, and its kind."""
    kinds = ["arm", "suspend", "replace", "configure", "cancel", "replace and set"]
    if not mesh.node("n").pending:  # else it could drop one that others wait for
        kinds.append("successor without")
    kind = chance.choice(kinds)
    value = chance.randrange(3)
    edits: dict[str, Callable[[], Mesh]] = {
        "arm": lambda: armed(mesh, chance, points),
        "suspend": lambda: mesh.suspend("n"),
        "replace": lambda: mesh.replace("n", chance.choice((first, second))),
        "configure": lambda: mesh.configure("n", **{chance.choice("ab"): value}),
        "cancel": lambda: mesh.configure("n"),
        "successor without": lambda: mesh.replace("n", third),
        "replace and set": lambda: mesh.replace("n", second, b=value),
    }
    return kind, edits[kind]()


def taken_apart(seed: int, merged: Callable[[Node, Node, Node], Node] = still_pending) -> None:
    """Edit a node while its updates take effect, and repeat the items since the checkpoint with the stored node."""
    chance = random.Random(seed)
    points = sorted(chance.sample(range(1, 100), 30))
    mesh = Mesh("m").add_slet("s", spec_of(numbered), {}, {}).add_slet("n", spec_of(first), {"x": "s"}, {})
    for _ in range(chance.randrange(1, 5)):
        mesh = armed(mesh, chance, points)
    stored, met, at = mesh.node("n"), [], 1
    untouched = True
    for _ in range(chance.randrange(1, 4)):
        until = at + chance.randrange(20)
        before, some = processed(mesh.node("n"), range(at, until))
        met, at = met + some, until
        points = [point for point in points if point >= at]
        kind, mesh = edited(mesh.edited({"n": before}), chance, points)
        untouched &= kind in ("arm", "suspend", "replace", "cancel") and before.slet.name != "third"
        stored = merged(stored, before, mesh.node("n"))
    again, repeated = processed(stored, range(1, at))
    assert (again.settings, again.pending, again.given) == (
        mesh.node("n").settings,
        mesh.node("n").pending,
        mesh.node("n").given,
    )
    if untouched:  # no edit has changed a setting: each item meets the same settings again
        assert repeated == met


@given(st.integers(0, 1 << 32))
def test_an_edited_node_repeats_its_items(seed):
    """From the checkpoint on, updates take effect at the same items, and lead to what the edits have left."""
    taken_apart(seed)


@pytest.mark.parametrize(
    "mistake",
    [
        lambda stored, before, after: after,
        lambda stored, before, after: stored if stored.pending != before.pending else after,
        lambda stored, before, after: replace(after, pending=(*stored.pending, *after.pending)),
    ],
    ids=["it holds from the start", "the edit is forgotten", "settings stay as they became"],
)
def test_a_planted_mistake_is_found(mistake):
    """The check finds what a merge of an edit and the updates could do wrong."""

    def shows(seed: int) -> bool:
        try:
            taken_apart(seed, mistake)
        except (AssertionError, MeshError):
            return True
        return False

    assert any(map(shows, range(100)))
