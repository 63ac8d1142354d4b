"""A kind that is not served any more is told as deleted in pieces, and one that comes back meanwhile keeps the rest."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from common.kube.client.api_client import Cluster
from common.kube.client.meta import Object, ObjectMeta
from common.kube.client.resource import Listing, Resource
from common.kube.controller.discovery import FollowedKind, Served
from common.kube.controller.dynamic_informers import Following
from common.kube.controller.store import Change
from common.runtime import pieces
from tests.unit.fake_api_server import eventually

KIND = Resource("g", "v1", "things", "Thing", True, Object)
KEYS = [f"n/t{number}" for number in range(10)]


class World:
    """An API server that serves one kind, or does not."""

    def __init__(self) -> None:
        self.served: Resource[Any] | None = KIND
        self.told: list[tuple[str, bool]] = []  # key, and whether it is there
        self.changed = lambda: None
        wanted = FollowedKind("g", "Thing", ("v1",), Object, on_change=self.take)
        self.following = Following(cast(Cluster, self), cast(Served, self), {"things": wanted})

    name = "c1"

    def take(self, change: Change[Object]) -> None:
        known = change.new or change.old
        assert known is not None
        self.told.append((known.metadata.key, change.new is not None))

    def on_change(self, listener: Any) -> Any:
        self.changed = listener
        return lambda: None

    def find(self, _wanted: Any, _now: Any = None) -> Resource[Any] | None:
        return self.served

    def find_defined(self, _wanted: Any, _now: Any) -> None:
        return None

    async def list(self, *_: Any, **__: Any) -> Listing[Object]:
        metas = [ObjectMeta(name=key[2:], namespace="n", uid=f"uid-{key}", resource_version="1") for key in KEYS]
        return Listing([Object(metadata=meta) for meta in metas], "1")

    def open_watch(self, *_: Any, **__: Any) -> Any:
        async def read() -> Any:
            await asyncio.Event().wait()

        stream = SimpleNamespace(read=read)

        class Opened:
            async def __aenter__(self) -> Any:
                return stream

            async def __aexit__(self, *_: object) -> None:
                return None

        return Opened()

    def serve(self, served: Resource[Any] | None) -> None:
        self.served = served
        self.changed()


@pytest.mark.parametrize("comes_back", [False, True])
async def test_very_many_objects_of_a_kind_that_is_gone_are_told_in_pieces(
    monkeypatch: pytest.MonkeyPatch, comes_back: bool
) -> None:
    monkeypatch.setattr(pieces, "PIECE_SECONDS", 0.0)
    world = World()
    running = asyncio.create_task(world.following.run())
    await eventually(lambda: len(world.told) == len(KEYS))
    world.told.clear()
    world.serve(None)
    while not world.told:
        await asyncio.sleep(0)
    told = [key for key, _ in world.told]
    assert len(told) < len(KEYS) and world.following.get("things") is None
    if comes_back:
        world.serve(KIND)
        world.following._adjust()  # as `wait_settled` does
        reflector = world.following.get("things")
        assert reflector is not None
        await eventually(reflector.synced.is_set)
        assert world.told == [(key, False) for key in told] + [(key, True) for key in told], "the rest was known"
    else:
        await eventually(lambda: len(world.told) >= len(KEYS))
        assert world.told == [(key, False) for key in KEYS]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
