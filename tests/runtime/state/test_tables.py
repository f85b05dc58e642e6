"""The tables of a state directory."""

from exop.runtime.state.tables import _same_order


def test_many_nodes_that_are_removed_at_once_are_not_looked_for_one_by_one():
    """What a removal compares grows with the mesh, and not with its square."""
    compared = []

    class Name(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other):
            compared.append(other)
            return str.__eq__(self, other)

    before = {Name(f"node-{number}"): None for number in range(400)}
    after = dict(list(before.items())[200:])
    assert _same_order(before, after)
    assert _same_order(before, {**after, Name("new"): None})
    assert not _same_order(before, dict(reversed(after.items())))
    assert len(compared) < 1000
