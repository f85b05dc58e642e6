"""`Expression`: a checked text, and its functions of items and of columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from exop.errors import ExpressionError
from exop.model.expressions import tree
from exop.model.expressions.interpreter import folded
from exop.model.expressions.items import compiled
from exop.model.expressions.kinds import TYPES
from exop.model.expressions.reader import Names, Reader
from exop.model.expressions.tree import Tree
from exop.model.types.description import Type, built

NO_SETTINGS: Mapping[str, Any] = {}


@dataclass(frozen=True)
class Expression:
    """A checked expression; `read` returns one.

    Attributes:
        text: The text as written, in one line.
        subject: The port or name whose items it reads; empty if it reads none.
        fields: The fields of the item that it reads; `None`: the whole item.
        settings: The settings that it reads.
    """

    text: str
    subject: str
    fields: tuple[str, ...] | None
    settings: tuple[str, ...]
    place: str = field(repr=False, compare=False)
    root: Tree = field(repr=False, compare=False)

    @property
    def type(self) -> Type:
        """The type of its values, with `None` if it may be NULL."""
        known = self.root.type
        if not self.root.nullable or known.takes_none:
            return known
        return built("union", f"{known} | None", arguments=(known, TYPES["none"]))

    def item_function(self, settings: Mapping[str, Any] = NO_SETTINGS) -> Callable[[Any], Any]:
        """Return the function of an item that computes the expression with these *settings*.

        The function raises what fails: a missing field, a division by zero, an integer beyond 64 bits, types that do
        not go together.

        >>> from exop.expressions import Names, read
        >>> from exop.plugin import PortType
        >>> read("item['x'] * 2 + 1", Names("doubled", {"item": PortType()})).item_function()({"x": 3})
        7
        """
        return compiled(folded(self.root, settings))

    def column_function(self, settings: Mapping[str, Any] = NO_SETTINGS) -> Callable[[Any], Any]:
        """Return the function of a `pyarrow.RecordBatch` or `Table` that computes an array with a value for each row.

        The values are those of `item_function` for each row; it fails if that would fail for a row. The fields of the
        item are the columns; other columns are ignored.

        Raises:
            ExpressionError: the expression reads the whole item.
        """
        # Imported lazily: only columns need pyarrow.
        from exop.model.expressions.columns import column_function

        if self.fields is None:
            self._fail(f"columns have no {self.subject}: name the fields that are meant")
        return column_function(folded(self.root, settings), self.fields, self._fail)

    def filter_function(self, settings: Mapping[str, Any] = NO_SETTINGS) -> Callable[[Any], Any]:
        """Return the function that returns an item for which the condition holds, and `None` for all others."""
        root = folded(self.root, settings)
        item, nothing = tree.Subject(0, TYPES["any"], False, self.subject), tree.Literal(0, TYPES["none"], True, None)
        return compiled(tree.Choice(0, TYPES["any"], True, ((root, item),), nothing))

    def _fail(self, problem: str, about: str = "") -> NoReturn:
        at = max(0, self.text.find(about))
        raise ExpressionError(place=self.place, expression=self.text, position=at, problem=problem)


def read(text: str, names: Names) -> Expression:
    """Read an expression.

    Raises:
        ExpressionError: the text is no expression, or names what is not there; the error points at the place.
    """
    reader = Reader(text, names)
    root = reader.read()
    return Expression(reader.text, reader.subject, *_needed(root), names.place, root)


def read_condition(text: str, names: Names) -> Expression:
    """Read an expression that holds or does not hold for an item: a Boolean that looks at the item of one port.

    NULL does not hold.

    Raises:
        ExpressionError: the text is no condition; the error points at the place.
    """
    reader = Reader(text, names)
    root = reader.condition()
    return Expression(reader.text, reader.subject, *_needed(root), names.place, root)


def row_function(
    expressions: Mapping[str, Expression], settings: Mapping[str, Any] = NO_SETTINGS
) -> Callable[[Any], dict[str, Any]]:
    """Return the function of an item that computes several expressions, as a dictionary by their names.

    It is faster than the function of each of them. If one fails, its name is noted at the error.

    >>> from exop.expressions import Names, read, row_function
    >>> from exop.plugin import PortType
    >>> names = Names("row", {"item": PortType()})
    >>> row_function({"x": read("item.x + 1", names), "big": read("item.x > 9", names)})({"x": 3})
    {'x': 4, 'big': False}
    """
    columns = tuple((name, folded(one.root, settings)) for name, one in expressions.items())
    return compiled(tree.Row(0, TYPES["any"], False, columns))


def _needed(root: Tree) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """Return the fields that are read, if the item is used for nothing else, and the settings."""
    parts = [*root.walk()]
    found = [one.name for one in parts if isinstance(one, tree.Field) and isinstance(one.of, tree.Subject)]
    whole = sum(isinstance(one, tree.Subject) for one in parts) > len(found)
    settings = dict.fromkeys(one.name for one in parts if isinstance(one, tree.Setting))
    return None if whole else tuple(dict.fromkeys(found)), tuple(settings)
