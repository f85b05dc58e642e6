"""Random expressions, with their spelling in SQL where it has the same meaning, and random rows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
from hypothesis import strategies as st

BERLIN = ZoneInfo("Europe/Berlin")
SCHEMA = pa.schema(
    [
        ("i", pa.int64()),
        ("j", pa.int16()),
        ("u", pa.uint64()),
        ("f", pa.float64()),
        ("g", pa.float32()),
        ("s", pa.string()),
        ("a", pa.large_string()),
        ("e", pa.dictionary(pa.int8(), pa.string())),
        ("b", pa.bool_()),
        ("t", pa.timestamp("ms")),
        ("z", pa.timestamp("us", "Europe/Berlin")),
        ("v", pa.timestamp("s", "UTC")),
        ("d", pa.date32()),
        ("p", pa.duration("us")),
        ("m", pa.decimal128(10, 2)),
        ("l", pa.list_(pa.string())),
        ("r", pa.struct([("n", pa.int64()), ("s", pa.string())])),
        ("n", pa.null()),
    ]
)
BIG = [2**63 - 1, -(2**63), 2**53, 2**53 + 1, -(2**53) - 1, 2**62, 2**31]
small = st.integers(-9, 9)
ints = small | st.sampled_from(BIG) | st.integers(-(2**63), 2**63 - 1)
floats = (
    small.map(float)
    | st.sampled_from(
        [0.5, -0.5, 2.5, 1.5, -0.0, 0.1, 1e300, -1e300, 2.0**53, 2.0**63, -(2.0**63), 0.49999999999999994]
    )
    | st.floats(allow_nan=True, allow_infinity=True)
)
texts = st.sampled_from(["", "a", "ab", "Abc", " x ", "ß", "İ", "\x1c a\u2003", "a,b", "12", "1.5", "aab", "😀b"])
#: Around the hours that a clock in Berlin shows twice, or never.
moments = st.sampled_from(
    [
        datetime(2024, 10, 27, 0, 30),
        datetime(2024, 10, 27, 1, 30),
        datetime(2024, 3, 31, 1, 30),
        datetime(1969, 12, 31, 23, 59, 59),
    ]
) | st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1))
spans = st.integers(-(10**9), 10**9).map(lambda n: timedelta(milliseconds=n))
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "i": ints,
    "j": small | st.integers(-(2**15), 2**15 - 1),
    "u": small.map(abs) | st.sampled_from([2**63 - 1, 2**53 + 1]),
    "f": floats,
    "g": st.floats(width=32),
    "s": texts,
    "a": st.sampled_from(["a", "b", "Abc"]),
    "e": st.sampled_from(["a", "b"]),
    "b": st.booleans(),
    "t": moments.map(lambda t: t.replace(microsecond=t.microsecond // 1000 * 1000)),
    "z": moments.map(lambda t: t.replace(tzinfo=UTC).astimezone(BERLIN)),
    "v": moments.map(lambda t: t.replace(tzinfo=UTC, microsecond=0)),
    "d": st.dates(date(1900, 1, 1), date(2100, 1, 1)) | moments.map(datetime.date),
    "p": spans,
    "m": st.decimals(-9999, 9999, places=2).map(Decimal),
    "l": st.lists(st.none() | st.sampled_from(["a", "b"]), max_size=3),
    "r": st.fixed_dictionaries({"n": st.none() | ints, "s": st.none() | texts}),
    "n": st.none(),
}
rows = st.lists(st.fixed_dictionaries({name: st.none() | one for name, one in VALUES.items()}), max_size=6)
#: Rows without what SQL does not have: NaN, large numbers, letters beyond ASCII.
plain_rows = st.lists(
    st.fixed_dictionaries(
        {
            "i": st.none() | small | st.integers(-10000, 10000),
            "f": st.none() | small.map(float) | st.floats(-1e6, 1e6),
            "s": st.none() | st.sampled_from(["", "a", "ab", "Abc", "B"]),
            "b": st.none() | st.booleans(),
        }
    ),
    max_size=6,
)


@dataclass(frozen=True)
class Text:
    """An expression, in both spellings."""

    python: str
    sql: str


class Trees:
    """Draws expressions of a kind; with *sql*, those alone that have the same meaning in SQL."""

    def __init__(self, draw: Any, *, sql: bool = False) -> None:
        self.draw, self.sql = draw, sql

    def one(self, names: list[str]) -> str:
        """One of these."""
        return str(self.draw(st.sampled_from(names)))

    def of(self, kind: str, depth: int) -> Text:
        """An expression of a kind."""
        if depth > 0 and self.draw(st.integers(0, 9)) < 2:
            return self.any(kind, depth)
        return getattr(self, kind)(depth) if depth > 0 else self.leaf(kind)

    def leaf(self, kind: str) -> Text:
        """A column, or a constant."""
        columns = {"number": ["i", "f"], "text": ["s"], "truth": ["b"]}
        if not self.sql:
            columns = {
                "number": ["i", "i", "f", "f", "j", "g", "u", "r.n"],
                "text": ["s", "s", "a", "e", "r.s", "l[0]", "m"][:6],
                "truth": ["b"],
                "time": ["t", "z", "v", "z"],
                "day": ["d"],
                "span": ["p"],
            }
        constants = {"number": ["0", "1", "-3", "2.5", "7"], "text": ["'a'", "'ab'", "''"], "truth": ["True", "False"]}
        if not self.sql:
            constants["number"] += ["9223372036854775807", "9007199254740993", "9007199254740992.0", "1e300"]
            constants |= {
                "time": ["parse_time('2024-10-27T01:30')", "parse_time('2024-10-27T00:30+00:00')"],
                "day": ["date('2024-02-29')"],
                "span": ["duration(3600)"],
            }
        if self.draw(st.integers(0, 19)) == 0 and kind != "truth":
            return Text("None" if self.sql or self.draw(st.booleans()) else "item.n", "NULL")
        if self.draw(st.integers(0, 2)) == 0:
            found = self.one(constants[kind])
            return Text(found, found)
        name = self.one(columns[kind])
        return Text(f"item.{name}", name)

    def any(self, kind: str, depth: int) -> Text:
        """What there is for each kind."""
        a, b, c = self.of("truth", depth - 1), self.of(kind, depth - 1), self.of(kind, depth - 1)
        if self.draw(st.booleans()):
            return Text(
                f"({b.python} if {a.python} else {c.python})", f"CASE WHEN {a.sql} THEN {b.sql} ELSE {c.sql} END"
            )
        return Text(f"coalesce({b.python}, {c.python})", f"coalesce({b.sql}, {c.sql})")

    def call(self, name: str, *arguments: str, depth: int) -> Text:
        """A call of a function."""
        found = [self.of(one, depth - 1) for one in arguments]
        shown = {"len": "length"}.get(name, name)
        return Text(
            f"{name}({', '.join(one.python for one in found)})", f"{shown}({', '.join(one.sql for one in found)})"
        )

    def number(self, depth: int) -> Text:
        """A number."""
        choice = self.draw(st.integers(0, 9))
        if choice < 6:
            signs = ["+", "-", "*"] if self.sql else ["+", "-", "*", "/", "//", "%"]
            parts = [self.of("number", depth - 1) for _ in range(self.draw(st.integers(2, 3)))]
            python = sql = ""
            for one in parts:
                sign = self.one(signs) if python else ""
                python, sql = f"{python} {sign} {one.python}", f"{sql} {sign} {one.sql}"
            return Text(f"({python.strip()})", f"({sql.strip()})")
        if choice == 6:
            return self.call(
                self.one(["abs"] if self.sql else ["abs", "round", "floor", "ceil", "int", "float"]),
                "number",
                depth=depth,
            )
        if choice == 7:
            return self.call(self.one(["min", "max"]), *["number"] * self.draw(st.integers(2, 3)), depth=depth)
        if choice == 8:
            return self.call("len", "text", depth=depth)
        if self.sql:
            one = self.of("number", depth - 1)
            return Text(f"(-{one.python})", f"(-({one.sql}))")
        name = self.one(["bucket", "year", "hour", "minute", "weekday", "timestamp", "seconds", "find", "month"])
        arguments = {"bucket": ["number", "number"], "seconds": ["span"], "find": ["text", "text"]}
        return self.call(name, *arguments.get(name, ["time"]), depth=depth)

    def text(self, depth: int) -> Text:
        """A text."""
        choice = self.draw(st.integers(0, 5))
        if choice == 0:
            a, b = self.of("text", depth - 1), self.of("text", depth - 1)
            return Text(f"({a.python} + {b.python})", f"({a.sql} || {b.sql})")
        if choice == 1 and not self.sql:
            return self.call("replace", "text", "text", "text", depth=depth)
        if choice == 2 and not self.sql:
            one = self.of("text", depth - 1)
            return (
                Text(f"{one.python}{self.one(['[0:2]', '[-1:]', '[::2]', '[1:][:1]'])}", "")
                if one.python != "None"
                else one
            )
        if choice == 3 and not self.sql:
            return self.call("str", self.one(["number", "text", "time", "day", "truth"]), depth=depth)
        if choice == 4 and not self.sql:
            return self.call("concat", "text", "text", "text", depth=depth)
        return self.call(self.one(["lower", "upper"] if self.sql else ["lower", "upper", "strip"]), "text", depth=depth)

    def truth(self, depth: int) -> Text:
        """A Boolean."""
        choice = self.draw(st.integers(0, 9))
        if choice < 4:
            return self.comparison(depth)
        if choice < 7:
            word = self.one(["and", "or"])
            parts = [self.of("truth", depth - 1) for _ in range(self.draw(st.integers(2, 3)))]
            return Text(
                f"({f' {word} '.join(one.python for one in parts)})", f"({f' {word} '.join(one.sql for one in parts)})"
            )
        if choice == 7:
            one = self.of("truth", depth - 1)
            return Text(f"(not {one.python})", f"(NOT {one.sql})")
        if choice == 8:
            one = self.of(self.one(["number", "text", "truth"]), depth - 1)
            return Text(f"({one.python} is None)", f"({one.sql} IS NULL)")
        if self.draw(st.booleans()):
            one = self.of("number", depth - 1)
            among = self.one(["1, 2", "2.5, 1", "1, None"] if not self.sql else ["1, 2", "2.5, 1"])
            return Text(f"({one.python} in [{among}])", f"({one.sql} IN ({among}))")
        if self.sql:
            return self.comparison(depth)
        if self.draw(st.booleans()):
            return Text(f"({self.of('text', depth - 1).python} {self.one(['in', 'not in'])} item.l)", "")
        return self.call(self.one(["contains", "starts", "ends"]), "text", "text", depth=depth)

    def comparison(self, depth: int) -> Text:
        """A comparison, or a chain of them."""
        kind = self.one(["number", "number", "text", *([] if self.sql else ["time", "day", "span", "truth"])])
        signs = ["<", "<=", "==", "!=", ">", ">="]
        a, b = self.of(kind, depth - 1), self.of(kind, depth - 1)
        first = self.one(signs[:2] + signs[4:] if "None" in (a.python, b.python) else signs)
        if self.draw(st.integers(0, 3)) or "None" in (a.python, b.python):
            return Text(f"({a.python} {first} {b.python})", f"({a.sql} {first} {b.sql})")
        c = self.of(kind, depth - 1)
        sign = "<" if c.python == "None" else self.one(signs)
        python = f"({a.python} {first} {b.python} {sign} {c.python})"
        return Text(python, f"({a.sql} {first} {b.sql} AND {b.sql} {sign} {c.sql})")

    def time(self, depth: int) -> Text:
        """A time."""
        one, span = self.of("time", depth - 1), self.of("span", depth - 1)
        return Text(f"({one.python} {self.one(['+', '-'])} {span.python})", "")

    def day(self, depth: int) -> Text:
        """A date."""
        return self.call("date", self.one(["time", "day"]), depth=depth)

    def span(self, depth: int) -> Text:
        """A time span."""
        if self.draw(st.booleans()):
            a, b = self.of("time", depth - 1), self.of("time", depth - 1)
            return Text(f"({a.python} - {b.python})", "")
        return Text(f"({self.of('span', depth - 1).python} * 2)", "")


@st.composite
def expressions(draw: Any, *, sql: bool = False) -> Text:
    """Expressions of any kind."""
    kinds = ["number", "text", "truth"] + ([] if sql else ["time", "day", "span"])
    return Trees(draw, sql=sql).of(draw(st.sampled_from(kinds)), draw(st.integers(0, 4)))
