"""A change from the command line is proven before it is made, and taken back."""

import re
import signal
from pathlib import Path

from exop.cli.options import Proof
from tests.cli.shell import answer_of, eventually, exop, facts, lines, running


def counted(path: Path) -> None:
    """Every number was written once, in order, and the state has counted each."""
    found = [one.split() for one in path.read_text().splitlines(keepends=True) if one.endswith("\n")]
    assert [int(one[1]) for one in found] == list(range(1, len(found) + 1))
    assert [int(one[2]) for one in found] == list(range(1, len(found) + 1))


def test_prove_keep_and_roll_back(line):
    """The plan shows the shadow; an equal one takes over, a different one is refused, and the old one comes back."""
    wrong = exop("replace", "line.tag", "line:shout", "--shadow", "50items")
    assert wrong.returncode == 1
    assert "shadow tag: beside the old one, on the same items, for 50 items, within 60 s" in wrong.stdout
    assert re.search(r"tag was not replaced: (a difference|\d+ differences); the old one runs on", wrong.stderr)
    assert "tag, out" not in wrong.stderr
    assert facts("describe", "line.tag")["slet"] == "line:tag"

    done = exop("replace", "line.tag", "line:twin", "--shadow", "20items", "--keep", "60s")
    assert done.returncode == 0, done.stderr
    assert re.search(r"shadow tag: equal on \d{2,} items, \d{2,} outputs compared in ", done.stdout)
    assert "line: revision 2 runs; the stream paused for " in done.stdout
    assert "the predecessor line:tag is kept until " in exop("ps").stdout
    assert "(exop rollback line.tag)" in exop("describe", "line.tag").stdout

    back = exop("rollback", "line.tag")
    assert back.returncode == 0, back.stderr
    assert back.stdout.startswith("line: revision 3 runs, with the predecessor of tag; the stream paused for ")
    assert facts("describe", "line.tag")["slet"] == "line:tag"
    none = exop("rollback", "line.tag")
    assert none.returncode == 2
    assert "replace it back instead" in none.stderr
    _, refused, proven, rolled_back, too_late = facts("history", "line")
    assert (refused["proof"]["items"], "tag was not replaced" in refused["outcome"]) == (50, True)
    assert (proven["proof"]["tag"]["items"] >= 20, proven["from"], proven["to"]) == (True, 1, 2)
    assert (rolled_back["what"], rolled_back["to"], too_late["outcome"][:9]) == ("rollback", 3, "PlanError")
    before = len(lines(line))
    eventually(lambda: len(lines(line)) > before + 5)
    counted(line)


def test_ctrl_c_leaves_the_old_one(line):
    """Whoever gives up waiting gives up the proof: the old slet stays, and others may change the application."""
    with running("replace", "line.tag", "line:twin", "--shadow", "1000000items,600s") as waiting:
        eventually(lambda: facts("describe", "line").get("shadow", {}).get("tag", {}).get("items"))
        refused = exop("suspend", "line.tag")
        assert refused.returncode == 1
        assert "a successor is on trial for 1,000,000 items" in refused.stderr
        waiting.send_signal(signal.SIGINT)
        assert waiting.wait(120) == 130
    assert "shadow" not in facts("describe", "line")
    assert facts("describe", "line.tag")["slet"] == "line:tag"
    assert exop("configure", "line.tag", "label=c").returncode == 0
    eventually(lambda: lines(line)[-1].startswith("c"))
    counted(line)


def test_a_proof_is_given_up_from_elsewhere(line):
    """`rollback --abandon` gives up the proof that another terminal waits for; the refusal names it."""
    assert answer_of("rollback", "--abandon", "line") == "line: no trial runs: nothing to do\n"
    with running("replace", "line.tag", "line:twin", "--shadow", "1000000items,600s") as waiting:
        eventually(lambda: facts("describe", "line").get("shadow", {}).get("tag", {}).get("items"))
        assert "`exop rollback --abandon line`" in exop("suspend", "line.tag").stderr
        assert "exop rollback --abandon line" in exop("rollback", "--abandon", "line.tag").stderr
        done = exop("rollback", "--abandon", "line")
        assert (done.returncode, done.stdout) == (0, "line: the trial is cancelled, the old slets keep running\n")
        assert waiting.wait(120) == 1
    assert facts("describe", "line.tag")["slet"] == "line:tag"


def test_what_is_asked_of_a_proof():
    """The options become the plain data that a platform is sent."""
    found = Proof(shadow="5items,2s", divert=("path=x",), keep="60s").as_data()
    assert found is not None
    assert (found["items"], found["seconds"], found["divert"], found["keep"]) == (5, 2.0, {"path": "x"}, 60.0)
    assert not found["allow_no_output"]
    assert Proof().as_data() is None
