"""The names and values of service properties: every name that the platform uses is defined here once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, TypeAlias

from exop.errors import RegistryError

#: One plain value of a property.
Scalar: TypeAlias = str | int | float | bool
#: The value of a property as given: a plain value, or several, of which any may match a filter.
Given: TypeAlias = Scalar | list[str] | list[int] | list[float] | list[bool] | tuple[Scalar, ...]
#: The value of a property as the registry keeps it: immutable.
Value: TypeAlias = Scalar | tuple[Scalar, ...]

SERVICE_ID: Final = "service.id"  #: The unique number of a service in its registry; set by the registry.
INTERFACE: Final = "interface"  #: The names of the interfaces under which a service is registered; set by the registry.
#: The rank among several services that fit: the higher number first, then the older service. 0 by default.
RANKING: Final = "service.ranking"

#: The identifier of what a port (its connector) or a connector (its channel) is connected to.
CONNECTED_TO: Final = "connected-to"

KIND: Final = "kind"  #: The kind of a component: `slet`, `channel`, `port`, `connector`.
NAME: Final = "name"  #: The name of a component: of a node, a channel or a port, unique within its owner.
APPLICATION: Final = "application"  #: The application that a component belongs to.
NODE: Final = "node"  #: The node of the mesh that a component runs, or to which a port belongs.
#: The identifier of a running component: a node that is replaced keeps its name and gets another instance.
INSTANCE: Final = "instance"
SLET: Final = "slet"  #: The identity of a slet's code: `plugin:name`, `bundle@version:name`.
ROLE: Final = "role"  #: The derived role of a slet: `alpha`, `pi`, `omega`.
STATE: Final = "state"  #: The state of a component's life cycle.
HANGS: Final = "hangs"  #: An item takes longer than the slet's time-out.
PENDING: Final = "pending"  #: The settings pending at a point in the stream, as text, one after the other.
PORT: Final = "port"  #: The port of a node, as `node.port`.
DIRECTION: Final = "direction"  #: The direction of a port: `in`, `out`.
ITEM_TYPE: Final = "item.type"  #: The type of the items that a port or channel carries, as text.
CHANNEL_KIND: Final = "channel.kind"  #: The kind of a channel: `direct`, `queue`, `window`, `latch`, `table`, `log`.
CAPACITY: Final = "capacity"  #: How many items a channel holds before its pushers wait.
HOST: Final = "host"  #: The name of the platform on which a component runs.
PEER: Final = "peer"  #: The name of the platform at the other end of a remote connector.
ORIGIN: Final = "origin"  #: The plugin or bundle that a component comes from.
VERSION: Final = "version"  #: The version of what a component comes from.

#: The number of a text that is none: equal to nothing, and without an order.
NAN: Final = float("nan")
_NUMBER: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?|[+-]?inf", re.ASCII)
_SCALARS: Final = frozenset({str, int, float, bool})


def freeze(properties: Mapping[str, Given]) -> dict[str, Value]:
    """Return an immutable copy of *properties*: lists become tuples.

    The registry calls it for every service that is registered or modified.
    """
    found: dict[str, Value] = {}
    for name, value in properties.items():
        if type(value) in _SCALARS:  # the usual case
            found[name] = value  # type: ignore[assignment]
        elif isinstance(value, (list, tuple)):
            found[name] = tuple(_plain(name, element) for element in value)
        else:
            found[name] = _plain(name, value)
    return found


def _plain(name: str, value: object) -> Scalar:
    """Convert a value to its plain type: a member of a `StrEnum` to its text."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, (bool, float)):
        return value if type(value) is bool else float(value)
    if isinstance(value, int):
        return int(value)
    raise RegistryError(
        f"the property {name!r} is of type {type(value).__qualname__}; properties are str, int, float, bool, "
        "or lists of them: register the value's text, or leave it in the service",
        property=name,
    )


def text_of(value: Scalar) -> str:
    """The text of *value* in a filter."""
    if isinstance(value, str):
        return str.__str__(value)  # also a member of a StrEnum
    if isinstance(value, bool):
        return "true" if value else "false"
    return int.__repr__(value) if isinstance(value, int) else float.__repr__(value)


def number_of(text: str) -> int | float:
    """The number that *text* represents; `NAN` if it is none."""
    if not _NUMBER.fullmatch(text):
        return NAN
    try:
        return int(text)
    except ValueError:  # a fraction, or more digits than Python reads
        return float(text)
