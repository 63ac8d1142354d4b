"""Metrics as text, for everybody who asks: they are rendered at most once a second, in pieces, so that the event loop
has time for others meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from common.runtime.pieces import in_pieces

KEPT_SECONDS = 1.0
PIECE = 100  # samples, of which one takes some microseconds

_OPEN_METRICS = "application/openmetrics-text; version=1.0.0"


class Exposition:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._texts: dict[str, _Text] = {}

    async def read(self, accept: str) -> tuple[bytes, str]:
        """The metrics and their media type. `accept`: the header of the request."""
        wanted = _OPEN_METRICS if _wants_open_metrics(accept) else ""
        text = self._texts.setdefault(wanted, _Text(self._registry, wanted))
        return await text.read(), text.content_type


class _Text:
    """Of one format."""

    def __init__(self, registry: CollectorRegistry, accept: str) -> None:
        self._encode, self.content_type = choose_encoder(accept)
        self._end = self._encode(CollectorRegistry())
        self._registry = registry
        self._content = b""
        self._until = 0.0
        self._rendering: asyncio.Task[None] | None = None

    async def read(self) -> bytes:
        if time.monotonic() >= self._until:
            if self._rendering is None or self._rendering.done():
                self._rendering = asyncio.create_task(self._render(), name="render metrics")
            await asyncio.shield(self._rendering)  # others may wait for it, too
        return self._content

    async def _render(self) -> None:
        rendered = bytearray()
        async for part in in_pieces(self._parts()):
            rendered += part
        rendered += self._end
        self._content = bytes(rendered)
        self._until = time.monotonic() + KEPT_SECONDS

    def _parts(self) -> Iterator[bytes]:
        for family in self._registry.collect():
            yield b""  # collecting it may have taken long
            for begin in range(0, max(len(family.samples), 1), PIECE):
                part = Metric(family.name, family.documentation, family.type, family.unit)
                part.samples = family.samples[begin : begin + PIECE]
                text = self._encode(_Only(part)).removesuffix(self._end)
                yield text if begin == 0 else _without_head(text)


class _Only(Collector):
    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


def _without_head(text: bytes) -> bytes:
    """Without the comments of the family, which come first."""
    begin = 0
    while text.startswith(b"# ", begin):
        begin = text.index(b"\n", begin) + 1
    return text[begin:]


def _wants_open_metrics(accept: str) -> bool:
    for each in accept.split(","):
        media_type, *parameters = (part.strip() for part in each.split(";"))
        if media_type == "application/openmetrics-text" and "version=0.0.1" not in parameters:
            return True
        if media_type == "text/plain" and "version=1.0.0" in parameters:
            return False
    return False
