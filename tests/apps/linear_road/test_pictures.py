"""The pictures of the demo."""

import matplotlib.pyplot as plt
import pytest
from matplotlib.patches import FancyArrowPatch
from matplotlib.text import Annotation

from apps.linear_road import pictures
from apps.linear_road.builder import linear_road


@pytest.fixture
def kept(monkeypatch):
    """The figures that were drawn; they are closed after the test."""
    figures = []
    monkeypatch.setattr(plt, "close", figures.append)
    yield figures
    monkeypatch.undo()
    plt.close("all")


def test_each_arrow_ends_at_its_boxes_and_passes_by_all_others(tmp_path, kept):
    """An arrow of the mesh touches no box but its two."""
    for name in ("in.csv", "history.csv"):
        (tmp_path / name).write_text("")
    app = linear_road(
        input=tmp_path / "in.csv", history=tmp_path / "history.csv", output=tmp_path / "out.csv", pipeline="native"
    )
    mesh = app.build()
    pictures.draw_mesh(mesh, tmp_path / "mesh.png")
    (figure,) = kept
    arrows = [one.arrow_patch for one in figure.axes[0].texts if isinstance(one, Annotation)]
    boxes = [one.get_bbox_patch() for one in figure.axes[0].texts if one.get_text()]
    assert (len(boxes), len(arrows)) == (len(mesh.nodes), 19)
    for arrow in arrows:
        assert isinstance(arrow, FancyArrowPatch)
        line = arrow.get_path().interpolated(20).transformed(arrow.get_transform()).vertices
        ends = {arrow.patchA, arrow.patchB}
        crossed = [box for box in boxes if box not in ends and box.get_window_extent().count_contains(line)]
        assert crossed == []
        for end in (arrow.patchA, arrow.patchB):
            assert end.get_window_extent().padded(8).count_contains(line), "it does not reach its box"
            assert end.get_window_extent().padded(-8).count_contains(line) == 0, "it runs into its box"


def test_late_answers_are_in_the_picture(tmp_path, kept):
    """The axis reaches to the slowest answer, beyond the limit."""
    (tmp_path / "out.csv").write_text("0,1,10,11.000,0,0\n0,2,20,29.500,0,0\n")
    pictures.draw_response_times(tmp_path / "out.csv", tmp_path / "times.png")
    (figure,) = kept
    assert figure.axes[0].get_ylim()[1] > 9.5
    assert figure.axes[1].get_ylim()[1] == pytest.approx(6.0)
