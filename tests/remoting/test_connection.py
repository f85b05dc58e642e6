"""The profile stands on sub-classing: what it overrides must be there to override."""

import pytest
from rpyc.core.channel import Channel
from rpyc.core.protocol import Connection
from rpyc.core.stream import SocketStream

from exop.remoting.connection import HardConnection
from exop.remoting.frames import BoundedChannel, DeadlineStream

OWN = {
    HardConnection: {"request", "_handle_operation"},
    BoundedChannel: {"receive_greeting", "send_greeting", "settle", "_receive", "_deadline"},
    DeadlineStream: {"readable", "read_until", "write_until", "_wait"},
}


@pytest.mark.parametrize(
    ("ours", "theirs"), [(HardConnection, Connection), (BoundedChannel, Channel), (DeadlineStream, SocketStream)]
)
def test_overrides_exist(ours: type, theirs: type) -> None:
    """A release of rpyc that renames what we override is noticed here, not by an attacker."""
    methods = {name for name, value in vars(ours).items() if callable(value) or isinstance(value, classmethod)}
    overrides = {name for name in methods - OWN[ours] if not name.startswith("__")}
    assert overrides
    assert {name for name in overrides if not hasattr(theirs, name)} == set()


def test_boxes_bytes_only() -> None:
    """Nothing but the one form is ever packed, so that no reference to an object can leave."""
    connection = HardConnection.__new__(HardConnection)
    connection._closed = True
    assert connection._box(b"x") == (1, b"x")
    assert connection._box(("name", b"x")) == (1, ("name", b"x"))
    for other in (object(), "text", 1, None, [b"x"], ("name",), ("name", "x"), (b"name", b"x"), bytearray(b"x")):
        with pytest.raises(TypeError):
            connection._box(other)
    for package in ((4, ("builtins.bytes", 1, 2)), (3, ("x", 1, 2)), (2, ())):
        with pytest.raises(ValueError, match="only values"):
            connection._unbox(package)
