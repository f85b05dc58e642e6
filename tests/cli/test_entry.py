"""From arguments to a command and an exit code."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from exop.cli import main, overview
from exop.cli.commands import looking
from exop.cli.entry import _dry_run_of, add_common_options, make_app
from exop.cli.overview import COMMANDS, PLANNED
from exop.errors import BuilderError, ExopError
from exop.hooks import Plugins, hookimpl
from tests.cli.shell import COMMAND, answer_of


def replaced(monkeypatch, error):
    """Let the command `ps` raise."""

    def ps() -> int:
        raise error

    monkeypatch.setattr(looking, "ps", ps)


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["--log-level", "debug", "--help"]])
def test_help_lists_every_command(arguments):
    """`exop --help` names all commands, each once, and the exit codes, and succeeds."""
    out = answer_of(*arguments)
    first = [line.split()[0].rstrip(",") for line in out.splitlines() if line.startswith("  ") and line[2] != " "]
    alone = {"--help", "--version", "--install-completion"}
    assert sorted(first) == sorted(
        {command.names[0].split()[0] for command in overview.COMMANDS} | set(overview.COMMON) | alone
    )
    assert "Exit codes" in out


def test_the_overview_says_what_the_commands_say():
    """A command's line is the first sentence of its docstring; the common options are those of the parser."""
    for command in overview.COMMANDS:
        assert command.summary == " ".join((command.function.__doc__ or "").partition("\n\n")[0].split())
        assert command.summary.endswith(".")
    app = make_app()
    add_common_options(app)
    options = app.meta.assemble_argument_collection(parse_docstring=True)
    assert {one.names[0]: one.parameter.help for one in options if one.show} == {
        name: text for name, (_, text) in overview.COMMON.items()
    }


def test_the_overview_imports_no_command():
    """`exop --help` imports neither the modules of commands nor the parser: it takes as long as plugins need."""
    modules = {command.module for command in overview.COMMANDS} | {"cyclopts", "rich"}
    code = f"import sys; from exop.cli import main; main(['--help']); print({modules} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


def test_what_precedes_the_command_line_is_light():
    """Until `main` can say that it was stopped, hardly anything is imported: Ctrl-C would print a traceback."""
    heavy = "{'typing', 're', 'collections', 'contextlib', 'functools'}"
    code = f"import sys; sys.path[:0] = {sys.path}; import exop.cli; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-ISc", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_help_of_an_unknown_command():
    """It is a mistake with the nearest name, and not the overview."""
    assert "services, ...; see `exop --help`" in answer_of("nothing", code=2), "there are more"
    assert 'Unknown command "replac". Did you mean "replace"?' in answer_of("replac", "--help", code=2)


def test_version():
    """`--version` names program and version."""
    assert answer_of("--version").startswith("exop 0.")


def test_help_stays_light():
    """Help imports nothing that only a running platform, a table or a log line needs."""
    heavy = "{'rpyc', 'structlog', 'pyarrow', 'pyspark', 'rich.live', 'exop.platform', 'exop.runtime.deployment'}"
    code = f"import sys; from exop.cli import main; main(['run', '--help']); print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rum"], "Did you mean"),
        (["run"], "APP"),
        (["ps", "--jason"], "--jason"),
        (["ps", "--log-level", "loud"], "exop: --log-level: there is no level 'loud'; known: debug"),
        (["serve", "more", "words"], "too many arguments: more words"),
        (["resolve", "app"], "exop: give one of --commit and --abort"),
        (["resolve", "app", "--commit", "--abort"], "exop: give one of --commit and --abort"),
        (
            ["run", "app.py", "--rows", "4"],
            "Unknown option: --rows; a parameter of the application is written rows=VALUE",
        ),
        (["mesh", "x", "--format", "png"], "mermaid"),
    ],
)
def test_wrong_arguments(arguments, said):
    """A wrong command line is one line with the cure, and exit code 2."""
    line = answer_of(*arguments, code=2)
    assert said in line
    assert "--help" in line
    assert line.count("\n") == 1


def noted(error: BaseException, note: str) -> BaseException:
    """The error with a note."""
    error.add_note(note)
    return error


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (BuilderError("no such thing; do that"), 2, "exop: no such thing; do that\n"),
        (noted(ExopError("it broke"), "in the slet 'x'"), 2, "exop: it broke\n  in the slet 'x'\n"),
        (
            ZeroDivisionError("of nothing"),
            1,
            "exop: a defect, please report it: ZeroDivisionError: of nothing\n  `exop --debug …` shows where\n",
        ),
        (KeyboardInterrupt(), 130, "exop: stopped\n"),
    ],
)
def test_errors(error, code, said, monkeypatch):
    """An error is its message on one line, its notes on another, and an exit code; a defect is called one."""
    replaced(monkeypatch, error)
    assert answer_of("ps", code=code) == said


def test_ctrl_c_while_a_command_is_imported():
    """It ends the command as later: without a traceback."""
    code = (
        "import sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'cyclopts':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from exop.cli import main; raise SystemExit(main(['ps']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "exop: stopped\n")


@pytest.mark.parametrize("way", ["option", "environment"])
def test_debug_shows_the_traceback(way, monkeypatch):
    """`--debug` or EXOP_DEBUG=1 shows where an error comes from; the exit code is the same."""
    replaced(monkeypatch, BuilderError("no"))
    if way == "environment":
        monkeypatch.setenv("EXOP_DEBUG", "1")
    assert "Traceback" in answer_of("ps", *(["--debug"] if way == "option" else []), code=2)


def test_reader_gone():
    """`exop … | head` ends quietly when nobody reads any more."""
    process = subprocess.Popen([*COMMAND, "doctor"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert process.wait(120) == 141


def greet(name: str, *, loudly: bool = False) -> int:
    """Greet somebody."""
    sys.stdout.write(f"hello {name}{'!' if loudly else ''}\n")
    return 3


@pytest.fixture
def offering(monkeypatch):
    """Let an installed plugin offer commands."""

    def offer(*commands):
        plugin = SimpleNamespace(register_commands=hookimpl(lambda: list(commands)))
        monkeypatch.setattr(Plugins, "discover", lambda self: self.register("friendly", plugin))

    return offer


def test_commands_of_plugins(offering, capsys):
    """A function of register_commands is a command: listed, parsed, its number the exit code."""
    offering(greet)
    assert main(["greet", "you", "--loudly"]) == 3
    assert capsys.readouterr().out == "hello you!\n"
    assert "Greet somebody." in answer_of("--help")


def unreadable(item: "NoSuchType") -> None:  # type: ignore[name-defined] # noqa: F821
    """Have a signature that cannot be resolved."""


def ps() -> None:
    """Have the name of another command."""


@pytest.mark.parametrize(("bad", "said"), [(unreadable, "NoSuchType"), (ps, "its command 'ps' is taken already")])
def test_bad_commands_of_plugins(bad, said, offering, capsys):
    """A command that cannot be read or whose name is taken is reported with its plugin; the others work."""
    offering(greet, bad)
    assert main(["greet", "you"]) == 3
    err = capsys.readouterr().err
    assert "friendly" in err
    assert said in err
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert "Greet somebody." in out
    assert bad.__doc__ not in out


def test_plan_takes_what_each_verb_takes(tmp_path, monkeypatch):
    """`exop plan VERB …` is `exop VERB … --dry-run`, for every command of one word that has it, but `apply`."""
    app = make_app()
    words = [one.names[0] for one in COMMANDS if " " not in one.names[0]]
    dry = [name for name in words if any("--dry-run" in one.names for one in app[name].assemble_argument_collection())]
    assert {*dry} == {"apply", *PLANNED}
    for verb in PLANNED:
        assert _dry_run_of(app, ("plan", "--json", "--on", "a", verb, "x", "--to", "b")) == [
            *(verb, "--json", "--on", "a", "--dry-run", "x", "--to", "b")
        ]
    assert _dry_run_of(app, ("plan", "--on=b", "--lose-state", "move", "x")) == [
        *("move", "--on=b", "--lose-state", "--dry-run", "x")
    ]
    for other in (
        *(("plan", "app", "drain"), ("plan", "./drain", "b"), ("drain", "b"), ("plan",), ()),
        # A flag has no value; the value of an option is no verb.
        *(
            ("plan", "--json", "sketch.py", "add"),
            ("plan", "--on=b", "app", "move"),
            ("plan", "--params", "add", "app"),
        ),
    ):
        assert _dry_run_of(app, other) == other
    monkeypatch.chdir(tmp_path)
    (tmp_path / "drain").mkdir()
    assert _dry_run_of(app, ("plan", "drain")) == ("plan", "drain"), "the folder of an application"
