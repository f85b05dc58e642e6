"""Mappings whose edited copies share what stays."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from exop.model.meshes.entries import SHARED, Entries, keeps_order, missing, touched

NAMES = st.sampled_from([f"n{number}" for number in range(9)])
#: An edit of a few entries; `None` removes one.
EDITS = st.dictionaries(NAMES, st.none() | st.builds(object), max_size=3)


def edited(plain, changes):
    """What an edit of a dictionary yields, in its order."""
    return {name: one for name, one in (plain | changes).items() if one is not None}


@given(st.dictionaries(NAMES, st.builds(object)), st.lists(EDITS, max_size=6), st.lists(EDITS, max_size=6))
def test_edited_entries_are_and_differ_as_dictionaries_do(begin, ones, others):
    """Whatever two mappings share, they read as ordinary dictionaries do, and their difference is the same."""
    base = Entries(dict(begin))
    mappings, plains = [], []
    for edits in (ones, others):
        mapping, plain = base, begin
        for changes in edits:
            mapping, plain = mapping.edited(changes), edited(plain, changes)
        assert list(mapping.items()) == list(plain.items())
        assert (len(mapping), list(mapping), mapping.keys()) == (len(plain), list(plain), plain.keys())
        assert [name in mapping for name in begin] == [name in plain for name in begin]
        assert all(mapping[name] is one for name, one in plain.items())
        mappings.append(mapping)
        plains.append(plain)
    assert sorted(touched(*mappings)) == sorted(touched(*plains))
    added = [name for name in touched(*mappings) if name not in plains[0]]
    assert added == [name for name in plains[1] if name not in plains[0]]
    assert missing(*mappings) == [name for name in plains[0] if name not in plains[1]]
    assert keeps_order(*mappings) == keeps_order(*plains)


def test_an_edit_shares_the_entries_that_stay_until_many_are_edited():
    """The difference to what was edited is found in the edited entries alone; many edits are copied into one."""
    base = Entries({f"n{number}": object() for number in range(1000)})
    few = base.edited({"n1": object()}).edited({"n2": object(), "new": object()})
    assert few.base is base.base
    assert touched(base, few) == ["n1", "n2", "new"]
    many = base.edited({f"n{number}": object() for number in range(SHARED + 1)})
    assert many.base is not base.base
    assert len(touched(base, many)) == SHARED + 1


def test_many_entries_that_are_removed_at_once_are_not_looked_for_one_by_one():
    """What a removal compares grows with the mapping, and not with its square."""
    compared = []

    class Name(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other):
            compared.append(other)
            return str.__eq__(self, other)

    before = {Name(f"node-{number}"): None for number in range(400)}
    after = dict(list(before.items())[200:])
    assert keeps_order(before, after)
    assert keeps_order(before, {**after, Name("new"): None})
    assert not keeps_order(before, dict(reversed(after.items())))
    assert len(compared) < 1000
