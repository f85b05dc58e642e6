"""Building an application: mistakes are told at the line that makes them."""

import sys

import pytest

from exop import Application, slet
from exop.errors import MeshError, UnknownName
from exop.stock.slets import count_up, show


@slet
def leaves_at_three(x: int) -> int:
    """Call `sys.exit` for one item."""
    if x == 3:
        sys.exit(1)
    return x


def test_a_policy_that_nobody_knows_is_told_where_it_is_given() -> None:
    """`on_error` is one of the known policies: what is none must not run as another one."""
    app = Application("numbers")
    with pytest.raises(UnknownName, match="console has no policy 'retyr'; did you mean 'retry'"):
        app.add("console", show, item=app.add("numbers", count_up), on_error="retyr")  # type: ignore[arg-type]


def test_a_name_that_a_node_has_is_told_to_be_a_nodes() -> None:
    """The second node of a name is refused as such, whatever channels there are."""
    app = Application("numbers")
    app.add("numbers", count_up)
    with pytest.raises(MeshError, match="numbers has a node 'numbers' already; choose another name"):
        app.add("numbers", count_up)


@pytest.mark.parametrize(("policy", "left"), [("skip", 9), ("dead-letter", 9)])
def test_a_slet_that_calls_exit_is_one_that_raises(policy, left):
    """`sys.exit` in a slet (or in a library that it calls) is judged by its policy; it ends neither driver nor run."""
    app = Application("leaving")
    numbers = app.add("numbers", "stock:count_up", to=10)
    kept = app.add("kept", leaves_at_three, x=numbers, on_error=policy)
    app.add("sink", "stock:pass_on", item=kept)
    nodes = app.run()["nodes"]
    assert (nodes["kept"]["metrics"]["errors"], nodes["sink"]["metrics"]["items_in"]) == (1, left)
