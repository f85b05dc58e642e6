"""Snapshots: who is named while a checkpoint is captured."""

import pytest

from exop import Application
from exop.errors import NotStorable
from exop.runtime.durable import snapshot as module
from exop.runtime.durable.snapshot import CAPTURING, capture
from exop.runtime.supervision.budget import Owner, UserCalls, current_call
from exop.stock.slets import count_up
from tests.rig import Takes, parked


def test_what_waits_is_encoded_under_the_name_of_its_slet_or_channel(rig, monkeypatch):
    """A time-out meanwhile names who holds the checkpoint up, and nobody else."""
    culprits, encode = dict[str, str](), module.encode

    def noted(state, place, **limits):
        culprits[place.partition(":")[0]] = current_call().component.title
        return encode(state, place=place, **limits)

    monkeypatch.setattr(module, "encode", noted)
    app = Application("app")
    for kind in ("log", "queue"):
        channel = app.channel(f"a-{kind}", kind)
        app.add(f"into-{kind}", count_up, out=channel)
        app.add(f"from-{kind}", Takes, item=channel)
    deployment = rig.deploy(app)
    owners = {name: Owner("app", name, f"app/{name}") for name in deployment.channels}
    with parked(deployment):
        work = lambda: capture(deployment, "", 1, owners, None)  # noqa: E731
        UserCalls().run(deployment.components["into-log"], CAPTURING, work, 60)
    assert culprits == {
        **{f"node {name}": name for name in deployment.components},
        **{f"channel {name}": name for name in deployment.channels},
    }


@pytest.mark.parametrize(
    ("item", "problem"),
    [("a\udc80", "it contains a lone surrogate"), ((one for one in "ab"), "annotate the slet that returns it with")],
)
def test_an_item_on_its_way_that_cannot_be_stored_is_refused_by_node_and_port(rig, item, problem):
    """Not by the name that the checkpoint has for all of them."""
    app = Application("app")
    app.add("sink", Takes, item=app.add("numbers", count_up, to=0))
    deployment = rig.deploy(app)
    work = [("sink.item", "push", 1), ("sink.item", "push", item)]
    with parked(deployment), pytest.raises(NotStorable, match=rf"^sink\.item: an item that waits there: .*{problem}"):
        capture(deployment, "", 1, {}, (work, (), ()))
