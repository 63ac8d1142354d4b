"""A page of a list, from its bytes to objects, while others run."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from common.kube.client import deep_json
from common.kube.client.bounds import MAX_PAGE_VALUES, MAX_VALUES
from common.kube.client.errors import TooLarge
from common.kube.client.meta import Object
from common.kube.client.resource import Broken, Name, Resource, describe_broken
from common.runtime.pieces import in_one_piece, in_pieces

LARGE = 64 * 1024  # bytes: fewer are taken apart in much less than a piece

T = TypeVar("T", bound=Object)


class ListMeta(msgspec.Struct, rename="camel"):
    resource_version: Name = ""
    continue_: Annotated[str, Meta(max_length=16 * 1024)] = msgspec.field(default="", name="continue")


@lru_cache(maxsize=16)
def _page_decoder(limit: int) -> msgspec.json.Decoder[Any]:
    """An array with more items ends the decoding: each would be an object, long before it could be counted."""
    fields = [(f"item{number}", msgspec.Raw, None) for number in range(limit)]
    items = msgspec.defstruct("Items", fields, array_like=True, forbid_unknown_fields=True)
    page = msgspec.defstruct("Page", [("metadata", ListMeta), ("items", items | None, None)])
    return msgspec.json.Decoder(page)


async def read_page(
    resource: Resource[T], content: bytes, limit: int, items: list[T], broken: list[Broken]
) -> ListMeta:
    """Adds what the page holds to `items` and `broken`; others run between the pieces.

    Raises msgspec.MsgspecError if it is no list, or one of more than `limit` objects, and TooLarge if several have so
    many values together that fewer are to be asked for.
    """
    if len(content) > LARGE:
        await in_one_piece()
    page = deep_json.decode(_page_decoder(limit).decode, content, most=len(content))
    raws = msgspec.structs.astuple(page.items) if page.items is not None else ()
    if limit > 1 and len(content) > MAX_PAGE_VALUES and await _values_to_read(raws) > MAX_PAGE_VALUES:
        raise TooLarge(f"a page of {resource.plural} has more than {MAX_PAGE_VALUES} values")
    async for raw in in_pieces(raws):
        if raw is None:
            break
        try:
            items.append(deep_json.decode(resource.read, raw))
        except msgspec.MsgspecError as error:
            broken.append(describe_broken(raw, error))
    meta: ListMeta = page.metadata
    return meta


async def weight_of(resource: Resource[T], page: bytes, items: list[T]) -> int:
    """About the bytes that what was read of a page takes here."""
    if resource.weigh is None:
        return len(page)
    return sum([resource.weigh(item) async for item in in_pieces(items)])


async def _values_to_read(raws: Iterable[msgspec.Raw | None]) -> int:
    """An object with too many is not read."""
    found = [deep_json.values(bytes(raw)) async for raw in in_pieces(raws) if raw is not None]
    return sum(values for values in found if values <= MAX_VALUES)
