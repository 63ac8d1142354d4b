"""An open watch, as a stream of events."""

from __future__ import annotations

from asyncio import get_running_loop, timeout_at
from collections.abc import Callable
from typing import Generic, Self, TypeVar

import aiohttp
import msgspec

from common.kube.client import deep_json
from common.kube.client.bounds import MAX_BODY, Room, Taken
from common.kube.client.errors import Malformed, TooLarge, Unavailable, api_error
from common.kube.client.meta import Object
from common.kube.client.resource import Resource, WatchEvent, any_event, check_names, describe_broken
from common.kube.client.transport import Pace, RefusedAnswer, describe, reading
from common.runtime.pieces import in_one_piece, in_pieces, own_time

T = TypeVar("T", bound=Object)

PART = 64  # bytes that each part of a line takes beside its own: some have one


class WatchStream(Generic[T]):
    """An open watch."""

    def __init__(
        self,
        cluster: str,
        resource: Resource[T],
        response: aiohttp.ClientResponse,
        seconds: float,
        room: Room,
        pace: Pace,
        refused: Callable[[Malformed], Malformed],
    ) -> None:
        """`seconds`: the longest that the watch may take. `refused` is called with the error of what is refused."""
        self._until = get_running_loop().time() + seconds
        self._what = f"cluster {cluster}: watch {resource.plural}"
        self._resource = resource
        self._content = response.content
        self._partial: list[bytes] = []  # of a line whose end has not come
        self._taken = Taken(room, self._what)
        self._pace = pace
        self._refused = refused
        self._work_began: float | None = None  # of what came last, until more is asked for

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._taken.free()

    async def read(self) -> list[WatchEvent[T]] | None:
        """What has come, possibly nothing yet; None when the API server has ended the watch.

        Raises Gone, Malformed when the stream cannot be understood, and Unavailable when the connection broke or the
        watch did not end in time: then nobody sends anything over this connection any more.
        """
        try:
            return await self._read()
        except Malformed as error:
            raise self._refused(error) from None

    async def _read(self) -> list[WatchEvent[T]] | None:
        if self._work_began is not None:
            self._pace.took(own_time() - self._work_began)
        try:
            async with timeout_at(self._until):
                await self._pace.turn()
                if self._pace.share < 1:
                    await in_one_piece()  # for what has come already, `readany` lets nobody else run
                with reading():
                    chunk = await self._content.readany()
        except TimeoutError:
            raise Unavailable(0, "Unavailable", f"{self._what}: the watch did not end in time") from None
        except RefusedAnswer as error:
            why = f"{self._what}: answer is refused: {error}"
            raise Malformed(200, "Malformed", why, wrong=error.wrong) from None
        except (aiohttp.ClientError, OSError) as error:
            raise Unavailable(0, "Unavailable", f"{self._what}: {describe(error)}") from None
        self._work_began = own_time()
        if not chunk:
            if self._partial:
                raise Unavailable(0, "Unavailable", f"{self._what}: connection ended in the middle of an event")
            return None
        head, newline, tail = chunk.rpartition(b"\n")
        if not newline:
            self._keep(tail)
            return []
        lines = b"".join((*self._partial, head)).split(b"\n")
        self._partial = []
        self._taken.free()
        self._keep(tail)
        return [self._decode(line) async for line in in_pieces(lines) if line]

    def _keep(self, part: bytes) -> None:
        if part:
            self._partial.append(part)
            self._taken.add(len(part) + PART)
            if self._taken.size > MAX_BODY:
                raise TooLarge(f"{self._what}: event is larger than {MAX_BODY} bytes")

    def _decode(self, line: bytes) -> WatchEvent[T]:
        try:
            event = deep_json.decode(self._resource.event_decoder.decode, line)
            check_names(event.object.metadata)
        except msgspec.MsgspecError as error:
            return self._decode_loosely(line, error)
        if event.type in ("ADDED", "MODIFIED", "DELETED"):
            return WatchEvent(event.type, event.object.metadata.resource_version, event.object)
        return self._decode_loosely(line, ValueError(f"unknown event {event.type!r}"))

    def _decode_loosely(self, line: bytes, error: Exception) -> WatchEvent[T]:
        """Bookmarks and errors have other fields than objects; the rest here is malformed."""
        try:
            event = deep_json.decode(any_event.decode, line, most=len(line))
        except msgspec.MsgspecError:
            raise Malformed(200, "Malformed", f"{self._what}: stream is not a watch: {error}") from None
        if event.type == "ERROR":
            raise api_error(500, bytes(event.object), self._what)
        broken = describe_broken(event.object, error)
        if event.type == "BOOKMARK":
            return WatchEvent("BOOKMARK", broken.resource_version)
        if event.type not in ("ADDED", "MODIFIED", "DELETED"):
            raise Malformed(200, "Malformed", f"{self._what}: {error}")
        return WatchEvent(event.type, broken.resource_version, None, broken)
