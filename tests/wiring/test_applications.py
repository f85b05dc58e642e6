"""The applications of a platform: what is remembered of them."""

from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from exop import Application, Platform, slet
from exop.errors import PlanError, StateError
from exop.model.meshes.mesh import Mesh
from exop.runtime.component_manager import ComponentManager
from exop.runtime.deployment import Deployment
from exop.runtime.durable.store import Store
from tests.change.tools import endless


@slet
def passes(item: int) -> None:
    """Do nothing."""


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


def test_channels_come_and_go_in_another_dictionary_since_a_status_may_be_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While the application opens, and while a change removes one: a dictionary that others read stays as it is."""
    create, seen = ComponentManager.create_channel, list[tuple[dict[str, Any], dict[str, Any]]]()

    def looking(self: ComponentManager, *given: Any, **named: Any) -> Any:
        channels = self.opening["numbers"].channels
        seen.append((channels, {**channels}))
        return create(self, *given, **named)

    monkeypatch.setattr(ComponentManager, "create_channel", looking)
    app = Application("numbers")
    first, second = (app.channel(name, kind="queue") for name in ("first", "second"))
    for channel in (first, second):
        app.add(f"into_{channel.name}", endless, out=channel)
        app.add(f"of_{channel.name}", passes, item=channel)
    with Platform(control=False) as platform:
        mesh = platform.apply(app.build())
        channels = platform.deployment("numbers").channels
        seen.append((channels, {**channels}))
        platform.apply(mesh.remove("into_first").remove("of_first"))
        assert [*platform.deployment("numbers").channels] == ["second"]
    assert len(seen) == 3
    assert all(live == then for live, then in seen)


def test_an_application_that_has_ended_can_be_run_again_after_it_could_not_be_stored(tmp_path: Path) -> None:
    """Where the new run cannot be stored, the finished one stays as it was: it is shown, run again, and closed."""
    with Platform(state=tmp_path, control=False) as platform:
        platform.apply(_three_numbers())
        assert platform.wait("numbers", PATIENCE)
        with mock.patch.object(Store, "save", side_effect=StateError("the disk is full")), pytest.raises(StateError):
            platform.apply(_three_numbers())
        assert platform.status("numbers")["state"] == "finished"
        platform.apply(_three_numbers())
        assert platform.wait("numbers", PATIENCE)


def test_a_change_that_is_settled_while_its_application_is_removed_begins_no_checkpoints(tmp_path: Path) -> None:
    """The checkpointer of an application that is removed stays away: the next one of that name has one of its own."""
    with Platform(state=tmp_path, control=False) as platform:
        app = Application("numbers")
        app.durable(every=60)
        app.add("sink", "stock:show", item=app.add("numbers", "stock:count_up", to=3))
        platform.apply(app.build())
        running, applications = platform.deployment("numbers"), platform._applications
        last = applications.checkpoints.last

        def then_settled(deployment: Deployment, seconds: float, **how: bool) -> None:
            last(deployment, seconds, **how)
            applications.checkpoints.changed(deployment)

        with mock.patch.object(applications.checkpoints, "last", then_settled):
            platform.remove("numbers")
        assert running.finished.is_set()
        assert not applications.checkpoints.takers


def test_a_platform_that_is_closed_while_an_application_is_opened_leaves_it_undeployed(tmp_path: Path) -> None:
    """Whether it is new, goes on from its checkpoint, or has just been opened when the platform is closed."""
    start = Deployment.start

    def closed_in_between(self: Deployment) -> None:
        start(self)
        platform._applications.close()

    app = Application("numbers")
    app.durable(every=60)
    app.add("sink", "stock:show", item=app.add("numbers", "stock:count_up", to=3))
    with Platform(state=tmp_path, control=False) as platform:
        with mock.patch.object(Deployment, "start", closed_in_between), pytest.raises(PlanError, match="was closed"):
            platform.apply(app.build())
        assert platform.applications() == []
        platform.apply(app.build())
    platform = Platform(state=tmp_path, control=False)
    with mock.patch.object(Deployment, "start", closed_in_between), platform:
        assert platform.applications() == []


def test_a_platform_that_is_closed_as_soon_as_an_application_runs_takes_no_checkpoints_of_it(tmp_path: Path) -> None:
    """The application was closed with the platform; nothing is left that begins later."""
    with Platform(state=tmp_path, control=False) as platform:
        applications = platform._applications

        class Closing(dict[str, Any]):
            """The errors of applications that are down; when one is up again the platform is closed."""

            def pop(self, *given: Any) -> Any:
                """Close the platform."""
                applications.close()
                return super().pop(*given)

        app = Application("numbers")
        app.durable(every=60)
        app.add("sink", "stock:show", item=app.add("numbers", "stock:count_up", to=3))
        applications.lost = Closing()
        platform.apply(app.build())
        assert platform.applications() == []
        assert not applications.checkpoints.takers


def test_a_removal_that_is_overtaken_leaves_the_next_application_of_that_name() -> None:
    """Another thread has removed the one that it was to remove, and what runs by then stays."""
    with Platform(control=False) as platform:
        platform.apply(_three_numbers())
        checkpoints = platform._applications.checkpoints
        last = checkpoints.last

        def overtaken(*given: Any, **named: Any) -> None:
            with mock.patch.object(checkpoints, "last", last):
                assert platform.remove("numbers")
                platform.apply(_three_numbers())
            last(*given, **named)

        with mock.patch.object(checkpoints, "last", overtaken):
            assert platform.remove("numbers")
        assert platform.applications() == ["numbers"]
        assert platform.wait("numbers", PATIENCE)
