"""`Panes`: the groups of windows that overlap, merged from those of the panes between the ends of windows."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from math import inf
from typing import Any

#: The accumulators of one group, in the order of `Aggregation.accumulators`.
Group = list[Any]
Groups = dict[Any, Group]


class Panes:
    """Merges the panes of one window after the other, each pane about twice, to however many windows it belongs.

    These are two stacks, as for a queue: from the end of an earlier window backwards, the panes are merged once, with a
    result for each first pane; forwards from there, they are merged as they become complete (Tangwongsan et al.,
    "General incremental sliding-window aggregation", 2015).

    Args:
        panes: The groups, by the number of the first window to which they belong.
        count: The number of windows to which a pane belongs.
        copied: Returns a copy of a group.
        merge: Merges the second group into the first.
    """

    def __init__(
        self,
        panes: Mapping[int, Groups],
        count: int,
        copied: Callable[[Group], Group],
        merge: Callable[[Group, Group], None],
    ) -> None:
        self._panes, self._count, self._copied, self._merge = panes, count, copied, merge
        self.clear()

    def clear(self) -> None:
        """Forget what is merged: a pane of an earlier window has changed."""
        #: The first pane, and the groups of all panes from it to the window `_end`; the first of them is the last.
        self._before: list[tuple[int, Groups]] = []
        #: The groups of the panes behind that, up to the window `_last`.
        self._behind: Groups = {}
        self._end = self._last = -inf

    def window(self, number: int, firsts: list[int], *, alone: bool) -> Groups:
        """Return the groups of a window behind the one before; the caller may change them.

        Args:
            number: The number of the window.
            firsts: The numbers of the panes, in their order.
            alone: Whether no window follows that could use what is merged.
        """
        first = number - self._count + 1
        within = firsts[bisect_left(firsts, first) : bisect_right(firsts, number)]
        found: Groups = {}
        if alone:
            for pane in within:
                self.merge(found, self._panes[pane])
            return found
        if first > self._end or number <= self._last:
            self.clear()
            for pane in reversed(within):
                merged = {key: self._copied(group) for key, group in self._panes[pane].items()}
                if self._before:
                    self.merge(merged, self._before[-1][1])
                self._before.append((pane, merged))
            self._end = number
        else:
            for pane in within[bisect_right(within, self._last) :]:
                self.merge(self._behind, self._panes[pane])
        self._last = number
        while self._before and self._before[-1][0] < first:
            self._before.pop()
        for groups in (self._before[-1][1] if self._before else {}, self._behind):
            self.merge(found, groups)
        return found

    def merge(self, found: Groups, groups: Groups) -> None:
        """Merge groups into others."""
        for key, group in groups.items():
            if (held := found.get(key)) is None:
                found[key] = self._copied(group)
            else:
                self._merge(held, group)
