"""How parameters reach a builder, and what it may return."""

from pathlib import Path

import pytest

from exop.cli.building import build, call, parse
from exop.cli.loading import find_target, known_plugins
from exop.errors import BuilderError, ExopError, SettingError, UnknownName
from exop.model.mesh import Mesh


def mesh_of(app: object, *parameters: str) -> Mesh:
    """Build what APP names."""
    catalog = known_plugins()
    return build(find_target(str(app), catalog), parameters, catalog)


def test_parameters_are_taken_apart() -> None:
    """NAME=VALUE; a value may hold further = signs, or nothing."""
    assert parse(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}


@pytest.mark.parametrize("given", [["to"], ["=3"], ["a=1", "a=2"]])
def test_parameters_that_are_none(given: list[str]) -> None:
    """What is not NAME=VALUE, or stands twice, is told."""
    with pytest.raises(BuilderError):
        parse(given)


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        (["outptu=x"], UnknownName, "did you mean 'output'?"),
        (["to=3"], BuilderError, "needs output=…"),
        (["output=x", "to=many"], SettingError, "'to'"),
        (["output=x", "mode=slov"], SettingError, "'mode'"),
        (["output=x", "pace=fast"], SettingError, "'pace'"),
    ],
)
def test_wrong_parameters(given: list[str], error: type[ExopError], said: str, counting: Path) -> None:
    """A parameter that the builder has not, needs, or cannot convert is named."""
    with pytest.raises(error) as told:
        mesh_of(counting, *given)
    assert said in str(told.value)


def test_files_take_no_parameters(tmp_path: Path) -> None:
    """Parameters for something without a builder are refused, not ignored."""
    (tmp_path / "mesh.toml").write_text("")
    with pytest.raises(BuilderError, match="takes no parameters"):
        mesh_of(tmp_path / "mesh.toml", "to=3")


def failing(*, to: int = 1) -> Mesh:
    """Raise."""
    raise KeyError("x")


def wrong(*, to: int = 1) -> Mesh:
    """Return something else."""
    return "a mesh"  # type: ignore[return-value]


def positional(to: int) -> Mesh:
    """Take a parameter that the command line cannot give."""
    return Mesh(str(to))


@pytest.mark.parametrize(
    ("builder", "said"),
    [(failing, "failing failed: KeyError: 'x'"), (wrong, "returned str"), (positional, "keyword-only")],
)
def test_wrong_builders(builder: object, said: str) -> None:
    """A builder that raises, returns something else or has other parameters is named."""
    with pytest.raises(ExopError, match=said):
        call(builder, {})  # type: ignore[arg-type]
