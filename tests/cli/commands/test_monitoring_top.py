"""`exop top`: figures of a running platform, and a clean end."""

import json
import os
import pty
import select
import signal
import subprocess
from contextlib import suppress

from exop.cli import main
from exop.cli.commands.monitoring import _looks
from exop.cli.report import Stopping
from exop.errors import CallTimeout, PeerUnreachable, UnknownName
from tests.cli.shell import COMMAND, answer_of, applications, eventually, facts, running
from tests.cli.test_view import status


def test_once(line):
    """`--once` prints one table, or one object, of everything or of one application."""
    assert "tag" in answer_of("top", "--once", "--every", "0.05")
    look = facts("top", "line", "--once", "--every", "0.05", "--sort", "busy")
    assert look["platform"] == "served"
    (application,) = look["applications"]
    assert {one["node"] for one in application["nodes"]} == {"numbers", "tag", "sink"}
    assert application["items_per_s"] > 0


def test_bad_input(line):
    """Unknown names and orders, and times that are none, are refused; exit code 2."""
    for arguments, said in {
        ("lin",): "did you mean 'line'?",
        ("line.tag",): "names a node",
        ("--every", "0"): "give one above 0",
        ("--every", "soon"): "soon",
        ("--sort", "size"): "size",
        ("--on", "nobody"): "no platform has the name or number nobody; there are",
    }.items():
        assert said in answer_of("top", "--once", *arguments, code=2), arguments


def test_it_ends_with_its_platform(line):
    """If stdout is no terminal, each update is printed; the end of the platform is reported."""
    with running("serve", "--name", "other", stdout=None, stderr=None) as other:
        eventually(lambda: len(facts("ps")) == 2)
        with running("top", "--on", "other", "--every", "0.05") as top:
            assert "other (process" in top.stdout.readline()
            other.send_signal(signal.SIGTERM)
            _, err = top.communicate(timeout=120)
    assert top.returncode == 0
    assert "other (process" in err
    assert "has ended" in err


def test_it_ends_with_its_application(line):
    """The removal of the application is reported."""
    with running("top", "line", "--every", "0.05", "--json") as top:
        assert json.loads(top.stdout.readline())["applications"][0]["application"] == "line"
        assert main(["remove", "line"]) == 0
        _, err = top.communicate(timeout=120)
    assert (top.returncode, err) == (0, "line was removed\n")
    assert applications() == {}


class Answers:
    """A platform that gives these answers, one after the other, and raises those that are errors."""

    name, pid = "there", 7

    def __init__(self, *answers):
        self.answers = list(answers)

    def status(self, application=None):
        """The next answer."""
        found = self.answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found if application else {"applications": {one["name"]: one for one in found}}


def looks(application, *answers):
    """What `exop top` shows: the items of each application, the trouble, and the reason for the end."""
    platform = Answers(*answers, PeerUnreachable(address="there", problem="gone"))
    found = [*_looks(platform, application, "mesh", Stopping(), 0.0)]
    shown = [facts | {"applications": [one["items"] for one in facts["applications"]]} for facts in found[:-1]]
    return shown, found[-1]["ended"]


def test_what_is_shown_while_a_platform_does_not_answer():
    """The figures of the last answer, with the reason; also if an application is removed while it answers."""
    late = CallTimeout(address="there", operation="status", seconds=1.0)
    gone = UnknownName(place="there", kind="application", name="b", known=["a"])
    both = [status(1.0, 5, name="a"), status(1.0, 9, name="b")]
    shown, ended = looks("", both, late, gone, [status(2.0, 6, name="a")])
    assert [(facts["applications"], "trouble" in facts) for facts in shown] == [
        ([5, 9], False),
        ([5, 9], True),
        ([5, 9], False),
        ([6], False),
    ]
    assert ended.startswith("there (process 7) has ended: ")
    shown, ended = looks("b", both[1], late, gone)
    assert [(facts["applications"], "trouble" in facts) for facts in shown] == [([9], False), ([9], True)]
    assert ended == "b was removed"


def test_ctrl_c_restores_the_terminal(line):
    """On a terminal it draws on a screen of its own; Ctrl-C restores the former one, and exits with 0."""
    parent, child = pty.openpty()
    process = subprocess.Popen([*COMMAND, "top", "--every", "0.1"], stdout=child, stderr=child, stdin=child)
    os.close(child)
    shown = b""

    def drawn() -> bool:
        nonlocal shown
        if select.select([parent], [], [], 0)[0]:
            shown += os.read(parent, 65536)
        return b"sink" in shown

    eventually(drawn)
    assert b"\x1b[?1049h" in shown
    process.send_signal(signal.SIGINT)
    with suppress(OSError):  # Linux raises it when the other end is closed
        while part := os.read(parent, 65536):
            shown += part
    assert process.wait(120) == 0
    assert b"\x1b[?1049l" in shown
    assert b"Traceback" not in shown
    os.close(parent)
