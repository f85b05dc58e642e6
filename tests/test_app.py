"""Building an application: mistakes are told at the line that makes them."""

import pytest

from exop import Application
from exop.errors import MeshError, UnknownName
from exop.stock.slets import count_up, show


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
