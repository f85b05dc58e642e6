"""Mappings that share unchanged entries, so that edits and comparisons cost time only for edited ones."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from itertools import compress
from operator import is_not
from typing import Any, Final, TypeVar

T = TypeVar("T")
#: The number of edited entries up to which copies share the entries of the mapping that was edited.
SHARED: Final = 64


class Entries(Mapping[str, T]):
    """A mapping that consists of the entries of another one, and of a few edits.

    Edited entries keep their places; new ones are at the end.

    Attributes:
        base, edits: The entries before the edits, and the edited ones; neither is ever modified.
    """

    __slots__ = ("base", "edits")

    def __init__(self, base: dict[str, T], edits: dict[str, T] | None = None) -> None:
        self.base = base
        self.edits = edits or {}

    def edited(self, changes: Mapping[str, T | None]) -> Entries[T]:
        """Return a copy with other values for some names; `None` removes a name."""
        if not changes:
            return self
        edits: dict[str, Any] = {**self.edits, **changes}
        if None in changes.values():
            return Entries({name: one for name, one in (self.base | edits).items() if one is not None})
        return Entries(self.base, edits) if len(edits) <= SHARED else Entries(self.base | edits)

    def __getitem__(self, name: str) -> T:
        return self.edits[name] if name in self.edits else self.base[name]

    def get(self, name: str, default: Any = None) -> T | Any:
        """As of any mapping."""
        return self.edits[name] if name in self.edits else self.base.get(name, default)

    def __contains__(self, name: object) -> bool:
        return name in self.base or name in self.edits

    def __iter__(self) -> Iterator[str]:
        return iter(self.whole())

    def __len__(self) -> int:
        return len(self.base) + sum(name not in self.base for name in self.edits)

    def items(self) -> ItemsView[str, T]:
        """As of any mapping."""
        return self.whole().items()

    def values(self) -> ValuesView[T]:
        """As of any mapping."""
        return self.whole().values()

    def __repr__(self) -> str:
        return repr(self.whole())

    def whole(self) -> dict[str, T]:
        """Return all entries as a dict, which must not be modified."""
        return self.base | self.edits if self.edits else self.base


def touched(before: Mapping[str, T], after: Mapping[str, T]) -> list[str]:
    """Return the names whose values in *after* are other objects than in *before*; new ones in the order of *after*."""
    old, new, shared = _compared(before, after)
    found = list(compress(new, map(is_not, map(old.get, new), new.values())))
    if shared:  # edits, of which some may have been made on both sides, or taken back
        found += [name for name in old if name not in new and name in shared]
        found = [name for name in found if after[name] is not before.get(name)]
    return found


def missing(before: Mapping[str, T], after: Mapping[str, T]) -> list[str]:
    """Return the names of *before* that *after* lacks."""
    old, new, shared = _compared(before, after)
    return [name for name in old if name not in new and name not in shared]


def keeps_order(before: Mapping[str, T], after: Mapping[str, T]) -> bool:
    """Whether common names have the same order in *after*, with new ones behind them."""
    old, new, shared = _compared(before, after)
    kept = [name for name in old if name in new and name not in shared]
    return [name for name in new if name not in shared][: len(kept)] == kept


def _compared(
    before: Mapping[str, T], after: Mapping[str, T]
) -> tuple[Mapping[str, T], Mapping[str, T], Mapping[str, T]]:
    """Return the entries to compare: the edits of both, and the base that they share; or all entries, and none."""
    if isinstance(before, Entries) and isinstance(after, Entries):
        shared = before.base is after.base
        return (before.edits, after.edits, before.base) if shared else (before.whole(), after.whole(), {})
    return before, after, {}
