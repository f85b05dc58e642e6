"""The pending lines of a channel: the driver that brings the item gives it its new settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from exop.model.condition import Condition, Names, read_condition
from exop.model.lines import Line, without
from exop.runtime.channel import Channel
from exop.runtime.ledger import Firing, Ledger
from exop.runtime.lines import Watch
from exop.runtime.manager import channel_settings
from exop.shown import RAISED, described


class ChannelWatch(Watch):
    """Looks at what comes into one channel, and configures it.

    Args:
        channel: The channel.
        ledger: Where it is noted what has taken effect.
        names: What its conditions may name; all but `punctuation` stand for the item.
    """

    def __init__(self, channel: Channel, ledger: Ledger, names: Names) -> None:
        super().__init__(ledger)
        self._channel = channel
        self._names = names

    @property
    def name(self) -> str:
        """The channel."""
        return self._channel.name

    @property
    def pending(self) -> tuple[Line, ...]:
        """The settings pending at the channel now."""
        return self.ledger.asked[self.name].pending

    def condition(self, line: Line) -> Condition:
        """Read with what the channel carries."""
        return read_condition(line.when, self._names)

    def settings(self) -> Mapping[str, Any]:
        """A condition on a channel names no settings."""
        return {}

    def looks_at(self, subject: str, key: str) -> bool:
        """There is one guard, whatever a condition calls what comes."""
        return True

    def take_effect(self, line: Line) -> None:
        """Give the channel its new settings; it keeps those that it has if it refuses them."""
        channel, asked = self._channel, self.ledger.asked[self.name]
        rest = without(asked.pending, line)
        after = replace(asked, settings={**asked.settings, **line.settings}, pending=rest)
        dropped = False
        try:
            channel.reconfigure(channel_settings(type(channel), after), close=line.close_windows)
            self.ledger.ask(after)
        except RAISED as error:  # a kind of a plugin may refuse them: the item is not lost by it
            dropped = True
            self.ledger.ask(replace(asked, pending=rest))
            self.ledger.tell(
                "a channel refused its settings", place=self.name, line=str(line), problem=described(error)
            )
        self.ledger.note(Firing("channels", self.name, line, dropped))
