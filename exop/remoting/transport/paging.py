"""Long answers in pieces: each call stays short, and no reply meets the largest frame."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Annotated, Generic, TypeVar

import msgspec

from exop.remoting.transport.codec import Request

T = TypeVar("T")


class PageRequest(Request, frozen=True, kw_only=True):
    """Ask for the part of a list that comes *after* a key; sub-class it to ask for more than that."""

    after: str = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 200


class Page(msgspec.Struct, Generic[T], frozen=True):
    """A part of a list, and the key to ask for the next with; None when there is no more."""

    items: list[T]
    after: str | None = None


def page(items: Iterable[T], request: PageRequest, key: Callable[[T], str]) -> Page[T]:
    """Cut the page that *request* asks for.

    By key and not by position: what comes or goes between two calls neither repeats nor hides the others.
    """
    following = (item for item in items if key(item) > request.after)
    found = heapq.nsmallest(request.limit + 1, following, key=key)
    if len(found) <= request.limit:
        return Page(found)
    return Page(found[:-1], key(found[-2]))
