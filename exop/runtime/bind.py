"""Binding a slet to its state and settings, so that a call costs no more than `f(item)`."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from typing import Any

from exop.model.memento import Memento
from exop.model.spec import SletSpec


def bind_function(spec: SletSpec, state: Memento | None, settings: Mapping[str, Any]) -> Callable[..., Any]:
    """A twin of a slet function that has its memento and settings as defaults.

    A plain function is cloned with other defaults: calling it with the item alone is then as cheap as any call. What is
    no plain function (a callable object, a decorated one) is wrapped instead.
    """
    function = spec.factory
    named = dict(settings) | ({spec.state[0]: state} if spec.state else {})
    if not named:
        return function
    if not isinstance(function, types.FunctionType) or not _clonable(spec, function):
        return functools.partial(function, **named)
    twin = types.FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        None,
        function.__closure__,
    )
    keywords = _parameters(function)[1]
    twin.__kwdefaults__ = (function.__kwdefaults__ or {}) | {key: named[key] for key in named if key in keywords}
    if spec.state and spec.state[0] not in twin.__kwdefaults__:
        twin.__defaults__ = (state,)
    twin.__dict__.update(function.__dict__)
    twin.__qualname__ = function.__qualname__
    return twin


def _clonable(spec: SletSpec, function: types.FunctionType) -> bool:
    """Whether defaults can stand in for the state: it must be the last positional parameter."""
    if hasattr(function, "__wrapped__"):
        return False
    positional, _ = _parameters(function)
    return spec.state is None or spec.state[0] not in positional or positional[-1] == spec.state[0]


def _parameters(function: types.FunctionType) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the positional, and of the keyword-only parameters.

    Read from the code: the stream stands still meanwhile, and `inspect.signature` takes fifty times as long.
    """
    code = function.__code__
    names, until = code.co_varnames, code.co_argcount
    return names[:until], names[until : until + code.co_kwonlyargcount]


def atomic(call: Callable[[Any], Any], state: Memento, *, lazy: bool) -> Callable[[Any], Any]:
    """Give every call the memento of before it when the call fails (by copy: for small mementos).

    With *lazy*, the call returns an iterator, which is run to its end inside.
    """

    def careful_call(item: Any) -> Any:
        before = state.copied()
        try:
            result = call(item)
            return [*result] if lazy else result
        except BaseException:
            put_back(state, before)
            raise

    return careful_call


def put_back(state: Memento, before: Memento) -> None:
    """Make a memento what it was before; it stays the same object, which the slet has."""
    state.__dict__.clear()
    state.__dict__.update(before.__dict__)
