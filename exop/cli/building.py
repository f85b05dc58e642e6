"""Building the mesh of an application: parameters as text reach its builder, converted by its annotations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from exop.app import Application
from exop.cli.loading import Builder, Target
from exop.errors import BuilderError, ExopError, UnknownName
from exop.model.mesh import Mesh
from exop.model.signature import read_settings
from exop.model.spec import configured
from exop.runtime.catalog import Catalog, in_use


def build(target: Target, parameters: Sequence[str], catalog: Catalog) -> Mesh:
    """Build the mesh; *parameters* are `name=value`, for the builder.

    Raises:
        MeshError, BuilderError: the mesh, or a parameter, cannot be.
    """
    given = parse(parameters)
    if target.topology is not None or target.ready is not None:
        if given:
            raise BuilderError(
                f"{target.given} takes no parameters (it was given {', '.join(given)}); edit the file, or write a "
                f"builder: a function with keyword-only parameters"
            )
        if target.ready is not None:
            return target.ready.build()
        return Mesh.from_toml(target.topology or "", catalog.slets)
    with in_use(catalog):
        return call(target.builder(), given)


def parse(parameters: Sequence[str]) -> dict[str, str]:
    """Take `name=value` apart.

    Raises:
        BuilderError: one is not of that form, or given twice.
    """
    given: dict[str, str] = {}
    for text in parameters:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise BuilderError(f"{text!r} is no parameter; write NAME=VALUE, without spaces around the =")
        if name in given:
            raise BuilderError(f"the parameter {name!r} is given twice, as {given[name]!r} and as {value!r}")
        given[name] = value
    return given


def call(builder: Builder, given: Mapping[str, str]) -> Mesh:
    """Call an application builder with parameters as text, converted by its annotations."""
    name = builder.__name__
    settings = read_settings(builder)
    for key in given:
        if key not in settings:
            raise UnknownName(place=f"the builder {name}", kind="parameter", name=key, known=settings)
    missing = [setting for setting in settings.values() if setting.required and setting.name not in given]
    if missing:
        raise BuilderError(f"the builder {name} needs {' '.join(f'{one.name}=…' for one in missing)}; {usage(builder)}")
    values = configured(f"the builder {name}", settings, given)
    try:
        made = builder(**values)
    except (ExopError, KeyboardInterrupt):
        raise
    except Exception as problem:
        raise BuilderError(f"the builder {name} failed: {type(problem).__name__}: {problem}") from problem
    if isinstance(made, Mesh):
        return made
    if isinstance(made, Application):
        return made.build()
    raise BuilderError(f"the builder {name} returned {type(made).__name__}; it must return an Application")


def usage(builder: Builder) -> str:
    """The parameters of a builder on one line."""
    return "its parameters: " + ", ".join(str(setting) for setting in read_settings(builder).values())
