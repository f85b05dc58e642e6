"""Tree → the function of an item: one generated expression of Python for the usual values, and the interpreter.

The generated expression is reached by items whose fields have the classes for which the operators of Python have the
meaning of `values`. All others, NULL among them, are left to the interpreter: both have one meaning.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from itertools import accumulate
from keyword import iskeyword
from math import isfinite
from typing import Any, Final

from exop.model.expressions import tree, values
from exop.model.expressions.functions import FUNCTIONS
from exop.model.expressions.interpreter import interpreted
from exop.model.expressions.kinds import kind_of_value
from exop.model.expressions.tree import Tree
from exop.model.syntax import parsed

#: The tests for the kinds of values that are computed by operators of Python; `number`: an integer or a float.
_TESTS: Final = {
    **{kind: f"{{0}}.__class__ is {kind}" for kind in ("bool", "int", "float", "str", "date", "timedelta")},
    "some": "{0} is not None",
    "number": "({0}.__class__ is float or {0}.__class__ is int)",
    "datetime": "{0}.__class__ is datetime and {0}.tzinfo in UTC",  # in other zones, clocks show hours twice
}
_NUMBERS: Final = ("int", "float", "number")
#: Comparisons with NaN, which is equal to itself and greater than all others; where {b} is a number, the first two.
_WITH_NAN: Final = {
    ">": "(not {a} <= {b} and {b} == {b})",
    ">=": "({a} >= {b} or {a} != {a})",
    "<": "(not {b} <= {a} and {a} == {a})",
    "<=": "({a} <= {b} or {b} != {b})",
    "==": "({a} == {b} or {a} != {a} and {b} != {b})",
    "!=": "(not ({a} == {b} or {a} != {a} and {b} != {b}))",
}
_OPPOSITE: Final = {">": "<=", ">=": "<"}
FLIPPED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
#: Whether an item whose type is not known is a dictionary, or has its fields as attributes.
_SHAPE: Final = "row = item.__class__ is dict; plain = not (row or hasattr(item, '__getitem__'))"
#: The maximum depth of parentheses, for the parser of Python.
_DEEPEST: Final = 60


def _leave() -> Any:
    raise TypeError("the interpreter decides")


_GLOBALS: Final[dict[str, Any]] = {
    "__builtins__": {one.__name__: one for one in (bool, int, float, str, dict, hasattr, Exception)},
    "date": date, "datetime": datetime, "timedelta": timedelta, "UTC": (None, UTC),
    "bounded": values.bounded, "field": values.field_of, "leave": _leave, "real": values.real,
}  # fmt: skip


def compiled(root: Tree, *, rows: bool = False) -> Callable[[Any], Any]:
    """Return the function of an item that computes an expression without settings; with *rows*, items are rows."""
    slow, writer = interpreted(root), _Writer(rows)
    text, _ = writer.text(root)
    for name, kind in [*writer.kinds.items()][::-1]:  # what is not tested, and used once, is read where it is needed
        if kind == "any" and len(re.findall(rf"\b{name}\b", text + str([*writer.reads.values()]))) == 1:
            text = re.sub(rf"\b{name}\b", f"({writer.reads.pop(name)})", text)
    depths = accumulate((one == "(") - (one == ")") for one in text)
    if text.removesuffix("(item)") in writer.constants or max(depths, default=0) > _DEEPEST:
        return slow
    tests = [_TESTS[kind].format(name) for name, kind in writer.kinds.items() if kind in _TESTS]
    lines = [_SHAPE] * (" if row " in text + str([*writer.reads.values()])) + [
        f"{x} = {y}" for x, y in writer.reads.items()
    ]
    source = f"""def expression(item):
    try:
        {"; ".join(lines) or "pass"}
        if {" and ".join(tests) or "True"}:
            return {text}
    except Exception:
        pass
    return slow(item)
"""
    names = _GLOBALS | writer.constants | {"slow": slow}
    exec(compile(parsed(source), "<expression>", "exec"), names)
    made: Callable[[Any], Any] = names["expression"]
    return made


def _is_short(part: Tree) -> bool:
    """Whether a part may be written twice: a literal, or a field."""
    return all(isinstance(one, (tree.Literal, tree.Field, tree.Subject)) for one in part.walk())


class _NotFast(Exception):
    """Operators of Python do not compute this."""


class _Writer:
    """Writes the text of an expression of Python.

    Attributes:
        constants: The global names of the function.
        reads: The texts that read the fields, by the names of their values.
        kinds: The kinds that these must have.
    """

    def __init__(self, rows: bool) -> None:
        self.constants: dict[str, Any] = {}
        self.reads: dict[str, str] = {}
        self.kinds: dict[str, str] = {}
        self._rows = rows
        self._names: dict[str, str] = {}
        self._nulls: set[str] = set()  # what may be NULL, as there is a test for that
        self._count = 0

    def text(self, part: Tree) -> tuple[str, str]:
        """Return the text of a part, whatever its values are, and their kind if that is sure, otherwise `any`."""
        kinds = dict(self.kinds)
        try:
            return self._text(part)
        except _NotFast:
            self.kinds = dict.fromkeys(self.kinds, "any") | kinds
            return f"{self._constant(interpreted(part))}(item)", "any"

    def _text(self, part: Tree) -> tuple[str, str]:
        match part:
            case tree.Literal(value=value):
                return self._literal(value), kind_of_value(value)
            case tree.Subject():
                return "item", "any"
            case tree.Field():
                return self._field(part)
            case tree.Operation(call=values.is_null, operands=(of,)):
                text, kind = self.text(of)
                self._nulls.add(text)
                self.kinds |= {text: "any"} if kind == "some" else {}
                return f"({text} is None)", "bool"
            case tree.Operation(call=values.opposite, operands=(of,)):
                return f"(not {self._test(of)})", "bool"
            case tree.Operation(call=values.contained, operands=(of, tree.Operation(call=values.listed) as among)):
                return self._member(of, among.operands), "bool"
            case tree.Logic(word=word, operands=operands):
                return f"({f' {word} '.join(map(self._test, operands))})", "bool"
            case tree.Choice(cases=cases, otherwise=otherwise):
                each = [f"{self._shared(part, value)} if {self._test(test)} else " for test, value in cases]
                return f"({''.join(each)}{self._shared(part, otherwise)})", "any"
            case tree.Row(columns=columns):
                each = [f"{self._constant(name)}: {self.text(one)[0]}" for name, one in columns]
                return f"{{{', '.join(each)}}}", "any"
            case tree.Comparison(first=first, steps=steps) if all(_is_short(one) for _, one in steps[:-1]):
                lefts = [first, *[right for _, right in steps[:-1]]]
                each = [self._compared(sign, left, right) for left, (sign, right) in zip(lefts, steps, strict=True)]
                return f"({' and '.join(each)})", "bool"
            case tree.Arithmetic(first=first, steps=steps):
                found = self._of(first, "str" if part.kind == "str" else "number")
                for sign, right in steps:
                    found = self._step(sign, found, self._of(right, "str" if found[1] == "str" else "number"))
                return found
            case tree.Call(arguments=arguments) if part.function.lazy:
                each = [self._shared(part, one) for one in arguments]
                tests = [f"{name} if {first} is not None else " for first, name in map(self._named, each[:-1])]
                return f"({''.join(tests)}{each[-1]})", "any"
            case tree.Call() if part.function is FUNCTIONS.get(part.function.name):
                return self._call(part)
        raise _NotFast

    def _constant(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name

    def _literal(self, value: Any) -> str:
        if value is None or type(value) in (bool, int) or (type(value) is float and isfinite(value)):
            return f"({value!r})" if str(value)[0] == "-" else repr(value)
        return self._constant(value)

    def _named(self, text: str) -> tuple[str, str]:
        """A text that gives its value a name, and this name."""
        self._count += 1
        return f"(v{self._count} := {text})", f"v{self._count}"

    def _field(self, part: tree.Field) -> tuple[str, str]:
        """The name of a field: an attribute if the class is known."""
        whole, key = self.text(part.of)[0], repr(part.name)
        if not whole.isidentifier():
            raise _NotFast
        known = part.of.type.sole if part.of.type.kind == "union" else part.of.type.bare
        simple = part.name.isascii() and part.name.isidentifier() and not iskeyword(part.name)  # Python changes others
        text = f"field({whole}, {key})"
        if known.kind == "record" and not self._rows and (known.is_row or simple):
            text = f"{whole}[{key}]" if known.is_row else f"{whole}.{part.name}"
        elif whole == "item":
            text = f"item[{key}] if row else {f'item.{part.name} if plain else ' * simple}{text}"
        if text not in self._names:
            self._names[text] = name = f"f{len(self._names)}"
            self.reads[name] = text
            self.kinds[name] = "any"
        name = self._names[text]
        return name, self.kinds[name]

    def _of(self, part: Tree, wanted: str) -> tuple[str, str]:
        """Return the text of a part, and its kind, which is sure: that of its type, or the *wanted* one."""
        return self._sure(part, self.text(part), wanted)

    def _sure(self, part: Tree, found: tuple[str, str], wanted: str) -> tuple[str, str]:
        text, kind = found
        if kind in ("any", "some"):
            kind = part.kind if part.kind in _TESTS else wanted
            if text in self.kinds and kind in _TESTS:
                self.kinds[text] = kind
            elif kind in _TESTS:
                first, name = self._named(text)
                text = f"({name} if {_TESTS[kind].format(name).replace(name, first, 1)} else leave())"
        if kind not in _TESTS:
            raise _NotFast
        return text, kind

    def _test(self, part: Tree) -> str:
        text, kind = self._of(part, "bool")
        if kind != "bool":
            raise _NotFast
        return text

    def _shared(self, whole: Tree, part: Tree) -> str:
        """One of several values that share a column."""
        text, kind = self.text(part)
        if whole.kind != "float" or kind in ("float", "none"):
            return text
        if isinstance(part, tree.Literal) and abs(part.value) <= values.EXACT:
            return self._literal(float(part.value))
        first, name = self._named(text)
        return f"({name} if {first}.__class__ is float else real({name}))"

    def _compared(self, sign: str, left: Tree, right: Tree) -> str:
        if isinstance(left, tree.Literal):
            left, right, sign = right, left, FLIPPED[sign]
        number = isinstance(right, tree.Literal) and right.value == right.value and right.kind in _NUMBERS
        text, kind = self.text(left)
        if number and kind in ("any", "some") and sign not in ("==", "!="):  # whatever it is: the result is tested
            if text in self.kinds and left.nullable and text not in self._nulls:
                self.kinds[text] = "some"
            opposite = _OPPOSITE.get(sign, "")
            first, name = self._named(f"{text} {opposite or sign} {self.text(right)[0]}")
            return f"({first} is {not opposite} or {name} is not {bool(opposite)} and leave())"
        wanted = next((one.kind for one in (right, left) if one.kind in _TESTS and one.kind not in _NUMBERS), "number")
        (a, kind), (b, other) = self._sure(left, (text, kind), wanted), self._of(right, wanted)
        if {kind, other} <= {*_NUMBERS} and {kind, other} != {"int"}:
            if number:
                return f"(not {a} {_OPPOSITE[sign]} {b})" if sign in _OPPOSITE else f"({a} {sign} {b})"
            if not (a.isidentifier() and b.isidentifier()):
                raise _NotFast
            return _WITH_NAN[sign].format(a=a, b=b)
        if (kind != other and not {kind, other} <= {*_NUMBERS}) or (kind == "datetime" and sign in ("==", "!=")):
            raise _NotFast
        return f"({a} {sign} {b})"

    def _member(self, of: Tree, among: tuple[Tree, ...]) -> str:
        known = [one.value for one in among if isinstance(one, tree.Literal)]
        kinds = {kind_of_value(one) for one in known}
        if len(known) < len(among) or kinds not in ({"str"}, {"int"}):
            raise _NotFast
        text, _ = self._of(of, "str" if kinds == {"str"} else "number")
        return f"({text} in {self._constant(frozenset(known))})"

    def _step(self, sign: str, left: tuple[str, str], right: tuple[str, str]) -> tuple[str, str]:
        kinds, text = {left[1], right[1]}, f"({left[0]} {sign} {right[0]})"
        if kinds == {"str"} and sign == "+":
            return text, "str"
        if not kinds <= {*_NUMBERS}:
            raise _NotFast
        kind = "float" if sign == "/" or "float" in kinds else "int" if kinds == {"int"} else "number"
        return self._bounded(text, "float" if sign == "%" else kind), kind

    def _bounded(self, text: str, kind: str) -> str:
        if kind == "float":
            return text
        first, name = self._named(text)
        test = f"{first}.__class__ is float or " if kind == "number" else ""
        within = name if test else first
        return f"({name} if {test}{-values.HIGHEST - 1} <= {within} <= {values.HIGHEST} else bounded({name}))"

    def _call(self, part: tree.Call) -> tuple[str, str]:
        texts, kinds = [], set[str]()
        for place, one in enumerate(part.arguments):
            parameter = part.function.parameter(place)
            wanted = "number" if {"int", "float"} <= parameter.kinds else parameter.written.partition(" ")[0]
            text, kind = self._of(one, wanted)
            if kind not in (*parameter.kinds, wanted):
                raise _NotFast
            texts.append(text)
            kinds.add(kind)
        text = f"{self._constant(part.function.call)}({', '.join(texts)})"
        kind = part.kind if part.kind != "any" else "number" if kinds <= {*_NUMBERS} else "any"
        if part.shares and kinds != {"float"}:
            text = f"real({text})"
        return self._bounded(text, kind) if kind in ("int", "number") else text, kind
