"""Meshes, plans and figures in a notebook: pictures, tables, and one line where there is no room."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exop import Application, Mesh, Platform
from exop.pictures.layout import lay_out
from exop.pictures.notebook import Figures
from exop.pictures.picture import Picture, to_svg
from exop.stock.slets import count_up, pass_on, show
from tests.pictures.sketch import sketch

NS = {"svg": "http://www.w3.org/2000/svg"}
NAMES = [*"abcdefg"]


@pytest.fixture
def app() -> Application:
    """A source, an inserted queue's worth of channels, a sink."""
    app = Application("drawn")
    kept = app.channel("kept", kind="queue", capacity=10)
    app.add("source", count_up, to=20, out=kept)
    app.add("sink", show, item=app.add("pass", pass_on, item=kept))
    return app


def test_a_line_says_what_it_is(app: Application) -> None:
    """The repr of an application, a mesh, a plan is one line with the name and the size."""
    assert repr(app) == "<Application drawn: 3 slets, 2 channels>"
    mesh = app.build()
    assert repr(mesh) == "<Mesh drawn: 3 slets, 2 channels>"
    assert repr(Mesh("none").at(3)) == "<Mesh none rev 3: 0 slets, 0 channels>"
    with Platform() as platform:
        applied = platform.apply(app.build().suspend("source"))
        assert repr(applied) == "<Mesh drawn rev 1: 3 slets, 2 channels>"
        assert repr(platform.plan(applied)) == "<Plan drawn rev 1: nothing to do>"
        plan = platform.plan(applied.resume("source").replace("pass", pass_on, lose_state=True))
        assert repr(plan).startswith("<Plan drawn rev 1: ")
        assert "resume source" in repr(plan)
        html = plan._repr_html_()
    assert html.startswith("<svg ")
    assert "<pre>drawn: revision 1 → 2" in html
    assert 'stroke-width="2.5"' in html


def test_arrows_end_at_their_boxes(app: Application) -> None:
    """The picture is well-formed, needs nothing from elsewhere, and each arrow touches the box that it leads to."""
    svg = app._repr_svg_()
    assert svg == app.build()._repr_svg_()
    assert_whole(svg, boxes=4, arrows=3)


def assert_whole(svg: str, boxes: int, arrows: int) -> None:
    """Check a picture: its boxes, and that the tip of each arrow lies on the frame of one."""
    assert "href" not in svg
    assert "url(" not in svg
    tree = ElementTree.fromstring(svg)
    frames = [
        tuple(float(one.attrib[key]) for key in ("x", "y", "width", "height"))
        for one in tree.findall("svg:g/svg:rect", NS)
    ]
    assert len(frames) == boxes
    tips = [one.attrib["d"] for one in tree.findall("svg:path", NS) if one.attrib["fill"] != "none"]
    assert len(tips) == arrows
    for tip in tips:
        x, y = (float(number) for number in re.findall(r"L([\d.-]+) ([\d.-]+)", tip)[0])
        assert any(
            (abs(x - left) < 0.2 and top <= y <= top + height)
            or (abs(y - top - height) < 0.2 and left <= x <= left + width)
            for left, top, width, height in frames
        )


def test_no_name_breaks_the_picture() -> None:
    """Markup, control characters, wide and long names are shown as text; a loop and a lone slet are drawn, too."""
    nodes = {
        "a & <b>": ("alpha", "x:\x07\x00", {}, {"out": 'c"', "clock": "d"}),
        "loop": ("pi", "日本語" * 20, {"left": 'c"', "again": "back"}, {"out": "back"}),
        "sink": ("omega", "s" * 200, {"x": "d"}, {}),
        "alone": ("pi", "", {}, {}),
    }
    mesh = sketch("<p>", nodes, {'c"': "direct", "d": "direct", "back": "queue"})
    picture = Picture(mesh, {"d -> sink.x": "why"})
    assert_whole(to_svg(picture, {"loop"}), boxes=5, arrows=4)
    assert_whole(to_svg(Picture(sketch("empty", {}, {}))), boxes=0, arrows=0)


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)), max_size=20))
def test_any_graph_is_laid_out(arrows: list[tuple[str, str]]) -> None:
    """Every name has one place, every arrow leads to the right or is told apart, and without a cycle all do."""
    layout = lay_out(NAMES, arrows)
    placed = [spot.name for column in layout.columns for spot in column if spot.name]
    assert sorted(placed) == NAMES
    assert {*layout.routes, *layout.back} == set(arrows)
    for (source, target), route in layout.routes.items():
        assert (route[0].name, route[-1].name) == (source, target)
        assert [spot.column for spot in route] == list(range(route[0].column, route[0].column + len(route)))
    if all(source < target for source, target in arrows):
        assert layout.back == []


def test_figures_are_plain_data_and_a_table() -> None:
    """What a run returns is a dict like any other, and a table where a notebook shows it; names are only text."""
    app = Application("shown")
    app.add("sink", pass_on, item=app.add("source", count_up, to=1000))
    report = app.run()
    assert isinstance(report, Figures)
    assert json.loads(json.dumps(report)) == report
    html = report._repr_html_()
    assert "shown: finished, 1,000 items, 0 errors" in html
    assert html.count("<tr>") == 3
    assert "&lt;b&gt;\\x00" in Figures({"<b>\0": 1})._repr_html_()


def test_status_and_metrics_are_tables_too() -> None:
    """So are the status of a platform, of an application, and its metrics."""
    app = Application("shown")
    app.add("sink", pass_on, item=app.add("source", count_up, to=10), on_error="skip")
    with Platform(name="here") as platform:
        platform.apply(app.build())
        platform.wait("shown")
        assert "<td" in platform.status()._repr_html_()  # type: ignore[attr-defined]
        assert "shown: finished" in platform.status("shown")._repr_html_()  # type: ignore[attr-defined]
        assert "<th>in</th>" in platform.metrics("shown")._repr_html_()  # type: ignore[attr-defined]
    assert "<td" in Figures(a=True, b=1.5)._repr_html_()
