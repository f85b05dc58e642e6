"""The compiled ways into a slet's port: one small closure per shape of result, nothing looked up per item.

Each builder gets `call` (the slet, bound to its state and settings), the entry that follows, and `stuck`, which takes
an item for which the slet raised: it applies the policy and, when a later try succeeds, sends the results on. What
leaves an item leaves after the slet has returned, so a slet that raises has sent nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import length_hint
from typing import Any

from exop.model.items import CONTROL
from exop.model.spec import Result
from exop.runtime.entry import Entry, Push

Call = Callable[[Any], Any]
Stuck = Callable[[Any, Exception, Push], None]


def one(call: Call, to: Entry, stuck: Stuck) -> tuple[Push, Push]:
    """Exactly one item out for each one in."""
    push_next, batch_next = to.push, to.push_batch

    def push(item: Any) -> None:
        try:
            result = call(item)
        except Exception as error:  # noqa: BLE001 (whatever a slet raises; so below)
            stuck(item, error, push_next)
            return
        push_next(result)

    def push_batch(items: list[Any]) -> None:
        results: list[Any] = []
        rest = iter(items)
        while True:
            try:
                results.extend(map(call, rest))
            except Exception as error:  # noqa: BLE001
                failed = items[len(items) - length_hint(rest) - 1]
                if results:
                    batch_next(results)
                results = []
                stuck(failed, error, push_next)
                continue
            break
        if results:
            batch_next(results)

    return push, push_batch


def optional(call: Call, to: Entry, stuck: Stuck) -> tuple[Push, Push]:
    """One item out, or none."""
    push_next, batch_next = to.push, to.push_batch

    def push(item: Any) -> None:
        try:
            result = call(item)
        except Exception as error:  # noqa: BLE001
            stuck(item, error, push_some)
            return
        if result is not None:
            push_next(result)

    def push_some(result: Any) -> None:
        if result is not None:
            push_next(result)

    def batch_some(results: list[Any]) -> None:
        some = [result for result in results if result is not None]
        if some:
            batch_next(some)

    filtered = Entry(push_some, batch_some, to.control)
    return push, one(call, filtered, stuck)[1]


def many(call: Call, to: Entry, stuck: Stuck) -> tuple[Push, Push]:
    """Any number of items out."""
    push_next, batch_next = to.push, to.push_batch

    def push(item: Any) -> None:
        try:
            results = [*call(item)]
        except Exception as error:  # noqa: BLE001
            stuck(item, error, push_all)
            return
        for result in results:
            push_next(result)

    def push_all(results: Any) -> None:
        for result in results:
            push_next(result)

    def push_batch(items: list[Any]) -> None:
        results: list[Any] = []
        for item in items:
            try:
                results += [*call(item)]
            except Exception as error:  # noqa: BLE001
                if results:
                    batch_next(results)
                results = []
                stuck(item, error, push_all)
        if results:
            batch_next(results)

    return push, push_batch


def none(call: Call, to: Entry, stuck: Stuck) -> tuple[Push, Push]:
    """Nothing out: a sink, or a slet that pushes by further ports only."""

    def done(_: Any) -> None:
        """Nothing leaves."""

    def push(item: Any) -> None:
        try:
            call(item)
        except Exception as error:  # noqa: BLE001
            stuck(item, error, done)

    def push_batch(items: list[Any]) -> None:
        for item in items:
            try:
                call(item)
            except Exception as error:  # noqa: BLE001
                stuck(item, error, done)

    return push, push_batch


def careful(call: Call, send: Push, stuck: Stuck) -> tuple[Push, Push]:
    """Any shape, where results are mixed with control items or batches, or further ports are to be flushed.

    *send* takes what `call` returned and sends all that belongs to the item.
    """

    def push(item: Any) -> None:
        try:
            result = call(item)
        except Exception as error:  # noqa: BLE001
            stuck(item, error, send)
            return
        send(result)

    def push_batch(items: list[Any]) -> None:
        for item in items:
            push(item)

    return push, push_batch


def sender(result: Result, to: Entry, *, batches: bool) -> Push:
    """What sends on whatever a slet returned: control items as such, batches by one call."""
    push_payload = to.push_batch if batches else to.push

    def send_one(payload: Any) -> None:
        if payload is None:
            return
        if isinstance(payload, CONTROL):
            to.control(payload)
        else:
            push_payload(payload)

    def send_many(payloads: Any) -> None:
        for payload in payloads:
            send_one(payload)

    if result == "none":
        return lambda _payload: None
    return send_many if result == "many" else send_one


#: The builder for each shape whose results are plain single items.
PLAIN = {"one": one, "optional": optional, "many": many, "none": none}
