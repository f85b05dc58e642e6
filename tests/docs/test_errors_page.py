"""The reference of errors is what the code says."""

from __future__ import annotations

from tests.docs.errors_page import page
from tests.docs.snippets import ROOT


def test_the_page_is_up_to_date():
    """Whoever adds or changes an error writes the page anew with the command that it names."""
    assert (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8") == page()
