"""`exop describe` of what does not run."""

import json
from pathlib import Path

import pytest

from exop import Platform
from exop.cli import main
from exop.cli.commands.describing import ATOMIC, NOT_ATOMIC, POLICIES, guarantee
from exop.model.slets.spec import POLICIES as KNOWN


def test_a_slet_of_a_plugin(capsys: pytest.CaptureFixture[str]) -> None:
    """A slet is described by its docstring, ports, settings with types and defaults, memento and guarantee."""
    assert main(["describe", "stock:count_up"]) == 0
    text = capsys.readouterr().out
    for part in ("stock:count_up  (alpha)", "*start* + *step*", "out  out  int", "step: int = 1", "memento: Position"):
        assert part in text
    assert "on_error: suspend" in text
    assert NOT_ATOMIC in text


def test_a_slet_as_data(capsys: pytest.CaptureFixture[str]) -> None:
    """`--json` has the same facts."""
    assert main(["describe", "stock:write_lines", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["role"], facts["memento"], facts["atomic"]) == ("omega", "Written", False)
    (port,) = facts["ports"]
    assert (port["port"], port["direction"], port["type"], port["pulled"]) == ("item", "in", "Any", False)
    assert [setting["required"] for setting in facts["settings"]] == [True, False]


def test_a_described_slet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The data is enough to describe the slet where its code is not; the fields of its memento are shown."""
    assert main(["describe", "stock:write_lines"]) == 0
    here = capsys.readouterr().out
    assert "  memento: Written\n    size: int\n" in here
    assert main(["describe", "stock:write_lines", "--json"]) == 0
    (tmp_path / "slet.json").write_text(capsys.readouterr().out)
    assert main(["describe", "slet.json"]) == 0
    assert capsys.readouterr().out == here.replace("(omega)", "(omega)  (its code is not here)")
    (tmp_path / "slet.json").write_text("{")
    assert main(["describe", "slet.json"]) != 0
    assert "the description of a slet" in capsys.readouterr().err


def test_slets_are_listed(counting: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`exop slets` has all slets with ports, settings and purpose, or those with a text in name or purpose."""
    assert main(["slets", "--load", str(counting), "--json"]) == 0
    listed = {one["slet"]: one for one in json.loads(capsys.readouterr().out)}
    assert {"stock:count_up", "counting:half"} < set(listed)
    half = listed["counting:half"]
    assert (half["role"], half["settings"]) == ("pi", ["missing: Path | None = None"])
    assert [(one["direction"], one["port"], one["type"]) for one in half["ports"]] == [
        ("in", "item", "int"),
        ("out", "out", "float"),
    ]
    assert main(["slets", "COUNT_up"]) == 0
    first, ports, settings = capsys.readouterr().out.splitlines()
    assert first.startswith("stock:count_up  (alpha)  Emit")
    assert (ports.strip(), "step: int = 1" in settings) == ("out out: int", True)
    assert main(["slets", "no such thing"]) == 0
    assert "`exop slets` lists all" in capsys.readouterr().out


def test_slets_of_a_running_platform(counting: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With `--on` the list is that of the platform, with the packages that it has loaded."""
    with Platform(name="there", control=True) as platform:
        platform.load(counting)
        assert main(["slets", "counting", "--on", "there"]) == 0
    assert "counting:half  (pi)  Halve;" in capsys.readouterr().out


def test_a_folder(counting: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder is described by its builders, with their parameters, and its slets."""
    assert main(["describe", "./counting"]) == 0
    text = capsys.readouterr().out
    for part in (
        "counting  (application builder)",
        "output: Path  (required)",
        "counting:half  (pi)",
        "counting:numbers",
    ):
        assert part in text


def test_one_thing_in_a_folder(counting: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """FOLDER:NAME is one of its slets or builders."""
    assert main(["describe", "./counting:half"]) == 0
    assert capsys.readouterr().out.startswith("counting:half  (pi)\n  Halve;")
    assert main(["describe", "./counting:counting"]) == 0
    assert capsys.readouterr().out.startswith("counting  (application builder)")


def test_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A .py file is described by the slets that it defines, not by those that it imports."""
    (tmp_path / "own.py").write_text(
        "from exop import slet\nfrom exop.stock.slets import show\n\n"
        "@slet(on_error='skip')\ndef mine(item: int) -> int:\n    '''Mine.'''\n    return item\n"
    )
    assert main(["describe", "own.py"]) == 0
    text = capsys.readouterr().out
    assert "own:mine  (pi)" in text
    assert "show" not in text
    assert POLICIES["skip"].partition(",")[0] in text


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("stock:cuont_up", "did you mean 'stock:count_up'?"),
        ("./counting:hlaf", "has no builder 'hlaf'"),
        ("nothing", "no folder, no file"),
    ],
)
def test_unknown(target: str, said: str, counting: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is not there is told with what is."""
    assert main(["describe", target]) == 2
    assert said in capsys.readouterr().err


def test_every_policy_has_its_words() -> None:
    """Whatever a slet may do with a failing item is explained."""
    assert set(POLICIES) == set(KNOWN)


@pytest.mark.parametrize(
    ("policy", "atomic", "state", "ends"),
    [
        ("suspend", True, True, ATOMIC),
        ("retry", False, True, NOT_ATOMIC),
        ("suspend", False, False, POLICIES["suspend"]),
        ("skip", False, True, POLICIES["skip"]),
    ],
)
def test_guarantees(policy: str, atomic: bool, state: bool, ends: str) -> None:
    """The memento is spoken of where there is one and an item is tried again."""
    assert guarantee(policy, atomic=atomic, state=state).endswith(ends)
