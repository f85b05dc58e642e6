"""`exop describe` of what does not run."""

import pytest

from exop import Application, Platform
from exop.cli import main
from exop.cli.commands.looking import ATOMIC, NOT_ATOMIC, POLICIES, guarantee
from exop.model.slets.spec import POLICIES as KNOWN
from tests.cli.shell import answer_of, facts


def test_a_slet_of_a_plugin():
    """A slet is described by its docstring, ports, settings with types and defaults, memento and guarantee."""
    text = answer_of("describe", "stock:count_up")
    for part in ("stock:count_up  (alpha)", "*start* + *step*", "out  out  int", "step: int = 1", "memento: Position"):
        assert part in text
    assert "on_error: suspend" in text
    assert NOT_ATOMIC in text


def test_a_slet_as_data():
    """`--json` has the same facts."""
    found = facts("describe", "stock:write_lines")
    assert (found["role"], found["memento"], found["atomic"]) == ("omega", "Written", False)
    (port,) = found["ports"]
    assert (port["port"], port["direction"], port["type"], port["pulled"]) == ("item", "in", "Any", False)
    assert [setting["required"] for setting in found["settings"]] == [True, False]


def test_a_described_slet(tmp_path, capsys):
    """The data is enough to describe the slet where its code is not; the fields of its memento are shown."""
    here = answer_of("describe", "stock:write_lines")
    assert "  memento: Written\n    size: int\n" in here
    (tmp_path / "slet.json").write_text(answer_of("describe", "stock:write_lines", "--json"))
    assert answer_of("describe", "slet.json") == here.replace("(omega)", "(omega)  (its code is not here)")
    (tmp_path / "slet.json").write_text("{")
    assert main(["describe", "slet.json"]) != 0
    assert "the description of a slet" in capsys.readouterr().err


def test_slets_are_listed(counting):
    """`exop slets` has all slets with ports, settings and purpose, or those with a text in name or purpose."""
    listed = {one["slet"]: one for one in facts("slets", "--load", counting)}
    assert {"stock:count_up", "counting:half"} < set(listed)
    half = listed["counting:half"]
    assert (half["role"], half["settings"]) == ("pi", ["missing: Path | None = None"])
    assert [(one["direction"], one["port"], one["type"]) for one in half["ports"]] == [
        ("in", "item", "int"),
        ("out", "out", "float"),
    ]
    first, ports, settings = answer_of("slets", "COUNT_up").splitlines()
    assert first.startswith("stock:count_up  (alpha)  Emit")
    assert (ports.strip(), "step: int = 1" in settings) == ("out out: int", True)
    assert "`exop slets` lists all" in answer_of("slets", "no such thing")


def test_slets_of_a_running_platform(counting):
    """With `--on` the list is that of the platform, with the packages that it has loaded, and so is a description."""
    with Platform(name="there", control=True) as platform:
        platform.load(counting)
        assert "counting:half  (pi)  Halve;" in answer_of("slets", "counting", "--on", "there")
        assert answer_of("describe", "stock:count_up", "--on", "there") == answer_of("describe", "stock:count_up")
        assert answer_of("describe", "counting:half", "--on", "there").startswith("counting:half  (pi)\n  Halve;")
        unknown = answer_of("describe", "counting:hlaf", "--on", "there", code=2)
    assert "the platform 'there' has no slet 'counting:hlaf'; did you mean 'counting:half'?" in unknown


def test_the_platform_of_a_state_directory(tmp_path):
    """With `--state` or `--on`, `exop ps` lists that platform alone."""
    with Platform(state=tmp_path / "1", name="one"), Platform(state=tmp_path / "2", name="two"):
        assert {one["platform"] for one in facts("ps")} == {"one", "two"}
        for which in (("--state", tmp_path / "1"), ("--on", "one")):
            assert facts("ps", *which) == [one for one in facts("ps") if one["platform"] == "one"]
        assert answer_of("ps", "--on", "two").splitlines()[1].split()[1:4] == ["two", "-", "waits"]
        assert f"no platform answers at {tmp_path}" in answer_of("ps", "--state", tmp_path, code=2)


def test_a_folder(counting):
    """A folder is described by its builders, with their parameters, and its slets."""
    text = answer_of("describe", "./counting")
    for part in (
        "counting  (application builder)",
        "output: Path  (required)",
        "counting:half  (pi)",
        "counting:numbers",
    ):
        assert part in text


def test_one_thing_in_a_folder(counting):
    """FOLDER:NAME is one of its slets or builders."""
    assert answer_of("describe", "./counting:half").startswith("counting:half  (pi)\n  Halve;")
    assert answer_of("describe", "./counting:counting").startswith("counting  (application builder)")


def test_a_file(tmp_path):
    """A .py file is described by the slets that it defines, not by those that it imports."""
    (tmp_path / "own.py").write_text(
        "from exop import slet\nfrom exop.stock.slets import show\n\n"
        "@slet(on_error='skip')\ndef mine(item: int) -> int:\n    '''Mine.'''\n    return item\n"
    )
    text = answer_of("describe", "own.py")
    assert "own:mine  (pi)" in text
    assert "show" not in text
    assert POLICIES["skip"].partition(",")[0] in text


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("stock:cuont_up", "did you mean 'stock:count_up'?"),
        ("./counting:hlaf", "no slet or builder 'hlaf'; did you mean 'half'? known: counting, half, numbers"),
        ("nothing", "no folder, no file"),
        ("countng", "did you mean 'counting'?"),
    ],
)
def test_unknown(target, said, counting):
    """What is not there is told with what is."""
    assert said in answer_of("describe", target, code=2)


def test_every_policy_has_its_words():
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
def test_guarantees(policy, atomic, state, ends):
    """The memento is spoken of where there is one and an item is tried again."""
    assert guarantee(policy, atomic=atomic, state=state).endswith(ends)


def test_the_history_names_operations_as_the_commands(capsys):
    """Also those that have another name in Python, and in the calls of other platforms."""
    app = Application("counting")
    app.add("passes", "stock:pass_on", item=app.add("numbers", "stock:count_up"))
    with Platform(name="there", control=True) as there:
        there.apply(app.build())
        there.retry_dead_letters("counting", "passes")
        assert main(["history", "counting", "--on", "there"]) == 0
    assert "  item retry passes  " in capsys.readouterr().out
