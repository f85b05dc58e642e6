"""`check_source`: every cut of an α-slet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from exop.errors import SletError
from exop.model.slets.memento import Memento
from exop.model.slets.slet import spec_of
from exop.model.slets.spec import SletSpec
from exop.runtime.dataflow.binding import bind_function
from exop.testing.instances import entered


def check_source(source: Any, *, items: int | Sequence[Any] | None = None, **given: Any) -> list[Any]:
    """Try every cut of an α-slet: a successor that starts with the memento of that moment goes on with the next item.

    The source is run once; after every item its memento is copied. From each copy a successor is started, and has to
    give exactly the items that followed. This is what the platform relies on when it replaces, moves or recovers a
    source: an α-slet updates its position *before* it yields the item.

    Args:
        source: The α-slet.
        items: How many items to look at (needed for a source that does not end), or exactly those it has to give.
        given: Settings, and a memento under its name to start from.

    Returns:
        The items of the uncut run.

    Raises:
        AssertionError: a cut loses, doubles or changes items; the message says where, and why that usually is.
        SletError: it is no α-slet that the platform drives.
    """
    spec = spec_of(source)
    if spec.inputs or not spec.iterated:
        problem = "it drives itself" if spec.own_driver else "it has an input"
        raise SletError(slet=spec.name, what="source to check", problem=problem, cure="give an α-slet that is iterated")
    start = given.pop(spec.state[0], None) if spec.state else None
    most = len(items) + 1 if isinstance(items, Sequence) else items
    cuts, uncut, ended = _run(spec, start, given, most)
    if isinstance(items, Sequence):
        assert _same(uncut, list(items)), f"{spec.name} gave {_shown(uncut)}, not {_shown(list(items))}"
    for number, memento in cuts:
        following = uncut[number:]
        _, found, _ = _run(spec, memento, given, len(following) + ended)
        assert _same(found, following), _difference(spec, uncut, number, found)
    return uncut


def _run(
    spec: SletSpec, start: Memento | None, given: dict[str, Any], most: int | None
) -> tuple[list[tuple[int, Memento | None]], list[Any], bool]:
    """Run a source from *start* up to *most* items: the mementos by number of items before them, the items, the end."""
    memento = _copy(start) if start is not None else spec.state[1]() if spec.state else None
    cuts = [(0, _copy(memento))]
    items: list[Any] = []
    with _iterated(spec, memento, given) as (iterator, instance):
        while most is None or len(items) < most:
            try:
                item = next(iterator)
            except StopIteration:
                return cuts, items, True
            items += [item] if item is not None else []
            if spec.state and instance is not None:
                kept = getattr(instance, spec.state[0]) is memento
                assert kept, (
                    f"{spec.name} has replaced its memento {spec.state[0]!r}; change the fields of the one it has"
                )
            cuts.append((len(items), _copy(memento)))
    return cuts, items, False


@contextmanager
def _iterated(spec: SletSpec, memento: Memento | None, given: dict[str, Any]) -> Iterator[tuple[Iterator[Any], Any]]:
    """The iterator of a source with this memento, and its instance if it is a class."""
    if spec.is_class:
        with entered(spec, memento, dict(given)) as instance:
            yield iter(instance), instance
        return
    yield iter(bind_function(spec, memento, spec.configured(spec.name, given))()), None


def _copy(memento: Memento | None) -> Memento | None:
    return None if memento is None else memento.copied()


def _difference(spec: SletSpec, uncut: list[Any], number: int, found: list[Any]) -> str:
    """Why a cut is wrong, in words."""
    following, before = uncut[number:], uncut[max(0, number - 1) :]
    place = f"{spec.name}, cut after item {number}" + (f" ({_shown(uncut[number - 1])})" if number else "")
    seen = f"the successor gives {_shown(found[:3])}, what follows is {_shown(following[:3])}"
    if spec.state is None:
        why = "it has no memento, so every successor starts again: give it a parameter typed as a Memento"
    elif number and found and _same(found, before[: len(found)]):
        why = "the item is doubled: update the memento before the item is yielded, not after"
    elif following and _same(found[: len(following) - 1], following[1:]):
        why = "an item is lost: the memento runs ahead of what was yielded"
    else:
        why = "the memento does not hold all that the next items depend on"
    return f"{place}: {seen}; {why}"


def _same(one: list[Any], other: list[Any]) -> bool:
    """Equal, also where items are arrays or record batches."""
    if len(one) != len(other):
        return False
    for left, right in zip(one, other, strict=True):
        equal = left.equals(right) if hasattr(left, "equals") else left == right
        if not bool(equal.all() if hasattr(equal, "all") else equal):
            return False
    return True


def _shown(value: Any, most: int = 200) -> str:
    text = repr(value)
    return text if len(text) <= most else f"{text[:most]}…"
