"""`direct`: hands each item on in the thread that pushed it. Compiled away: producers are bound to the consumers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from exop.runtime.channel import Channel, Outlet
from exop.runtime.entry import Entry, fan_out


class DirectChannel(Channel):
    """Hands each item on, to all consumers in their order, in the thread that pushed it. Keeps nothing."""

    kind: ClassVar[str] = "direct"
    serial: ClassVar[bool] = False

    def entry(self, outlets: Sequence[Outlet]) -> Entry:
        """The consumers themselves."""
        return fan_out([outlet.entry for outlet in outlets])
