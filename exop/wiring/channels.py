"""Changing the settings of a channel that runs: which can, and with what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from exop.errors import PlanError
from exop.model.mesh import ChannelSpec, Mesh
from exop.runtime.channel import Channel
from exop.runtime.manager import make_channel


def check_channels(before: Mesh | None, after: Mesh, kinds: Mapping[str, type[Channel]]) -> None:
    """Refuse settings that a channel cannot take while it runs, now or when a line takes effect.

    Raises:
        PlanError: the kind keeps the settings that it began with.
        UnknownName, SettingError, MeshError: the settings are none of the kind, or do not fit together.
    """
    for name, channel in after.channels.items():
        old = before.channels.get(name) if before is not None else None
        changed = old is not None and (dict(old.settings) != dict(channel.settings) or channel.close_windows)
        if not (changed or channel.pending):
            continue
        if not kinds[channel.kind].reconfigurable:
            able = ", ".join(sorted(kind for kind, one in kinds.items() if one.reconfigurable))
            raise PlanError(
                f"the channel {name} ({channel.kind}) keeps its settings while it runs (the kinds that take others: "
                f"{able or 'none'}); add a new channel and rewire to it"
            )
        _check_settings(channel, kinds)


def _check_settings(channel: ChannelSpec, kinds: Mapping[str, type[Channel]]) -> None:
    """Make the channel as it will be after each line, and forget it."""
    settings = dict(channel.settings)
    make_channel(kinds, channel)
    for line in channel.pending:
        settings |= line.settings
        make_channel(kinds, replace(channel, settings=settings))
