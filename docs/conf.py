"""Sphinx configuration of the site: `make docs` builds it from the Markdown pages, which are readable without it.

The source directory is the root of the project, so that the pages of plugins and applications belong to the site, too.
The navigation is read from the lists of index.md; generated parts of pages are taken from the code. A comment
`<!-- picture: floors -->` in a page becomes a picture of the packages in their layers, drawn from import-linter's
contract and the first lines of the packages' docstrings; `<!-- picture: linear road -->` one of the mesh.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
import tomllib
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.docs.pages import filled  # noqa: E402 (it stands beside the package, not in it)

project = "ExoP"
author = "the authors of ExoP"
extensions = ["myst_parser"]
myst_heading_anchors = 4
myst_enable_extensions = ["deflist"]
root_doc = "docs/index"
include_patterns = [
    "docs/**.md",
    "plugins/*/docs/**.md",
    "plugins/*/README.md",
    "apps/*/README.md",
    "README.md",
    "CHANGELOG.md",
]
exclude_patterns = [".*", "docs/_build", "exop", "tests", "bench", "demo"]
nitpicky = True
html_theme = "furo"
html_title = "ExoP"
html_show_copyright = False
html_copy_source = False
html_static_path = html_css_files = ["site.css"]

WIDTH, LINE, PAD = 860, 17, 10
#: Where the picture goes; it replaces the list of floors that stands there for other readers.
FLOORS = re.compile(r"<!-- picture: floors -->(\n\n```text\n.*?```)?", re.DOTALL)
#: The same of the flow chart, which other readers draw.
LINEAR_ROAD = re.compile(r"<!-- picture: linear road -->\n\n```mermaid\n.*?```", re.DOTALL)


def setup(app: Any) -> None:
    """Hook into Sphinx: `prepare` sees each page before it is parsed."""
    app.connect("source-read", prepare)
    app.connect("build-finished", lead_to_start)


def prepare(_app: Any, name: str, source: list[str]) -> None:
    """Add to a page what only the site has: the navigation, and the picture."""
    if name == root_doc:
        source[0] += "\n" + navigation(source[0])
    source[0] = LINEAR_ROAD.sub(lambda _: linear_road(), FLOORS.sub(lambda _: floors(), filled(source[0])))


def lead_to_start(app: Any, problem: Exception | None) -> None:
    """Write the `index.html` that leads to the start page."""
    if problem is None:
        start = f'<meta http-equiv="refresh" content="0; url={root_doc}.html"><a href="{root_doc}.html">ExoP</a>'
        Path(app.outdir, "index.html").write_text(f"<!doctype html><title>ExoP</title>{start}\n")


def navigation(text: str) -> str:
    """One hidden table of contents for each heading of the start page that has a list of pages."""
    trees = []
    for part in text.split("\n## ")[1:]:
        heading, _, body = part.partition("\n")
        pages = re.findall(r"^- \[(.*?)\]\(([\w./-]+)\.md\)", body, re.MULTILINE)
        entries = [f"{title} <{page}>" for title, page in pages]
        trees.append("\n".join(["```{toctree}", ":hidden:", f":caption: {heading}", "", *entries, "```"]))
    return "\n\n".join(trees)


def linear_road() -> str:
    """The mesh of Linear Road as SVG, which is wider than a page: the reader scrolls it."""
    from exop.cli.loading import load_mesh
    from exop.model.meshes.checks import resolved
    from exop.pictures.notebook import picture_of

    given = [f"input={__file__}", f"history={__file__}", "output=answers.csv", "pipeline=native"]  # nothing is read
    mesh, catalog, _ = load_mesh(str(ROOT / "apps" / "linear_road"), given, (), ())
    picture = picture_of(resolved(mesh, catalog.slets, durable=False)).replace("max-width:100%;", "")
    picture = picture.replace("\n", "")  # an empty line would end the block of HTML
    return f'<div style="overflow-x:auto">{picture}</div>'


def floors() -> str:
    """The packages of exop/ as SVG, a layer above those that it may import."""
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    parts, top = list[str](), 0
    for layer in contract["layers"]:
        names = [name.strip() for name in layer.split("|")]
        width = (WIDTH - PAD * (len(names) - 1)) // len(names)
        texts = [box_text(ROOT / "exop" / name, width) for name in names]
        height = (1 + max(map(len, texts))) * LINE + 2 * PAD
        for number, (name, lines) in enumerate(zip(names, texts, strict=True)):
            parts += box(name, lines, number * (width + PAD), top, width, height)
        top += height + PAD
    return (
        f'<div><svg viewBox="0 0 {WIDTH} {top}" width="100%" role="img" font-size="13" fill="currentColor" '
        f'aria-label="The packages of ExoP in layers">{"".join(parts)}</svg></div>'
    )


def box_text(path: Path, width: int) -> list[str]:
    """The lines of a box: the first sentence of the docstring, then the folders in the package."""
    home = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    first = (ast.get_docstring(ast.parse(home.read_text())) or "").split("\n\n")[0].replace("`", "")
    inner = ", ".join(sorted(one.parent.name for one in path.glob("*/__init__.py")))
    columns = (width - 2 * PAD) // 8
    return [*textwrap.wrap(" ".join(first.split()), columns), *textwrap.wrap(inner and f"folders: {inner}", columns)]


def box(name: str, lines: list[str], left: int, top: int, width: int, height: int) -> list[str]:
    """One package: a frame, its name, and its text."""
    frame = f'<rect x="{left}" y="{top}" width="{width}" height="{height}" rx="5"'
    rows = [
        f'<text x="{left + PAD}" y="{top + PAD + 12 + number * LINE}">{escape(line)}</text>'
        for number, line in enumerate(["", *lines])
    ]
    rows[0] = f'<text x="{left + PAD}" y="{top + PAD + 12}" font-weight="bold">{escape(name)}</text>'
    return [f'{frame} fill="none" stroke="currentColor" stroke-opacity=".4"/>', *rows]
