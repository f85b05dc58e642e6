"""Directories that last as long as the process."""

import subprocess
import sys

from exop_spark.session.scratch import PREFIX, Scratch, memory

_KILLED = """
import os, pathlib, sys
from exop_spark.session.scratch import Scratch
print(Scratch(pathlib.Path(sys.argv[1])).path, flush=True)
os.kill(os.getpid(), 9)
"""


def test_it_goes_with_what_is_in_it(tmp_path):
    """Closing removes the directory and the checkpoints in it; closing again does nothing."""
    scratch = Scratch(tmp_path)
    (scratch.new("checkpoint") / "offsets").mkdir()
    scratch.close()
    scratch.close()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_swept_up(tmp_path):
    """The next one at the same place removes it."""
    done = subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path)], capture_output=True, text=True, check=False)
    left = tmp_path / done.stdout.strip()
    assert left.is_dir()
    scratch = Scratch(tmp_path)
    assert not left.exists()
    scratch.close()


def test_what_is_in_use_or_of_others_is_left_alone(tmp_path):
    """A directory of a living process is locked; one without a lock is nobody's we know."""
    foreign = tmp_path / f"{PREFIX}foreign"
    foreign.mkdir()
    first, second = Scratch(tmp_path), Scratch(tmp_path)
    assert first.path.is_dir()
    assert foreign.is_dir()
    first.close()
    second.close()


def test_there_is_always_a_place():
    """Memory where it can be written as files, temporary files elsewhere."""
    assert memory().is_dir()
