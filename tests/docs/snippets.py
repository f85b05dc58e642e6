"""The snippets of the documentation: found in the Markdown pages, and given to the tests that run and check them.

A page is a story: its ```python blocks run one after the other in one module. What a block says of itself stands in a
comment above its fence:

    <!-- output -->       the block holds what the block before it has printed
    <!-- run -->          a ```console block whose commands (`$ exop …`) are carried out, and their output compared
    <!-- not run -->      a block that is only read

A block whose first line is `# file: NAME` is a file of the reader's own project. `…` in an
output stands for anything.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCE = re.compile(
    r"^(?:<!-- (?P<note>[^\n]*?) -->\n)?^```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
NOTES = ("output", "run", "not run", "runs as a test")


@dataclass(frozen=True)
class Snippet:
    """One fenced block: where it stands, what it is, what was said of it."""

    page: Path
    line: int
    language: str
    text: str
    note: str = ""

    @property
    def file(self) -> str | None:
        """The file of the reader's project that the block is."""
        first = self.text.split("\n", 1)[0]
        return first.removeprefix("# file:").strip() if first.startswith("# file:") else None

    @property
    def source(self) -> str:
        """The text, moved down to the line where it stands in the page, so that errors point there."""
        return "\n" * self.line + self.text


def pages() -> list[Path]:
    """Every page whose snippets run: the README and all of docs/."""
    return [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def site_pages() -> list[Path]:
    """Every page of the site: of the project, and of its plugins and applications."""
    folders = [ROOT / "docs", *sorted((ROOT / "plugins").glob("*/docs"))]
    readmes = [ROOT / "README.md", *sorted(ROOT.glob("plugins/*/README.md")), *sorted(ROOT.glob("apps/*/README.md"))]
    return [ROOT / "CHANGELOG.md", *(page for one in folders for page in sorted(one.rglob("*.md"))), *readmes]


def snippets(page: Path) -> list[Snippet]:
    """The fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Snippet(
            page,
            text.count("\n", 0, found.start("text")),
            found["language"],
            found["text"],
            found["note"] if found["note"] in NOTES else "",
        )
        for found in FENCE.finditer(text)
    ]


def python_of(page: Path) -> dict[str, str]:
    """The Python of a page, as files for a type checker: the page itself, and the files that it tells to write."""
    stem = page.relative_to(ROOT).with_suffix("").as_posix().replace("/", "_").replace("-", "_")
    story, files = "", dict[str, str]()
    for one in snippets(page):
        if one.language != "python" or one.note == "not run":
            continue
        if one.file is not None:
            files[one.file] = one.text
        else:
            story += "\n" * (one.line - story.count("\n")) + one.text
    return files | ({f"page_{stem}.py": story} if story.strip() else {})


def same(expected: str, found: str) -> bool:
    """Compare an output with what the page says; `…` stands for anything."""
    pattern = re.escape(expected.strip()).replace("…", ".*")
    return re.fullmatch(pattern, found.strip(), re.DOTALL) is not None
