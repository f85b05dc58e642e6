"""The references of commands and operations are what these say of themselves."""

import pytest

from exop.cli.overview import COMMANDS
from tests.docs.cli_page import CLI, OPERATIONS, operations_reference, reference


def test_the_pages_are_up_to_date():
    """The pages are what `python -m tests.docs.cli_page` writes now; every operation names its role."""
    assert CLI.read_text() == reference(), "python -m tests.docs.cli_page"
    assert OPERATIONS.read_text() == operations_reference(), "python -m tests.docs.cli_page"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda one: one.names[0])
def test_every_command_has_its_heading(command):
    """Every command has a heading, every other name of it a mention."""
    text = CLI.read_text()
    name, *others = command.names  # type: ignore[attr-defined]
    assert f"\n## exop {name}\n" in text
    assert all(f"`exop {other}`" in text for other in others)


def test_every_argument_is_explained():
    """No argument or option stands without its meaning."""
    rows = [line for line in CLI.read_text().splitlines() if line.startswith("| `")]
    assert rows
    assert [row for row in rows if not row.rstrip(" |").rpartition("|")[2].strip()] == []
