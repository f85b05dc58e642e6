"""Every snippet of the documentation runs, and prints what the page says."""

from __future__ import annotations

import itertools
import re
import shlex
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import pytest

from exop.cli.entry import make_app
from tests.docs.snippets import FENCE, ROOT, Snippet, pages, same, site_pages, snippets

ALL = sorted({*pages(), *site_pages()})
IDS = [page.relative_to(ROOT).as_posix() for page in ALL]
#: Options of every command, which are read before it.
COMMON = re.compile(r"--(log-level|log-format) \S+|--debug")
WITH_STORY = [page for page in pages() if any(one.language in ("python", "console") for one in snippets(page))]


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The reader's own project: an empty folder to work in; what is imported there is forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield tmp_path
    for name in set(sys.modules) - before:
        home = getattr(sys.modules[name], "__file__", None) or ""
        if name.startswith("page_") or home.startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize("page", WITH_STORY, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_snippets_of_a_page_run(page, project, capfd):
    """Top to bottom, in one module, with the files and commands that the page tells of."""
    module = types.ModuleType(f"page_{page.stem.replace('-', '_')}")
    sys.modules[module.__name__] = module
    printed = ""
    for one in snippets(page):
        if one.note == "not run":
            continue
        if one.note == "output":
            assert same(one.text, printed), f"{page.name}:{one.line} says\n{one.text}\nprinted was\n{printed}"
        elif one.file is not None:
            target = project / one.file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(one.text, encoding="utf-8")
        elif one.language == "python":
            exec(compile(one.source, str(page), "exec"), module.__dict__)
            printed = capfd.readouterr().out
        elif one.language == "console" and one.note == "run":
            for command, expected in commands(one):
                found = carried_out(command, project)
                assert same(expected, found), f"{page.name}:{one.line} $ {command} says\n{expected}\nfound\n{found}"


def commands(block: Snippet) -> list[tuple[str, str]]:
    """The commands of a console block, each with the output that follows it."""
    found: list[tuple[str, str]] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], ""))
        else:
            found[-1] = (found[-1][0], f"{found[-1][1]}{line}\n")
    return found


def carried_out(command: str, project: Path) -> str:
    """What a command prints on stdout; it has to succeed."""
    name, *arguments = shlex.split(command)
    programs = {
        "exop": [sys.executable, "-m", "exop"],
        "python": [sys.executable],
        "pytest": [sys.executable, "-m", "pytest"],
    }
    ran = subprocess.run(
        [*programs[name], *arguments], capture_output=True, text=True, cwd=project, timeout=60, check=False
    )
    assert ran.returncode == 0, f"$ {command}\n{ran.stdout}{ran.stderr}"
    return ran.stdout


@pytest.mark.parametrize("page", ALL, ids=IDS)
def test_what_is_toml_can_be_read(page):
    """A topology or a pyproject in a page has no mistake in its syntax."""
    for one in snippets(page):
        if one.language == "toml":
            tomllib.loads(one.text)


@pytest.mark.parametrize("page", ALL, ids=IDS)
def test_links_lead_somewhere(page):
    """Every link to a page or file of the project has its target, and every anchor its heading."""
    for link in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text(encoding="utf-8"))):
        path, _, anchor = link.partition("#")
        if "://" not in link:
            target = page.parent / path if path else page
            assert target.exists(), f"{page.name} links to {link}"
            assert not anchor or anchor in anchors(target), f"{page.name} links to {link}"


@pytest.mark.parametrize("page", [page for page in ALL if page.name != "CHANGELOG.md"])
def test_files_of_the_project_exist(page):
    """A file or folder of the code that a page names is there."""
    named = re.findall(r"`((?:exop|plugins|apps|bench|tests)/[\w./-]*)`", page.read_text(encoding="utf-8"))
    assert [path for path in named if not (ROOT / path).exists()] == []


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MyST make them."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", ALL, ids=IDS)
def test_commands_have_these_arguments_and_options(page):
    """A command of `exop` in a page that is not carried out has no option that does not exist."""
    app = make_app()
    for text in (one.text.replace("\\\n", "") for one in snippets(page) if one.language in ("console", "sh")):
        for line in re.findall(r"^(?:\$ )?exop (.*)", text, re.MULTILINE):
            words = shlex.split(COMMON.sub("", line), comments=True)
            words = list(itertools.takewhile(lambda word: word not in ("|", ">", "&"), words))
            app.parse_args(words, print_error=False, exit_on_error=False)


def test_the_start_page_lists_every_page():
    """The navigation of the site is read from these lists, so a page that is missing there cannot be found."""
    start = ROOT / "docs" / "index.md"
    listed = re.findall(r"^- \[.*?\]\((.*?)\)", start.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted([start, *((start.parent / one).resolve() for one in listed)]) == sorted(site_pages())


@pytest.mark.parametrize("page", ALL, ids=IDS)
def test_every_fence_is_understood(page):
    """A misspelled comment above a fence would silently leave a snippet out."""
    text = page.read_text(encoding="utf-8")
    assert text.count("\n```") % 2 == 0
    assert text.count("\n```") // 2 == len(snippets(page))


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_first_program_fits_on_a_screen(page):
    """The site shows 90 characters in 1280 pixels; what is wider is wrapped."""
    first = next(one.text for one in snippets(ROOT / page) if one.language == "python")
    assert max(map(len, first.splitlines())) <= 88
