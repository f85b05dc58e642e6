"""What the platform knows of a slet: its ports, settings, state and policies, as a value."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal

from exop.errors import SettingError, UnknownName
from exop.model.memento import Memento
from exop.model.ports import PortSpec, type_name

Result = Literal["none", "one", "optional", "many"]
Policy = Literal["suspend", "retry", "dead-letter", "skip"]
POLICIES: tuple[str, ...] = ("suspend", "retry", "dead-letter", "skip")


class Role(StrEnum):
    """What a slet is in the mesh; derived from its ports, never declared (paper §2.2)."""

    ALPHA = "alpha"
    PI = "pi"
    OMEGA = "omega"


@dataclass(frozen=True)
class Setting:
    """One configuration value of a slet: name, type and default (`required` when it has none)."""

    name: str
    type: Any
    default: Any = None
    required: bool = False

    def __str__(self) -> str:
        tail = "" if self.required else f" = {self.default!r}"
        return f"{self.name}: {type_name(self.type)}{tail}"


@dataclass(frozen=True, eq=False)
class SletSpec:
    """A slet as the platform sees it, read from a function's or a class's signature.

    `factory` is that function or class; `plugin` the name of the plugin that registered it (`None`: embedded only).
    `results` gives the shape of what each input method (or the source, under `""`) returns.
    """

    name: str
    factory: Callable[..., Any]
    inputs: tuple[PortSpec, ...] = ()
    outputs: tuple[PortSpec, ...] = ()
    settings: Mapping[str, Setting] = field(default_factory=dict)
    state: tuple[str, type[Memento]] | None = None
    results: Mapping[str, Result] = field(default_factory=dict)
    is_class: bool = False
    own_driver: bool = False
    iterated: bool = False
    atomic: bool = False
    on_error: Policy = "suspend"
    plugin: str | None = None

    @property
    def identity(self) -> str:
        """The name under which a platform can resolve the code, or where an embedded slet stands."""
        return f"{self.plugin}:{self.name}" if self.plugin else f"{self.factory.__module__}:{self.name}"

    def of(self, plugin: str) -> SletSpec:
        """The same slet as the plugin called *plugin* offers it."""
        return replace(self, plugin=plugin)

    @property
    def role(self) -> Role:
        """α, π or ω, by the ports there are."""
        if not self.inputs:
            return Role.ALPHA
        return Role.PI if self.outputs else Role.OMEGA

    @property
    def doc(self) -> str:
        """The docstring: the help text of the command line and the web page."""
        return inspect.getdoc(self.factory) or ""

    @property
    def ports(self) -> dict[str, PortSpec]:
        """All ports by name, inputs first."""
        return {port.name: port for port in (*self.inputs, *self.outputs)}

    def configured(self, place: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Check and convert *given* settings; returns them complete, with the defaults.

        Raises:
            UnknownName: a setting that the slet does not have.
            SettingError: a value that does not fit its type, or a required one that is missing.
        """
        for name in given:
            if name not in self.settings:
                raise UnknownName(place=place, kind="setting", name=name, known=[*self.settings, *self.ports])
        return configured(place, self.settings, given)


def configured(place: str, settings: Mapping[str, Setting], given: Mapping[str, Any]) -> dict[str, Any]:
    """Check and convert *given* values of known *settings*; returns them complete, with the defaults.

    Raises:
        SettingError: a value that does not fit its type, or a required one that is missing.
    """
    # msgspec costs 20 ms to import: only those who configure something pay it.
    import msgspec

    values: dict[str, Any] = {}
    for setting in settings.values():
        if setting.name not in given:
            if setting.required:
                raise SettingError(place=place, setting=setting.name, problem=f"it has no default: give {setting}")
            values[setting.name] = setting.default
            continue
        value = given[setting.name]
        try:
            values[setting.name] = _converted(value, setting.type, msgspec.convert)
        except (msgspec.ValidationError, TypeError, ValueError) as problem:
            raise SettingError(place=place, setting=setting.name, problem=f"{value!r}: {problem}") from None
    return values


def _converted(value: Any, wanted: Any, convert: Callable[..., Any]) -> Any:
    """Convert what a topology file, a command line or code gave to the annotated type."""
    if wanted is Any or (isinstance(wanted, type) and isinstance(value, wanted) and type(value) is not bool):
        return value
    from pathlib import Path

    if wanted is Path or (isinstance(value, Path) and not isinstance(wanted, type)):
        return Path(value) if wanted is Path else value
    return convert(value, wanted, strict=False, dec_hook=_decode)


def _decode(wanted: type, value: Any) -> Any:
    """Types that msgspec does not know: paths inside unions, and classes that accept the plain value."""
    return value if isinstance(value, wanted) else wanted(value)
