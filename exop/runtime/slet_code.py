"""How the code of a slet is called: with its memento, settings and ports bound, and with its memento kept on errors."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

from exop.model.slets.memento import Memento
from exop.model.slets.ports import InputPorts, OutputPorts, PortSpec
from exop.model.slets.spec import SletSpec
from exop.model.slets.tie import Tie


def bind_function(spec: SletSpec, state: Memento | None, settings: Mapping[str, Any]) -> Callable[..., Any]:
    """Return a slet function with its memento and settings bound.

    A plain function is cloned with other defaults, so that a call costs no more than any; other callables are wrapped.
    """
    function = spec.factory
    if not (named := dict(settings) | ({spec.state[0]: state} if spec.state else {})):
        return function
    if not isinstance(function, types.FunctionType) or hasattr(function, "__wrapped__"):
        return functools.partial(function, **named)
    # Read from the code, because the stream is paused meanwhile and `inspect.signature` takes fifty times as long.
    code = function.__code__
    positional, others = code.co_varnames[: code.co_argcount], code.co_varnames[code.co_argcount :]
    early = spec.state is not None and spec.state[0] in positional
    if early and named.keys().isdisjoint(positional[-1:]):  # only the last parameters can have defaults
        return functools.partial(function, **named)
    defaults = (state,) if early else None
    twin = types.FunctionType(code, function.__globals__, function.__name__, defaults, function.__closure__)
    keywords = others[: code.co_kwonlyargcount]
    twin.__kwdefaults__ = (function.__kwdefaults__ or {}) | {key: named[key] for key in keywords if key in named}
    twin.__dict__.update(function.__dict__)
    twin.__qualname__ = function.__qualname__
    return twin


def bind_method(instance: Any, port: PortSpec) -> Callable[..., Any]:
    """Return the method of an instance that takes the items of a port; that of a family also gets the port's name."""
    method: Callable[..., Any] = getattr(instance, port.method or port.name)
    return functools.partial(method, port.member) if port.member else method


def families(spec: SletSpec, ports: Mapping[str, Any]) -> dict[str, Any]:
    """Return the families of ports that a slet has as fields, each with its members among *ports*, by name."""
    fields = [family for family in spec.families if family.method is None]
    found: dict[str, Any] = {family.family: (InputPorts if family.pulled else OutputPorts)() for family in fields}
    for name, port in ports.items():
        family, _, member = name.partition(".")
        if member and family in found:
            found[family][member] = port
    return found


def make_instance(
    spec: SletSpec, settings: Mapping[str, Any], ports: Mapping[str, Any], state: Memento | None, tie: Tie | None
) -> Any:
    """Make an instance of a class slet with its settings, memento and tie, and with the *ports* that are its fields."""
    declared = get_type_hints(spec.factory, include_extras=True)
    fields = {name: port for name, port in ports.items() if name in declared}
    fields |= ({spec.state[0]: state} if spec.state else {}) | ({spec.tie: tie} if spec.tie else {})
    made = spec.factory(**settings, **fields)
    if spec.specialises or spec.families:
        outputs = {port.name: ports[port.name] for port in spec.outputs if port.name in ports}
        made.outputs = types.MappingProxyType(outputs)
        made.inputs = types.MappingProxyType({port.name: port.type for port in spec.inputs})
    return made


def atomic(call: Callable[[Any], Any], state: Memento, *, lazy: bool) -> Callable[[Any], Any]:
    """Return a call that restores the memento if *call* fails, from a copy made before each call (for small mementos).

    If *lazy*, *call* returns an iterator, which is exhausted inside.
    """

    def careful_call(item: Any) -> Any:
        before = state.copied()
        try:
            return [*call(item)] if lazy else call(item)
        except BaseException:
            put_back(state, before)
            raise

    return careful_call


def put_back(state: Memento, before: Memento) -> None:
    """Restore the content of a memento. The object remains the same, because the slet refers to it."""
    state.__dict__.clear()
    state.__dict__.update(before.__dict__)
