"""The text of an expression → its checked tree. Python's own parser reads it, and every node is checked here."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from exop.errors import ExpressionError, suggest
from exop.model.expressions import kinds, tree, values
from exop.model.expressions.functions import Function, find_functions
from exop.model.expressions.kinds import TYPES
from exop.model.expressions.tree import Tree
from exop.model.slets.ports import PortType
from exop.model.syntax import parsed_expression
from exop.model.types.assignable import missing_field
from exop.model.types.description import ANY, Type

#: The maximum number of characters: text from outside must not exhaust the parser.
LONGEST: Final = 2000
#: The maximum depth of nesting, with which no form comes near the recursion limit; long sums and `if` are flat.
DEEPEST: Final = 60

_SIGNS: Final[dict[type[ast.AST], str]] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%",
    ast.Lt: "<", ast.LtE: "<=", ast.Eq: "==", ast.NotEq: "!=", ast.Gt: ">", ast.GtE: ">=",
}  # fmt: skip
_CURES: Final[dict[type[ast.AST], str]] = {
    ast.Pow: "powers are not possible here: multiply",
    ast.BitAnd: "& is not possible here: write `and`",
    ast.BitOr: "| is not possible here: write `or`",
    ast.Invert: "~ is not possible here: write `not`",
    ast.NamedExpr: "nothing is assigned in an expression: write ==",
    ast.JoinedStr: "f-texts are not possible here: write concat(…)",
    ast.Starred: "arguments are given one by one",
}
_OTHERWISE: Final = (
    "an expression has comparisons, arithmetic, and/or/not, in, is None, `x if c else y`, literals, fields, elements "
    "and functions"
)
#: Spellings of other languages, for which Python reports no more than invalid syntax.
_HINTS: Final = (
    (r"&&", "write `and`"),
    (r"\|\|", "write `or`"),
    (r"!(?!=)", "write `not`, or !="),
    (r"<>", "write !="),
    (r"(?<![<>=!:])=(?!=)", "write == to compare"),
    (r"(?i)\bis\s+not\s+null\b|\bis\s+null\b", "write `is None`, `is not None`"),
    (r"(?i)\b(case|when|then)\b", "write `x if condition else y`"),
    (r"(?i)\bbetween\b", "write `low <= x <= high`"),
    (r"(?i)\b(i?like)\b", "use contains, starts or ends"),
    (r"\?", "write `x if condition else y`"),
)
_WORDS: Final = {"null": "None", "nil": "None", "none": "None", "true": "True", "false": "False"}
#: What functions are called elsewhere.
_FUNCTIONS: Final = {
    "startswith": "starts", "endswith": "ends", "length": "len", "trim": "strip", "cast": "int", "least": "min",
    "greatest": "max", "join": "concat", "ifnull": "coalesce", "nvl": "coalesce", "total_seconds": "seconds",
    "timedelta": "duration", "strftime": "format_time", "strptime": "parse_time", "to_timestamp": "parse_time",
}  # fmt: skip


@dataclass(frozen=True)
class Names:
    """The names that an expression may contain.

    Attributes:
        place: What the expression belongs to, such as a node; it is named in errors.
        subjects: The input ports (or `item`), each with the type that it carries; an expression names at most one.
        settings: The names of settings, whose values are given when the expression is compiled.
        functions: Further functions, by name.
    """

    place: str
    subjects: Mapping[str, PortType]
    settings: Collection[str] = ()
    functions: Mapping[str, Function] = field(default_factory=dict)


class Reader:
    """Reads one text.

    Attributes:
        text: The text, in one line.
        subject: The subject that it names, once it is read; empty if it names none.
    """

    def __init__(self, text: str, names: Names) -> None:
        self.text = " ".join(str(text)[: LONGEST + 1].splitlines()).strip()
        self.names = names
        self.subject = ""
        self._functions = find_functions(names.functions)
        self._depth = 0

    def read(self) -> Tree:
        """Return the checked tree."""
        parsed = self._parsed()
        try:
            return self._read(parsed)
        except RecursionError:
            self.fail(0, f"it is nested more than {DEEPEST} deep")

    def condition(self) -> Tree:
        """Return the checked tree of a Boolean that looks at an item."""
        found = self._logical(self.read())
        if not self.subject:
            self.fail(0, f"it looks at no item; name one of {', '.join(self.names.subjects)}")
        return tree.Logic(found.at, TYPES["bool"], found.nullable, "and", (found,))

    def fail(self, position: int, problem: str) -> NoReturn:
        """Raise the error for a position of the text."""
        at = min(position, len(self.text))
        raise ExpressionError(place=self.names.place, expression=self.text, position=at, problem=problem)

    def _parsed(self) -> ast.expr:
        if len(self.text) > LONGEST:
            self.fail(LONGEST, f"an expression has at most {LONGEST} characters")
        if not self.text.strip():
            problem = "the expression is empty"
            raise ExpressionError(place=self.names.place, expression="", position=None, problem=problem)
        try:
            return parsed_expression(self.text)
        except SyntaxError as problem:
            bare = re.sub(r"'[^']*'|\"[^\"]*\"", lambda quoted: " " * len(quoted[0]), self.text)
            for pattern, cure in _HINTS:
                if found := re.search(pattern, bare):
                    self.fail(found.start(), f"no expression: {cure}")
            self.fail(max(0, (problem.offset or 1) - 1), f"no expression: {problem.msg}")
        except (RecursionError, MemoryError, ValueError):
            self.fail(0, "no expression: it is nested too deep, or holds what is no text")

    def _read(self, node: ast.expr) -> Tree:
        self._depth += 1
        if self._depth > DEEPEST:
            self.fail(0, f"it is nested more than {DEEPEST} deep")
        if (method := getattr(self, f"_read_{type(node).__name__.lower()}", None)) is None:
            self.fail(self._at(node), _CURES.get(type(node), _OTHERWISE))
        found: Tree = method(node)
        self._depth -= 1
        return found

    def _at(self, node: ast.AST, where: str = "col_offset") -> int:
        """Python counts bytes; people count letters."""
        return len(self.text.encode()[: getattr(node, where, 0)].decode(errors="ignore"))

    def _end(self, node: ast.AST) -> int:
        return self._at(node, "end_col_offset")

    # Names, fields and elements

    def _read_name(self, node: ast.Name) -> Tree:
        at, subjects = self._at(node), self.names.subjects
        if node.id in subjects:
            if self.subject not in ("", node.id):
                self.fail(at, f"an expression looks at one port: {self.subject!r} and {node.id!r} are two")
            self.subject = node.id
            return tree.Subject(at, subjects[node.id].items, False, node.id)
        if node.id in self.names.settings:
            return tree.Setting(at, ANY, True, node.id)
        return self._unknown(node, at)

    def _unknown(self, node: ast.Name, at: int) -> NoReturn:
        known = [*self.names.subjects, *self.names.settings]
        near = f"write {word}" if (word := _WORDS.get(node.id.lower())) else suggest(node.id, known)
        near = "a function is called: " + self._functions[node.id].signature if node.id in self._functions else near
        self.fail(at, f"no port or setting is called {node.id!r}; {near}")

    def _read_attribute(self, node: ast.Attribute) -> Tree:
        at = self._end(node) - len(node.attr)
        if node.attr.startswith("_"):
            self.fail(at, f"{node.attr!r} is private: an expression reads public fields")
        return self._field(at, self._read(node.value), node.attr)

    def _field(self, at: int, of: Tree, name: str) -> Tree:
        known = of.type if of.type.kind in ("union", "columns") else of.type.bare
        if isinstance(of, tree.Subject) and known.kind == "columns" and not known.fields:
            known = ANY
        known = known if known.kind == "columns" else _record(known)
        if (problem := missing_field(known, name)) is not None:
            carried = self.names.subjects[self.subject].sent_by if self.subject else ""
            self.fail(at, f"{problem}{carried}")
        if of.kind not in ("any", "record", "list", "none") and not isinstance(of, tree.Subject):
            self.fail(at, f"a value of type {of.type} has no fields; there are functions: {', '.join(self._functions)}")
        if (found := known.fields.get(name)) is None:
            return tree.Field(at, ANY, True, of, name)
        nullable = of.nullable or found.type.takes_none or (known.kind == "columns" and not found.required)
        return tree.Field(at, found.type, nullable, of, name)

    def _read_subscript(self, node: ast.Subscript) -> Tree:
        of = self._read(node.value)
        index = node.slice
        if isinstance(index, ast.Constant) and isinstance(index.value, str) and of.kind in ("any", "record"):
            return self._field(self._at(index), of, index.value)
        if of.kind not in ("any", "list", "str", "bytes", "record"):
            self.fail(self._at(index), f"a value of type {of.type} has no elements")
        at = self._end(node.value)
        if isinstance(index, ast.Slice):
            absent = tree.Literal(at, ANY, False, ...)
            bounds = [absent if one is None else self._read(one) for one in (index.lower, index.upper, index.step)]
            return tree.Operation(at, of.type, True, values.part, (of, *bounds))
        kind = (
            TYPES["str"]
            if of.kind == "str"
            else (of.type if of.type.kind in ("list", "tuple") else of.type.sole).element
            if of.kind == "list"
            else ANY
        )
        return tree.Operation(at, kind, True, values.element, (of, self._read(index)))

    def _read_constant(self, node: ast.Constant) -> Tree:
        value = node.value
        if (
            value is ...
            or isinstance(value, complex)
            or (isinstance(value, str) and re.search("[\ud800-\udfff]", value))
        ):
            self.fail(self._at(node), _OTHERWISE)
        if isinstance(value, int) and value > values.HIGHEST:
            self.fail(self._at(node), "an integer has at most 64 bits")
        return self._literal(self._at(node), value)

    def _literal(self, at: int, value: Any) -> Tree:
        return tree.Literal(at, TYPES[kinds.kind_of_value(value)], value is None, value)

    def _read_list(self, node: ast.List | ast.Tuple | ast.Set) -> Tree:
        found = tuple(self._read(one) for one in node.elts)
        element = kinds.common(one.type for one in found) or ANY
        known = kinds.list_of(ANY if element.kind == "none" else element)
        return tree.Operation(self._at(node), known, False, values.listed, found)

    _read_tuple = _read_set = _read_list

    # Operators

    def _read_binop(self, node: ast.BinOp) -> Tree:
        """Read `a + b - c` as one flat part, whatever its length."""
        spine: list[ast.BinOp] = []
        first: ast.expr = node
        while isinstance(first, ast.BinOp):
            spine.append(first)
            first = first.left
        start = self._read(first)
        kind, nullable, steps = start.kind, start.nullable, []
        for step in reversed(spine):
            if (sign := _SIGNS.get(type(step.op))) is None:
                self.fail(self._sign_at(step), _CURES.get(type(step.op), _OTHERWISE))
            right = self._read(step.right)
            if (after := kinds.result_kind(sign, kind, right.kind)) is None:
                cure = "; write concat(…) or str(…)" if sign == "+" and "str" in (kind, right.kind) else ""
                self.fail(self._sign_at(step), f"{kind} {sign} {right.type} is not possible{cure}")
            kind, nullable = after, nullable or right.nullable
            steps.append((sign, right))
        return tree.Arithmetic(start.at, TYPES[kind], nullable, start, tuple(steps))

    def _sign_at(self, node: ast.BinOp) -> int:
        at = self._end(node.left)
        while self.text[at : at + 1] in (" ", ")"):
            at += 1
        return at

    def _read_unaryop(self, node: ast.UnaryOp) -> Tree:
        at = self._at(node)
        if isinstance(node.op, ast.Invert):
            self.fail(at, _CURES[ast.Invert])
        if isinstance(node.op, ast.USub) and ast.unparse(node.operand) == str(values.HIGHEST + 1):
            return self._literal(at, -values.HIGHEST - 1)
        of = self._read(node.operand)
        if isinstance(node.op, ast.Not):
            return self._maybe_not(True, self._logical(of), at)
        if of.kind not in (*kinds.NUMERIC, "Decimal", "any", "none") and (
            of.kind != "timedelta" or isinstance(node.op, ast.UAdd)
        ):
            self.fail(at, f"{of.type} has no sign")
        minus = isinstance(node.op, ast.USub)
        if minus and isinstance(of, tree.Literal) and of.kind in ("int", "float"):
            return self._literal(at, -of.value)
        kind = TYPES[kinds.result_kind("*", "int", of.kind) or of.kind]
        return tree.Arithmetic(at, kind, of.nullable, self._literal(at, -1 if minus else 1), (("*", of),))

    def _logical(self, part: Tree) -> Tree:
        if part.kind not in ("bool", "any", "none"):
            self.fail(part.at, f"a Boolean is expected, not {part.type}: compare it with something")
        return part

    def _maybe_not(self, negated: bool, of: Tree, at: int | None = None) -> Tree:
        at = of.at if at is None else at
        return tree.Operation(at, TYPES["bool"], of.nullable, values.opposite, (of,)) if negated else of

    def _read_boolop(self, node: ast.BoolOp) -> Tree:
        operands = tuple(self._logical(self._read(one)) for one in node.values)
        word = "and" if isinstance(node.op, ast.And) else "or"
        return tree.Logic(operands[0].at, TYPES["bool"], any(one.nullable for one in operands), word, operands)  # type: ignore[arg-type]

    def _read_ifexp(self, node: ast.IfExp) -> Tree:
        cases: list[tuple[Tree, Tree]] = []
        otherwise: ast.expr = node
        while isinstance(otherwise, ast.IfExp):
            cases.append((self._logical(self._read(otherwise.test)), self._read(otherwise.body)))
            otherwise = otherwise.orelse
        last = self._read(otherwise)
        values = [value for _, value in cases] + [last]
        if (kind := kinds.common(one.type for one in values)) is None:
            shown = ", ".join(dict.fromkeys(str(one.type) for one in values))
            self.fail(self._at(node), f"the values have different types: {shown}")
        return tree.Choice(self._at(node), kind, any(one.nullable for one in values), tuple(cases), last)

    def _read_compare(self, node: ast.Compare) -> Tree:
        steps, left, nullable = [], (first := self._read(node.left)), first.nullable
        for op, one in zip(node.ops, node.comparators, strict=True):
            sign, right = _SIGNS.get(type(op)), self._read(one)
            if sign is None and len(node.ops) == 1:
                return self._single(left, op, right)
            if sign is None:
                self.fail(self._at(one), "`in` and `is` cannot be continued: write `and`")
            self._check_pair(left, sign, right)
            steps.append((sign, right))
            left, nullable = right, nullable or right.nullable
        return tree.Comparison(first.at, TYPES["bool"], nullable, first, tuple(steps))

    def _single(self, left: Tree, op: ast.cmpop, right: Tree) -> Tree:
        negated = isinstance(op, (ast.NotIn, ast.IsNot))
        if isinstance(op, (ast.Is, ast.IsNot)):
            if not (isinstance(right, tree.Literal) and right.value is None):
                self.fail(right.at, "`is` asks for None only: write ==")
            return self._maybe_not(negated, tree.Operation(left.at, TYPES["bool"], False, values.is_null, (left,)))
        if right.kind not in ("list", "str", "any", "none", "record") or (right.kind, left.kind) == ("str", "int"):
            self.fail(right.at, f"`in` looks into a list or text, not into {right.type}")
        elements = right.operands if isinstance(right, tree.Operation) and right.call is values.listed else ()
        for one in elements:
            self._check_pair(left, "in", one)
        nullable = left.nullable or not elements or any(one.nullable for one in elements)
        found = tree.Operation(left.at, TYPES["bool"], nullable, values.contained, (left, right))
        return self._maybe_not(negated, found)

    def _check_pair(self, left: Tree, sign: str, right: Tree) -> None:
        for one in (left, right):
            if isinstance(one, tree.Literal) and one.value is None and sign in ("==", "!="):
                self.fail(one.at, f"{sign} None is never true: write `is {'not ' * (sign == '!=')}None`")
        if not kinds.comparable(left.kind, right.kind):
            cure = "; compare with date(…) of the time" if {left.kind, right.kind} == {"date", "datetime"} else ""
            self.fail(right.at, f"{left.type} and {right.type} cannot be compared{cure}")

    # Functions

    def _read_call(self, node: ast.Call) -> Tree:
        at = self._at(node)
        name = ast.unparse(node.func) if isinstance(node.func, (ast.Name, ast.Attribute)) else ""
        if (function := self._functions.get(name)) is None:
            last = node.func.attr if isinstance(node.func, ast.Attribute) else name
            near = _FUNCTIONS.get(last.lower(), last if last in self._functions else "")
            cure = f"write {near}(…)" if near else suggest(name, self._functions, "function")
            self.fail(at, f"there is no function {name[:80]!r}; {cure}")
        if node.keywords:
            self.fail(at, f"arguments are given in their order, not by name: {function.signature}")
        if len(node.args) < function.required or (len(node.args) > len(function.parameters) and not function.repeats):
            self.fail(at, f"{len(node.args)} arguments do not fit {function.signature}")
        arguments = tuple(self._read(one) for one in node.args)
        for place, one in enumerate(arguments):
            wanted = function.parameter(place).kinds
            if one.kind not in ("any", "none", *wanted) and "any" not in wanted:
                self.fail(one.at, f"argument {place + 1} is {one.type}, which does not fit {function.signature}")
        if (kind := function.result_type([one.type for one in arguments])) is None:
            shown = ", ".join(str(one.type) for one in arguments)
            self.fail(at, f"the arguments of {function.name} have types that do not go together: {shown}")
        nulls = [one.nullable for one in arguments] or [False]
        return tree.Call(at, kind, all(nulls) if function.lazy else any(nulls) or kind.takes_none, function, arguments)


def _record(kind: Type) -> Type:
    """The record behind a nullable type; a union of several is not followed."""
    return kind.sole if kind.kind == "union" else kind
