"""The relay: a node between a channel and a connector, which passes on what comes and has no code of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from exop.model.slets.ports import PortType
from exop.model.slets.slet import slet, spec_of
from exop.model.slets.spec import SletSpec


def _of_its_input(_: Mapping[str, Any], inputs: Mapping[str, PortType]) -> SletSpec:
    """Return the relay with the type of its input on both ports."""
    carried = replace(inputs.get("item", PortType()), punctuation=False, end=False)
    plain = spec_of(relay)
    taken, sent = (tuple(replace(port, type=carried) for port in ports) for ports in (plain.inputs, plain.outputs))
    return replace(plain, inputs=taken, outputs=sent)


@slet(specialised=_of_its_input)
def relay(item: Any) -> Any:
    """Pass on items, batches and record batches as they are; the platform does that without a call."""
    return item


#: The slet of the relays that a platform adds to a fragment, one between a connector and the channel that it serves.
RELAY: Final = spec_of(relay).of("exop")
