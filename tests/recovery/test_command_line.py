"""`exop run` of a durable application: what has failed goes on with the same item when it is repaired."""

from __future__ import annotations

import sys

from exop.cli import main

PACKAGE = '''
"""A slet that breaks while there is a file called broken."""

from pathlib import Path

from exop import Application, hookimpl, slet


@slet
def fragile(item: int) -> int:
    """Break at 3."""
    if item == 3 and Path("broken").exists():
        raise ValueError("three")
    return item


def fragile_app(*, output: Path) -> Application:
    """Count to five."""
    app = Application("fragile")
    app.durable(every=1000)
    numbers = app.add("count", "stock:count_up", to=5, start=1)
    app.add("write", "stock:write_lines", item=app.add("fragile", fragile, item=numbers), path=output)
    return app


@hookimpl
def register_slets():
    return [fragile]


@hookimpl
def register_builders():
    return [fragile_app]
'''


def test_what_has_failed_goes_on_when_it_is_repaired(tmp_path, monkeypatch, capsys):
    """The run ends with exit code 1 and its checkpoint; the same command goes on with the item that it failed on."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "fragile").mkdir()
    (tmp_path / "fragile" / "__init__.py").write_text(PACKAGE)
    (tmp_path / "broken").write_text("")
    command = ["run", "./fragile", "output=out", "--state", "state", "--quiet", "--on-failure", "stop"]
    assert main(command) == 1
    assert (tmp_path / "out").read_text() == "1\n2\n"
    (tmp_path / "broken").unlink()
    assert main(command) == 0
    assert (tmp_path / "out").read_text() == "1\n2\n3\n4\n5\n"
    assert "it ran in state and is started again" in capsys.readouterr().err
