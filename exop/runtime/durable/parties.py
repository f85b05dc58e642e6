"""The participants of a checkpoint beyond mementos: slets that write output with it, and channels that keep files.

A slet may define any of these; all but `prepare_checkpoint` and `flush` are called while the stream runs:

    flush()                      hand on what is buffered; everything stands still
    prepare_checkpoint(number)   what came up to now belongs to this checkpoint; everything stands still; the number
                                 is that of the call before until a checkpoint was committed, then the next one
    sync()                       bring to the disk what the memento counts as written
    commit_checkpoint(number)    the checkpoint is there: put out what belongs to it
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from exop.errors import CheckpointError, NotCommitted
from exop.runtime.component import Component
from exop.runtime.deployment import Deployment
from exop.runtime.durable.failpoints import failpoint
from exop.shown import RAISED, described, message


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
    for channel in deployment.channels.values():
        channel.sync()


def commit(deployment: Deployment, number: int) -> None:
    """The checkpoint is committed.

    Raises:
        NotCommitted: a slet could not put out what belongs to it; the others have.
    """
    failed: NotCommitted | None = None
    told: list[tuple[str, Callable[[], Any]]] = [(one.name, one.committed) for one in deployment.channels.values()]
    told += [(node, partial(hook, number)) for node, hook in _hooks(deployment, "commit_checkpoint")]
    for node, hook in told:
        try:
            hook()
        except RAISED as problem:
            failed = NotCommitted(
                application=deployment.name, node=node, problem=message(problem) or described(problem)
            )
            failed.__cause__ = problem
    failpoint("checkpoint-put-out")
    if failed is not None:
        raise failed


def _call(deployment: Deployment, name: str, *given: Any) -> None:
    for node, hook in _hooks(deployment, name):
        try:
            hook(*given)
        except RAISED as problem:
            told = f"{node}.{name}() raised {described(problem)}"
            raise CheckpointError(application=deployment.name, problem=told, cure="repair that first") from problem


def _hooks(deployment: Deployment, name: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    for node, component in deployment.components.items():
        hook = getattr(component.instance, name, None)
        if callable(hook):
            yield node, hook
