"""Lists that a cloud answers in pages. Pure but for what it is passed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from types import MappingProxyType
from typing import TypeVar

from seed.providers.flavour import CloudError, Headers, Query

T = TypeVar("T")

MAX_PAGES = 50


async def listed_pages(
    query: Query,
    url: str,
    page: type[T],
    following: Callable[[T, int], Mapping[str, str] | None],
    *,
    parameters: Mapping[str, str],
    headers: Headers = MappingProxyType({}),
) -> AsyncIterator[T]:
    """Each page, decoded as `page`. `following(page, number)`: what is other in the query of the next one than in
    `parameters`, None after the last; numbers begin with 1. Raises CloudError."""
    more: Mapping[str, str] = {}
    for number in range(1, MAX_PAGES + 1):
        answer = await query.http.request("GET", url, headers=headers, query={**parameters, **more})
        if answer.status != 200:
            raise CloudError(f"answered {answer.status}")
        found = answer.json(page)
        yield found
        following_query = following(found, number)
        if following_query is None:
            return
        more = following_query
    raise CloudError(f"answers more than {MAX_PAGES} pages")
