"""`exop top`: figures of a running platform, and a clean end."""

import json
import os
import pty
import select
import signal
import subprocess
from contextlib import suppress

from exop.cli import main
from tests.cli.shell import COMMAND, answer_of, applications, eventually, facts, running


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
