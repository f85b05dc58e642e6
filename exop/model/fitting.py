"""Whether items of one type may enter a port of another: what can be told from annotations, without guessing.

The check is gradual, as a static type checker is: what is not declared (`Any`, a bare `list`, a `TypeVar`) fits
everything, and so does a name that is not resolved. It refuses only what cannot be right.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any, ForwardRef, Literal, NewType, TypeVar, Union

from exop.model.versions import same_class, same_shape


def unalias(annotation: Any) -> Any:
    """An annotation without its other name (`type X = …`), and without notes that are text alone."""
    while True:
        if type(annotation).__name__ == "TypeAliasType":
            annotation = annotation.__value__
        elif typing.get_origin(annotation) is typing.Annotated and all(
            isinstance(note, str) for note in annotation.__metadata__
        ):
            annotation = annotation.__origin__
        else:
            return annotation


def union_members(annotation: Any) -> tuple[Any, ...]:
    """The members of a union, or the annotation alone."""
    if typing.get_origin(annotation) in (Union, types.UnionType):
        return typing.get_args(annotation)
    return (annotation,)


def fits(source: Any, target: Any) -> bool:
    """Tell whether a value of type *source* may stand where *target* is expected."""
    source, target = _plain(source), _plain(target)
    if source == target or any(one in (Any, object) or isinstance(one, (str, ForwardRef)) for one in (source, target)):
        return True
    for one in (source, target):
        if isinstance(one, TypeVar):
            bounds = one.__constraints__ or ((one.__bound__,) if one.__bound__ else (Any,))
            return any(fits(bound, target) if one is source else fits(source, bound) for bound in bounds)
    if len(union_members(source)) > 1:
        return all(fits(member, target) for member in union_members(source))
    if typing.get_origin(source) is Literal:
        return _choices_fit(typing.get_args(source), target)
    if len(union_members(target)) > 1:
        return any(fits(source, member) for member in union_members(target))
    if isinstance(source, NewType):
        return fits(source.__supertype__, target)
    return _class_fits(source, target)


def _plain(annotation: Any) -> Any:
    """The type alone: without other names, and without any notes on it."""
    annotation = unalias(annotation)
    return _plain(annotation.__origin__) if typing.get_origin(annotation) is typing.Annotated else annotation


def _choices_fit(choices: tuple[Any, ...], target: Any) -> bool:
    if typing.get_origin(target) is Literal:
        return set(choices) <= set(typing.get_args(target))
    return all(fits(type(choice), target) for choice in choices)


def _class_fits(source: Any, target: Any) -> bool:
    if source in (int, bool) and target is float:
        return True
    plain_source, plain_target = typing.get_origin(source) or source, typing.get_origin(target) or target
    if not (isinstance(plain_source, type) and isinstance(plain_target, type)):
        return False
    if plain_source is not plain_target and same_class(plain_source, plain_target):
        return not dataclasses.is_dataclass(plain_source) or same_shape(plain_source, plain_target)
    if typing.is_typeddict(plain_target):
        return not typing.is_typeddict(plain_source) and issubclass(plain_source, dict)
    try:
        if not issubclass(plain_source, plain_target):
            return False
    except TypeError:  # a protocol that cannot be checked at run time
        return True
    return _arguments_fit(source, target)


def _arguments_fit(source: Any, target: Any) -> bool:
    given, wanted = typing.get_args(source), typing.get_args(target)
    if not given or not wanted:
        return True
    if typing.get_origin(source) is not tuple:
        return all(fits(one, other) for one, other in zip(given, wanted, strict=False))
    endless = given[-1] is Ellipsis
    elements = given[:1] if endless else given
    if typing.get_origin(target) is not tuple or wanted[-1] is Ellipsis:
        return all(fits(element, wanted[0]) for element in elements)
    return not endless and len(given) == len(wanted) and all(map(fits, given, wanted))
