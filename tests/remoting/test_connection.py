"""Of rpyc only the stream, the channel and the format of messages are used, and of these what is there to use."""

import ast
from pathlib import Path

from rpyc.core import brine
from rpyc.core.channel import Channel
from rpyc.core.stream import SocketStream

import exop
from exop.remoting.transport.frames import BoundedChannel, DeadlineStream

PARTS = {"rpyc", "rpyc.core.brine", "rpyc.core.channel.Channel", "rpyc.core.stream.SocketStream"}


def test_nothing_else_of_rpyc_is_used() -> None:
    """No connection, reference, attribute, exception or service of it: the names that any module imports."""
    found = set()
    for path in Path(exop.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names if alias.name.startswith("rpyc")}
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rpyc"):
                found |= {f"{node.module}.{alias.name}" for alias in node.names}
    assert found == PARTS


def test_no_method_of_rpyc_is_overridden() -> None:
    """A release of rpyc that renames what it calls itself changes nothing here; the names that are used are there."""
    for ours, theirs in ((BoundedChannel, Channel), (DeadlineStream, SocketStream)):
        assert {name for name in vars(ours) if not name.startswith("__") and hasattr(theirs, name)} == set()
    assert (Channel.FRAME_HEADER.format, Channel.FLUSHER, callable(brine.dump)) == ("!LB", b"\n", True)
