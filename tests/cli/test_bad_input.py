"""Bad input: one clear line each, exit code 2, and nothing lost."""

import json
import sqlite3
from contextlib import closing

import pytest

from exop import Application
from exop.cli import main
from exop.cli.status_text import as_text
from exop.cli.text import print_json
from exop.platform import Platform
from exop.remoting import control_address
from exop.remoting.transport.sockets import listen
from exop.safe_repr import clean
from exop.stock.slets import count_up, pass_on
from tests.cli.shell import answer_of, exop

GOOD = """
[application]
name = "numbers"
[nodes.numbers]
slet = "stock:count_up"
ports = {out = "numbers"}
settings = {to = 3}
[nodes.sink]
slet = "stock:write_lines"
ports = {item = "numbers"}
settings = {path = "out"}
"""

PYTHON = """
from exop import Application, slet
from exop.stock.slets import count_up, show


@slet
def shout(text: str) -> str:
    return text.upper()


app = Application("wrong")
numbers = app.add("numbers", count_up, to=3)
"""


@pytest.fixture
def topology(tmp_path):
    """A topology that runs."""
    path = tmp_path / "mesh.toml"
    path.write_text(GOOD)
    return path


def refused(*arguments: object) -> str:
    """Run a command that is refused: exit code 2, nothing on stdout, one line (and at most a place) on stderr."""
    done = exop(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    first, *more = done.stderr.splitlines()
    assert first.startswith("exop: ")
    assert len(more) <= 1
    return "\n".join([first, *more])


@pytest.mark.parametrize(
    ("change", "by", "said"),
    [
        ('{item = "numbers"}', '{itm = "numbers"}', "has no port 'itm'; did you mean 'item'?"),
        ("to = 3", 'to = "three"', "'to'"),
        ("to = 3", "two = 3", "has no setting 'two'"),
        ("stock:count_up", "stock:count_upp", "did you mean 'stock:count_up'?"),
        ('{item = "numbers"}', '{item = "nubmers"}', "did you mean 'numbers'?"),
        ("[application]", '[channels.numbers]\nkind = "queu"\n[application]', "did you mean 'queue'?"),
        ("[application]", "[aplication]", "did you mean 'application'?"),
        ("[nodes.numbers]", "[nodes.numbers", "TOML"),
    ],
)
def test_topology(change, by, said, topology, tmp_path):
    """A wrong topology is refused before anything runs, by every command that reads one."""
    topology.write_text(GOOD.replace(change, by))
    for command in (["run"], ["check"], ["mesh"], ["mesh", "--format", "toml"]):
        assert said in refused(*command, topology), command
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("app.add('shout', shout, txet=numbers)", "has no port or setting 'txet'; did you mean 'text'?"),
        ("app.add('shout', shout, text=numbers)", "numbers.out cannot feed shout.text"),
        ("app.add('show', show)", "show.item is connected to nothing"),
        ("app.channel('c', kind='kew')", "'kew'"),
    ],
)
def test_python_file(line, said, tmp_path):
    """A mistake in a Python file is reported with the file and the line that makes it."""
    file = tmp_path / "wrong.py"
    file.write_text(f"{PYTHON}{line}\n")
    first, place = refused("run", file).splitlines()
    assert said in first
    assert place == f"  at {file}:{len(PYTHON.splitlines()) + 1}"


def test_missing_file_of_a_slet(topology):
    """A file that a slet cannot open is a mistake too: the slet and the file are named."""
    topology.write_text(GOOD.replace('path = "out"', 'path = "nowhere/out"'))
    line = refused("run", topology, "--quiet")
    assert "sink failed while opening" in line
    assert "No such file or directory: 'nowhere/out'" in line


def test_broken_installed_plugin(topology, tmp_path, monkeypatch):
    """An installed plugin that is broken is reported by name, and keeps nothing else from running."""
    site = tmp_path / "site"
    (site / "cracked-1.0.dist-info").mkdir(parents=True)
    (site / "cracked-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: cracked\nVersion: 1.0\n")
    (site / "cracked-1.0.dist-info" / "entry_points.txt").write_text("[exop]\ncracked = cracked\n")
    (site / "cracked.py").write_text("raise ImportError('it needs libcrack')\n")
    monkeypatch.syspath_prepend(site)
    done = exop("run", topology, "--quiet")
    assert (done.returncode, (tmp_path / "out").read_text()) == (0, "0\n1\n2\n")
    assert "cracked" in done.stderr
    assert "it needs libcrack" in done.stderr


def test_state_directories_that_cannot_be_used(topology, tmp_path):
    """One of another release, one that another platform listens in, one whose name is too long: nothing is changed."""
    state = tmp_path / "state"
    with Platform(state=state):
        pass
    with closing(listen(control_address(state))):
        assert "is in use by process" in refused("serve", "--state", state)
    with sqlite3.connect(state / "platform.sqlite") as database:
        database.execute("UPDATE platform SET version = 99")
    before = (state / "platform.sqlite").read_bytes()
    for command in (("run", topology), ("serve",)):
        line = refused(*command, "--state", state)
        assert "is of version 99" in line
        assert "nothing was changed" in line
    assert (state / "platform.sqlite").read_bytes() == before
    line = refused("run", topology, "--state", "x" * 300)
    assert "cannot be used: File name too long; give another one, --state DIR" in line
    assert not (tmp_path / "out").exists()


def test_code_that_cannot_be_found_again(tmp_path):
    """With a state directory a slet of a single file is refused: it could not be started again."""
    file = tmp_path / "single.py"
    slet = "@slet\ndef passing(item: int) -> int:\n    return item\n"
    file.write_text(f"{PYTHON}\n\n{slet}\n\napp.add('passing', passing, item=numbers)\n")
    assert "is in no plugin" in refused("run", file, "--state", tmp_path / "state")


@pytest.mark.parametrize("command", ["services", "describe", "mesh", "end", "remove", "resume"])
def test_nothing_runs(command, tmp_path):
    """A command for a running platform says so when none answers, and how to start one."""
    line = refused(command, *([] if command == "services" else ["numbers"]), "--state", tmp_path)
    assert "no platform answers at" in line
    assert "exop serve" in line


@pytest.mark.parametrize("command", ["describe", "mesh"])
def test_nothing_runs_and_no_platform_is_named(command):
    """A command that also accepts an application that does not run names those that run, or how to start one."""
    assert "no application runs (start one with `exop run APP`, or by `exop serve`" in refused(command, "a.b")
    with Platform(control=True) as platform:
        app = Application("other")
        app.add("pass", pass_on, item=app.add("numbers", count_up, to=1))
        platform.apply(app.build())
        assert "and no such application runs; known: " in refused(command, "a.b")


def test_names_are_resolved_without_the_status_of_the_platform(monkeypatch):
    """The longest name of an application fits; a large platform would take seconds for its whole status."""

    def status(self, application=None):
        assert application is not None, "the whole status is asked for"
        return whole(self, application)

    whole = Platform.status
    monkeypatch.setattr(Platform, "status", status)
    with Platform(control=True, name="there") as platform:
        for name, node in (("a", "b.numbers"), ("a.b", "numbers")):
            app = Application(name)
            app.add("pass", pass_on, item=app.add(node, count_up))
            platform.apply(app.build())
        for selected in ([], ["--on", "there"]):
            answer_of("configure", "a.b.numbers", "step=2", *selected)
            assert "count_up" in answer_of("describe", "a.b.numbers", *selected)
        assert [platform.mesh(name).revision for name in ("a", "a.b")] == [1, 2]
        described = json.loads(answer_of("describe", "a.b.numbers", "--json"))
        described["beside"] = {"kept": {"numbers": {"slet": "p:old", "until": "12:00:00"}}}
        assert "(exop rollback a.b.numbers)" in as_text(described)[0]
        assert json.loads(answer_of("end", "a.b", "--json"))["target"] == "a.b"
        assert "did you mean 'a.b'" in refused("end", "ab", "--on", "there")


@pytest.mark.parametrize("command", [["serve"], ["run", "mesh.toml"]])
def test_a_name_that_cannot_be_shown(command, topology):
    """A name with a control character could forge lines, or clear the screen, of everyone who lists platforms."""
    line = refused(*command, "--name", "a\x1b[2J\nb")
    assert line == "exop: 'a\\x1b[2J\\nb' is no name for a host; use letters, digits, '-', '_' and '.'"


def test_output_is_safe_for_terminals_and_lines(capsys):
    """JSON escapes all that a terminal obeys or that ends a line; it is read as the same value."""
    value = {"text": "a\x9b2J\x7f\u2028\u202e\ud800é\tz"}
    for indent in (None, 2):
        print_json(value, indent=indent)
        out = capsys.readouterr().out
        assert json.loads(out) == value
        assert clean(out) == out
        assert "é" in out
    assert len(out.splitlines()) == 3


def test_what_is_missing_is_named():
    """Not what does not exist, because it was not given, or that has another name."""
    assert "write exop history APP --reverse NUMBER" in refused("history", "--reverse", "3")
    assert "has no transport 'foo'; known: tcp, tls" in refused("ps", "--on", "foo://x")
    with Platform(control=True) as platform:
        app = Application("other")
        app.add("pass", pass_on, item=app.add("numbers", count_up, to=1))
        platform.apply(app.build())
        assert "'other.pass' names a node; this command takes an application" in refused("mesh", "other.pass")


@pytest.mark.parametrize("seconds", ["-1", "nan"])
@pytest.mark.parametrize("command", [["run", "mesh.toml", "--drain-timeout"], ["replace", "a.b", "c:d", "--timeout"]])
def test_seconds_that_are_none(command, seconds):
    """A negative number, or no number at all, is refused before anything is done."""
    assert f"{command[-1]}: Must be >= 0" in refused(*command, seconds)


def test_filter_that_is_none(capsys):
    """A text that is no filter is shown with a mark under the place."""
    with Platform(control=True):
        assert main(["services", "(role=pi"]) == 2
    *_, text, mark = capsys.readouterr().err.splitlines()
    assert text.strip() == "(role=pi"
    assert mark.index("^") == text.index("(role=pi") + len("(role=pi")
