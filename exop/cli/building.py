"""Building the mesh of an application: its parameters reach the builder, converted by its annotations.

A parameter is given as NAME=VALUE on the command line, by a TOML file (`--params`), or by the environment variable
EXOP_PARAM_NAME; the first of these wins, and of several files the last.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from exop.app import Application
from exop.cli.loading import Builder, Target, text_of
from exop.errors import BuilderError, ExopError, SettingError, UnknownName
from exop.model.meshes.mesh import Mesh
from exop.model.slets.settings import parse
from exop.model.slets.signature import read_settings
from exop.model.slets.spec import configured
from exop.runtime.catalog import Catalog, in_use
from exop.safe_repr import described

#: An environment variable of this prefix and a parameter's name, in capital letters or as it is, gives its value.
VARIABLE: Final = "EXOP_PARAM_"


@dataclass(frozen=True)
class Given:
    """The value of a parameter, and the place where it was given: empty for the command line."""

    value: Any
    place: str = ""


def build(target: Target, parameters: Sequence[str], catalog: Catalog, files: Sequence[Path] = ()) -> Mesh:
    """Build the mesh; *parameters* are `name=value`, for the builder, *files* hold more of them.

    Raises:
        MeshError, BuilderError: the mesh, or a parameter, cannot be.
    """
    if target.topology is None and target.ready is None:
        with in_use(catalog):
            builder = target.builder()
            return call(builder, gather(parameters, files, list(read_settings(builder))))
    refuse_parameters(target, parameters, files)
    return target.ready.build() if target.ready is not None else Mesh.from_toml(target.topology or "", catalog.slets)


def refuse_parameters(target: Target, parameters: Sequence[str], files: Sequence[Path] = ()) -> None:
    """Make sure that none are given for what has no builder.

    Raises:
        BuilderError: there are some.
    """
    given = [f"{name} by {one.place}" if one.place else name for name, one in gather(parameters, files, ()).items()]
    if given:
        raise BuilderError(
            f"{target.given} takes no parameters (it was given {', '.join(given)}); edit the file, or write a "
            f"builder: a function with keyword-only parameters"
        )


def gather(parameters: Sequence[str], files: Sequence[Path], known: Sequence[str]) -> dict[str, Given]:
    """All parameters that are given, by name: those of the environment, of files, of the command line.

    Args:
        parameters: NAME=VALUE, from the command line.
        files: TOML files with NAME = VALUE at their top.
        known: The names of the builder's parameters, for variables in capital letters.

    Raises:
        BuilderError: a file cannot be read, or a word is not NAME=VALUE.
    """
    found = dict(_from_environment(known))
    for file in files:
        found |= {name: Given(value, f"{file}, key {name!r}") for name, value in _read(file).items()}
    return found | {name: Given(value) for name, value in parse(parameters).items()}


def _from_environment(known: Sequence[str]) -> Iterator[tuple[str, Given]]:
    in_capitals = {name.upper(): name for name in known}
    for variable, value in sorted(os.environ.items()):
        if variable.startswith(VARIABLE):
            name = variable.removeprefix(VARIABLE)
            # A name that is unknown is likely in small letters: so is the suggestion of the nearest known one.
            meant = name if name in known else in_capitals.get(name, name.lower())
            yield meant, Given(value, f"the environment variable {variable}")


def _read(file: Path) -> dict[str, Any]:
    from exop.model.values.depth import read_toml

    try:
        return read_toml(text_of(file))
    except ValueError as problem:
        raise BuilderError(f"{file} is no TOML file with parameters (NAME = VALUE, one a line): {problem}") from None


def call(builder: Builder, given: Mapping[str, Given]) -> Mesh:
    """Call an application builder with parameters, converted by its annotations."""
    name = builder.__name__
    values = _converted(builder, given)
    try:
        made = builder(**values)
    except (ExopError, KeyboardInterrupt):
        raise
    except Exception as problem:
        raise BuilderError(f"the builder {name} failed: {described(problem)}") from problem
    if isinstance(made, Mesh):
        return made
    if isinstance(made, Application):
        return made.build()
    raise BuilderError(f"the builder {name} returned {type(made).__name__}; it must return an Application")


def _converted(builder: Builder, given: Mapping[str, Given]) -> dict[str, Any]:
    name, settings = builder.__name__, read_settings(builder)
    try:
        for key in given:
            if key not in settings:
                raise UnknownName(place=f"the builder {name}", kind="parameter", name=key, known=settings)
        missing = [setting.name for setting in settings.values() if setting.required and setting.name not in given]
        if missing:
            raise BuilderError(f"the builder {name} needs {' '.join(f'{one}=…' for one in missing)}; {usage(builder)}")
        return configured(f"the builder {name}", settings, {key: one.value for key, one in given.items()})
    except (UnknownName, SettingError) as error:
        wrong = given.get(str(error.facts.get("setting", error.facts.get("name"))))
        if wrong is not None and wrong.place:
            error.add_note(f"it is given by {wrong.place}")
        raise


def usage(builder: Builder) -> str:
    """The parameters of a builder on one line."""
    return "its parameters: " + ", ".join(str(setting) for setting in read_settings(builder).values())
