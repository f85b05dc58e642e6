"""Inputs that a query reads as tables: settings with a text for each of them, and the types of their ports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from exop.errors import SettingError
from exop.model.slets.ports import PortType
from exop.model.types.conversion import convert


def texts_by_input(setting: str, texts: str | Mapping[str, str], single: str) -> dict[str, str]:
    """Return the text for each input; a text alone has the key *single*.

    On a command line, a mapping is written as an inline table of TOML.

    Raises:
        SettingError: the inline table is invalid.
    """
    if isinstance(texts, str) and texts.lstrip().startswith("{"):
        try:
            texts = convert(texts, dict[str, str])
        except ValueError as problem:
            raise SettingError(place="", setting=setting, problem=str(problem)) from None
    return {single: texts} if isinstance(texts, str) else dict(texts)


def accepted(wanted: PortType, given: PortType | None) -> PortType:
    """Return the type of an input for columns of the type *given*: columns may differ in whether they are nullable."""
    if given is None or given.schema is None:
        return wanted
    same = given.schema.names == wanted.schema.names and given.schema.types == wanted.schema.types
    return replace(wanted, item=given.item, schema=given.schema) if same else wanted
