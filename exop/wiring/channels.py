"""Changing the settings of a channel that runs: which can, and with what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from exop.errors import PlanError
from exop.model.diff import Difference, touched
from exop.model.mesh import ChannelSpec, Mesh
from exop.runtime.channel import Channel, channel_settings
from exop.runtime.deployment import Deployment
from exop.runtime.manager import make_channel


def check_channels(mesh: Mesh, kinds: Mapping[str, type[Channel]], changes: Difference | None = None) -> None:
    """Refuse settings that a channel cannot take while it runs, now or when a line takes effect.

    With *changes*, which have led to the mesh from one that runs, only what they touch is looked at.

    Raises:
        PlanError: the kind keeps the settings that it began with.
        UnknownName, SettingError, MeshError: the settings are none of the kind, or do not fit together.
    """
    new = mesh.channels.values() if changes is None else changes.channels_added
    pairs = [*((None, channel) for channel in new), *(changes.channels_changed if changes is not None else ())]
    for old, channel in pairs:
        name, changed = (
            channel.name,
            old is not None and (dict(old.settings) != dict(channel.settings) or channel.close_windows),
        )
        if not (changed or channel.pending):
            continue
        kind = kinds[channel.kind]
        if not kind.reconfigurable:
            able = ", ".join(sorted(kind for kind, one in kinds.items() if one.reconfigurable))
            raise PlanError(
                f"the channel {name} ({channel.kind}) keeps its settings while it runs (the kinds that take others: "
                f"{able or 'none'}); add a new channel and rewire to it"
            )
        _check_settings(old or channel, channel, kinds)


def _check_settings(old: ChannelSpec, channel: ChannelSpec, kinds: Mapping[str, type[Channel]]) -> None:
    """Make the channel as it will be now and after each line, and forget it."""
    live, settings = make_channel(kinds, replace(old, pending=())).live, dict(channel.settings)
    for more in ({}, *(line.settings for line in channel.pending)):
        settings |= more
        if make_channel(kinds, replace(channel, settings=settings)).live is not live:
            raise PlanError(
                f"the channel {channel.name} hands out its own window where its slets evict, and copies elsewhere: "
                f"that cannot change while it runs; add a new channel and rewire to it"
            )


def settle_channels(
    deployment: Deployment, mesh: Mesh, changes: Difference, undo: list[Callable[[], object]]
) -> set[str]:
    """Give the channels that stay their new settings; nothing is in flight, and they are bound after this.

    Returns those whose windows were closed.
    """
    ledger = deployment.ledger
    asked = ledger.asked

    def put_back() -> None:
        ledger.asked = asked

    undo.append(put_back)
    closing = {new.name for _, new in changes.channels_changed if new.close_windows}
    for name in dict.fromkeys([*touched(asked, mesh.channels), *closing]):
        spec, channel = mesh.channels[name], deployment.channels[name]
        old = asked.get(name, spec)
        if dict(old.settings) != dict(spec.settings) or name in closing:
            undo.append(channel.reconfigure(channel_settings(type(channel), spec), close=name in closing))
    ledger.asked = mesh.channels
    return closing
