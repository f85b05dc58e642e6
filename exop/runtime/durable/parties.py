"""The participants of a checkpoint beyond mementos: slets that write output with it, and channels that keep files.

A slet may define any of these; all but `prepare_checkpoint` and `flush` are called while the stream runs:

    flush()                      hand on what is buffered; everything stands still
    prepare_checkpoint(number)   what came up to now belongs to this checkpoint; everything stands still; the number
                                 is that of the call before until a checkpoint was committed, then the next one
    sync()                       bring to the disk what the memento counts as written
    commit_checkpoint(number)    the checkpoint is there: put out what belongs to it
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final

from exop.errors import CheckpointError, ComponentFailed, NotCommitted
from exop.runtime.budget import UserCall
from exop.runtime.channel import Channel
from exop.runtime.component import Component
from exop.runtime.deployment import Deployment
from exop.runtime.durable.failpoints import failpoint
from exop.runtime.pause import PATIENCE
from exop.shown import RAISED, described, message

_PHASES: Final = {"prepare_checkpoint": "preparing a checkpoint", "sync": "bringing its output to the disk"}


def tell(component: Component, *, on: bool) -> None:
    """Let a slet know whether there are checkpoints with which it can put out."""
    if component.instance is not None:
        component.instance.checkpointed = on


def puts_out(deployment: Deployment) -> bool:
    """Whether a slet writes output with checkpoints."""
    return any(True for _ in _hooks(deployment, "commit_checkpoint"))


def prepare(deployment: Deployment, number: int) -> None:
    """Prepare the participants: everything stands still, and is captured next.

    Raises:
        CheckpointError: a participant cannot.
    """
    _call(deployment, "prepare_checkpoint", number)


def sync(deployment: Deployment) -> None:
    """Bring to the disk what was captured as written there.

    Raises:
        CheckpointError: a participant cannot.
    """
    _call(deployment, "sync")
    for component in deployment.components.values():
        if component.tie is not None:
            component.tie.sync()
    for channel in _kept(deployment, "sync"):
        channel.sync()


def commit(deployment: Deployment, number: int) -> list[tuple[Component, UserCall[Any]]]:
    """Begin to commit a checkpoint; returns the calls of the slets that put out what belongs to it.

    Raises:
        NotCommitted: a channel could not; the others have.
    """
    begun = []
    for component, hook in _hooks(deployment, "commit_checkpoint"):
        work = partial(hook, number)
        component.committing = component.user.begin(component, "committing a checkpoint", work)
        begun.append((component, component.committing))
    failed: NotCommitted | None = None
    for channel in _kept(deployment, "committed"):
        try:
            channel.committed()
        except RAISED as problem:
            failed = _not_committed(deployment, channel.name, problem)
    if failed is not None:
        raise failed
    return begun


def committed(deployment: Deployment, begun: Iterable[tuple[Component, UserCall[Any]]], seconds: float) -> None:
    """Wait until slets have put out what belongs to a checkpoint, for so many seconds.

    Raises:
        NotCommitted: one could not, or not in time; the others have.
    """
    failed: NotCommitted | None = None
    end = time.monotonic() + seconds
    for component, call in begun:
        try:
            call.result(max(0.0, end - time.monotonic()))
        except RAISED as problem:
            failed = _not_committed(deployment, component.node.name, problem)
        component.committing = None
    failpoint("checkpoint-put-out")
    if failed is not None:
        raise failed


def given_up(deployment: Deployment) -> list[UserCall[Any]]:
    """The calls of an application's slets that were given up and have not returned: they hold checkpoints up."""
    components = [*deployment.components.values()]
    return [call for user in {one.user for one in components} for call in user.abandoned(*components)]


def _kept(deployment: Deployment, name: str) -> list[Channel]:
    """The channels whose kind has this method for itself."""
    plain = getattr(Channel, name)
    return [one for one in deployment.channels.values() if getattr(type(one), name) is not plain]


def _not_committed(deployment: Deployment, node: str, problem: BaseException) -> NotCommitted:
    text = message(problem) or described(problem)
    failed = NotCommitted(application=deployment.name, node=node, problem=text)
    failed.__cause__ = problem
    return failed


def _call(deployment: Deployment, name: str, *given: Any) -> None:
    for component, hook in _hooks(deployment, name):
        try:
            component.user.run(component, _PHASES[name], partial(hook, *given), PATIENCE)
        except ComponentFailed:
            raise
        except RAISED as problem:
            told = f"{component.node.name}.{name}() raised {described(problem)}"
            raise CheckpointError(application=deployment.name, problem=told, cure="repair that first") from problem


def _hooks(deployment: Deployment, name: str) -> Iterator[tuple[Component, Callable[..., Any]]]:
    for component in deployment.components.values():
        hook = getattr(component.instance, name, None)
        if callable(hook):
            yield component, hook
