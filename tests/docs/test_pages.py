"""The generated parts of the reference are complete and up to date."""

from __future__ import annotations

import inspect
import re

import pytest

from exop.model.slets.slet import spec_of
from exop.stock.slets import STOCK
from tests.docs.pages import PART, REFERENCE, methods, pages, plan_picture, public


def marked(page: str, writer: str) -> list[str]:
    """What the generated parts of a page are about."""
    text = (REFERENCE / f"{page}.md").read_text(encoding="utf-8")
    return [part[3] for part in PART.finditer(text) if part[2] == writer]


@pytest.mark.parametrize("page", sorted(pages()), ids=lambda page: page.name)
def test_a_page_has_what_the_code_has(page):
    """Headings and rows; `make pages` writes the words, and `make docs` takes them from the code."""
    assert outline(page.read_text(encoding="utf-8")) == outline(pages()[page]()), "run `make pages`"


def outline(text: str) -> list[str]:
    """The headings, and the first cells of the tables."""
    return re.findall(r"^(?:#+ .*|\| `[^|]*)", text, re.MULTILINE)


def test_every_public_name_is_in_the_reference():
    """Once each, and with a docstring on each of its methods."""
    assert sorted(marked("api", "api")) == sorted(public())
    kinds = [kind for kind in public().values() if inspect.isclass(kind)]
    assert not [
        f"{kind.__name__}.{name}" for kind in kinds for name, value in methods(kind) if not inspect.getdoc(value)
    ]


def test_every_stock_slet_is_in_the_reference_with_an_example():
    """The examples run with those of the other pages."""
    names = [spec_of(one).name for one in STOCK]
    assert sorted(marked("base-library", "slet")) == sorted(names)
    text = (REFERENCE / "base-library.md").read_text(encoding="utf-8")
    assert [name for name in names if f'"stock:{name}"' not in text] == []


def test_the_picture_of_the_start_page_is_that_of_its_program():
    """The README shows it, too."""
    assert (REFERENCE.parent / "plan.svg").read_text(encoding="utf-8") == plan_picture(), "run `make pages`"
