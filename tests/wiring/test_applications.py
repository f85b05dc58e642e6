"""The applications of a platform: what is remembered of them."""

from pathlib import Path

from exop import Application, Platform
from exop.model.mesh import Mesh

#: Longest wait for another thread, in seconds.
PATIENCE = 60.0


def _three_numbers() -> Mesh:
    app = Application("numbers")
    app.add("sink", "stock:show", item=app.add("numbers", "stock:count_up", to=3))
    return app.build()


def test_an_application_that_has_ended_is_not_run_again_although_nobody_has_waited_for_it(tmp_path: Path) -> None:
    """The end is noted when it comes: a platform that is left then, or killed, does not repeat the whole stream."""
    with Platform(state=tmp_path, control=False) as platform:
        platform.apply(_three_numbers())
        assert platform.deployment("numbers").finished.wait(PATIENCE)
        assert platform.status("numbers")["state"] == "finished"
    with Platform(state=tmp_path, control=False) as platform:
        assert platform.applications() == []
