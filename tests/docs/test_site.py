"""The site has every page: in its navigation and in its search."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.docs.snippets import FENCE, ROOT, site_pages

pytestmark = [pytest.mark.edges, pytest.mark.filterwarnings("ignore:.*is deprecated")]


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """The site, as `make docs` builds it."""
    from sphinx.application import Sphinx

    there, said = tmp_path_factory.mktemp("site"), io.StringIO()
    site = Sphinx(ROOT, ROOT / "docs", there, there / "trees", "html", status=None, warning=said)
    site.build()
    assert (site.statuscode, said.getvalue()) == (0, "")
    return there


@pytest.fixture(scope="module")
def index(built) -> dict[str, Any]:
    """The index in which the search of the site looks words up."""
    text = (built / "searchindex.js").read_text(encoding="utf-8")
    return json.loads(text[text.index("{") : text.rindex("}") + 1])


def name_of(page: Path) -> str:
    """The name of a page in the site."""
    return page.relative_to(ROOT).with_suffix("").as_posix()


def test_every_page_is_found_by_its_title(index):
    """The search knows each page, and the words of its title lead to it."""
    assert sorted(index["docnames"]) == sorted(map(name_of, site_pages()))
    titles = dict(zip(index["docnames"], index["titles"], strict=True))
    for page in site_pages():
        (title,) = re.findall(r"^# (.*)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
        assert titles[name_of(page)] == title.replace("`", "").replace("*", "")


def test_the_text_of_every_page_is_found(index):
    """A page is found by the words in it, not only by its title."""
    found = set[int]()
    for places in index["terms"].values():
        found |= {places} if isinstance(places, int) else set(places)
    assert found == set(range(len(index["docnames"])))


def test_the_navigation_leads_from_the_start_page_to_every_page(built):
    """From the file that `make docs` names: it leads to the start page, and this to each other page."""
    start = built / re.findall(r'href="([^"]*)"', (built / "index.html").read_text())[0]
    links = re.findall(r'<li class="toctree-l1[^>]*><a [^>]*href="([^"#]*)"', start.read_text(encoding="utf-8"))
    led = {(start.parent / link).resolve() for link in links} | {start.resolve()}
    assert led >= {(built / f"{name_of(page)}.html").resolve() for page in site_pages()}
