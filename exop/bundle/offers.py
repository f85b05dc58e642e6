"""What a started bundle offers, in the service registry: one service per slet and per channel kind."""

from __future__ import annotations

from typing import Any, Final

from exop.bundle.code import Code
from exop.bundle.manifest import Manifest
from exop.model.properties import CHANNEL_KIND, HOST, KIND, NAME, ORIGIN, ROLE, SLET, VERSION
from exop.model.slets.slet import spec_of
from exop.registry import Registration, ServiceRegistry

BUNDLE: Final = "Bundle"
SLET_OFFER: Final = "SletOffer"
CHANNEL_OFFER: Final = "ChannelOffer"


def register_offers(registry: ServiceRegistry, host: str, manifest: Manifest, code: Code) -> list[Registration]:
    """Register a bundle, its slets and its channel kinds, with the properties that its manifest gives."""
    common: dict[str, Any] = {
        **manifest.properties,
        HOST: host,
        ORIGIN: manifest.key,
        VERSION: str(manifest.version),
    }
    made = [registry.register(BUNDLE, manifest, {**common, KIND: "bundle", NAME: manifest.name})]
    for slet in code.slets:
        spec = spec_of(slet).of(manifest.key)
        properties = {KIND: "offer", NAME: spec.name, SLET: spec.identity, ROLE: str(spec.role)}
        made.append(registry.register(SLET_OFFER, spec, common | properties))
    for channel in code.channels:
        kind = f"{manifest.key}:{channel.kind}"
        properties = {KIND: "offer", NAME: channel.kind, CHANNEL_KIND: kind}
        made.append(registry.register(CHANNEL_OFFER, channel, common | properties))
    return made
