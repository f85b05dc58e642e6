"""Moves of a durable application with kills: real processes and signals, and the count of the faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.migrate_kills import faults, killed


@pytest.mark.edges
def test_a_kill_of_the_home_of_the_source_and_of_the_target() -> None:
    """Each dies at its first failpoint, and nothing is lost, doubled or reordered; no state is wrong."""
    found = {result.name.rpartition("/")[2]: result.value for result in killed(3)}
    assert found == {"killed": 3, "lost": 0, "doubled": 0, "reordered": 0, "wrong": 0}


def test_each_fault_is_counted(tmp_path: Path) -> None:
    """The last line may be cut short."""
    lines = tmp_path / "lines.txt"
    lines.write_text("1 1\n2 2\n2 3\n5 4\n3 5\n6 6\n7")
    assert faults(lines) == {"lost": 2, "doubled": 1, "reordered": 1, "wrong": 3}
