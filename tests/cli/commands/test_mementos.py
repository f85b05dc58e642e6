"""The state of a node that runs in another process: shown, exported, edited, imported."""

import json

from exop import Platform
from exop.cli import main
from tests.cli.shell import answer_of, applications, eventually, exop_process, facts, lines


def test_export_edit_import(line, tmp_path):
    """What was counted is exported as JSON, edited, and counted on from; no item is lost meanwhile."""
    shown = json.loads(answer_of("memento", "show", "line.tag"))
    assert (shown["kind"], shown["memento"], shown["version"]) == ("exop memento", "line:Seen", 1)
    assert shown["fields"]["count"] > 0
    file = tmp_path / "state.json"
    assert "is in" in answer_of("memento", "export", "line.tag", file)
    document = json.loads(file.read_text())
    document["fields"]["count"] = 1_000_000
    file.write_text(json.dumps(document))
    dry = answer_of("memento", "import", "line.tag", file, "--dry-run")
    assert "replace tag: line:tag with another state; the state (Seen) as it is given" in dry
    assert facts("describe", "line")["revision"] == 1
    assert "revision 2 runs" in answer_of("memento", "import", "line.tag", file)
    eventually(lambda: int(lines(line)[-1].split()[2]) > 1_000_000)
    items = [int(one.split()[1]) for one in lines(line)[:-1]]
    assert items == list(range(1, len(items) + 1))


def test_the_position_of_a_source(line, tmp_path):
    """A source goes on from the position that it is given."""
    file = tmp_path / "state.json"
    answer_of("memento", "export", "line.numbers", file)
    file.write_text(file.read_text().replace('"number": ', '"number": 5000000'))
    imported = facts("memento", "import", "line.numbers", file)
    assert (imported["made"], imported["now"]) == (True, 2)
    eventually(lambda: facts("describe", "line")["nodes"]["numbers"]["state"] == "ended")


def test_msgpack_and_pipes(line, tmp_path):
    """Without a file it goes to stdout; `--format msgpack` is the other form, and comes in as well."""
    assert json.loads(exop_process("memento", "export", "line.tag").stdout)["memento"] == "line:Seen"
    found = facts("memento", "export", "line.tag", tmp_path / "state", "--format", "msgpack")
    assert found["format"] == "msgpack"
    assert "revision 2 runs" in answer_of("memento", "import", "line.tag", tmp_path / "state")


def test_bad_input(line, tmp_path):
    """Wrong names, wrong files, wrong values, newer versions: one line each, exit code 2, nothing changed."""
    file = tmp_path / "state.json"
    answer_of("memento", "export", "line.tag", file)
    good = file.read_text()
    (tmp_path / "text").write_text("{not json")
    (tmp_path / "plain").write_text("some text")
    (tmp_path / "empty").write_text("")
    (tmp_path / "bytes").write_bytes(b"\x95\x01")
    (tmp_path / "many").write_text(good.replace('"count": ', '"count": "x", "other": '))
    (tmp_path / "wrong").write_text(json.dumps(json.loads(good) | {"fields": {"count": "many"}}))
    (tmp_path / "newer").write_text(good.replace('"version": 1', '"version": 9'))
    (tmp_path / "class").write_text(good.replace("line:Seen", "line:Position"))
    answer_of("add", "line.more", "line:forgetful", "item=numbers")
    said = {
        ("show", "line"): "write line.NODE",
        ("show", "line.tga"): "did you mean 'tag'?",
        ("show", "line.more"): "line.more: forgetful keeps no memento",
        ("import", "line.more", "state.json"): "keeps no memento",
        ("import", "line.tag", "nothing"): "nothing cannot be read (No such file or directory); name a file",
        ("import", "line.tag", "plain"): "the file is neither JSON of a memento nor msgpack",
        ("import", "line.tag", "empty"): "the file is empty",
        ("import", "line.tag", "text"): "the file is no JSON",
        ("import", "line.tag", "bytes"): "line.tag cannot be taken over",
        ("import", "line.tag", "many"): "Seen has no field 'other'; it has count",
        ("import", "line.tag", "wrong"): "count is 'many' (str), not int",
        ("import", "line.tag", "newer"): "it is of version 9 of Seen, the code here knows 1",
        ("import", "line.tag", "class"): "it is a line:Position, and the slet keeps a line:Seen",
        ("export", "line.tag", "state.json"): "exists already",
        ("export", "line.tag", "none/x"): "none/x cannot be written (No such file or directory); name another file",
        ("export", "line.tag", "x", "--format", "xml"): "json",
    }
    for arguments, cure in said.items():
        err = answer_of("memento", *arguments, code=2)
        assert cure in err, (arguments, err)
    assert facts("describe", "line")["revision"] == 2


def test_the_state_of_a_suspended_slet(tmp_path, counting):
    """The state upstream of an item that fails can be looked at while everything waits."""
    with Platform(control=True) as platform:
        platform.load(counting)
        assert main(["apply", str(counting), f"missing={tmp_path / 'no'}", f"output={tmp_path / 'out'}"]) == 0
        eventually(lambda: applications() == {"counting": "suspended"})
        shown = json.loads(answer_of("memento", "show", "counting.numbers"))
        assert shown["fields"]["number"] >= 3
