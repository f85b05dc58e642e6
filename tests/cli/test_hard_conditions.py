"""A run goes on when it cannot be told of, and what is told cannot harm who reads it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from exop.cli import main
from tests.cli.shell import COMMAND, eventually, running

NASTY = """
from collections.abc import Iterator
from exop import Application, Slet, input_port, slet

class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no words")
    __repr__ = __str__

class Odd:
    def __repr__(self):
        raise RuntimeError("no repr")

@slet
def numbers(*, to: int = 3) -> Iterator[Odd]:
    for _ in range(to):
        yield Odd()

RAISED = {
    "mute": Mute(),
    "bell": ValueError("\\x1b[2J\\x07 and more"),
    "huge": ValueError("x" * 5_000_000),
    "forge": ValueError("a\\n12:00:00 [info     ] all is well"),
}

class Sink(Slet):
    how: str = "none"

    @input_port
    def item(self, item: Odd) -> None:
        if self.how in RAISED:
            raise RAISED[self.how]

    def metrics(self):
        if self.how == "figures":
            raise RuntimeError("no figures")
        return {"title": "\\x1b]0;owned\\x07"}

def build(*, how: str = "none", policy: str = "suspend") -> Application:
    app = Application("nasty")
    app.add("sink", Sink, item=app.add("numbers", numbers), how=how, on_error=policy)
    return app
"""


@pytest.fixture
def nasty(tmp_path):
    """An application whose slets do what they should not."""
    path = tmp_path / "nasty.py"
    path.write_text(NASTY)
    return path


@pytest.mark.parametrize("closed", ["2>&-", ">&-", "<&- >&- 2>&-", "2>/dev/full"])
def test_streams_that_are_closed(nasty, tmp_path, closed):
    """A run goes to its end; nothing that is told comes into a file of somebody else's."""
    line = " ".join(map(str, [*COMMAND, "run", nasty]))
    done = subprocess.run(f"{line} {closed}", shell=True, timeout=60, check=False, cwd=tmp_path)
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("how", "policy", "code", "said"),
    [
        ("mute", "suspend", 1, "sink failed while running: Mute: (its str() raised RuntimeError)"),
        ("mute", "suspend", 1, "the item Odd (its repr() raised RuntimeError)"),
        ("none", "suspend", 0, "\\x1b]0;owned\\x07"),
        ("figures", "suspend", 0, "raised RuntimeError('no figures')"),
        ("bell", "suspend", 1, "\\x1b[2J\\x07 and more"),
        ("huge", "suspend", 1, "(5000000 characters)"),
        *[("forge", policy, code, "all is well") for policy, code in (("suspend", 1), ("skip", 0), ("dead-letter", 3))],
    ],
)
def test_the_texts_of_a_slet_harm_no_reader(nasty, capsys, how, policy, code, said):
    """Figures, items and exceptions are escaped and shortened; a text that raises is replaced; no line is forged."""
    assert main(["run", str(nasty), f"how={how}", f"policy={policy}", "--on-failure", "stop"]) == code
    err = capsys.readouterr().err
    assert said in err
    assert not set(err) & set("\x1b\x07\x9b")
    assert "defect" not in err
    assert len(err) < 60_000
    assert not [line for line in err.splitlines() if line.startswith("12:00:00")]


HANGING = """
import time
from exop import Application, slet
from exop.stock.slets import count_up

@slet
def hangs(item: int) -> None:
    open("inside", "w").close()
    time.sleep(600)

app = Application("hanging")
app.add("sink", hangs, item=app.add("numbers", count_up))
"""


def told(process: subprocess.Popen[str], words: str) -> None:
    """Wait until a process has told this on stderr."""
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if words in line:
            return
    raise AssertionError(f"it has ended with {process.wait()} and never told {words!r}: {''.join(said)}")


def test_a_second_ctrl_c_while_a_slet_hangs(tmp_path):
    """It stops at once, and says which slet was left behind, and where."""
    (tmp_path / "hanging.py").write_text(HANGING)
    with running("run", tmp_path / "hanging.py", cwd=tmp_path) as process:
        eventually(lambda: (tmp_path / "inside").exists())
        told(process, "running")  # before, a second Ctrl-C kills
        process.send_signal(signal.SIGINT)
        told(process, "Ctrl-C again stops at once")
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=60)[1]
        assert process.returncode == 130
        assert "a slet has not returned, and is left behind" in rest
        assert "time.sleep(600)" in rest


def test_descriptors_are_left_alone_that_are_open():
    """A closed stream of Python's does not close, or take, a descriptor that somebody uses."""
    code = (
        "import os, sys; sys.stderr = None; kept = os.fstat(2).st_ino\n"
        "from exop.cli import open_closed_streams; open_closed_streams()\n"
        "assert os.fstat(2).st_ino == kept and sys.stderr is not None"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, env=os.environ, timeout=60).returncode == 0
