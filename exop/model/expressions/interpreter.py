"""Tree → a function of an item, made of closures: the functions of `values`, which define what an operation means."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeAlias

from exop.model.expressions import tree, values
from exop.model.expressions.kinds import TYPES, kind_of_value
from exop.model.expressions.tree import Tree
from exop.model.types.description import ANY
from exop.safe_repr import add_note

Evaluate: TypeAlias = Callable[[Any], Any]
_Call: TypeAlias = Callable[[Any, Any], Any]


def interpreted(part: Tree) -> Evaluate:
    """Return the function of an item that computes a part of an expression."""
    match part:
        case tree.Literal(value=value):
            return lambda item: value
        case tree.Subject():
            return lambda item: item
        case tree.Field(of=of, name=name):
            return _applied(lambda value: values.field_of(value, name), (of,))
        case tree.Operation(call=call, operands=operands):
            return _applied(call, operands)
        case tree.Arithmetic(first=first, steps=steps):
            return _calculated(interpreted(first), _steps(values.CALCULATIONS, steps))
        case tree.Comparison(first=first, steps=steps):
            return _compared(interpreted(first), _steps(values.COMPARISONS, steps))
        case tree.Logic(word=word, operands=operands):
            return _decided(word == "or", [_applied(values.truth, (one,)) for one in operands])
        case tree.Choice(cases=cases, otherwise=otherwise):
            tests = [(_applied(values.truth, (test,)), _shared(part, value)) for test, value in cases]
            return _chosen(tests, _shared(part, otherwise))
        case tree.Row(columns=columns):
            return _row({name: interpreted(one) for name, one in columns})
        case tree.Call(function=function, arguments=arguments) if function.lazy:
            each = [_shared(part, one) for one in arguments]
            return lambda item: next((found for one in each if (found := one(item)) is not None), None)
        case tree.Call(function=function, arguments=arguments):
            called = _applied(function.safe(), arguments)
            return (lambda item: values.real(called(item))) if part.shares else called
    raise AssertionError(part)


def _applied(call: Callable[..., Any], parts: tuple[Tree, ...]) -> Evaluate:
    """A function of the values of all parts."""
    each = [interpreted(one) for one in parts]
    if len(each) == 1:
        (only,) = each
        return lambda item: call(only(item))
    return lambda item: call(*[one(item) for one in each])


def _shared(whole: Tree, part: Tree) -> Evaluate:
    """One of several values that share a column: integers become floats if one of them is a float."""
    return _applied(values.real, (part,)) if whole.kind == "float" and part.kind != "float" else interpreted(part)


def _steps(calls: Mapping[str, _Call], steps: tuple[tuple[str, Tree], ...]) -> list[tuple[_Call, Evaluate]]:
    return [(calls[sign], interpreted(one)) for sign, one in steps]


def _calculated(first: Evaluate, steps: list[tuple[_Call, Evaluate]]) -> Evaluate:
    def calculate(item: Any) -> Any:
        found = first(item)
        for call, right in steps:
            found = call(found, right(item))
        return found

    return calculate


def _compared(first: Evaluate, steps: list[tuple[_Call, Evaluate]]) -> Evaluate:
    def compare(item: Any) -> bool | None:
        found: bool | None = True
        left = first(item)
        for call, operand in steps:
            right = operand(item)
            if (one := call(left, right)) is False:
                return False
            found, left = (found if one else None), right
        return found

    return compare


def _decided(stop: bool, tests: list[Evaluate]) -> Evaluate:
    def decide(item: Any) -> Any:
        found: Any = not stop
        for test in tests:
            if (one := test(item)) is stop:
                return stop
            found = None if one is None else found
        return found

    return decide


def _row(columns: Mapping[str, Evaluate]) -> Evaluate:
    def compute(item: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in columns.items():
            try:
                found[name] = value(item)
            except Exception as error:
                add_note(error, f"in the expression of {name!r}")
                raise
        return found

    return compute


def _chosen(cases: list[tuple[Evaluate, Evaluate]], otherwise: Evaluate) -> Evaluate:
    def choose(item: Any) -> Any:
        for test, value in cases:
            if test(item):
                return value(item)
        return otherwise(item)

    return choose


def folded(part: Tree, settings: Mapping[str, Any]) -> Tree:
    """Return the tree with the values of *settings*, and computed what is constant, unless that fails."""
    if isinstance(part, tree.Setting):
        value = values.plain(settings[part.name])
        return tree.Literal(part.at, TYPES.get(kind_of_value(value), ANY), value is None, value)
    if isinstance(part, (tree.Literal, tree.Subject)):
        return part
    fields = {one.name: _folded(getattr(part, one.name), settings) for one in dataclasses.fields(part)}
    made = dataclasses.replace(part, **fields)
    if all(isinstance(one, tree.Literal) for one in made.parts):
        with suppress(Exception):  # it fails when, and if, it is computed
            if (kind := kind_of_value(value := interpreted(made)(None))) in TYPES and kind != "any":
                return tree.Literal(part.at, TYPES[kind], value is None, value)
    return made


def _folded(value: Any, settings: Mapping[str, Any]) -> Any:
    if isinstance(value, tuple):
        return tuple(_folded(one, settings) for one in value)
    return folded(value, settings) if isinstance(value, Tree) else value
