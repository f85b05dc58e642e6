"""Fusion of a chain of directly connected slets into one function: a hop costs one call of the slet.

A chain of objects or closures would need a second call per hop, and a list per hop for a batch. Instead, the source of
one function is generated for the shapes of the slets in the chain, compiled once per sequence of shapes, and run with
the slets of the chain as globals. Each slet is called inside a `try` statement, which costs nothing unless the slet
raises. Then its handler (`stuck`) takes the item, and results of a retry enter the next slet by its entry (`resend`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import CodeType
from typing import Any, NoReturn, cast

from exop.model.items import CONTROL
from exop.model.slets.spec import Result
from exop.runtime.dataflow.batches import to_items, weight
from exop.runtime.dataflow.entry import NOTHING, Entry, Link, Push, Shape, Unwind, count_items, in_turn, method_for
from exop.runtime.dataflow.metrics import Tally

#: The largest number of slets in one function; a longer chain becomes a chain of such functions.
LONGEST = 16
#: For each generated function, by its file name: the global with the entry into the slet that a line calls.
CALLS: dict[str, dict[int, str]] = {}
#: A call of the slet with this number, in a line of generated code.
_CALL = re.compile(r"\bcall(\d+)\(")


def fused(entry: Entry, *, counted: bool) -> Push:
    """Compile the method for one item, through the slet at *entry* and the slets directly downstream.

    If *counted*, the method counts the item; otherwise the caller does. In the slets, only deviations are counted.
    """
    links = _chain(entry)
    code = _item_code(tuple(link.result for link in links), counted=counted)
    return _made(code, links, {"tail": links[-1].to.uncounted})


def fused_batch(entry: Entry) -> Push:
    """Compile the method for a batch, through slets with one result for each item, and a last one of any shape."""
    links = _chain(entry)
    whole = next((number + 1 for number, link in enumerate(links) if link.result != "one"), len(links))
    links = links[:whole]
    code = _batch_code(tuple(link.result for link in links))
    return _made(code, links, {"tail_batch": links[-1].to.push_batch, "to_items": to_items})


def _chain(entry: Entry) -> list[Link]:
    links: list[Link] = []
    while len(links) < LONGEST and entry.link is not None:
        links.append(entry.link)
        if links[-1].result == "none":  # it may still have an output to which it pushes items itself
            break
        entry = links[-1].to
    return links


def _made(code: CodeType, links: Sequence[Link], tail: Mapping[str, Any]) -> Push:
    """Run generated code with the slets of one chain as its globals."""
    names: dict[str, Any] = {**tail, "NOTHING": NOTHING, "in_turn": in_turn, "Unwind": Unwind, "no_item": _no_item}
    for number, link in enumerate(links):
        names |= {f"{name}{number}": value for name, value in vars(link).items()} | {"last": link.tally}
    exec(code, names)
    return cast("Push", names["push"])


@lru_cache(maxsize=512)
def _item_code(shapes: tuple[Shape, ...], *, counted: bool) -> CodeType:
    lines = ["def push(x0):", *(["    tally0.received += 1"] if counted else [])]
    for number, shape in enumerate(shapes):
        lines += [f"    {line}" for line in _step(number, shape, "return")]
    if shapes[-1] != "none":
        lines.append(f"    tail(x{len(shapes)})")
    return _compiled(f"<fused {'-'.join(shapes)}{' counted' if counted else ''}>", lines)


def _step(number: int, shape: Shape, leave: str) -> list[str]:
    """Return the lines for one slet: call it, and continue with a single result; send several results separately."""
    here, following = f"x{number}", f"x{number + 1}"
    failed = ["except BaseException as error:", f"    stuck{number}({here}, error, resend{number})", f"    {leave}"]
    if shape == "none":
        return ["try:", f"    call{number}({here})", *failed]
    if shape not in ("many", "some"):
        steps = ["try:", f"    {following} = call{number}({here})", *failed]
        stop = [f"if {following} is None:", f"    tally{number}.stopped += 1", f"    {leave}"]
        return steps if shape == "one" else [*steps, *stop]
    # Most calls return one item, which needs no list.
    return [
        "try:",
        f"    {following} = NOTHING; more = None",
        f"    for each in call{number}({here}):",
        "        if each is None:",
        "            continue" if shape == "some" else "            no_item()",
        f"        if {following} is NOTHING:",
        f"            {following} = each",
        "        elif more is None:",
        f"            more = [{following}, each]",
        "        else:",
        "            more.append(each)",
        *failed,
        "if more is not None:",
        f"    tally{number}.stopped += 1; tally{number}.sent += len(more)",
        f"    in_turn(to{number}, more)",
        f"    {leave}",
        f"if {following} is NOTHING:",
        f"    tally{number}.stopped += 1",
        f"    {leave}",
    ]


@lru_cache(maxsize=512)
def _batch_code(shapes: tuple[Shape, ...]) -> CodeType:
    """Return the function for batches: items pass through slets with one result each, and a last slet of any shape.

    The target counts the batch that it receives. Therefore all items that the last slet has processed are counted as
    stopped there (the whole batch, except for items that failed before), and the results as sent.
    """
    lines = ["def push(batch):", "    items = to_items(batch, item0)", "    size = len(items); tally0.received += size"]
    lines += [f"    metrics{n}.batches += 1" for n in range(len(shapes))]
    lines += ["    out = []; keep = out.append", "    rest = iter(items)", "    try:", "        for x0 in rest:"]
    for number, shape in enumerate(shapes):
        here, following, call = f"x{number}", f"x{number + 1}", f"call{number}(x{number})"
        work = {"one": f"{following} = {call}", "optional": f"{following} = {call}", "none": call}
        work["many"] = f"{following} = [no_item() if each is None else each for each in {call}]"
        lines += [
            "            try:",
            f"                {work.get(shape, f'{following} = [*{call}]')}",
            "            except BaseException as error:",
            "                size -= 1",
            "                if out:",
            "                    try:",
            "                        last.sent += len(out); tail_batch(out)",
            "                    except Unwind as unwound:",
            f"                        if not aside{number}({here}, error, unwound):",
            f"                            tally{number}.give_back(1)",
            f"                            unwound.then(placeholder{number}, 'push', [{here}])",
            "                        raise",
            "                    out = []; keep = out.append",
            f"                stuck{number}({here}, error, resend{number})",
            "                continue",
        ]
    keeping: dict[Shape, list[str]] = {
        "one": [f"            keep({following})"],
        "optional": [f"            if {following} is not None:", f"                keep({following})"],
        "many": [f"            out += {following}"],
        "some": [f"            out += [each for each in {following} if each is not None]"],
    }
    lines += keeping.get(shapes[-1], [])
    lines += [
        "    except Unwind as unwound:",
        "        rest = [*rest]; tally0.give_back(len(rest)); last.stopped += size - len(rest)",
        "        unwound.then(placeholder0, 'push', rest); raise",
        "    last.stopped += size",
        "    if out:",
        "        last.sent += len(out); tail_batch(out)",
    ]
    return _compiled(f"<fused batch {'-'.join(shapes)}>", lines)


def _compiled(name: str, lines: list[str]) -> CodeType:
    called = {number: _CALL.search(line) for number, line in enumerate(lines, 1)}
    CALLS[name] = {number: f"placeholder{found[1]}" for number, found in called.items() if found is not None}
    return compile("\n".join(lines), name, "exec")


def _no_item() -> NoReturn:
    """Refuse a `None` among the results of a slet whose annotation permits none."""
    cure = "yield nothing, or write `-> Iterator[T | None]`, which leaves None out"
    raise TypeError(f"it yields None, which is no item: {cure}")


def sender(result: Result, to: Entry, tally: Tally, *, batches: bool) -> tuple[Push, Callable[[Unwind, Any], None]]:
    """Return the function that sends results: control items as such, batches by one call, and nothing for `None`.

    The second function adds results to an `Unwind`, if the driver unwinds before they are sent. Both count them.
    """
    push_payload = to.push_batch if batches else to.push

    def send_one(payload: Any) -> None:
        if payload is None:
            return
        if isinstance(payload, CONTROL):
            to.control(payload)
        else:
            tally.sent += weight(payload) if batches else 1
            push_payload(payload)

    def send_many(payloads: Any) -> None:
        rest = iter(payloads)
        try:
            for payload in rest:
                send_one(payload)
        except Unwind as unwound:
            leave(unwound, rest)
            raise

    def leave(unwound: Unwind, payloads: Any) -> None:
        for payload in payloads if result == "many" else () if result == "none" else (payloads,):
            if payload is not None:
                method = method_for(payload, whole=batches)
                tally.sent += count_items(method, payload)
                unwound.then(to, method, [payload])

    return {"none": lambda _: None, "many": send_many}.get(result, send_one), leave
