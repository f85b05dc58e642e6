"""The specification of a slet as a value: its ports, settings, state and policies.

Settings are declared here, and given values checked, converted and completed with defaults.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, Literal, cast

from exop.errors import BuilderError, MeshError, SettingError, SletError, UnknownName, install_command
from exop.model.items import DeadLetter
from exop.model.slets.memento import Memento, check_fields
from exop.model.slets.ports import PortSpec, PortType, derived, is_generic, port_type
from exop.model.types.conversion import convert
from exop.model.types.description import type_name, type_of
from exop.safe_repr import RAISED, error_text


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


Result = Literal["none", "one", "optional", "many"]
Policy = Literal["suspend", "retry", "dead-letter", "skip"]
POLICIES: tuple[str, ...] = ("suspend", "retry", "dead-letter", "skip")
#: The default of the maximum number of dead letters.
DEAD_LETTERS = 1000
#: The output port for dead letters, if the node connects it.
DEAD: Final = "dead_letters"
_DEAD_PORT: Final = PortSpec(DEAD, "out", PortType(DeadLetter))
#: Arguments of `Application.add` besides ports and settings of the slet.
_CARE = ("on_error", "timeout", "dead_letters")


@dataclass(frozen=True)
class Absent:
    """The factory of a slet whose code is not here; `code` is its fingerprint.

    `gathers` is that of the slet, and `varies` whether it has a `repeats` of its own, which cannot be asked here.
    """

    identity: str
    code: str
    gathers: int = 0
    varies: bool = False

    def repeats(self, _: Mapping[str, Any]) -> bool:
        """As `Slet.repeats`."""
        return not self.varies

    def __call__(self, *_: Any, **__: Any) -> Any:
        """Refuse to run."""
        raise MeshError(self.refusal)

    @property
    def refusal(self) -> str:
        """The message of this error."""
        plugin = self.identity.rpartition(":")[0]
        bundle, _, version = plugin.partition("@")
        cure = f"the plugin {plugin}, or load it (`--load FOLDER`)"
        if version:
            cure = f"the bundle {bundle} {version} (`exop bundle install FILE`)"
        return f"the code of {self.identity} is not here; install {cure}"


class Role(StrEnum):
    """The role of a slet in the mesh; derived from its ports, never declared (paper §2.2)."""

    ALPHA = "alpha"
    PI = "pi"
    OMEGA = "omega"


@dataclass(frozen=True, eq=False)
class SletSpec:
    """The specification of a slet, read from the signature of a function or class.

    Attributes:
        factory: That function or class.
        state: The parameter or field of the memento, and its class.
        tie: The field that receives the `Tie`.
        results: The form of the results of each input method; for a source, under `""`.
        timeout: The seconds after which a call of the slet is reported.
        dead_letters: The maximum number of failed items that are stored.
        effects: Whether the slet has effects outside of the mesh; `None` if undeclared.
        exclusive: Only one instance may be open: a replaced slet closes before its successor opens.
        plugin: The plugin that registered it; `None` for code embedded in an application.
        sets_aside: Its last output is that for dead letters, which no slet declares itself.
        families: The families of ports; their connected members are among the inputs and outputs.
    """

    name: str
    factory: Callable[..., Any]
    inputs: tuple[PortSpec, ...] = ()
    outputs: tuple[PortSpec, ...] = ()
    settings: Mapping[str, Setting] = field(default_factory=dict)
    state: tuple[str, type[Memento]] | None = None
    tie: str | None = None
    results: Mapping[str, Result] = field(default_factory=dict)
    is_class: bool = False
    own_driver: bool = False
    iterated: bool = False
    atomic: bool = False
    on_error: Policy = "suspend"
    timeout: float | None = None
    dead_letters: int = DEAD_LETTERS
    effects: bool | None = None
    exclusive: bool = False
    plugin: str | None = None
    sets_aside: bool = False
    families: tuple[PortSpec, ...] = ()
    _asked: Any = field(default=None, repr=False)
    _declared: SletSpec | None = field(default=None, repr=False)

    @property
    def has_effects(self) -> bool:
        """Whether the slet has effects outside of the mesh; by default sources and sinks do."""
        return self.exclusive or (self.effects if self.effects is not None else self.role is not Role.PI)

    @property
    def identity(self) -> str:
        """The name by which a platform finds the code: `plugin:name`, or `module:name` of an embedded slet."""
        return f"{self.plugin}:{self.name}" if self.plugin else f"{self.factory.__module__}:{self.name}"

    def of(self, plugin: str) -> SletSpec:
        """Return the same slet as registered by *plugin*."""
        return replace(self, plugin=plugin)

    @property
    def specialises(self) -> bool:
        """Whether the ports depend on the settings and inputs."""
        return callable(getattr(self.factory, "specialised", None))

    @cached_property
    def derives(self) -> bool:
        """Whether the ports, or the types of the outputs, depend on the inputs."""
        declared = self.declared()
        return self.specialises or is_generic((*declared.outputs, *declared.families))

    def specialised(self, place: str, settings: Mapping[str, Any], inputs: Mapping[str, PortType]) -> SletSpec:
        """Return the slet with the ports that it has for *settings* and for these types of *inputs*.

        Inputs of unknown type are missing in *inputs*; those in a family are `Any`. *place* is named in errors.

        Raises:
            SettingError, ExpressionError: the slet refuses a setting, or a required one is missing.
            SletError: its `specialised` raises another error, or returns invalid ports.
        """
        if not self.specialises or self._asked == (settings, inputs):
            return self
        if settings.keys() != self.settings.keys():  # of a node that was made by hand
            settings = self.configured(place, settings)
        made = self._made(place, settings, inputs)
        ports = {name: getattr(made, name) for name in ("inputs", "outputs", "results", "families")}
        return replace(self, **ports, sets_aside=False, _asked=(settings, inputs), _declared=None)

    def _made(self, place: str, settings: Mapping[str, Any], inputs: Mapping[str, PortType]) -> SletSpec:
        """Call the `specialised` of the slet, and check the result."""
        slet, what = f"{place} ({self.identity})", "slet with these settings"
        try:
            made = self.factory.specialised(settings, inputs)  # type: ignore[attr-defined]
        except RAISED as error:
            if isinstance(error, MeshError) and "place" in error.facts:
                inner = ".".join(filter(None, (place, error.facts["place"])))
                raise type(error)(**{**error.facts, "place": inner}) from None
            problem, cure = f"specialised raised {error_text(error)}", "correct the settings, or its `specialised`"
            if isinstance(error, ModuleNotFoundError):
                problem, cure = str(error), f"run {install_command(str(error.name).partition('.')[0])}"
            raise SletError(slet=slet, what=what, problem=problem, cure=cure) from error
        if invalid := _invalid_ports(made, self.settings):
            raise SletError(slet=slet, what=what, problem=invalid, cure="choose other names, or correct `specialised`")
        return cast("SletSpec", made)

    def asked(self, place: str, given: Mapping[str, Any]) -> SletSpec:
        """Return the slet with the ports that it has for the settings among *given* ports and settings."""
        if not self.specialises:
            return self
        own = {name: value for name, value in given.items() if name in self.settings}
        lacking = [one.name for one in self.settings.values() if one.required and one.name not in own]
        for name in given.keys() - own.keys():
            if near := get_close_matches(name, lacking):
                raise UnknownName(place=place, kind="setting", name=name, known=near)
        return self.specialised(place, self.configured(place, own), {})

    def with_outputs(self, types: Mapping[str, Any]) -> SletSpec:
        """Return the slet with additional outputs, by name (`to.*` for a family) and type."""
        found = {port.name: port for port in (*self.outputs, *self.families)}
        for name, carried in types.items():
            found[name] = PortSpec(name, "out", carried if isinstance(carried, PortType) else port_type(carried))
        families = tuple(found.pop(port.name) for port in self.families)
        return replace(self, outputs=tuple(found.values()), families=families)

    def connected(self, ports: Iterable[str], taken: Mapping[str, PortType] | None = None) -> SletSpec:
        """Return the slet with exactly those ports of its families that are among *ports*.

        It also has the output for dead letters if that is among them, unless the slet itself uses the name. With
        *taken*, the type variables of its outputs are bound to these types, which arrive at its inputs.
        """
        declared, ports = self.declared(), [*ports]
        if self is declared and DEAD not in ports and not (self.families or self.derives):
            return self  # the usual case
        sets_aside = DEAD in ports and DEAD not in declared.ports and DEAD not in declared.settings
        members = [one for port in ports for family in declared.families if (one := family.of(port)) is not None]
        inputs = (*declared.inputs, *(port for port in members if port.direction == "in"))
        outputs = (*declared.outputs, *(port for port in members if port.direction == "out"))
        if taken is not None and is_generic(outputs):
            outputs = derived(inputs, outputs, taken)
        outputs = (*outputs, _DEAD_PORT) if sets_aside else outputs
        for known in (self, declared):
            if (inputs, outputs) == (known.inputs, known.outputs):
                return known
        results = {port.name: declared.results[f"{port.family}.*"] for port in members if port.method}
        made: dict[str, Any] = {"inputs": inputs, "outputs": outputs, "results": {**declared.results, **results}}
        return replace(declared, **made, sets_aside=sets_aside, _declared=declared)

    def declared(self) -> SletSpec:
        """Return the slet as declared: without ports of families, dead letters and types derived from inputs."""
        return self._declared or self

    @property
    def memento(self) -> type[Memento] | None:
        """The class of the state; `None` if the slet keeps none."""
        return self.state and self.state[1]

    def memento_class(self, place: str) -> type[Memento]:
        """The class of the state; refused if the slet keeps none."""
        if self.memento is None:
            own = getattr(self.factory, "keeps_own_state", False)
            why = "; the platform cannot read the state that its engine keeps" if own else ""
            raise MeshError(f"{place}: {self.name} keeps no memento{why}")
        return self.memento

    def check_memento(self, place: str, memento: Memento) -> None:
        """Refuse a state that the slet cannot work with."""
        if not isinstance(memento, kind := self.memento_class(place)):
            raise MeshError(f"{place}: {self.name} keeps a {kind.__qualname__}, not a {type(memento).__qualname__}")
        check_fields({name: getattr(memento, name) for name in type_of(kind).fields}, kind, place)

    @property
    def is_here(self) -> bool:
        """Whether its code is here, so that it can run."""
        return not isinstance(self.factory, Absent)

    @property
    def role(self) -> Role:
        """α, π or ω, derived from its ports."""
        if "in" not in (directions := [port.direction for port in (*self.inputs, *self.outputs, *self.families)]):
            return Role.ALPHA
        return Role.PI if directions.count("out") > self.sets_aside else Role.OMEGA

    @property
    def shape(self) -> tuple[object, ...]:
        """The properties that determine the wiring: slets of equal shape are connected and driven alike."""
        ports = tuple((port.name, port.direction, port.pulled) for port in self.ports.values())
        return self.role, ports, self.own_driver, self.iterated

    @property
    def doc(self) -> str:
        """The docstring of the function or class itself, not of a base class: the help text."""
        return inspect.cleandoc(self.factory.__doc__ or "")

    @cached_property
    def ports(self) -> dict[str, PortSpec]:
        """All ports by name, inputs first."""
        return {port.name: port for port in (*self.inputs, *self.outputs)}

    @property
    def port_names(self) -> list[str]:
        """The names of its ports and families."""
        return [*self.ports, *(family.name for family in self.families)]

    def configured(self, place: str, given: Mapping[str, Any], *, beside_ports: bool = False) -> dict[str, Any]:
        """Check and convert the *given* settings, and complete them with defaults; *place* is named in errors.

        With *beside_ports*, ports may be given in the same call, and an unknown name may be meant as one.

        Raises:
            UnknownName: an unknown setting.
            SettingError: a value of the wrong type, or a required one that is missing.
        """
        try:
            return configured(place, self.settings, given, ports=self.port_names if beside_ports else ())
        except UnknownName as error:
            if error.facts["name"] in self.ports:
                error.add_note(f"{error.facts['name']} is a port of {self.identity}: `rewire` connects it elsewhere")
            raise

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SletSpec) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[object, ...]:
        """Equal code with equal name and policies is the same slet, however often it is read."""
        care = self.on_error, self.timeout, self.dead_letters
        return self.factory, self.name, self.plugin, self.atomic, self.sets_aside, care


def _invalid_ports(made: Any, settings: Mapping[str, Setting]) -> str | None:
    """Return why the result of `specialised` is invalid, or `None`."""
    if not isinstance(made, SletSpec):
        return f"specialised returned {type(made).__name__}, not a SletSpec"
    names = [port.name for port in (*made.inputs, *made.outputs)]
    for name in names:
        if not name.isidentifier():
            return f"{name!r} is no name for a port: use letters, digits and '_', and begin with a letter"
        if name in settings or name in _CARE:
            return f"a port cannot be called {name!r}, which is a setting"
        if names.count(name) > 1:
            return f"two ports are called {name!r}"
    return None


def invalid_bounds(timeout: object, dead_letters: object) -> str | None:
    """Return why a time-out per item or a number of dead letters is invalid, or `None`."""
    if timeout is not None and not (is_number(timeout) and 0 <= timeout < float("inf")):  # type: ignore[operator]
        return f"timeout={timeout!r} is no number of seconds; give one above 0, or 0 for none"
    if dead_letters is not None and not (isinstance(dead_letters, int) and dead_letters >= 0):
        return f"dead_letters={dead_letters!r} is no number of items; give 0 or more"
    return None


def is_number(value: object) -> bool:
    """Whether it is a number, and not a boolean."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)
