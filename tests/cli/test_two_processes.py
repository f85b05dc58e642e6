"""A platform in one process, the commands in another: over its socket."""

import os
import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from exop import Platform
from exop.cli import main
from tests.cli.shell import answer_of, applications, eventually, exop, exop_process, facts, running

pytestmark = pytest.mark.edges


@pytest.fixture
def served(counting: Path) -> Iterator[Path]:
    """A platform that knows the slets of `counting`; the commands of the tests reach it over its socket."""
    with Platform(name="served", control=True) as platform:
        platform.load(counting)
        yield counting


def test_from_apply_to_remove(counting, tmp_path):
    """apply, ps, describe, services, mesh, end, remove: all about an application that runs elsewhere."""
    with running("serve", "--load", counting, "--name", "served", stdout=None, stderr=None):
        eventually(lambda: facts("ps"))
        assert exop_process("apply", "./counting", "pace=0.001", "output=out").stdout == "counting runs on served\n"
        eventually(lambda: applications() == {"counting": "running"})

        (platform,) = facts("ps")
        assert (platform["platform"], platform["applications"]["counting"]["state"]) == ("served", "running")
        assert "served    counting     running" in exop_process("ps").stdout

        node = facts("describe", "counting.half")
        assert (node["slet"], node["role"], node["state"]) == ("counting:half", "pi", "active")
        assert {port["port"]: port["type"] for port in node["ports"]} == {"item": "int", "out": "float"}

        assert [one["properties"]["name"] for one in facts("services", "(&(kind=slet)(role=pi))")] == ["half"]
        assert len(facts("services")) > 10

        assert exop("mesh", "counting").stdout.startswith("flowchart LR")
        (tmp_path / "mesh.toml").write_text(exop("mesh", "counting", "--format", "toml").stdout)

        assert exop("end", "counting", "--wait").stdout == "counting: finished\n"
        assert exop("remove", "counting").stdout == "counting: removed\n"
        assert applications() == {}

        assert exop("apply", "mesh.toml").stdout == "counting runs on served\n"
        eventually(lambda: applications() == {"counting": "running"})
        assert exop("apply", "mesh.toml").stdout == "counting: revision 1: nothing to do\n"
        assert exop("stop", "counting").returncode == 0


def test_a_slet_of_the_file_that_runs_replaces_another(counting, tmp_path):
    """`exop run FILE.py` knows the slets of the file, for edits and for topologies, by their described names."""
    text = (counting / "__init__.py").read_text().partition("@hookimpl")[0]
    (tmp_path / "own.py").write_text(
        f"{text}\n\n@slet\ndef third(item: int) -> float:\n    return item / 3\n", encoding="utf-8"
    )
    with running("run", "own.py", "pace=0.001", "output=out", "--quiet"):
        eventually(lambda: applications() == {"counting": "running"})
        done = exop("replace", "counting.half", "own:third")
        assert "replace half: own:half → own:third" in done.stdout, done.stderr
        wrong = exop("replace", "counting.half", "own:thrid")
        assert "did you mean 'own:third'?" in wrong.stderr
        (tmp_path / "own.toml").write_text(answer_of("mesh", "counting", "--format", "toml").replace("0.001", "0.002"))
        assert "configure numbers: pace: 0.001 → 0.002" in answer_of("apply", "own.toml")


def test_wrong_names(served, capsys):
    """Names that a running platform does not know are told with the known ones, exit code 2."""
    assert main(["apply", str(served), "pace=0.01", "output=out"]) == 0
    said = {
        ("describe", "counting.hlaf"): "did you mean 'half'?",
        ("describe", "countin"): "did you mean 'counting'?",
        ("end", "countin"): "did you mean 'counting'?",
        ("end", "counting.half"): "names a node",
        ("resume", "counting"): "counting.NODE",
        ("services", "(kind=slet)", "--on", "nobody"): "no platform has the name or number nobody; there are",
        ("ps", "--state", "nowhere"): f"no platform answers at {served.parent / 'nowhere'}: No such file",
    }
    capsys.readouterr()
    for arguments, cure in said.items():
        assert cure in answer_of(*arguments, code=2)
    assert "it is not suspended: nothing to do" in answer_of("resume", "counting.half")


def test_code_does_not_travel(served, tmp_path):
    """A slet that the platform does not have is named; a single file is refused here: the error makes a bundle of it.

    When its bundle is started, the error names that.
    """
    (tmp_path / "mesh.toml").write_text(
        '[application]\nname = "x"\n[nodes.a]\nslet = "elsewhere:thing"\nports = {out = "a"}\n'
    )
    err = answer_of("apply", "mesh.toml", code=2)
    assert "elsewhere:thing" in err
    assert "exop serve --load FOLDER" in err
    assert "exop bundle install" in err
    (tmp_path / "single.py").write_text(
        "from collections.abc import Iterator\nfrom exop import Application, slet\n\n"
        "@slet\ndef one() -> Iterator[int]:\n    yield 1\n\n"
        "def single() -> Application:\n    app = Application('single')\n    app.add('one', one)\n    return app\n"
    )
    err = answer_of("apply", "single.py", code=2)
    assert "is in no plugin, and code does not travel" in err
    assert "state directory" not in err
    assert "make a bundle of it (`exop bundle new NAME" in answer_of("add", "counting.one", "single.py:one", code=2)
    for line in re.findall("`exop (bundle .*?)`", err):
        answer_of(*line.split())
    err = answer_of("apply", "single.py", code=2)
    assert "the slet one@0.1.0:one is started on" in err
    assert "name that of the started bundle, one@0.1.0:one" in answer_of("add", "counting.one", "single.py:one", code=2)
    assert answer_of(*err.split("`exop ")[1].split("`")[0].split()).startswith("single runs on")


def test_several_platforms(served, capsys):
    """Of several platforms the one that has the application is meant; otherwise --on or --state says which."""
    with running("run", served, "pace=0.01", "output=further", "--state", "other", "--name", "other", "--quiet"):
        eventually(lambda: applications() == {"counting": "running"})
        assert facts("describe", "counting")["platform"] == "other"
        assert "name one of them" in answer_of("services", code=2)
        unknown = answer_of("suspend", "countin.half", code=2)
        assert "the set of running platforms has no application 'countin'; did you mean 'counting'?" in unknown
        assert main(["apply", str(served), "output=out", "pace=0.01", "--on", "served"]) == 0
        capsys.readouterr()
        assert "runs on several platforms" in answer_of("describe", "counting", code=2)
        for chosen in (["--on", "other"], ["--state", "other"]):
            assert facts("describe", "counting", *chosen)["platform"] == "other"
        with pytest.raises(AssertionError):
            facts("describe", "nothing")


def test_to_wait_for_what_is_suspended(served, tmp_path):
    """`end --wait` does not wait for ever for a slet that has to be repaired: it says which, exit code 1."""
    assert exop("apply", "./counting", f"missing={tmp_path / 'no'}", "output=out").returncode == 0
    eventually(lambda: applications() == {"counting": "suspended"})
    done = exop("end", "counting", "--wait")
    assert (done.returncode, done.stdout) == (1, "")
    assert "exop: half failed while running: ValueError: no halves today" in done.stderr


def test_to_wait_for_what_a_suspended_node_holds_up(served, tmp_path):
    """`end --wait` names the node for which it waits, and what lets it go on."""
    assert exop("apply", "./counting", "pace=0.001", f"output={tmp_path / 'out'}").returncode == 0
    assert exop("suspend", "counting.half").returncode == 0
    with running("end", "counting", "--wait") as process:
        assert process.stderr is not None
        assert "counting.half is suspended, and keeps the run from ending" in process.stderr.readline()
        assert exop("resume", "counting.half").returncode == 0
        assert (process.wait(120), process.stderr.read()) == (0, "")


def test_to_wait_for_the_end_of_a_run(counting, tmp_path):
    """`end --wait` succeeds when the `exop run` that has ended with its application no longer answers."""
    with running("run", counting, "pace=0.01", f"output={tmp_path / 'out'}", "-q"):
        eventually(lambda: applications() == {"counting": "running"})
        done = exop("end", "counting", "--wait")
    assert (done.returncode, done.stderr) == (0, "")


def test_who_listens_and_does_not_answer_is_named(capsys):
    """A platform that cannot be asked is not taken for one that does not run."""
    from exop.remoting.transport.rundir import run_directory

    address = run_directory() / f"{os.getpid()}.sock"
    with socket.socket(socket.AF_UNIX) as mute, ThreadPoolExecutor(1) as pool:
        mute.bind(str(address))
        mute.listen()
        hung_up = pool.submit(lambda: [mute.accept()[0].close() for _ in range(2)])
        assert main(["services"]) == 2
        hung_up.result(timeout=120)
    said = capsys.readouterr().err
    assert str(address) in said
    assert "no platform is running" not in said


def test_nobody_is_there():
    """`ps` without platforms succeeds and says how to start one; with --json the list is empty."""
    assert "exop serve" in answer_of("ps")
    assert facts("ps") == []
