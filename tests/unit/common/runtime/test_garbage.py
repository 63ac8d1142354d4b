from __future__ import annotations

import asyncio
import gc
import sys

import pytest

from common.runtime import garbage
from common.runtime.garbage import EVERY, FEW, SELDOM, FullCollections


class Loop:
    def __init__(self) -> None:
        self.later: list[tuple[object, ...]] = []

    def call_later(self, *arguments: object) -> None:
        self.later.append(arguments)


@pytest.mark.parametrize(
    ("since", "more", "collects"),
    [(EVERY - 1, 0, False), (EVERY, FEW, True), (EVERY, FEW + 1, False), (SELDOM * EVERY, 20 * FEW, True)],
)
def test_all_objects_are_looked_through_while_there_are_few_or_after_much_longer(
    since: int, more: int, collects: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not counted for that: with a million of them that took 0.36 s, every ten seconds."""
    done: list[bool] = []
    monkeypatch.setattr(gc, "get_count", lambda: (0, 0, since))
    blocks = iter([70_000, 70_000 + more])
    monkeypatch.setattr(sys, "getallocatedblocks", lambda: next(blocks))
    monkeypatch.setattr(gc, "get_objects", None)
    monkeypatch.setattr(gc, "collect", lambda: done.append(True))
    loop = Loop()
    FullCollections()._look(loop)
    assert bool(done) == collects
    assert len(loop.later) == 1  # it looks again


def test_python_itself_never_looks_through_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "freeze", lambda: None)
    before = gc.get_threshold()
    try:
        garbage.begin()
        assert gc.get_threshold() == (2_000, 2, 2**31 - 1)
    finally:
        gc.set_threshold(*before)


async def test_the_program_looks_from_time_to_time(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = asyncio.Event()
    monkeypatch.setattr(garbage, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(gc, "get_count", lambda: looked.set() or (0, 0, 0))
    collections = FullCollections()
    collections.start(asyncio.get_running_loop())
    async with asyncio.timeout(30):
        await looked.wait()
    collections.stop()
