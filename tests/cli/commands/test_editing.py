"""One node of an application that runs in another process is changed from the command line."""

import json
import re
from pathlib import Path
from typing import Any

from msgspec import structs

from exop.cli import main
from exop.remoting.api.remote_platform import RemotePlatform
from tests.cli.shell import answer_of, applications, eventually, facts, lines


def follow_cure(text: str) -> str:
    """Give the command that an error names."""
    found = re.search(r"`exop ([^`]*)`", text)
    assert found is not None, text
    return answer_of(*found[1].split())


def numbers(path: Path) -> list[int]:
    """The numbers in the lines that were written whole."""
    return [int(one.split()[1]) for one in path.read_text().splitlines(keepends=True) if one.endswith("\n")]


def test_replace_hands_the_state_over_and_loses_nothing(line):
    """`replace` prints the plan and the pause; every number is written once, and the count goes on."""
    text = answer_of("replace", "line.tag", "line:shout", "label=B")
    title, step, *settings, does = text.splitlines()[:5]
    assert title == "line: revision 1 → 2"
    assert step == "  replace tag: line:tag → line:shout; the state (Seen) by reference"
    assert settings == ["    label: 'a' → 'B'", "    limit: 0, dropped: shout has no such setting"]
    assert does == "    open → pause → drain → memento → bind → release → close the old"
    assert "line: revision 2 runs; the stream paused for " in text
    eventually(lambda: lines(line)[-1].startswith("B!"))
    found = lines(line)[:-1]
    assert numbers(line)[: len(found)] == list(range(1, len(found) + 1))
    assert [int(one.split()[2]) for one in found] == list(range(1, len(found) + 1))


def test_the_plan_as_data_and_nothing_happens(line):
    """`plan` and `--dry-run` say the same, as text and as JSON, and leave everything as it is."""
    for command in (["plan", "replace", "line.tag", "line:shout"], ["replace", "line.tag", "line:shout", "--dry-run"]):
        planned = facts(*command)
        (step,) = planned["steps"]
        assert (step["verb"], step["node"], step["state"]) == ("replace", "tag", "the state (Seen) by reference")
        assert (planned["made"], planned["anything"], planned["revision"]) == (False, True, 1)
        assert "replace tag: line:tag → line:shout" in answer_of(*command)
    assert facts("describe", "line")["revision"] == 1


def test_configure(line):
    """Settings arrive converted by their annotations; the same value once more is nothing to do."""
    changed = facts("configure", "line.tag", "label=C", "limit=3")
    assert (changed["made"], changed["now"]) == (True, 2)
    assert changed["paused_ms"] >= 0
    assert facts("describe", "line.tag")["settings"] == {"label": "C", "limit": 3}
    answer_of("configure", "line.sink", "encoding=latin-1")
    assert facts("describe", "line.sink")["settings"]["encoding"] == "latin-1"
    eventually(lambda: lines(line)[-1].startswith("C "))
    assert "nothing to do" in answer_of("configure", "line.tag", "label=C")


def test_configure_at_a_point_in_the_stream(line):
    """`--when` is shown until it takes effect, `--cancel` takes it back; a wrong condition is told with a mark."""
    text = answer_of("configure", "line.tag", "label=C", "limit=3", "--when", "item < 0")
    assert "arm tag: pending: label='C', limit=3 when item < 0" in text
    assert facts("describe", "line.tag")["pending"] == ["label='C', limit=3 when item < 0"]
    assert "pending: label='C', limit=3 when item < 0" in answer_of("describe", "line.tag")
    for command in (["describe", "line"], ["ps"]):
        assert "line.tag: pending: label='C', limit=3 when item < 0" in answer_of(*command)
    cancelled = answer_of("configure", "line.tag", "--cancel")
    assert "cancel tag: no longer pending: label='C', limit=3 when item < 0\n    pause → bind → release" in cancelled
    assert "pending" not in facts("describe", "line.tag")
    answer_of("configure", "line.tag", "label=D", "--when", "item % 10 == 0")
    eventually(lambda: lines(line)[-1].startswith("D "))
    first = next(text for text in lines(line) if text.startswith("D "))
    assert int(first.split()[1]) % 10 == 0
    assert facts("describe", "line.tag")["settings"]["label"] == "D"
    wrong = answer_of("configure", "line.tag", "label=C", "--when", "itme < 0", code=2)
    assert "no port or setting is called 'itme'; did you mean 'item'" in wrong
    assert wrong.rstrip().endswith("itme < 0\n  ^")
    assert "--cancel goes without" in answer_of("configure", "line.tag", "label=C", "--cancel", code=2)
    assert "Unknown option: --cancel" in answer_of("plan", "suspend", "line.tag", "--cancel", code=2)


def test_what_is_not_given_is_not_sent(line, monkeypatch):
    """A platform of an earlier release refuses options that it does not know."""
    plan, sent = RemotePlatform.plan_edits, list[dict[str, Any]]()

    def recorded(self: RemotePlatform, application: str, edits: Any, **more: Any) -> Any:
        sent.extend(edits)
        return plan(self, application, edits, **more)

    monkeypatch.setattr(RemotePlatform, "plan_edits", recorded)
    answer_of("plan", "replace", "line.tag", "line:shout")
    answer_of("plan", "configure", "line.tag", "--cancel")
    answer_of("plan", "move", "line.tag", "elsewhere", code=2)
    assert [sorted(edit) for edit in sent] == [
        ["edit", "node", "settings", "slet"],
        ["edit", "node", "settings"],
        ["also", "edit", "node", "to"],
    ]


def test_suspend_and_resume(line):
    """A suspended node lets nothing in; after `resume` the stream goes on where it was."""
    assert "pause → hold items → release" in answer_of("suspend", "line.tag")
    held = facts("describe", "line.tag")["metrics"]["items_in"]
    assert facts("describe", "line.tag")["state"] == "suspended"
    assert facts("describe", "line.tag")["metrics"]["items_in"] == held
    assert "nothing to do" in answer_of("suspend", "line.tag")
    assert "  running; suspended: tag  " in answer_of("ps")
    assert re.search("line  running for .*; suspended: tag  on ", answer_of("describe", "line"))
    assert "resume tag: line:tag" in answer_of("plan", "resume", "line.tag")
    assert "line.tag: resumed" in answer_of("resume", "line.tag")
    assert "nothing to do" in answer_of("plan", "resume", "line.tag")
    assert facts("resume", "line.tag") == {"target": "line.tag", "done": "it is not suspended: nothing to do"}
    assert "suspended" not in answer_of("ps")
    eventually(lambda: len(lines(line)) > held + 5)
    assert numbers(line) == list(range(1, len(numbers(line)) + 1))


def test_rewire_to_a_new_channel_and_back(line):
    """PORT=CHANNEL:KIND makes a channel with its settings; one that nobody uses any more goes.

    A mistake names what else to connect, or how a new channel is made.
    """
    answer_of("add", "line.more", "line:forgetful", "item=numbers")
    answer_of("add", "line.reader", "stock:pass_on", "item=more")
    alone = answer_of("rewire", "line.more", "out=spare:queue,capacity=7", code=2)
    assert "connect it in the same change as well, reader.item=spare; or give" in alone
    assert "NAME:KIND (failed:queue) is a new channel" in answer_of("rewire", "line.more", "out=spare", code=2)
    answer_of("remove", "line.reader")
    text = answer_of("rewire", "line.more", "out=spare:queue,capacity=7")
    assert "add the channel spare (queue)" in text
    assert "remove the channel more" in text
    assert facts("describe", "line")["channels"]["spare"]["capacity"] == 7


def test_rewire_puts_a_queue_in_between(line):
    """Ports of two nodes are rewired in one plan; a channel into which nothing is pushed is told with the cure."""
    alone = answer_of("rewire", "line.sink", "item=buffer:queue,capacity=9", code=2)
    assert "exop rewire line.NODE OUT=buffer sink.item=buffer" in alone
    twice = ["rewire", "line.tag", "out=buffer:queue,capacity=9", "sink.item=buffer:queue,capacity=8"]
    assert "'buffer' is described twice, differently" in answer_of(*twice, code=2)
    assert "has no node 'sinc'" in answer_of("rewire", "line.tag", "out=b:queue", "sinc.item=b", code=2)
    text = answer_of("rewire", "line.tag", "out=buffer", "sink.item=buffer:queue,capacity=9")
    assert "add the channel buffer (queue)" in text
    assert "line: revision 2 runs" in text
    assert facts("describe", "line")["channels"]["buffer"]["capacity"] == 9
    before = len(lines(line))
    eventually(lambda: len(lines(line)) > before + 5)
    found = numbers(line)
    assert found == list(range(1, len(found) + 1))
    follow_cure(answer_of("remove", "line.tag", code=2))
    assert "remove tag: line:tag" in answer_of("remove", "line.tag")


def test_a_faster_edit(line, monkeypatch):
    """An edit that another one has overtaken is planned again, and made; not for ever."""
    from exop.remoting.api.remote_platform import RemotePlan

    carry_out, others = RemotePlan.carry_out, [1]

    def overtaken(plan: RemotePlan, **options: Any) -> Any:
        for limit in others[:1]:
            del others[0]
            edit = {"edit": "configure", "node": "tag", "settings": {"limit": str(limit)}}
            carry_out(plan.platform.plan_edits("line", [edit]))
        return carry_out(plan, **options)

    monkeypatch.setattr(RemotePlan, "carry_out", overtaken)
    assert "line: revision 3 runs" in answer_of("configure", "line.tag", "label=C")
    assert facts("describe", "line.tag")["settings"] == {"label": "C", "limit": 1}
    others.extend([2, 3, 4])
    err = answer_of("configure", "line.tag", "label=D", code=1)
    assert err.count("is planned again") == 2
    assert "was changed meanwhile" in err


def test_pending_settings_that_take_effect_before_an_edit(line, monkeypatch):
    """They are a revision of their own: the last line says why the one that runs is not the planned one."""
    from exop.remoting.api.remote_platform import RemotePlan

    carry_out = RemotePlan.carry_out

    def later(plan: RemotePlan, **options: Any) -> Any:
        return structs.replace(carry_out(plan, **options), revision=plan.planned.revision + 2)

    monkeypatch.setattr(RemotePlan, "carry_out", later)
    text = answer_of("configure", "line.tag", "label=C")
    assert text.startswith("line: revision 1 → 2\n")
    assert "line: revision 3 runs; since revision 1, pending settings have taken effect, too; the stream" in text


def test_a_channel_is_no_node(line):
    """A channel where a node is wanted is told as one, with what works for channels."""
    answer_of("rewire", "line.tag", "out=buffer:queue,capacity=9", "sink.item=buffer")
    for command in (["describe"], ["memento", "show"]):
        err = answer_of(*command, "line.buffer", code=2)
        assert "'buffer' is a channel of line, not a node" in err
        assert "exop configure line.buffer NAME=VALUE" in err


def test_a_port_is_no_setting(line):
    """`configure` with the name of a port lists the settings, and says what changes ports."""
    err = answer_of("configure", "line.tag", "item=3", code=2)
    assert "tag has no setting 'item'; known: label, limit" in err
    assert "item is a port of line:tag: `rewire` connects it elsewhere" in err


def test_add_and_remove_a_node(line, tmp_path):
    """A branch is added, runs, and is taken away again; the application goes on."""
    answer_of("add", "line.more", "line:forgetful", "item=numbers")
    answer_of("add", "line.file", "stock:write_lines", "item=more", f"path={tmp_path / 'more'}")
    eventually(lambda: len(lines(tmp_path / "more")) > 3)
    assert "remove file: stock:write_lines" in answer_of("remove", "line.file")
    answer_of("remove", "line.more")
    assert list(facts("describe", "line")["nodes"]) == ["numbers", "tag", "sink"]
    for command in (["remove", "line", "--dry-run"], ["plan", "remove", "line"]):
        assert answer_of(*command) == "line: would be stopped at once, and removed\n"
    assert applications() == {"line": "running"}


def test_a_change_that_fails_changes_nothing(line, capsys):
    """A successor that cannot be opened: exit code 1, the reason, and the old slet runs on."""
    err = answer_of("replace", "line.tag", "line:unopened", "--lose-state", code=1)
    assert "tag failed while opening: no engine here" in err
    assert facts("describe", "line.tag")["slet"] == "line:tag"
    capsys.readouterr()
    assert main(["replace", "line.tag", "line:unopened", "--lose-state", "--json"]) == 1
    failed = json.loads(capsys.readouterr().out)
    assert (failed["made"], "no engine here" in failed["error"]) == (False, True)
    before = len(lines(line))
    eventually(lambda: len(lines(line)) > before)


def test_bad_input(line):
    """Every mistake is told in one line with what there is instead, exit code 2, and nothing is changed."""
    said = {
        ("replace", "line.tga", "line:shout"): "has no node 'tga'; did you mean 'tag'?",
        ("replace", "lin.tag", "line:shout"): "has no application 'lin'; did you mean 'line'?",
        ("add", "lines.new", "line:shout"): "has no application 'lines'; did you mean 'line'?",
        ("suspend", "xyz.tag"): "has no application 'xyz'; known: line",
        ("replace", "line", "line:shout"): "write line.NODE",
        ("replace", "line.tag", "line:shuot"): "has no slet 'line:shuot'; did you mean 'line:shout'?",
        ("replace", "line.tag", "shout"): "'shout' names no slet; write PLUGIN:NAME",
        ("replace", "line.tag", "./nothing.py:shout"): "nothing.py does not exist",
        ("replace", "line.tag", "out.py"): "does not exist",
        ("replace", "line.tag", "line:forgetful"): "it keeps no state; replace tag with lose_state=True",
        ("replace", "line.tag", "line:shout", "--rebuild", "log"): "the state cannot be rebuilt from a log",
        ("replace", "line.tag", "line:shout", "lable=B"): "has no setting 'lable'; did you mean 'label'?",
        ("replace", "line.tag", "line:shout", "lose_state=1"): "--lose-state",
        ("configure", "line.tag", "limit=many"): "the setting 'limit' does not fit: expected int, got 'many'",
        ("configure", "line.tag", "limit"): "write NAME=VALUE",
        ("configure", "line.tag"): "NAME=VALUE is missing",
        ("configure", "line.sink", "encoding=foo"): "there is no such encoding of text; write, for example, utf-8",
        ("rewire", "line.tag", "itm=numbers"): "has no port 'itm'; did you mean 'item'?",
        ("rewire", "line.tag", "item=nubmers"): "has no channel 'nubmers'; did you mean 'numbers'?",
        ("rewire", "line.tag", "item=x:kew"): "has no kind 'kew'; known: direct",
        ("rewire", "line.tag", "item=x:queue,capacity=full"): "'capacity' does not fit",
        ("rewire", "line.sink", "item=numbers:queue"): "another channel 'numbers' already; choose another name",
        ("rewire", "line.tag", "item="): "tag.item is connected to nothing; give item=CHANNEL (numbers, ",
        ("add", "line.tag", "line:shout", "item=numbers"): "has a node 'tag' already",
        ("add", "line.new", "line:shout"): "new.item is connected to nothing; give item=CHANNEL",
        ("move", "line.tga", "edge"): "has no node or channel 'tga'; did you mean 'tag'?",
        ("move", "line.tag", "edge"): "tag is placed on 'edge', and this platform",
        ("plan", "move", "line.tag", "edge", "numbers"): "has no connection to it",
        ("plan", "move", "line.tag"): "HOST requires an argument",
        ("remove", "line.tga"): "did you mean 'tag'?",
        ("remove", "line.numbers"): "numbers",
        ("suspend", "line.tga"): "did you mean 'tag'?",
        ("plan", "suspend"): "NODE requires an argument",
        ("plan", "suspend", "line.tag", "now"): "too many arguments: now; see `exop suspend --help`",
        ("plan", "suspend", "line.tag", "--lose-state"): "Unknown option: --lose-state",
        ("plan", "replcae", "line.tag"): "did you mean 'replace'? known: add, configure",
    }
    for arguments, cure in said.items():
        err = answer_of(*arguments, code=2)
        assert cure in err, (arguments, err)
        assert err.startswith("exop: ")
    assert "the settings of line:tag: label: str = 'a', limit: int = 0" in answer_of(
        "configure", "line.tag", "lable=x", code=2
    )
    assert facts("describe", "line")["revision"] == 1


def test_code_does_not_travel(line, tmp_path):
    """A slet in a file of the caller is refused with the ways to bring it there; one of a loaded package is named."""
    (tmp_path / "own.py").write_text("from exop import slet\n")
    err = answer_of("replace", "line.tag", "own.py:mine", code=2)
    assert "code does not travel" in err
    assert "exop serve --load FOLDER" in err
    assert "line:tag → line:shout" in answer_of("plan", "replace", "line.tag", "./line:shout")


def test_no_platform(tmp_path):
    """Without a platform the edit is refused, after what is wrong with the line itself."""
    assert "no platform is running" in answer_of("replace", "line.tag", "line:shout", code=2)
    assert "write NAME=VALUE" in answer_of("configure", "line.tag", "label", code=2)


def test_bad_proofs():
    """A time or number that is none is told before anybody is asked; exit code 2."""
    for arguments, said in {
        ("--shadow", "soon"): "write 30s, 1000items, or 1000items,30s",
        ("--shadow", "0items"): "give numbers above 0",
        ("--keep", "long"): "write 60s",
        ("--keep", "0s"): "write 60s",
        ("--divert", "path=x"): "give --shadow as well",
        ("--allow-no-output",): "give --shadow as well",
        ("--divert", "path", "--shadow", "1s"): "write NAME=VALUE",
    }.items():
        assert said in answer_of("replace", "line.tag", "line:twin", *arguments, code=2), arguments


def test_a_slet_whose_ports_its_settings_name(line):
    """`add` connects them by name; `configure` plans those that come and go, and refuses to drop one that is read."""
    answer_of("add", "line.split", "stock:split", "item=tag", "conditions={odd = \"item > '5'\"}")
    answer_of("add", "line.shown", "stock:pass_on", "item=split.odd")
    text = answer_of("configure", "line.split", "conditions={odd = \"item > '5'\", low = \"item < '2'\"}", "--dry-run")
    assert "replace split: by itself, with the port low" in text
    text = answer_of("configure", "line.split", "conditions={}", code=2)
    assert "split.odd feeds shown.item through 'split.odd'" in text
    text = answer_of("add", "line.more", "stock:split", "item=tag", 'conditions={rest = "item > 5"}', code=2)
    assert "more: the setting 'conditions' does not fit: 'rest' is the port" in text


def test_a_slet_with_a_family_of_ports(line):
    """Members are connected as `to.NAME`, with a channel of their own if none is named; an empty name disconnects."""
    assert re.search(r"out +to\.\* +int", answer_of("describe", "line:deal"))
    answer_of("add", "line.deal", "line:deal", "item=numbers", "to.a=")
    answer_of("add", "line.shown", "stock:pass_on", "item=deal.to.a")
    text = answer_of("rewire", "line.deal", "to.b=b:queue", "shown.item=b")
    assert "replace deal: by itself, with the port to.b" in text
    assert 'to.b" = "b"' in answer_of("mesh", "line", "--format", "toml")
    eventually(lambda: facts("describe", "line")["nodes"]["shown"]["metrics"]["items_in"] > 5)
    text = answer_of("rewire", "line.shown", "item=deal.to.a", "deal.to.b=")
    assert "replace deal: by itself, without to.b" in text
    assert "remove the channel b" in text
    text = answer_of("rewire", "line.deal", "to.a=", code=2)
    assert "shown.item reads the channel 'deal.to.a', into which nothing is pushed" in text
    assert "more has no port or setting 'from.a'" in answer_of(
        "add", "line.more", "line:deal", "item=numbers", "from.a=", code=2
    )
