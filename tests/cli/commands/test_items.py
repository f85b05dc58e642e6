"""`exop item`: failed items are listed, taken out as files, and tried again."""

from __future__ import annotations

from pathlib import Path

import pytest

from exop import Application, Platform, slet
from exop.cli import main
from exop.remoting.api.connecting import connect
from exop.stock.slets import count_up
from exop.testing import replay
from tests.cli.shell import answer_of, eventually, facts
from tests.rig import PATIENCE, Gate


def test_the_kept_item_is_listed_and_exported(failing, capsys):
    """The list says which item, and why; the file raises the same again, and nothing once the cause is mended."""
    out = answer_of("item", "list", "counting.half")
    assert "kept" in out
    assert "ValueError: no halves today" in out
    found = facts("item", "list", "counting.half")
    assert (found["kept"]["item"], found["count"], found["dropped"]) == ("3", 0, 0)

    assert "written to item.exop" in answer_of("item", "export", "counting.half", "item.exop")
    with pytest.raises(ValueError, match="no halves today"):
        replay("item.exop")
    Path("mended").touch()
    assert replay("item.exop") == [1.5]
    assert main(["resume", "counting.half"]) == 0
    eventually(lambda: failing.kept_item("counting", "half") is None)
    capsys.readouterr()
    assert answer_of("item", "list", "counting.half") == "counting.half: no item is kept\n"


def test_dead_letters_from_another_process(failing):
    """They are numbered, exported by number, and tried again; the same by a remote platform."""
    Path("mended").touch()
    failing.resume("counting", "half")
    running = failing.deployment("counting").components["half"]
    with connect("failing") as remote:
        assert remote.kept_item("counting", "half") is None
        assert remote.dead_letters("counting", "half") == []
        from exop.runtime.supervision.failure_policy import set_aside

        set_aside(running, "item", 3, ValueError("set aside by the test"))
        (letter,) = remote.dead_letters("counting", "half")
        assert (letter.item, letter.error, letter.slet) == (3, "ValueError: set aside by the test", "counting:half")
        assert main(["item", "export", "counting.half", "letter", "--dead-letter", "1"]) == 0
        assert replay("letter") == [1.5]
        assert remote.retry_dead_letters("counting", "half") == 1
    eventually(lambda: not failing.dead_letters("counting", "half"))
    assert "0 dead letters retried" in answer_of("item", "retry", "counting.half")
    assert facts("item", "retry", "counting.half") == {"target": "counting.half", "retried": 0}


def test_mistakes(failing):
    """One line, exit code 2, what to do; a file that is there is left alone."""
    Path("taken").write_text("mine")
    said = {
        ("list", "counting"): "counting.NODE",
        ("export", "counting.half", "taken"): "exists already",
        ("export", "counting.half", "none/x"): "none/x cannot be written (No such file or directory); name another",
        ("export", "counting.sink", "new"): "counting.sink has no kept item: nothing of it has failed",
        ("export", "counting.half", "new", "--dead-letter", "4"): "no dead letter 4: none was set aside",
        ("retry", "counting.hlaf"): "did you mean 'half'?",
    }
    for arguments, cure in said.items():
        assert cure in answer_of("item", *arguments, code=2)
    assert Path("taken").read_text() == "mine"
    assert not Path("new").exists()


def test_ps_and_describe_show_what_is_wrong(failing):
    """Item, traceback and what to do, in both, as long as the slet is suspended."""
    for command in (["ps"], ["describe", "counting"], ["describe", "counting.half"]):
        out = answer_of(*command)
        assert "kept item at 'item': 3" in out
        assert 'raise ValueError("no halves today")' in out
        assert "exop resume counting.half" in out
    Path("mended").touch()
    failing.resume("counting", "half")
    eventually(lambda: failing.kept_item("counting", "half") is None)
    assert "kept" not in answer_of("ps")


def test_an_item_that_fails_again_at_once(failing, capsys):
    """`exop resume` says that nothing is mended, with exit code 1; once it is, the same item passes."""
    assert main(["resume", "counting.half"]) == 1
    told = capsys.readouterr()
    assert "resumed" not in told.out
    failed = "exop: counting.half failed while retrying its item: ValueError: no halves today; fix the slet (exop "
    assert told.err == f"{failed}replace, exop configure) or the cause first\n"
    Path("mended").touch()
    assert answer_of("resume", "counting.half") == "counting.half: resumed\n"


def test_what_hangs_is_shown(tmp_path):
    """State, node, item count, how long and where, in `ps` and `describe`."""
    gate = Gate()

    @slet(timeout=0.05)
    def slow(item: int) -> None:
        gate.pass_through()

    app = Application("app")
    app.add("slow", slow, item=app.add("numbers", count_up, to=1))
    with Platform(control=True) as platform:
        platform.apply(app.build())
        eventually(lambda: platform.status("app")["state"] == "hangs")
        for command in (["ps"], ["describe", "app.slow"]):
            out = answer_of(*command)
            assert "hangs: item 1 of app.numbers has taken" in out
            assert "gate.pass_through()" in out
            assert "timeout 0.05 s" in out
        gate.open()
        assert platform.wait("app", PATIENCE)


def test_dead_letters_in_a_channel(failing, capsys):
    """`exop rewire` names a channel for them; the list says where they go, and `retry` that it has none."""
    assert main(["rewire", "counting.half", "dead_letters=failed:queue"]) == 0  # the kept item goes there, too
    eventually(lambda: failing.kept_item("counting", "half") is None)
    capsys.readouterr()
    assert "its dead letters go into the channel failed\n" in answer_of("item", "list", "counting.half")
    assert main(["item", "retry", "counting.half"]) != 0
    assert "go into the channel 'failed'" in capsys.readouterr().err
