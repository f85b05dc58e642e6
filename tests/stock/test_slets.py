"""The stock slets do what they say, one by one and joined."""

from __future__ import annotations

from contextlib import redirect_stdout
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

from exop import Application, EndOfStream, Platform
from exop.errors import SettingError
from exop.hooks import Plugins
from exop.model.slets.slet import spec_of
from exop.stock import register_channels, register_slets
from exop.stock.sinks import Written
from exop.stock.slets import STOCK, WriteLines, count_up, pass_on, read_lines, show
from exop.testing import check_source, feed
from tests.change.tools import Tap
from tests.rig import PATIENCE, eventually


def test_counting():
    """So many numbers from a start by a step; without `to` it never ends."""
    assert feed(count_up, to=3) == [0, 1, 2]
    assert feed(count_up, to=3, start=10, step=-2) == [10, 8, 6]
    assert feed(count_up, to=0) == []
    assert check_source(count_up, items=5) == [0, 1, 2, 3, 4]


def test_passing_on_and_showing(capsys):
    """One passes everything on as it is, the other prints it."""
    items = [1, "a", [2]]
    assert feed(pass_on, items) == items
    assert feed(show, items) == []
    assert capsys.readouterr().out == "1\na\n[2]\n"
    buffered = TextIOWrapper(BytesIO())
    with redirect_stdout(buffered):
        feed(show, items)
        assert buffered.buffer.getvalue() == b"1\na\n[2]\n"  # at once, also where nobody sits before it


@pytest.mark.parametrize("slet", [one for one in STOCK if "encoding" in spec_of(one).settings])
@pytest.mark.parametrize("name", ["foo", "", "hex", "utf-8\0"])
def test_there_is_no_such_encoding(slet, name):
    """What is no encoding of text is refused with the other settings, and not at the first item."""
    with pytest.raises(SettingError, match="'encoding' does not fit: .*: there is no such encoding of text"):
        Application("a").add("x", slet, path="x", encoding=name)
    assert spec_of(slet).configured("x", {"path": "x", "encoding": "latin-1"})["encoding"] == "latin-1"


def test_writing_lines(tmp_path):
    """Every item is a line of the file, which is complete once the slet is closed."""
    path = tmp_path / "out.txt"
    feed(WriteLines, ["a", 1, "ß"], path=path)
    assert path.read_text(encoding="utf-8") == "a\n1\nß\n"


@pytest.mark.parametrize("kind", ["direct", "queue"])
def test_lines_can_be_read_while_the_stream_rests(tmp_path, kind):
    """The source waits for its next item, and the file has all lines of before; at the end it is complete."""
    tap, path = Tap(), tmp_path / "out.txt"
    app = Application("resting")
    between = app.channel("between", kind=kind)
    app.add("source", tap.source(), out=between)
    app.add("write", WriteLines, item=between, path=path)
    with Platform() as platform:
        platform.apply(app.build())
        for count in (3, 4):
            tap.let(count)
            wanted = [str(number + 1) for number in range(3 if count == 3 else 7)]
            eventually(lambda wanted=wanted: path.exists() and path.read_text().splitlines() == wanted)
        tap.let(1)
        tap.shut()
        assert platform.wait("resting", PATIENCE)
        assert len(path.read_text().splitlines()) == 8


def test_they_come_by_the_public_door():
    """The stock plugin is found by its entry point and answers the hooks as anyone's does."""
    plugins = Plugins()
    plugins.discover()
    assert "stock" in plugins.names()
    assert register_slets() == list(STOCK)
    kinds = ["direct", "queue", "window", "latch", "table", "log", "partitioned_log", "outbox", "inbox", "reader"]
    assert [kind.kind for kind in register_channels()] == kinds


def test_every_one_has_a_help_text():
    """The docstring is what the command line shows."""
    assert all(spec_of(one).doc for one in STOCK)


def test_joined_they_copy_a_file(tmp_path):
    """read_lines -> pass_on -> write_lines, on a platform."""
    (tmp_path / "in.txt").write_text("a\nb\n")
    app = Application("copy")
    lines = app.add("read", "stock:read_lines", path=tmp_path / "in.txt")
    app.add("write", "stock:write_lines", item=app.add("pass", pass_on, item=lines), path=str(tmp_path / "out.txt"))
    report = app.run()
    assert (tmp_path / "out.txt").read_text() == "a\nb\n"
    assert report["items"] == 2


def test_lines_go_on_where_the_memento_ends(tmp_path):
    """What stands behind that place is cut off, at the first line or at the end; a file that is too short is told."""
    path = tmp_path / "out.txt"
    path.write_text("a\nb\nleft over\n")
    for item, expected in (("c", "a\nb\nc\n"), (EndOfStream(), "a\nb\n")):
        with WriteLines(path=path, written=Written(size=4)) as writer:
            writer.item(item)
            writer.flush()
            assert path.read_text() == expected
            writer.sync()
    with (
        WriteLines(path=path, written=Written(size=400)) as writer,
        pytest.raises(OSError, match="put it back"),
    ):
        writer.item("c")


def test_another_spelling_of_a_path_is_the_same_file(tmp_path, monkeypatch):
    """Also a link, and also in a memento of an earlier release, which has the path as it was given."""
    monkeypatch.chdir(tmp_path)
    Path("link").symlink_to("out")
    written = Written()
    for number, path in enumerate(["out", tmp_path / "out", "link", "./out"]):
        with WriteLines(path=Path(path), written=written) as writer:
            writer.item(number)
        written.real = "" if number % 2 else written.real
    assert Path("out").read_text() == "0\n1\n2\n3\n"


def test_a_relative_path_is_the_same_file_in_a_folder_that_was_moved(tmp_path, monkeypatch):
    """What the memento counts is not cut off."""
    written = Written()
    for name in ("old", "new"):
        (tmp_path / "old").rename(tmp_path / name) if name == "new" else (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        with WriteLines(path=Path("out"), written=written) as writer:
            writer.item(name)
    assert Path("out").read_text() == "old\nnew\n"


def test_lines_that_come_again_after_a_change_of_the_path_are_in_one_file(tmp_path):
    """The first file keeps what the memento counts: a crash repeats what came after it."""
    (tmp_path / "first").write_text("a\nb\n")
    written = Written(size=2, path=str(tmp_path / "first"))
    with WriteLines(path=tmp_path / "second", written=written) as writer:
        writer.item("b")
    assert [(tmp_path / name).read_text() for name in ("first", "second")] == ["a\n", "b\n"]


def test_an_empty_stream_leaves_an_empty_file(tmp_path):
    """What an earlier run has written is not taken for the output of this one."""
    (tmp_path / "in.txt").write_text("")
    (tmp_path / "out.txt").write_text("old\n")
    app = Application("copy")
    lines = app.add("read", read_lines, path=tmp_path / "in.txt")
    app.add("write", WriteLines, item=lines, path=tmp_path / "out.txt")
    app.run()
    assert (tmp_path / "out.txt").read_text() == ""
