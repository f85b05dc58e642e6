"""Tree → one generated function of an item.

Values of the common types are computed by operators of Python, behind a test of their types; all others, NULL among
them, by the functions of `values`, which define what an operation means.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import date, datetime, timedelta
from keyword import iskeyword
from math import isfinite
from typing import Any, Final, TypeAlias

from exop.model.expressions import tree, values
from exop.model.expressions.tree import LOGICAL, TYPES, Kind, Tree, kind_of_value
from exop.model.expressions.values import HIGHEST
from exop.model.syntax import parsed
from exop.model.types.description import ANY, Type

#: A line of code, or a test with the lines for both outcomes.
_Line: TypeAlias = "str | tuple[str, list[_Line], list[_Line]]"
#: A kind of values for which operators of Python are right; `number`: an integer or a float.
_Fast: TypeAlias = str
_GUARDS: Final[dict[_Fast, str]] = {
    "int": "{0}.__class__ is int",
    "float": "{0}.__class__ is float",
    "number": "({0}.__class__ is float or {0}.__class__ is int)",
    "str": "{0}.__class__ is str",
    "datetime": "{0}.__class__ is _datetime and {0}.tzinfo is None",  # in one zone, Python compares without the zone
    "date": "{0}.__class__ is _date",
    "timedelta": "{0}.__class__ is _timedelta",
}
#: The maximum length of one line: the parser of Python has a limit for nested parentheses.
_LINE: Final = 400
_NUMBERS: Final = ("int", "float", "number")
_GLOBALS: Final[dict[str, Any]] = {
    "__builtins__": {one.__name__: one for one in (len, abs, round, bool, int, float, str, dict)},
    "_datetime": datetime,
    "_date": date,
    "_timedelta": timedelta,
    "_bounded": values.bounded,
    "_contained": values.contained,
    "_missing": values.missing,
    "_element": values.element,
    "_field": values.field_of,
    "_negative": values.negative,
    "_part": values.part,
    "_real": values.real,
    "_truth": values.truth,
}
_NAMES: Final = {
    "+": "_add", "-": "_subtract", "*": "_multiply", "/": "_divide", "//": "_floor", "%": "_modulo",
    "<": "_lt", "<=": "_le", "==": "_eq", "!=": "_ne", ">": "_gt", ">=": "_ge",
}  # fmt: skip
_GLOBALS.update({_NAMES[sign]: one for sign, one in (values.CALCULATIONS | values.COMPARISONS).items()})
#: The kinds that are compared by operators of Python as they are.
_COMPARED: Final = ("str", "datetime", "date", "timedelta")
_FLIPPED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}


def compiled(root: Tree) -> Callable[[Any], Any]:
    """Return the function of an item that computes an expression without settings."""
    writer = _Writer()
    result = writer.value(root)
    if writer.lines and isinstance(last := writer.lines[-1], str) and last.startswith(f"{result} = "):
        result = last.removeprefix(f"{result} = ")
        del writer.lines[-1]
    module = parsed(f"def expression(item):\n    return {result}")
    module.body[0].body[:0] = _statements(writer.lines)  # type: ignore[attr-defined]
    names = {**_GLOBALS, **writer.constants}
    exec(compile(ast.fix_missing_locations(module), "<expression>", "exec"), names)
    made: Callable[[Any], Any] = names["expression"]
    return made


def _statements(lines: list[_Line]) -> Iterator[ast.stmt]:
    """Build the statements as a tree: the depth of indented text is limited."""
    plain: list[str] = []
    for line in [*lines, ("", [], [])]:
        if isinstance(line, str):
            plain.append(line)
            continue
        yield from parsed("\n".join(plain)).body
        plain = []
        test, then, otherwise = line
        if test:
            condition = parsed(test).body[0].value  # type: ignore[attr-defined]
            yield ast.If(condition, [*_statements(then)], [*_statements(otherwise)])


def folded(part: Tree, settings: Mapping[str, Any]) -> Tree:
    """Return the tree with the values of *settings*, and computed what is constant, unless that fails."""
    if isinstance(part, tree.Setting):
        value = values.plain(settings[part.name])
        return tree.Literal(part.at, TYPES.get(kind_of_value(value), ANY), value is None, value)
    if isinstance(part, (tree.Literal, tree.Subject)):
        return part
    fields = {one.name: _folded(getattr(part, one.name), settings) for one in dataclasses.fields(part)}
    made = dataclasses.replace(part, **fields)
    if all(isinstance(one, tree.Literal) for one in made.parts) and not isinstance(made, tree.Listed):
        with suppress(Exception):  # it fails when, and if, it is computed
            if (kind := kind_of_value(value := compiled(made)(None))) in TYPES and kind != "any":
                return tree.Literal(part.at, TYPES[kind], value is None, value)
    return made


def _folded(value: Any, settings: Mapping[str, Any]) -> Any:
    if isinstance(value, tuple):
        return tuple(_folded(one, settings) for one in value)
    return folded(value, settings) if isinstance(value, Tree) else value


class _NotFast(Exception):
    """There is no form with operators of Python."""


class _Writer:
    """Writes the lines of a function. `value` returns a name or constant, and writes first what computes it.

    Attributes:
        lines: The lines of the block that is being written.
        constants: The global names of the function.
    """

    def __init__(self) -> None:
        self.lines: list[_Line] = []
        self.constants: dict[str, Any] = {}
        self._functions: dict[str, str] = {}  # the global names of functions
        self._count = 0
        self._written: dict[Any, str] = {}  # what is computed already wherever the current block runs

    def value(self, part: Tree) -> str:
        """Return the name of the value of a part."""
        if (key := _key(part)) not in self._written:
            self._written[key] = self._value(part)
        return self._written[key]

    def _value(self, part: Tree) -> str:
        match part:
            case tree.Literal(value=value):
                return self._constant(value)
            case tree.Subject():
                return "item"
            case tree.Field(of=of, name=name):
                return self._assign(_field(of.type, self.value(of), name, isinstance(of, tree.Subject)))
            case tree.IsNull(of=of, negated=negated):
                if (name := self.value(of)) in self.constants:  # Python would warn of a literal
                    return self._constant((self.constants[name] is None) != negated)
                return self._assign(f"{name} is {'not ' * negated}None")
            case tree.Not(of=of):
                found = self._logical(of)
                return self._assign(f"None if {found} is None else not {found}")
            case tree.Logic(word=word, operands=operands):
                return self._logic(word == "and", operands)
            case tree.Choice():
                return self._choice(part)
            case tree.Comparison(first=first, steps=steps) if len(steps) > 1:
                return self._chain(part, first, steps)
            case tree.Call(function=function, arguments=arguments) if function.lazy:
                return self._first(part, arguments)
            case tree.Listed(elements=elements):
                return self._assign(f"[{', '.join(map(self.value, elements))}]")
        slow, guards = self._slow(part), dict[str, _Fast]()
        try:
            fast, _ = self._fast(part, "number", guards)
        except _NotFast:
            return self._assign(slow)
        tests = [_GUARDS[kind].format(name) for name, kind in guards.items()]
        return self._assign(f"{fast} if {' and '.join(tests)} else {slow}" if tests else fast)

    def _new(self) -> str:
        self._count += 1
        return f"_{self._count}"

    def _assign(self, text: str, name: str = "") -> str:
        name = name or self._new()
        self.lines.append(f"{name} = {text}")
        return name

    def _constant(self, value: Any) -> str:
        name = f"_c{len(self.constants)}"
        if value is None or type(value) in (bool, str, int) or (type(value) is float and isfinite(value)):
            name = repr(value) if type(value) not in (int, float) or str(value)[0] != "-" else f"({value!r})"
        self.constants[name] = value
        return name

    @contextmanager
    def _block(self) -> Iterator[list[_Line]]:
        """Write a block that may not run: what it computes is known in it alone."""
        lines, written = self.lines, dict(self._written)
        self.lines = []
        yield self.lines
        self.lines, self._written = lines, written

    # What does not compute all of its parts

    def _logical(self, part: Tree) -> str:
        found = self.value(part)
        if isinstance(part, LOGICAL):
            return found
        return self._assign(f"{found} if {found}.__class__ is bool else _truth({found})")

    def _logic(self, every: bool, operands: tuple[Tree, ...]) -> str:
        found = self._logical(operands[0])
        if not isinstance(operands[0], LOGICAL):
            found = self._assign(found)
        stop, goes_on = ("False", "True") if every else ("True", "False")
        for one in operands[1:]:
            with self._block() as lines:
                after = self._logical(one)
                self._assign(f"{after} if {found} is {goes_on} or {after} is {stop} else None", found)
            self.lines.append((f"{found} is not {stop}", lines, []))
        return found

    def _choice(self, part: tree.Choice) -> str:
        found = self._new()
        lines = self.lines
        written = dict(self._written)
        for condition, value in part.cases:
            test = self._logical(condition)
            with self._block() as then:
                self._unified(part, value, found)
            otherwise: list[_Line] = []
            self.lines.append((test, then, otherwise))
            self.lines = otherwise
        self._unified(part, part.otherwise, found)
        self.lines, self._written = lines, written
        return found

    def _unified(self, part: Tree, value: Tree, name: str) -> str:
        text = self.value(value)
        return self._assign(f"_real({text})" if part.kind == "float" and value.kind != "float" else text, name)

    def _chain(self, part: Tree, first: Tree, steps: tuple[tuple[str, Tree], ...]) -> str:
        found, left = self._new(), first
        lines, written = self.lines, dict(self._written)
        for place, (sign, right) in enumerate(steps):
            self.value(left), self.value(right)
            one = self._value(tree.Comparison(part.at, part.type, part.nullable, left, ((sign, right),)))
            if not place:
                self._assign(one, found)
            else:
                self._assign(f"{one} if {found} or {one} is False else None", found)
            if place < len(steps) - 1:
                inner: list[_Line] = []
                self.lines.append((f"{found} is not False", inner, []))
                self.lines = inner
            left = right
        self.lines, self._written = lines, written
        return found

    def _first(self, part: Tree, arguments: tuple[Tree, ...]) -> str:
        found = self._new()
        self._unified(part, arguments[0], found)
        for one in arguments[1:]:
            with self._block() as lines:
                self._unified(part, one, found)
            self.lines.append((f"{found} is None", lines, []))
        return found

    # What computes all of its parts: once for any values, and once with operators of Python

    def _slow(self, part: Tree) -> str:
        if _key(part) in self._written:
            return self.value(part)
        text = self._called(part)
        return self._assign(text) if len(text) > _LINE else text

    def _called(self, part: Tree) -> str:
        match part:
            case tree.Arithmetic(first=first, steps=steps):
                text = self._slow(first)
                for sign, right in steps:
                    text = f"{_NAMES[sign]}({text}, {self._slow(right)})"
                    text = self._assign(text) if len(text) > _LINE else text
                return text
            case tree.Comparison(first=first, steps=((sign, right),)):
                return f"{_NAMES[sign]}({self._slow(first)}, {self._slow(right)})"
            case tree.Negative(of=of):
                return f"_negative({self._slow(of)})"
            case tree.Membership(of=of, among=among, negated=negated):
                return f"{'_missing' if negated else '_contained'}({self.value(of)}, {self.value(among)})"
            case tree.Element(of=of, index=index):
                return f"_element({self.value(of)}, {self.value(index)})"
            case tree.Slice(of=of, bounds=bounds):
                shown = ["..." if one is None else self.value(one) for one in bounds]
                return f"_part({', '.join([self.value(of), *shown])})"
            case tree.Call(function=function, arguments=arguments) if not function.lazy:
                name = self._functions.setdefault(function.name, f"_f{len(self._functions)}")
                self.constants.setdefault(name, function.safe())
                each = self._slow if function.inline else self.value
                found = f"{name}({', '.join(map(each, arguments))})"
                return f"_real({found})" if part.kind == "float" and function.result is None else found
        return self.value(part)

    def _fast(self, part: Tree, expected: _Fast, guards: dict[str, _Fast]) -> tuple[str, _Fast]:
        if _key(part) in self._written:
            return self._leaf(self.value(part), part.kind, expected, guards)
        text, kind = self._inline(part, expected, guards)
        if len(text) > _LINE:
            raise _NotFast
        return text, kind

    def _inline(self, part: Tree, expected: _Fast, guards: dict[str, _Fast]) -> tuple[str, _Fast]:
        match part:
            case tree.Arithmetic(first=first, steps=steps):
                text, kind = self._fast(first, "str" if part.kind == "str" else "number", guards)
                for sign, right in steps:
                    text, kind = self._step(sign, (text, kind), self._fast(right, kind, guards))
                return text, kind
            case tree.Comparison(first=first, steps=((sign, right),)):
                kind = next((one.kind for one in (first, right) if one.kind in _COMPARED), "number")
                left = self._fast(first, kind, guards)
                return self._compared(sign, left, self._fast(right, kind, guards)), "bool"
            case tree.Negative(of=of):
                text, kind = self._fast(of, "number", guards)
                return self._within(f"-{text}", kind), kind
            case tree.Call(function=function, arguments=arguments) if function.inline:
                wanted = [function.expected(place) for place in range(len(arguments))]
                given = [self._fast(one, kind, guards) for one, kind in zip(arguments, wanted, strict=True)]
                return self._inline_call(part, [kind for _, kind in given], wanted, [text for text, _ in given])
            case tree.Membership(of=of, among=tree.Listed(elements=elements), negated=negated):
                known = [one.value for one in elements if isinstance(one, tree.Literal)]
                kinds = {kind_of_value(one) for one in known}
                if len(known) < len(elements) or not (kinds == {"str"} or kinds == {"int"}):
                    raise _NotFast
                text, _ = self._fast(of, "str" if kinds == {"str"} else "number", guards)
                return f"({text} {'not ' * negated}in {self._constant(frozenset(known))})", "bool"
            case tree.Comparison() | tree.Membership() | tree.Element() | tree.Slice() | tree.Call():
                raise _NotFast
        return self._leaf(self.value(part), part.kind, expected, guards)

    def _inline_call(
        self, part: tree.Call, kinds: list[_Fast], wanted: list[_Fast], given: list[str]
    ) -> tuple[str, _Fast]:
        function = part.function
        if not function.repeats and len(given) > function.required:
            raise _NotFast
        if wanted[0] == "ordered":  # `min` and `max` of two: NaN is the greatest
            simple = all(one.isidentifier() or one in self.constants for one in given)
            if len(given) != 2 or kinds[0] != kinds[1] or kinds[0] == "number" or not simple:
                raise _NotFast
            return f"({function.inline.format(*given)})", kinds[0]
        pairs = zip(kinds, wanted, strict=True)
        if any(kind != want and (want != "number" or kind not in _NUMBERS) for kind, want in pairs):
            raise _NotFast
        kind = part.kind if part.kind != "any" else kinds[0] if len({*kinds}) == 1 else "number"
        text = f"({function.inline.format(*[f'({one})' for one in given])})"
        return self._within(text, kind) if wanted[0] == "number" and kind in _NUMBERS else text, kind

    def _leaf(self, name: str, known: Kind, expected: _Fast, guards: dict[str, _Fast]) -> tuple[str, _Fast]:
        if name in self.constants:
            found = kind_of_value(value := self.constants[name])
            if found not in _GUARDS or (found == "datetime" and value.tzinfo is not None):
                raise _NotFast
            return name, found
        kind: _Fast = expected if known == "any" else known
        if kind not in _GUARDS or guards.setdefault(name, kind) != kind:
            raise _NotFast
        return name, kind

    def _step(self, sign: str, left: tuple[str, _Fast], right: tuple[str, _Fast]) -> tuple[str, _Fast]:
        kinds = {left[1], right[1]}
        text = f"({left[0]} {sign} {right[0]})"
        if kinds == {"str"} and sign == "+":
            return text, "str"
        if not kinds <= {*_NUMBERS}:
            raise _NotFast
        kind = "float" if sign == "/" or "float" in kinds else "int" if kinds == {"int"} else "number"
        constant = self._is_number(right[0]) and self.constants[right[0]] >= 1
        if sign == "%" or (sign == "//" and constant):
            return text, kind
        return self._within(text, kind, low=sign != "+" or not constant, high=sign != "-" or not constant), kind

    def _within(self, text: str, kind: _Fast, *, low: bool = True, high: bool = True) -> str:
        """The text of a number, with a test that an integer has no more than 64 bits, where it may have more."""
        if kind == "float":
            return f"({text})"
        name = self._new()
        lowest, highest = f"{-HIGHEST - 1} <= " * low, f" <= {HIGHEST}" * high
        return f"({name} if {lowest}({name} := {text}){highest} else _bounded({name}))"

    def _compared(self, sign: str, left: tuple[str, _Fast], right: tuple[str, _Fast]) -> str:
        """The text of a comparison: NaN is equal to itself, and greater than all other numbers."""
        (a, one), (b, other) = left, right
        if (one in _NUMBERS) != (other in _NUMBERS) or (one != other and one not in _NUMBERS):
            raise _NotFast
        numbers = {one, other} & {"float", "number"}
        if not numbers:
            return f"({a} {sign} {b})"
        if self._is_number(a):
            (a, b), sign = (b, a), _FLIPPED[sign]
        if self._is_number(b):
            return {">": f"(not {a} <= {b})", ">=": f"(not {a} < {b})"}.get(sign, f"({a} {sign} {b})")
        if not (a.isidentifier() and b.isidentifier()):
            raise _NotFast
        return {
            ">": f"(not {a} <= {b} and {b} == {b})",
            "<": f"(not {b} <= {a} and {a} == {a})",
            ">=": f"({a} >= {b} or {a} != {a})",
            "<=": f"({a} <= {b} or {b} != {b})",
            "==": f"({a} == {b} or {a} != {a} and {b} != {b})",
            "!=": f"(not ({a} == {b} or {a} != {a} and {b} != {b}))",
        }[sign]

    def _is_number(self, name: str) -> bool:
        """Whether a name is that of a constant other than NaN."""
        return name in self.constants and self.constants[name] == self.constants[name]


def _key(part: Tree) -> Any:
    """Return a key that parts share if one computation serves them: the same field, or the same part."""
    if isinstance(part, tree.Field):
        return (_key(part.of), part.name)
    return part.name if isinstance(part, (tree.Subject, tree.Setting)) else id(part)


def _field(known: Type, text: str, name: str, whole: bool) -> str:
    """The text that reads a field: an attribute if the class is known."""
    known = known.sole if known.kind == "union" else known.bare
    quoted = repr(name)
    if known.kind == "record" and (known.is_row or (name.isidentifier() and not iskeyword(name))):
        found = f"{text}[{quoted}]" if known.is_row else f"{text}.{name}"
        return found if whole else f"None if {text} is None else {found}"
    return f"{text}[{quoted}] if {text}.__class__ is dict else _field({text}, {quoted})"
