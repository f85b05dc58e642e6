"""Operators on texts: `tokenize` emits a row for each token."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final, Self

from exop.model.slets.ports import OUT, PortType
from exop.model.slets.slet import Slet, input_port, spec_of
from exop.model.slets.spec import SletSpec
from exop.runtime.channels.partitioned import key_reader
from exop.safe_repr import safe_repr
from exop.stock.rows import row_reader, row_type

#: The maximum number of characters of a text, which together with the limits of patterns bounds the cost of an item.
LONGEST: Final = 10_000
#: The maximum number of characters of a pattern.
_LENGTH: Final = 500
#: The maximum number of choices of a pattern: `?`, and `|` within a group.
_CHOICES: Final = 3
#: The parts of a pattern that matter for its cost; escapes and sets of characters, so that they are skipped.
_PARTS: Final = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\((?:\?P?[<=!:>#(]*)?|\)|\||(?:[*+?]|\{\d*,?\d*\})[+?]?", re.DOTALL
)


class Pattern(str):
    """A regular expression whose cost is bounded; raises `ValueError` for others."""

    def __new__(cls, text: str) -> Self:  # noqa: D102
        if len(text) > _LENGTH:
            raise ValueError(f"it has {len(text)} characters; a pattern has at most {_LENGTH}")
        try:
            re.compile(text)
        except (re.error, RecursionError, OverflowError) as problem:
            raise ValueError(f"it is no regular expression: {problem}") from None
        if (costly := _costly(text)) is not None:
            raise ValueError(f"its cost has no bound: {costly}")
        return super().__new__(cls, text)


def _costly(pattern: str) -> str | None:
    """Return why the cost of a pattern may grow faster than the square of the length of a text, or `None`."""
    depth, repeats, choices, group_end = 0, 0, 0, -1
    for part in _PARTS.finditer(pattern):
        found = part[0]
        if re.match(r"\\[1-9]|\(\?P=", found):
            return "it refers to one of its groups"
        if found[0] in "()":
            depth += 1 if found[0] == "(" else -1
            group_end = part.end() if found == ")" else group_end
        elif found == "|":
            choices += depth > 0
        elif found[0] in "*+{" and part.start() == group_end:
            return f"it repeats a group; repeat a set of characters, such as [a-z]{found}"
        elif found[0] in "*+?{" and not found[1:].endswith("+"):  # a possessive one takes back nothing
            repeats += found[0] in "*+" or "," in found
            choices += found[0] == "?"
    if repeats > 1:
        return r"of several repetitions, all but one must be possessive: write, for example, \w++@\w+"
    return f"it has more than {_CHOICES} choices; make them possessive: ?+" if choices > _CHOICES else None


class Tokenize(Slet, name="tokenize"):
    r"""Emit a row for each part of a text that matches a pattern, in their order.

    The result is a dictionary with the fields of the item and the token. NULL and a text without tokens give no row. A
    value that is no text, and a text of more than 10 000 characters, fails.

    Args:
        field: The field with the text.
        pattern: The regular expression of a token, in the syntax of Python, with bounded cost: `\w+`.
        into: The field for the token; it replaces one of the same name.
    """

    reopens: ClassVar[bool] = True
    field: str
    pattern: Pattern
    into: str

    @classmethod
    def specialised(cls, settings: Mapping[str, Any], inputs: Mapping[str, PortType]) -> SletSpec:
        """Return a specification whose output has the fields of the input and the token."""
        taken = inputs.get("item", PortType())
        taken.check_field("", "field", settings["field"])
        return spec_of(cls).with_outputs({OUT: row_type(taken, {settings["into"]: PortType(str).items})})

    def __enter__(self) -> Self:
        self._text, self._fields, self._tokens = key_reader(self.field), row_reader(), re.compile(self.pattern).finditer
        return self

    @input_port
    def item(self, item: Any) -> Iterable[dict[str, Any]]:
        """Process one item."""
        if (text := self._text(item)) is None:
            return ()
        if not isinstance(text, str):
            raise TypeError(f"the field {self.field!r} is {safe_repr(text)}, and no text")
        if len(text) > LONGEST:
            raise ValueError(f"the field {self.field!r} has {len(text)} characters; the most are {LONGEST}")
        row, into = self._fields(item), self.into
        return [{**row, into: token[0]} for token in self._tokens(text) if token[0]]
