"""`check_source` tests the restart of an α-slet; `check_sharing` finds slets that alter shared items."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final

from exop.errors import SletError
from exop.model.slets.memento import Memento
from exop.model.slets.slet import spec_of
from exop.model.slets.spec import SletSpec
from exop.safe_repr import safe_repr
from exop.testing.feeding import opened

if TYPE_CHECKING:
    from exop.app import Application


#: The maximum number of characters of an item in a message.
MOST: Final = 200


def check_source(source: Any, *, items: int | Sequence[Any] | None = None, **given: Any) -> list[Any]:
    """Check that an α-slet can be restarted from its memento after every item, without lost or doubled items.

    The source is first run without interruption, and its memento is copied after every item. Then a new instance is
    started from each copy, and its items are compared with those of the first run. A platform restarts sources in this
    way when it replaces, moves or recovers them; so an α-slet must update its position *before* it yields an item.

    Args:
        source: The α-slet.
        items: The number of items to examine (required for an endless source), or the list of expected items.
        given: Settings, and a memento under its name as the initial state.

    Returns:
        The items of the uninterrupted run.

    Raises:
        AssertionError: a restart loses, doubles or changes items; the message names the place and the usual cause.
        SletError: the slet has an input, or its own driver.
    """
    spec = spec_of(source)
    if spec.inputs or not spec.iterated:
        problem = "it drives itself" if spec.own_driver else "it has an input"
        raise SletError(slet=spec.name, what="source to check", problem=problem, cure="give an α-slet that is iterated")
    start = given.pop(spec.state[0], None) if spec.state else None
    cuts, uncut, ended = _run(spec, start, given, len(items) + 1 if isinstance(items, Sequence) else items)
    if isinstance(items, Sequence):
        assert _same(uncut, list(items)), f"{spec.name} gave {safe_repr(uncut, MOST)}, not {safe_repr([*items], MOST)}"
    for number, memento in cuts:
        following = uncut[number:]
        _, found, _ = _run(spec, memento, given, len(following) + ended)
        assert _same(found, following), _difference(spec, uncut, number, found)
    return uncut


def check_sharing(app: Application) -> dict[str, Any]:
    """Run an application whose sources end, and check that no slet alters an item that other slets also receive.

    Items are compared before and after every call, which takes far longer than most calls.

    Returns:
        The report of the run, as returned by `app.run()`.

    Raises:
        AssertionError: a slet alters a shared item; the message names the slet, the channel, the readers and the
            change.
        ComponentFailed: a slet failed to open, or raised an exception.
    """
    # The other helpers need no platform.
    from exop.platform import Platform
    from exop.wiring.sharing import Sharing

    with Platform() as platform:
        platform.wiring.sharing = Sharing()
        report = app.run(platform)
        found = platform.wiring.sharing.found()
    assert not found, "\n".join(found)
    return report


def _run(
    spec: SletSpec, start: Memento | None, given: dict[str, Any], most: int | None
) -> tuple[list[tuple[int, Memento | None]], list[Any], bool]:
    """Run a source for at most *most* items.

    Return each memento with the number of items before it, the items, and whether the source has ended.
    """
    memento = deepcopy(start) if start is not None else spec.state[1]() if spec.state else None
    cuts = [(0, deepcopy(memento))]
    items: list[Any] = []
    with opened(spec, memento, dict(given)) as (instance, call):
        for item in call(None)() if most != 0 else ():
            items += [item] if item is not None else []
            if spec.state and instance is not None:
                why = f"{spec.name} has replaced its memento {spec.state[0]!r}; change the fields of the one it has"
                assert getattr(instance, spec.state[0]) is memento, why
            cuts.append((len(items), deepcopy(memento)))
            if len(items) == most:
                return cuts, items, False
    return cuts, items, True


def _difference(spec: SletSpec, uncut: list[Any], number: int, found: list[Any]) -> str:
    """Describe an incorrect restart and its usual cause."""
    following, before = uncut[number:], uncut[max(0, number - 1) :]
    place = f"{spec.name}, cut after item {number}" + (f" ({safe_repr(uncut[number - 1], MOST)})" if number else "")
    seen = f"the successor gives {safe_repr(found[:3], MOST)}, what follows is {safe_repr(following[:3], MOST)}"
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
    """Compare items, which may be arrays or record batches."""

    def equal(left: Any, right: Any) -> bool:
        found = left.equals(right) if hasattr(left, "equals") else left == right
        return bool(found.all() if hasattr(found, "all") else found)

    return len(one) == len(other) and all(map(equal, one, other))
