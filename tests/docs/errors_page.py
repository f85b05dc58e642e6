"""Writes the reference of errors: `python -m tests.docs.errors_page > docs/reference/errors.md`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from exop import errors
from exop.cli.report import MISTAKE, exit_code
from exop.errors import ExopError
from tests.error_samples import SAMPLES

HEAD = """# Errors

All errors that ExoP raises on purpose are in one tree of classes with the root `ExopError`, so `except ExopError`
catches all of them. The facts of an error are its attributes (for example, `error.known`); `error.facts` contains all
facts. The message states the remedy. On the command line, an error is printed as one line on stderr, and the exit code
is 2 for a mistake that you can correct, and 1 for a failure.

The exception of a slet is the `__cause__` of the error that `platform.wait` or `app.run` raises, with the node, the
port and the item in its notes.

```python
from exop import Application
from exop.errors import UnknownName

app = Application("numbers")
numbers = app.add("numbers", "stock:count_up", to=3)
try:
    app.add("console", "stock:show", itm=numbers)
except UnknownName as error:
    print(error)
    print(error.name, error.known)
```

<!-- output -->
```text
console has no port or setting 'itm'; did you mean 'item'?
itm ['item']
```
"""

#: What the tree and the docstring of a class do not say.
MORE = {
    "UnknownName": "`known` lists the existing names; the message suggests the nearest one.",
    "ComponentFailed": (
        "`phase` is `opening`, `running` or `driving`. The `__cause__` is the exception of the slet. If the slet is "
        "suspended on an item, repair the cause, then use `exop resume` or `platform.resume(application, node)`."
    ),
    "StaleMesh": "The application is not changed.",
    "PluginError": "`platform.plugins.broken` contains the error, too. The platform runs without the plugin.",
    "FilterSyntaxError": "The message shows the filter with a mark under the position.",
    "ChannelClosed": "A push of a slet with its own driver raises the error if the stream was ended from outside.",
    "ChannelFull": "The error is for channel kinds whose producers must not wait; no built-in kind raises the error.",
}


def page() -> str:
    """The whole page."""
    parts = [HEAD, "\n".join(["## The tree\n", "```text", *tree(ExopError), "```\n"])]
    parts += [
        section(value) for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, ExopError)
    ]
    return "\n".join(parts)


def tree(kind: type[ExopError], depth: int = 0) -> Iterator[str]:
    """A line for the error and each of those derived from it: its name, and what it says of itself."""
    said = inspect.cleandoc(kind.__doc__ or "").splitlines()[0].partition(":")[0].rstrip(".")
    yield f"{'  ' * depth}{kind.__name__}".ljust(26) + said
    for one in kind.__subclasses__():
        if one.__module__ == kind.__module__:
            yield from tree(one, depth + 1)


def section(kind: type[ExopError]) -> str:
    """One error: what it is, its parent and facts, and a message."""
    sample, message = SAMPLES[kind.__name__]
    facts = ", ".join(f"`{name}`" for name in sample if name != "text") or "`text`"
    above = kind.__mro__[1].__name__
    parent = "" if kind is ExopError else f"{'An' if above[0] == 'E' else 'A'} `{above}`. "
    code = "2" if exit_code(kind(**sample)) == MISTAKE else "1"
    lines = [f"## {kind.__name__}\n", f"{inspect.getdoc(kind)}\n".split("\n\n")[0].rstrip() + "\n"]
    if kind.__name__ in MORE:
        lines.append(f"{MORE[kind.__name__]}\n")
    lines.append(f"{parent}Facts: {facts}. Exit code {code}.\n")
    if "text" not in sample:
        lines.append(f"```text\n{message}\n```\n")
    return "\n".join(lines)


if __name__ == "__main__":
    print(page(), end="")  # noqa: T201 (that is what it is for)
