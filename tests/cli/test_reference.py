"""docs/reference/cli.md is what the command line says of itself."""

from pathlib import Path

import pytest

from exop.cli.commands import COMMANDS
from exop.cli.reference import reference

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"


def test_the_page_is_up_to_date() -> None:
    """The page is what `python -m exop.cli.reference` prints now."""
    assert PAGE.read_text() == reference(), "python -m exop.cli.reference > docs/reference/cli.md"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda one: one.names[0])
def test_every_command_has_its_heading(command: object) -> None:
    """Every command has a heading, every other name of it a mention."""
    text = PAGE.read_text()
    name, *others = command.names  # type: ignore[attr-defined]
    assert f"\n## exop {name}\n" in text
    assert all(f"`exop {other}`" in text for other in others)


def test_every_argument_is_explained() -> None:
    """No argument or option stands without its meaning."""
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert rows
    assert [row for row in rows if not row.rstrip(" |").rpartition("|")[2].strip()] == []
