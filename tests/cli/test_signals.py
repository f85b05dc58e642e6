"""Ctrl-C and SIGTERM on a real process, and a repair from another terminal."""

import os
import pty
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from exop import Platform
from exop.cli.report import Stopping
from exop.runtime.durable.store import Store
from tests.cli.shell import COMMAND, applications, eventually, exop, lines, running

pytestmark = pytest.mark.edges

#: An endless source, slow enough to be watched and fast enough to wait for.
PACED = ("pace=0.001", "output=out")


def numbers_written() -> list[float]:
    """What the sink has written and handed to the file."""
    return [float(line) for line in lines(Path("out"))]


@pytest.mark.parametrize(("number", "key"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")])
def test_the_first_one_drains(number, key, counting):
    """Ctrl-C or SIGTERM ends the sources; everything that they had emitted is processed, and the exit code is 0."""
    with running("run", counting, *PACED, "--json") as process:
        eventually(lambda: applications().get("counting") == "running")
        process.send_signal(number)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert '"outcome": "drained"' in out
    assert f"{key} again stops at once" in err
    written = numbers_written()
    assert written == [number / 2 for number in range(1, len(written) + 1)]
    assert f'"items": {len(written)}' in out


def test_the_second_one_stops(counting):
    """A second Ctrl-C stops what does not drain; the shell is told by 130, and nothing is started again."""
    stuck = counting.with_name("stuck.py")
    stuck.write_text(
        "import threading\nfrom collections.abc import Iterator\nfrom exop import Application, slet\n"
        "from exop.runtime.drivers.base import current_driver\n\n"
        "@slet\ndef numbers() -> Iterator[int]:\n    yield 1\n    yield 2\n\n"
        "@slet\ndef slow(item: int) -> None:\n    print('taken', flush=True)\n"
        "    while not current_driver().retired:\n        threading.Event().wait(0.01)\n\n"
        "app = Application('stuck')\n"
        "queue = app.channel('queue', kind='queue', capacity=1000)\n"
        "app.add('numbers', numbers, out=queue)\napp.add('slow', slow, item=queue)\n"
    )
    with running("run", stuck, "--quiet") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "taken\n"
        process.send_signal(signal.SIGINT)
        assert "Ctrl-C again" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 130
        assert process.stdout.read() == "", "the second item must not have been taken"


def test_the_third_one_kills(tmp_path):
    """One request more than the patience ends the process on the spot, whatever it waits for."""
    code = (
        "import os, signal, threading\nfrom exop.cli.report import Stopping\n"
        "with Stopping(patience=2) as stopping:\n"
        "    for count in (1, 2):\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        assert stopping.count == count\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    threading.Event().wait()\n"
    )
    done = subprocess.run([COMMAND[0], "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 130
    assert done.stderr == "exop: killed\n"


SLOW = """
import threading
from pathlib import Path

from exop import Application, Slet, hookimpl, input_port
from exop.stock.slets import count_up


class Engine(Slet):
    def __enter__(self):
        if Path("closed").exists():
            print("opening", flush=True)
            threading.Event().wait()
        return self

    @input_port
    def item(self, item: int) -> None:
        pass


def slow() -> Application:
    app = Application("slow")
    if Path("state").exists():
        app.durable()
    app.add("engine", Engine, item=app.add("numbers", count_up))
    return app


@hookimpl
def register_slets():
    return [Engine]


@hookimpl
def register_builders():
    return [slow]
"""


@pytest.mark.parametrize(
    ("command", "number", "code"),
    [
        (("run", "slow", "--quiet"), signal.SIGINT, 130),
        (("run", "slow", "--quiet", "--state", "state"), signal.SIGTERM, 143),
        (("dev", "slow", "--quiet"), signal.SIGINT, 0),
        (("serve", "--state", "state"), signal.SIGTERM, 0),
    ],
)
def test_while_an_engine_opens(command, number, code, tmp_path):
    """The first one ends the command: the slet that is being opened is given up."""
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "__init__.py").write_text(SLOW)
    if "state" in command:  # what runs there is started again
        with Platform(state="state", control=False) as platform:
            platform.load("slow")
            platform.apply(mesh := sys.modules["slow"].slow().build())
            if command[0] == "serve":  # another one, which begins anew after it
                platform.apply(replace(mesh, name="slower", durable=None))
            eventually(lambda: platform.deployment("slow").components["numbers"].state.number > 100)
    Path("closed").touch()
    with running(*command) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "opening\n"
        process.send_signal(number)
        _, err = process.communicate(timeout=120)
    assert process.returncode == code, err
    assert "what is being opened is given up" in err
    assert "slow.engine: opening is given up: " in err
    assert 'File "' not in err, err
    assert "refused" not in err
    if "state" in command:  # stored as before, it is started again by the next platform
        Path("closed").unlink()
        with Platform(state="state", control=False) as platform:
            assert platform.applications() == ["slow", "slower"][: 1 + (command[0] == "serve")]
            assert not platform.failed_to_restart
            assert platform.deployment("slow").components["numbers"].state.number > 100, "from its checkpoint"


def test_handlers_are_put_back():
    """After the block signals do what they did before."""
    before = signal.getsignal(signal.SIGTERM)
    with Stopping():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


def test_kill_9_and_serve(counting):
    """After kill -9 the next platform there starts the application again by itself; SIGTERM leaves it to go on."""
    with running("run", counting, *PACED, "--state", "state") as process:
        eventually(lambda: applications().get("counting") == "running")
        process.kill()
        process.wait()
    assert applications() == {}
    with running("serve", "--state", "state") as process:
        eventually(lambda: applications().get("counting") == "running")
        process.terminate()
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0
        assert "running" in err
    store = Store(Path("state"))
    assert [(one.name, one.active) for one in store.applications()] == [("counting", True)]
    store.close()


def test_repair_from_another_terminal(counting):
    """`--on-failure wait`: the failure is shown with its cure; after `exop resume` the same item is tried again."""
    arguments = ("run", counting, "to=5", "output=out", "missing=mended", "--on-failure", "wait")
    with running(*arguments) as process:
        eventually(lambda: applications().get("counting") == "suspended")
        told = exop("describe", "counting.half").stdout
        assert "ValueError: no halves today" in told
        assert "kept item at 'item': 3" in told
        Path("mended").touch()
        assert exop("resume", "counting.half").returncode == 0
        _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "`exop resume counting.half` retries the item" in err
    assert numbers_written() == [0.5, 1.0, 1.5, 2.0, 2.5]


def test_ctrl_c_while_a_slet_waits(counting):
    """Nothing can be drained past a suspended slet: one Ctrl-C ends the wait, with the exit code of the failure."""
    arguments = ("run", counting, "to=5", "output=out", "missing=never", "--on-failure", "wait", "--quiet")
    with running(*arguments) as process:
        eventually(lambda: applications().get("counting") == "suspended")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "exop: half failed while running" in err


def test_on_a_terminal(counting):
    """On a terminal there is a live table, and Ctrl-C from the keyboard drains."""
    keyboard, terminal = pty.openpty()
    # The terminal becomes the one whose Ctrl-C reaches the process.
    begin = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
    command = [sys.executable, "-c", begin, *COMMAND, "run", str(counting), *PACED]
    process = subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True, env=_wide()
    )
    os.close(terminal)
    screen = b""
    try:
        while b"p99 ms" not in screen:
            screen += os.read(keyboard, 65536)
        os.write(keyboard, b"\x03")
        screen += b"".join(iter(lambda: _rest(keyboard), b""))
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.wait()
        os.close(keyboard)
    text = screen.decode()
    assert "counting: drained after" in text
    assert text.endswith("\n")
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l"), "the cursor is shown again"


def _wide() -> dict[str, str]:
    return {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}


def _rest(keyboard: int) -> bytes:
    try:
        return os.read(keyboard, 65536)
    except OSError:  # Linux says so when the other end is closed
        return b""


HELD = """
import os, signal
from collections.abc import Iterator
from exop import Application, Memento, Mesh, hookimpl, slet

class Position(Memento):
    number: int = 0

@slet
def numbers(position: Position) -> Iterator[int | None]:
    if position.number == 5:
        return  # a later run: the test sends the signals
    while position.number < 5:
        position.number += 1
        yield position.number
    os.kill(os.getpid(), signal.SIGTERM)
    while True:
        yield None

@slet
def passing(item: int) -> int:
    return item

@slet
def write(item: int) -> None:
    with open("out", "a") as out:
        print(item, file=out)

@hookimpl
def register_slets():
    return [numbers, passing, write]

def held(*, durable: bool = False) -> Mesh:
    app = Application("held")
    if durable:
        app.durable(every=3600)
    waits = app.channel("waits", "queue")
    app.add("numbers", numbers, out=waits)
    app.add("write", write, item=app.add("passing", passing, item=waits))
    return app.build().suspend("passing")

@hookimpl
def register_builders():
    return [held]
"""


@pytest.mark.parametrize("durable", [False, True])
def test_a_suspended_node_is_named_and_waited_for_so_long(durable, tmp_path):
    """SIGTERM with a suspended node: its name and the cure are told, and after `--drain-timeout` the run stops."""
    folder = tmp_path / f"held_{durable}".lower()
    folder.mkdir()
    (folder / "__init__.py").write_text(HELD)
    more = ["--state", "state"] if durable else []
    command = ["run", folder, f"durable={durable}", "--quiet", *more]
    done = exop(*command, "--drain-timeout", "0")
    assert done.returncode == 143
    assert "held.passing is suspended, and keeps the run from ending; `exop resume held" in done.stderr
    kept = "are kept, and the next run continues with them" if durable else "are lost"
    assert f"held: stopped after 0 s: the items that wait for held.passing {kept}" in done.stderr
    assert not Path("out").exists()
    if durable:
        with running(*command) as process:
            eventually(lambda: applications().get("held") == "running")
            process.send_signal(signal.SIGTERM)
            assert process.stderr is not None
            assert any("keeps the run from ending" in line for line in process.stderr)
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) == 143, "the second one"
        resuming = threading.Thread(target=lambda: eventually(lambda: exop("resume", "held.passing").returncode == 0))
        with running(*command) as process:
            resuming.start()
            resuming.join()
            assert process.wait(120) == 0
            assert process.stderr is not None
            assert "it ran in state and is started again" in process.stderr.read()
        assert numbers_written() == [1, 2, 3, 4, 5]
