"""Who uses a bundle: looked up in the registry, where every component and channel is."""

from __future__ import annotations

from exop.bundle.code import Code
from exop.bundle.ground import Ground
from exop.model.filter import where
from exop.model.properties import APPLICATION, NAME, NODE, ORIGIN
from exop.runtime.component_manager import CHANNEL, SLET


def users_of(ground: Ground, key: str, code: Code | None) -> list[str]:
    """The components and channels that run code of a bundle, and the stored applications that would."""
    found = {
        f"{one.properties[APPLICATION]}.{one.properties[NODE]}"
        for one in ground.registry.find(SLET, where({ORIGIN: key}))
    }
    if code is not None:
        found |= {
            f"the channel {one.properties[NAME]} of {one.properties[APPLICATION]}"
            for one in ground.registry.find(CHANNEL)
            if type(one.service) in code.channels
        }
    store = ground.applications.store
    if store is not None:
        running = ground.applications.names()
        found |= {
            f"the application {one.name}, which is to be started again"
            for one in store.applications()
            if one.active and one.name not in running and f'"{key}:' in one.topology
        }
    return sorted(found)
