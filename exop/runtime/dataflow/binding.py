"""Binding a slet to its state and settings, so that a call costs no more than `f(item)`."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from typing import Any

from exop.model.slets.memento import Memento
from exop.model.slets.ports import InputPorts, OutputPorts, PortSpec
from exop.model.slets.spec import SletSpec


def bind_function(spec: SletSpec, state: Memento | None, settings: Mapping[str, Any]) -> Callable[..., Any]:
    """A twin of a slet function that has its memento and settings as defaults.

    A plain function is cloned with other defaults: calling it with the item alone is then as cheap as any call. What is
    no plain function (a callable object, a decorated one) is wrapped instead.
    """
    function = spec.factory
    named = dict(settings) | ({spec.state[0]: state} if spec.state else {})
    if not named:
        return function
    if not isinstance(function, types.FunctionType) or hasattr(function, "__wrapped__"):
        return functools.partial(function, **named)
    # Read from the code: the stream stands still meanwhile, and `inspect.signature` takes fifty times as long.
    code = function.__code__
    positional, others = code.co_varnames[: code.co_argcount], code.co_varnames[code.co_argcount :]
    early = spec.state is not None and spec.state[0] in positional
    if early and named.keys().isdisjoint(positional[-1:]):  # a default is for the last parameters alone
        return functools.partial(function, **named)
    defaults = (state,) if early else None
    twin = types.FunctionType(code, function.__globals__, function.__name__, defaults, function.__closure__)
    keywords = others[: code.co_kwonlyargcount]
    twin.__kwdefaults__ = (function.__kwdefaults__ or {}) | {key: named[key] for key in keywords if key in named}
    twin.__dict__.update(function.__dict__)
    twin.__qualname__ = function.__qualname__
    return twin


def bind_method(instance: Any, port: PortSpec) -> Callable[..., Any]:
    """Return the method of an instance that takes the items of a port; that of a family gets its name too."""
    method: Callable[..., Any] = getattr(instance, port.method or port.name)
    return functools.partial(method, port.member) if port.member else method


def families(spec: SletSpec, ports: Mapping[str, Any]) -> dict[str, Any]:
    """The families of ports that a slet has as fields, each with those of *ports* that are its members, by name."""
    fields = [family for family in spec.families if family.method is None]
    found: dict[str, Any] = {family.family: (InputPorts if family.pulled else OutputPorts)() for family in fields}
    for name, port in ports.items():
        family, _, member = name.partition(".")
        if member and family in found:
            found[family][member] = port
    return found


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
