"""Settings: their declaration, and the check and completion of given values."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from exop.errors import BuilderError, SettingError, UnknownName
from exop.model.types.conversion import convert
from exop.model.types.description import type_name


@dataclass(frozen=True)
class Setting:
    """A setting: name, type and default (`required` if it has none)."""

    name: str
    type: Any
    default: Any = None
    required: bool = False

    def __str__(self) -> str:
        tail = "" if self.required else f" = {self.default!r}"
        return f"{self.name}: {type_name(self.type)}{tail}"

    def is_default(self, value: Any) -> bool:
        """Whether *value* is the default of the setting."""
        return not self.required and (value is self.default or (value == self.default) is True)

    def fresh(self) -> Any:
        """The default; a mutable one as a copy, so that instances do not share it."""
        changeable = isinstance(self.default, (list, dict, set)) or dataclasses.is_dataclass(self.default)
        return copy.deepcopy(self.default) if changeable else self.default

    def converted(self, place: str, value: Any) -> Any:
        """Convert *value* to the type of the setting."""
        try:
            return convert(value, self.type)
        except ValueError as problem:
            raise SettingError(place=place, setting=self.name, problem=str(problem)) from None


def copied(value: Any) -> Any:
    """Copy the collections in a value, but not their elements."""
    if type(value) is list:
        return [copied(one) for one in value]
    if type(value) is dict:
        return {key: copied(one) for key, one in value.items()}
    return set(value) if type(value) is set else value


def configured(
    place: str, settings: Mapping[str, Setting], given: Mapping[str, Any], *, ports: Iterable[str] = ()
) -> dict[str, Any]:
    """Check and convert the *given* values, and complete them with defaults.

    *place* is named in errors; so are *ports*, if they may be given in the same call.
    """
    for name in given:
        if name not in settings:
            known = [*settings, *ports]
            raise UnknownName(place=place, kind="port or setting" if ports else "setting", name=name, known=known)
    values: dict[str, Any] = {}
    for setting in settings.values():
        if setting.name in given:
            values[setting.name] = setting.converted(place, given[setting.name])
        elif setting.required:
            raise SettingError(place=place, setting=setting.name, problem=f"it has no default: give {setting}")
        else:
            values[setting.name] = setting.fresh()
    return values


def parse(words: Sequence[str]) -> dict[str, str]:
    """Split `name=value` words."""
    given: dict[str, str] = {}
    for text in words:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise BuilderError(f"{text!r} is no parameter; write NAME=VALUE, without spaces around the =")
        if name in given:
            raise BuilderError(f"the parameter {name!r} is given twice, as {given[name]!r} and as {value!r}")
        given[name] = value
    return given
