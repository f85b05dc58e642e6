"""`exop bundle new`: what it makes is a bundle that starts, also out of a script."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from exop import Application, Platform, slet
from exop.bundle.manifest import name_from
from exop.bundle.skeleton import make_skeleton
from exop.cli.loading import load_mesh
from exop.errors import BundleError, MeshError

SCRIPT = '''
"""A script that runs an application."""
from __future__ import annotations
import math
from exop import Application, Memento, slet
from exop.testing import feed

class Seen(Memento):
    number: int = 0

class Floor:
    def run(self, x: float) -> int:
        return math.floor(x)

SCALE = {}
with open(__file__) as file:
    SCALE["a"] = 2
    Floor().run(2.5)

if SCALE:
    def scaled(x: int) -> int:
        return Floor().run(x) * SCALE["a"]

@slet
def total(number: int, seen: Seen) -> int:
    """Add up."""
    seen.number += scaled(number)
    return seen.number

number = feed
LAST = 3
app = Application("script")
app.add("total", total, number=app.add("numbers", "stock:count_up", to=LAST))
if __name__ == "__main__":
    app.run()
raise SystemExit("it runs")
'''
#: An application by a function; the line that runs it stands below no condition.
BUILDER = """
def built(*, last: int = LAST) -> Application:
    app = Application("script")
    app.add("total", total, number=app.add("numbers", "stock:count_up", to=last))
    return app

built().run()
"""


def test_a_skeleton_starts_and_its_test_passes(tmp_path: Path):
    """What is made needs no edit."""
    assert make_skeleton(tmp_path / "My_Speeds").key == "my-speeds@0.1.0"
    with Platform() as platform:
        platform.bundles.install(tmp_path / "My_Speeds")
        platform.bundles.start("my-speeds")
        assert "my-speeds@0.1.0:add_up" in platform.slets()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."]
    ran = subprocess.run(command, cwd=tmp_path / "My_Speeds", capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout


def test_the_slets_of_a_script_are_taken_with_what_they_need(platform: Platform, tmp_path: Path):
    """Imports, helpers, mementos and what changes them, below an `if` and `with` too; and not what runs a builder."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("raise SystemExit", f"{BUILDER}raise SystemExit"))
    make_skeleton(tmp_path / "total", script)
    text = (tmp_path / "total" / "slets.py").read_text()
    assert "SCALE[" in text
    assert not re.search(r"SystemExit|number = feed|__main__|(app|\(\))\.run\(\)", text)
    platform.bundles.install(tmp_path / "total")
    platform.bundles.start("total")
    spec = platform.slets()["total@0.1.0:total"]
    assert spec.factory(3, spec.state[1]()) == 6
    mesh = load_mesh(str(tmp_path / "total"), (), (), ())[0]
    assert {name: node.set_settings() for name, node in mesh.nodes.items()} == {
        "numbers": {"to": 3},
        "total": {},
    }


@pytest.mark.parametrize(("more", "builders"), [(BUILDER, ["slets:built"]), ("other = Application('other')\n", [])])
def test_the_builders_of_a_script_are_taken(tmp_path: Path, more: str, builders: list[str]):
    """Those that are functions; an application at the top, which is made when the module is imported, is left out."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("raise SystemExit", f"{more}raise SystemExit"))
    assert [str(one) for one in make_skeleton(tmp_path / "total", script).builders] == builders
    text = (tmp_path / "total" / "slets.py").read_text()
    assert ("LAST = 3" in text) == bool(builders)
    assert "run()" not in text
    assert 'Application("script")\napp.add' not in text
    assert ("app" in text) == bool(builders)


def test_what_cannot_be_made_is_told(tmp_path: Path):
    """A folder that is there, a script without slets, one that is no Python."""
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "x.txt").write_text("")
    with pytest.raises(BundleError, match="exists already"):
        make_skeleton(tmp_path / "there")
    with pytest.raises(BundleError, match="cannot be made in .*: Not a directory; name another folder"):
        make_skeleton(tmp_path / "there" / "x.txt" / "bundle")
    (tmp_path / "none.py").write_text("x = 1\n")
    with pytest.raises(BundleError, match="it defines no slet"):
        make_skeleton(tmp_path / "a", tmp_path / "none.py")
    (tmp_path / "bad.py").write_text("x = (\n")
    with pytest.raises(BundleError, match=r"bad.py"):
        make_skeleton(tmp_path / "a", tmp_path / "bad.py")
    assert not (tmp_path / "a").exists()
    assert name_from("--") == "bundle"


def test_the_line_that_an_error_prints_works(tmp_path: Path):
    """A slet of a script is refused where a state directory is; the command in the error makes a bundle of it."""
    script = tmp_path / "my script.py"
    run = f"from exop import Platform\nwith Platform(state={str(tmp_path / 'state')!r}, control=False) as p:\n"
    script.write_text(SCRIPT.replace('raise SystemExit("it runs")', run + "    p.apply(app.build())"))
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, cwd=tmp_path)
    line = ran.stderr.split("make a bundle of it: `")[1].split("`")[0]
    assert line == f"exop bundle new total --from '{script}'"
    done = subprocess.run(
        f"{sys.executable} -m {line}", shell=True, capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    none = f"{script} has no function with `-> Application`: write one that builds it, and name it in bundle.toml"
    assert done.stdout == f"total@0.1.0 in total; next: exop bundle install total --start; {none}\n"
    assert "def total(" in (tmp_path / "total" / "slets.py").read_text()


def test_a_slet_without_a_file_gets_a_skeleton(tmp_path: Path):
    """One of a notebook or an interpreter stands in no file: the line makes an empty bundle."""
    scope: dict[str, object] = {"slet": slet, "__name__": "__main__"}
    exec(compile("@slet\ndef plus_1(x: int) -> int:\n    return x + 1\n", "<stdin>", "exec"), scope)
    app = Application("a")
    app.add("p", scope["plus_1"], x=app.add("n", "stock:count_up"))
    with (
        Platform(state=tmp_path / "state", control=False) as platform,
        pytest.raises(MeshError, match="`exop bundle new plus-1`"),
    ):
        platform.apply(app.build())
