"""Conditional updates: settings that take effect at the first item for which a condition holds.

A condition is the text of a Python expression without side effects: comparisons, arithmetic, and/or/not, in, literals,
attributes and subscripts. Python's own parser reads it, every node of the tree is checked against a list of allowed
ones, and only then it is compiled, with the settings as its only globals. The idea: the control lines of Borealis.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, NoReturn, TypeVar

from exop.errors import ConditionError, MeshError, SettingError, UnknownName, suggest
from exop.model.meshes.nodes import NOTHING, ChannelSpec, ConditionalUpdate, Node
from exop.model.slets.ports import PortType
from exop.model.slets.spec import SletSpec
from exop.model.syntax import parsed_expression
from exop.model.types.assignable import missing_field
from exop.model.types.description import Type

Place = TypeVar("Place", Node, ChannelSpec)

#: The name of an item in a condition on a channel.
ITEM: Final = "item"
#: The name of the time of a punctuation in a condition.
PUNCTUATION: Final = "punctuation"
_TIME: Final = {PUNCTUATION: PortType()}
#: The maximum number of characters of a condition: text from outside must not exhaust the parser.
LONGEST: Final = 2000
#: The maximum depth of nesting.
DEEPEST: Final = 100
#: Reads an attribute where the type of the item is not known; no text can write this name.
_FIELD: Final = " field"

_NODES: Final = """
    Expression BoolOp And Or UnaryOp Not UAdd USub BinOp Add Sub Mult Div FloorDiv Mod Compare cmpop Constant Name
    Attribute Subscript Slice Tuple List Set Dict expr_context
"""
_ALLOWED: Final = tuple(getattr(ast, name) for name in _NODES.split())
_CURES: Final[dict[type[ast.AST], str]] = {
    ast.Call: "a condition calls nothing: compare fields of the item; let the slet before compute what is needed",
    ast.Pow: "powers are not possible here: multiply",
    ast.BitAnd: "& is not possible here: write `and`",
    ast.BitOr: "| is not possible here: write `or`",
    ast.Invert: "~ is not possible here: write `not`",
    ast.NamedExpr: "nothing is assigned in a condition: write ==",
}
#: The kinds of types that do not describe an item.
_OPEN: Final = ("any", "open", "variable")
_OTHERWISE: Final = "a condition has comparisons, arithmetic, and/or/not, in, literals, attributes and subscripts"


@dataclass(frozen=True)
class ConditionNames:
    """The names allowed in a condition.

    Attributes:
        place: The node or channel that is configured; named in errors.
        subjects: The input ports (or `item`), each with the type that it carries, and `punctuation` if a condition may
            name the time; a condition names exactly one of them.
        settings: The names of the settings.
    """

    place: str
    subjects: Mapping[str, PortType]
    settings: Collection[str] = ()


@dataclass(frozen=True)
class Condition:
    """A checked condition.

    Attributes:
        text: The text as written.
        subject: The port whose items it reads, or `punctuation`.
        fields: The fields of the item that it reads; `None`: the whole item.
    """

    text: str
    subject: str
    fields: tuple[str, ...] | None
    _known: Type = field(repr=False, compare=False)

    def test(self, settings: Mapping[str, Any]) -> Callable[[Any], Any]:
        """Return the condition as a function of an item, with these *settings*."""
        body = _Reading(self.subject, self._known).visit(parsed_expression(self.text))
        arguments = ast.arguments([], [ast.arg(self.subject)], None, [], [], None, [])
        tree = ast.fix_missing_locations(ast.Expression(ast.Lambda(arguments, body)))
        names = {**settings, "__builtins__": {}, _FIELD: field_of}
        made: Callable[[Any], Any] = eval(compile(tree, "<condition>", "eval"), names)
        return made


def field_of(value: Any, name: str) -> Any:
    """Return a field of an item whose type is not known: of a mapping (a row) by key."""
    return value[name] if type(value) is dict or isinstance(value, Mapping) else getattr(value, name)


def read_condition(text: str, names: ConditionNames) -> Condition:
    """Read a condition."""
    return _Reader(" ".join(str(text).splitlines()).strip(), names).read()


class _Reader:
    """Parses one text and checks every node of it."""

    def __init__(self, text: str, names: ConditionNames) -> None:
        self.text = text
        self.names = names

    def read(self) -> Condition:
        nodes = _in_order(self._parsed())
        if max(depth for node, depth in nodes.items() if isinstance(node, ast.expr)) > DEEPEST:
            self._fail(0, f"it is nested more than {DEEPEST} deep")
        for node in nodes:
            self._check(node)
        subject = self._subject(nodes)
        known = self.names.subjects[subject].items
        for node in nodes if known.kind != "union" else ():
            if (name := _field_name(node, subject)) is None or (problem := missing_field(known, name)) is None:
                continue
            at = self._end(node) - len(name) if isinstance(node, ast.Attribute) else self._at(node.slice)  # type: ignore[attr-defined]
            self._fail(at, f"{problem}{self.names.subjects[subject].sent_by}")
        return Condition(self.text, subject, _needed(nodes, subject), known)

    def _parsed(self) -> ast.expr:
        if len(self.text) > LONGEST:
            self._fail(LONGEST, f"a condition has at most {LONGEST} characters")
        try:
            return parsed_expression(self.text)
        except SyntaxError as problem:
            self._fail(max(0, (problem.offset or 1) - 1), f"no expression: {problem.msg}")
        except (RecursionError, MemoryError, ValueError):
            self._fail(0, "no expression: it is nested too deep, or holds what is no text")

    def _check(self, node: ast.AST) -> None:
        strange = isinstance(node, ast.Constant) and node.value is Ellipsis
        if strange or not isinstance(node, _ALLOWED) or (isinstance(node, ast.Dict) and None in node.keys):
            self._fail(self._at(node), _CURES.get(type(node), _OTHERWISE))
        if isinstance(node, (ast.BinOp, ast.UnaryOp)) and not isinstance(node.op, _ALLOWED):
            at = self._at(node) if isinstance(node, ast.UnaryOp) else self._end(node.left)
            while self.text[at : at + 1] in (" ", ")"):
                at += 1
            self._fail(at, _CURES.get(type(node.op), _OTHERWISE))
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            self._fail(self._end(node) - len(node.attr), f"{node.attr!r} is private: a condition reads public fields")

    def _subject(self, nodes: Collection[ast.AST]) -> str:
        """Return the one port that the condition names."""
        possible, found = self.names.subjects, ""
        known = [*possible, *self.names.settings]
        for node in (one for one in nodes if isinstance(one, ast.Name)):
            if node.id not in known:
                self._fail(self._at(node), f"no port or setting is called {node.id!r}; {suggest(node.id, known)}")
            if node.id in possible:
                if found and node.id != found:
                    self._fail(self._at(node), f"a condition looks at one port: {found!r} and {node.id!r} are two")
                found = node.id
        if not found:
            self._fail(0, f"it looks at no item; name one of {', '.join(possible)}")
        return found

    def _at(self, node: ast.AST, where: str = "col_offset") -> int:
        """Python counts bytes; people count letters."""
        return len(self.text.encode()[: getattr(node, where, 0)].decode(errors="ignore"))

    def _end(self, node: ast.AST) -> int:
        return self._at(node, "end_col_offset")

    def _fail(self, position: int, problem: str) -> NoReturn:
        at = min(position, len(self.text))
        raise ConditionError(place=self.names.place, condition=self.text, position=at, problem=problem)


def _in_order(tree: ast.expr) -> dict[ast.AST, int]:
    """Return the nodes of a tree, each with its depth, from left to right: the first mistake is the one reported."""
    found: dict[ast.AST, int] = {}
    stack: list[tuple[ast.AST, int]] = [(tree, 1)]
    while stack:
        node, depth = stack.pop()
        found[node] = depth
        stack += [(child, depth + 1) for child in reversed([*ast.iter_child_nodes(node)])]
    return found


def _field_name(node: ast.AST, subject: str) -> str | None:
    """Return the field of the item that a node reads: `report.time`, `report["time"]`."""
    if isinstance(node, (ast.Attribute, ast.Subscript)) and _is_name(node.value, subject):
        if isinstance(node, ast.Attribute):
            return node.attr
        if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
            return node.slice.value
    return None


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _needed(nodes: Collection[ast.AST], subject: str) -> tuple[str, ...] | None:
    """Return the fields that are read, if the item is used for nothing else."""
    found = [name for node in nodes if (name := _field_name(node, subject)) is not None]
    return tuple(dict.fromkeys(found)) if sum(_is_name(node, subject) for node in nodes) == len(found) else None


class _Reading(ast.NodeTransformer):
    """Reads fields as attributes if the class of the items is known, otherwise by `field_of`."""

    def __init__(self, subject: str, known: Type) -> None:
        self.subject = subject
        self.typed = known.kind == "record" and not known.is_row

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """`report.time`."""
        if self.typed and _is_name(node.value, self.subject):
            return node
        return ast.Call(ast.Name(_FIELD, ast.Load()), [self.visit(node.value), ast.Constant(node.attr)], [])

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        """`report["time"]`."""
        if self.typed and (name := _field_name(node, self.subject)) is not None:
            return ast.Attribute(node.value, name, ast.Load())
        return ast.Subscript(self.visit(node.value), self.visit(node.slice), ast.Load())


def node_names(place: str, spec: SletSpec, types: Mapping[str, PortType] = NOTHING) -> ConditionNames:
    """Return the names allowed in a condition on a node: the ports into which items are pushed, and the settings.

    A port without a declared type has that of *types*, the types of the items that come.
    """
    pushed = [port for port in spec.inputs if not port.pulled]
    named = {port.name: port.type for port in pushed if not port.member}
    if spec.own_driver or not named:
        why = "pulls its items" if spec.inputs else "has no input port"
        why = "drives itself" if spec.own_driver else "takes its items by a family of ports" if pushed else why
        cure = "configure it without `when`, or set a condition on a slet that items are pushed into"
        raise MeshError(f"{place}: {spec.name} {why}, so there is no item at which its settings could change; {cure}")
    known = {name: types.get(name, one) if one.items.kind in _OPEN else one for name, one in named.items()}
    return ConditionNames(place, known | (_TIME if len(pushed) == 1 else {}), tuple(spec.settings))


def item_names(channel: str, carried: PortType) -> ConditionNames:
    """Return the names allowed in a condition on a channel: the channel itself or `item`, and `punctuation`."""
    names = [ITEM, channel] if channel.isidentifier() else [ITEM]
    return ConditionNames(channel, dict.fromkeys(names, carried) | _TIME)


def next_condition(place: Node | ChannelSpec, carried: PortType) -> Condition:
    """Return the condition of the first pending update of a node, or of a channel, the items of which are *carried*."""
    names = node_names(place.name, place.slet) if isinstance(place, Node) else item_names(place.name, carried)
    return read_condition(place.pending[0].when, names)


def conditional_update(
    node: Node, when: str, settings: Mapping[str, Any], types: Mapping[str, PortType] = NOTHING
) -> ConditionalUpdate:
    """Return a checked update for a node; *types* are those of the items that come."""
    if not settings:
        raise MeshError(f"{node.name}: nothing is to change when {when}; name a setting, {node.name}(…, NAME=VALUE)")
    condition = read_condition(when, node_names(node.name, node.slet, types))
    if (after := node.with_settings(settings)).slet.ports.keys() != node.slet.ports.keys():
        raise MeshError(
            f"{node.name}: with these settings {node.slet.name} has other ports, which cannot come or go at a point in "
            f"the stream; configure it without `when`"
        )
    return ConditionalUpdate(condition.text, {name: after.settings[name] for name in settings})


def inherited(node: Node, spec: SletSpec) -> tuple[ConditionalUpdate, ...]:
    """Return the pending updates of a node for a successor *spec* that has the ports, fields and settings they name."""
    kept: list[ConditionalUpdate] = []
    for update in node.pending:
        with suppress(MeshError, UnknownName, SettingError):
            known = {name: value for name, value in node.set_settings().items() if name in spec.settings}
            successor = replace(node, slet=spec, settings=spec.configured(node.name, known))
            kept.append(conditional_update(successor, update.when, update.settings))
    return tuple(kept)


def without(place: Place, update: ConditionalUpdate) -> Place:
    """Return the node or channel without the first of its pending updates that equals *update*."""
    at = place.pending.index(update)
    return replace(place, pending=place.pending[:at] + place.pending[at + 1 :])


def applied(place: Place, update: ConditionalUpdate) -> Place:
    """Return the node or channel after a pending update has taken effect: its settings count as set."""
    return without(place, update).with_settings(update.settings)


def still_pending(stored: Place, before: Place, after: Place) -> Place:
    """Return *after*, an edited *before*, with those updates pending that have taken effect in *before*.

    *stored* has these pending. One holds as in *after* if *after* lacks what it needs, or if the edit has changed a
    setting that it sets or reads, or that another such update sets.
    """
    taken: list[ConditionalUpdate] = [*stored.pending[: len(stored.pending) - len(before.pending)]]
    known = {*before.settings, *after.settings}
    edited = {name for name in known if before.settings.get(name) != after.settings.get(name)}
    if isinstance(after, Node):
        unfit = (one for one in taken if not inherited(replace(after, pending=(one,)), after.slet))
        edited |= {name for one in unfit for name in one.settings}
    trees = {one.when: parsed_expression(one.when) for one in taken}
    named = {when: {one.id for one in ast.walk(tree) if isinstance(one, ast.Name)} for when, tree in trees.items()}
    while gone := [one for one in taken if edited & (one.settings.keys() | named[one.when])]:
        edited |= {name for one in gone for name in one.settings}
        taken = [one for one in taken if one not in gone]
    back = {name for one in taken for name in one.settings}
    settings = {name: value for name, value in after.settings.items() if name not in back}
    settings |= {name: stored.settings[name] for name in back & stored.settings.keys()}
    given: dict[str, Any] = {"given": (after.given - back) | (stored.given & back)} if isinstance(after, Node) else {}
    return replace(after, settings=settings, pending=(*taken, *after.pending), **given)
