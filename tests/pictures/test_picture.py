"""The picture of a mesh."""

import pytest

from exop.app import Application
from exop.pictures.picture import DRAW, Picture
from exop.stock.slets import count_up, pass_on, show
from tests.pictures.sketch import sketch


@pytest.fixture
def picture() -> Picture:
    """Two sources into one channel, a queue, a queue that the wiring inserts."""
    app = Application("drawn")
    both = app.channel("both")
    kept = app.channel("kept", kind="queue", capacity=10)
    app.add("one", count_up, out=both)
    app.add("other", count_up, out=both)
    passed = app.add("pass", pass_on, item=both, out=kept)
    assert passed.name == "kept"
    app.add("sink", show, item=app.add("last", pass_on, item=kept))
    return Picture(app.build(), {"both -> pass.item": "several drivers meet"})


def test_direct_channels_are_arrows(picture: Picture) -> None:
    """A channel is drawn when it keeps something, or several push into it; others are arrows between slets."""
    assert picture.drawn() == ["both", "kept"]
    arrows = [(arrow.source, arrow.target, arrow.queued) for arrow in picture.arrows()]
    assert ("last", "sink", False) in arrows
    assert ("one", "channel both", False) in arrows
    assert ("channel both", "pass", True) in arrows
    assert ("pass", "channel kept", False) in arrows


def test_a_partitioned_channel_is_drawn_with_its_field_and_its_groups() -> None:
    """Its consumers do not all get everything, as an arrow to each would say."""
    app = Application("shared")
    numbers = app.channel("numbers", by="real")
    app.add("one", count_up, out=numbers)
    for name in ("a", "b"):
        app.add(name, show, item=numbers, group="g")
    app.add("all", show, item=numbers)
    picture = Picture(app.build())
    for form in ("mermaid", "dot", "svg"):
        text = DRAW[form](picture)
        assert "direct by real" in text
        assert text.count("group g") >= 2
    data = picture.as_data()
    assert (data["channels"]["numbers"], data["nodes"]["a"]["group"]) == ({"kind": "direct", "by": "real"}, "g")


def test_hosts_are_frames_and_their_borders_are_marked() -> None:
    """Each host has a frame (in SVG: a colour, and its name in the box); an arrow over a border says `remote`."""
    app = Application("placed")
    app.on("edge").add("sink", show, item=app.add("numbers", count_up))
    picture = Picture(app.build())
    assert 'subgraph h1["edge"]' in DRAW["mermaid"](picture)
    assert 'subgraph cluster_1 { label="edge"' in DRAW["dot"](picture)
    assert "slets:show on edge" in DRAW["svg"](picture)
    for form in ("mermaid", "dot", "svg"):
        assert DRAW[form](picture).count("remote") == 1
    assert picture.as_data()["nodes"]["sink"]["host"] == "edge"
    alone = Picture(app.build().move("sink", to=None))
    assert "subgraph" not in DRAW["mermaid"](alone)
    assert [arrow.remote for arrow in alone.arrows()] == [False]


def test_ports_stand_on_arrows_where_there_are_several() -> None:
    """A port is named where its slet has several of that side."""
    nodes = {
        "a": ("alpha", "x:a", {}, {"out": "c", "clock": "d"}),
        "b": ("omega", "x:b", {"left": "c", "right": "d"}, {}),
    }
    arrows = Picture(sketch("p", nodes, {"c": "direct", "d": "direct"})).arrows()
    assert [arrow.label for arrow in arrows] == ["left", "clock → right"]


def test_mermaid(picture: Picture) -> None:
    """Roles have their brackets and colours, kinds their name, inserted queues a dashed arrow."""
    text = DRAW["mermaid"](picture)
    assert text.startswith("flowchart LR\n")
    assert '(["α one<br/>' in text
    assert '["π pass<br/>' in text
    assert '[["ω sink<br/>' in text
    assert "kept<br/><small>queue</small>" in text
    assert "c1 -.->|queue| n3" in text


def test_dot(picture: Picture) -> None:
    """The same for Graphviz."""
    text = DRAW["dot"](picture)
    assert text.startswith('digraph "drawn" {')
    assert 'c1 -> n3 [label="queue", style=dashed]' in text
    assert "shape=cylinder" in text
    assert text.endswith("}\n")


def test_names_cannot_break_a_picture() -> None:
    """Quotes, brackets and bars in names stay text."""
    nodes = {'a"]|<b>\\': ("alpha", "x:y", {}, {"out": "c"})}
    picture = Picture(sketch('"p"', nodes, {"c": "queue"}))
    assert '"]|<b>' not in DRAW["mermaid"](picture)
    assert "a#quot;]#124;#lt;b#gt;" in DRAW["mermaid"](picture)
    assert 'α a\\"]|<b>\\\\\\nx:y' in DRAW["dot"](picture)
