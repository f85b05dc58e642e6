"""Writes the generated parts of the reference: `make pages`.

A part stands in a page between `<!-- generated: WRITER ARGUMENT -->` and `<!-- end -->`; what is around it is written
by hand.
"""

from __future__ import annotations

import inspect
import io
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, Final

import exop
import exop.engine
import exop.expressions
import exop.hooks
import exop.plugin
import exop.remoting
import exop.testing
import exop.testing.engine_suite
from exop.bundle.bundles import Bundles
from exop.model.expressions.functions import FUNCTIONS
from exop.model.slets.signature import read_settings
from exop.model.slets.slet import spec_of
from exop.pictures.notebook import picture_of
from exop.runtime.channels import BUILT_IN
from exop.runtime.supervision.failure_state import FailedItem
from exop.stock.slets import STOCK
from exop.wiring.changes.plan import Plan
from tests.docs import cli_page, errors_page
from tests.docs.snippets import ROOT, snippets

REFERENCE: Final = ROOT / "docs" / "reference"
START: Final = ROOT / "docs" / "index.md"
PART: Final = re.compile(r"(<!-- generated: (\w+) (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
#: The modules whose names are public.
MODULES: Final = (
    exop, exop.engine, exop.expressions, exop.plugin, exop.hooks, exop.testing, exop.testing.engine_suite, exop.remoting
)  # fmt: skip
#: Classes that are not made by users, but returned to them.
RETURNED: Final = (Plan, Bundles, FailedItem)
#: Longer defaults are not shown.
LONG: Final = 60
SECTION: Final = re.compile(r"^(Args|Attributes|Returns|Yields|Raises):\n((?:(?:    .*)?\n)+)", re.MULTILINE)
#: An example in a docstring, with what it prints.
EXAMPLE: Final = re.compile(r"^((?:>>>|\.\.\.) .*\n(?:\S.*\n)*)+", re.MULTILINE)
TITLES: Final = {"Args": "Parameters", "Attributes": "Attributes", "Raises": "Raises"}


def filled(text: str) -> str:
    """A page with its generated parts written anew."""
    return PART.sub(lambda part: f"{part[1]}\n{WRITERS[part[2]](part[3])}\n{part[4]}", text)


def docstring(thing: Any) -> tuple[str, dict[str, str]]:
    """The docstring as Markdown without its sections, and the sections by their titles."""
    text = (inspect.getdoc(thing) or "") + "\n"
    sections = {found[1]: inspect.cleandoc(found[2]) for found in SECTION.finditer(text)}
    return EXAMPLE.sub(r"```pycon\n\g<0>```\n", SECTION.sub("", text)).strip(), sections


def entries(section: str) -> dict[str, str]:
    """The entries of a section by their names: `name: text`, continued by indentation."""
    parts = re.split(r"^(\S[^:\n]*): ", section, flags=re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table, or nothing without rows."""
    lines = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    names = list(head)
    return "\n".join([f"| {' | '.join(names)} |", f"|{'---|' * len(names)}", *lines, ""]) if lines else ""


# The base library


def slet(name: str) -> str:
    """A stock slet: what it does, its ports, settings and state."""
    spec = next(spec for spec in map(spec_of, STOCK) if spec.name == name)
    text, sections = docstring(spec.factory)
    meaning = entries(sections.get("Args", ""))
    ports = sorted((*spec.ports.values(), *spec.families), key=lambda port: port.direction)
    settings = [re.fullmatch(r"(.*?): (.*?)(?: = (.*))?", str(one)).groups() for one in spec.settings.values()]
    parts = [
        text,
        table(("port", "", "type"), ((f"`{port.name}`", port.direction, f"`{port.type}`") for port in ports)),
        table(
            ("setting", "type", "default", "meaning"),
            (
                (f"`{one}`", f"`{kind}`", f"`{value}`" if value else "required", meaning[one])
                for one, kind, value in settings
            ),
        ),
    ]
    if spec.state is not None:
        kind = spec.state[1]
        names = ", ".join(f"`{name}`" for name in kind.__annotations__)
        parts.append(f"State, `{kind.__name__}` ({names}): {docstring(kind)[0].splitlines()[0]}")
    return "\n\n".join(part.rstrip() for part in parts if part) + "\n"


def kinds(_: str) -> str:
    """The channel kinds that come with ExoP: what they do, and their settings."""
    rows = [
        (
            f"[`{kind.kind}`](channels.md#{kind.kind})",
            docstring(kind)[0].splitlines()[0],
            ", ".join(f"`{name}`" for name in read_settings(kind)),
        )
        for kind in BUILT_IN
    ]
    return table(("kind", "", "settings"), rows)


# The Python API


def api(name: str) -> str:
    """A public name: its signature, docstring and methods."""
    thing, short = public()[name], name.rpartition(".")[2]
    parts = [f"### {'class ' if inspect.isclass(thing) else ''}{short}", *described(short, thing)]
    for member, value in methods(thing) if inspect.isclass(thing) else ():
        parts += [f"#### {short}.{member}", *described(member, value)]
    return "\n\n".join(part for part in parts if part) + "\n"


def public() -> dict[str, Any]:
    """Every public name with its module, under the first one that has it, and what it stands for."""
    found = {f"{module.__name__}.{name}": getattr(module, name) for module in MODULES for name in module.__all__}
    first = {id(value): name for name, value in reversed(found.items())}
    kept = {name: value for name, value in found.items() if first[id(value)] == name}
    return kept | {kind.__name__: kind for kind in RETURNED}


def methods(kind: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties of a class, those that it inherits from ours included."""
    for member in dict.fromkeys(name for owner in kind.__mro__ for name in vars(owner)):
        value = inspect.getattr_static(kind, member)
        owner = next(owner for owner in kind.__mro__ if member in vars(owner))
        callable_ = inspect.isfunction(getattr(value, "__func__", value)) or isinstance(value, property)
        field = member in getattr(kind, "__dataclass_fields__", ())
        if not member.startswith("_") and callable_ and not field and owner.__module__.startswith("exop"):
            yield member, value


def described(name: str, thing: Any) -> Iterator[str]:
    """The signature, text and sections of one thing; nothing if it is of another library."""
    if not getattr(getattr(thing, "fget", thing), "__module__", "").startswith("exop"):
        return
    text, sections = docstring(thing)
    yield "" if thing in RETURNED else f"`{signature(name, thing)}`"
    yield text
    for title, section in sections.items():
        if title in TITLES:
            rows = (f"- `{one.replace(', ', '`, `')}`: {words}" for one, words in entries(section).items())
            yield "\n".join([f"{TITLES[title]}:", "", *rows])
        else:
            yield f"{title}: {' '.join(section.split())}"


class Shown(str):
    """A text that a signature shows as it is."""

    __slots__ = ()
    __repr__ = str.__str__


def signature(name: str, thing: Any) -> str:
    """The line that a caller reads; of a property its type alone."""
    if isinstance(thing, property):
        return f"{name}: {inspect.signature(thing.fget).return_annotation}"
    try:
        found = inspect.signature(getattr(thing, "__func__", thing))
    except ValueError:
        return name
    shown = [
        one.replace(annotation=annotation(one.annotation), default=default(one.default))
        for one in found.parameters.values()
        if one.name not in ("self", "cls") and not one.name.startswith("_")
    ]
    returns = inspect.Signature.empty if inspect.isclass(thing) else found.return_annotation
    return f"{name}{found.replace(parameters=shown, return_annotation=annotation(returns))}"


def annotation(value: Any) -> Any:
    """An annotation, which is text in our modules, to be shown without quotes."""
    return Shown(value) if isinstance(value, str) else value


def default(value: Any) -> Any:
    """A default, to be shown short."""
    if value is inspect.Parameter.empty:
        return value
    text = getattr(value, "__name__", repr(value))
    return Shown("…" if len(text) > LONG or text.startswith("<") else text)


# The start page


def plan_picture() -> str:
    """The picture of the plan that the program on the start page makes, as a notebook shows it."""
    names: dict[str, Any] = {"__name__": "__main__"}
    with redirect_stdout(io.StringIO()):
        exec(next(one.text for one in snippets(START) if one.language == "python"), names)
    return picture_of(names["plan"].after, {step.node for step in names["plan"].steps}) + "\n"


def functions(_: str) -> str:
    """The functions of expressions, each with an example and its value."""
    rows = [
        (f"`{one.signature}`", one.doc, f"`{one.example[0]}` → `{one.example[1].replace('datetime.', '')}`")
        for one in FUNCTIONS.values()
    ]
    return table(("function", "result", "example"), rows)


WRITERS: Final[dict[str, Callable[[str], str]]] = {"slet": slet, "kinds": kinds, "api": api, "functions": functions}


def pages() -> dict[Path, Callable[[], str]]:
    """Every page with generated parts, and every generated picture, with the function that writes it."""
    marked = [page for page in sorted(REFERENCE.glob("*.md")) if PART.search(page.read_text(encoding="utf-8"))]
    return {page: (lambda page=page: filled(page.read_text(encoding="utf-8"))) for page in marked} | {
        cli_page.CLI: cli_page.reference,
        cli_page.OPERATIONS: cli_page.operations_reference,
        REFERENCE / "errors.md": errors_page.page,
        START.with_name("plan.svg"): plan_picture,
    }


if __name__ == "__main__":
    for page, write in pages().items():
        page.write_text(write(), encoding="utf-8")
