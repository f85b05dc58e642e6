"""A run goes on when it cannot be told of, and what is told cannot harm who reads it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from exop.cli import main
from tests.cli.shell import COMMAND, answer_of, eventually, facts, running

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


@pytest.fixture(params=["pipe", "full"])
def refusing(request):
    """A stdout that takes nothing, a closed pipe or a full device, and the exit code of a command that prints there."""
    if request.param == "full":
        with Path("/dev/full").open("w") as full:
            yield full, 1
        return
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as closed:
        yield closed, 141


@pytest.mark.parametrize("form", [[], ["--json"]])
@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["suspend", "line.tag"], "exop: line: revision 2 runs"),
        (["configure", "line.tag", "label=B"], "exop: line: revision 2 runs"),
        (["remove", "line"], "exop: line: removed"),
        (["suspend", "line.tag", "--dry-run"], ""),
        (["ps"], ""),
    ],
)
def test_a_change_is_made_that_cannot_be_printed(line, refusing, capsys, command, said, form):
    """Stdout has no reader or no room: the change is made all the same, and stderr says what has become of it."""
    stdout, code = refusing
    with redirect_stdout(stdout):
        assert main([*command, *form]) == code
    err = capsys.readouterr().err
    assert ("exop: line" in err, said in err) == (bool(said), True)
    assert ("No space left on device" in err) == (code == 1)
    if command[0] == "remove":
        assert "line" not in answer_of("ps")
    else:
        assert facts("describe", "line")["revision"] == (2 if said else 1)


def test_a_change_that_fails_and_cannot_be_printed(line, refusing, capsys):
    """The error is reported as ever."""
    with redirect_stdout(refusing[0]):
        assert main(["replace", "line.tag", "line:unopened", "--lose-state", "--json"]) == 1
    assert "no engine here" in capsys.readouterr().err


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
