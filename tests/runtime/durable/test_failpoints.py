"""Failpoints: a process dies at the place that it was started for, at the time that was named, and nowhere else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.kills import FAILPOINTS
from exop.runtime.durable.failpoints import failpoint

ROOT = Path(__file__).parents[3]
TWICE = "from exop.runtime.durable.failpoints import failpoint as f; f('change-made'); print(1, flush=True); "
TWICE += "f('log-append-after'); f('change-made'); print(2, flush=True)"


@pytest.mark.parametrize(
    ("armed", "code", "said"), [("change-made", -9, ""), ("change-made:2", -9, "1\n"), ("change-made:3", 0, "1\n2\n")]
)
def test_a_process_dies_at_the_place_and_time_that_was_named(armed, code, said):
    """By SIGKILL, so that nothing is tidied up."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "EXOP_FAILPOINT": armed}
    ran = subprocess.run([sys.executable, "-c", TWICE], env=environment, stdout=subprocess.PIPE, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (code, said)


def test_without_the_variable_nothing_happens():
    """Every process passes failpoints."""
    for name in FAILPOINTS:
        failpoint(name)


def test_every_place_that_is_passed_is_known_by_its_name():
    """A campaign takes its places from the table."""
    sources = [*ROOT.glob("exop/**/*.py"), *ROOT.glob("plugins/*/exop_*/**/*.py")]
    passed = {name for path in sources for name in re.findall(r'\bfailpoint\("([^"]+)"\)', path.read_text())}
    assert passed <= set(FAILPOINTS)
