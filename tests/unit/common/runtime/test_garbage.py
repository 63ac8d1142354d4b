from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import AsyncIterator

import pytest

from common.runtime import garbage
from common.runtime.garbage import FEW, LOOKS, MADE, NEVER, SELDOM, TWICE, YOUNG, Collector


class Loop:
    def __init__(self) -> None:
        self.later: list[tuple[object, ...]] = []

    def call_later(self, *arguments: object) -> None:
        self.later.append(arguments)


@pytest.mark.parametrize(
    ("made", "more", "collects"),
    [(MADE - 1, 0, False), (MADE, FEW, True), (MADE, FEW + 1, False), (SELDOM * MADE, 20 * FEW, True)],
)
def test_all_objects_are_looked_through_while_there_are_few_or_after_much_longer(
    made: int, more: int, collects: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not counted for that: with a million of them that took 0.36 s, every ten seconds."""
    full: list[bool] = []
    each = YOUNG * (TWICE + 1)
    counts = iter([(made % each % YOUNG, made % each // YOUNG, made // each), (0, 0, made // each + 1)])
    monkeypatch.setattr(gc, "get_count", lambda: next(counts, (0, 0, made // each + 1)))
    blocks = iter([70_000, 70_000 + more])
    monkeypatch.setattr(sys, "getallocatedblocks", lambda: next(blocks))
    monkeypatch.setattr(gc, "get_objects", None)
    monkeypatch.setattr(gc, "collect", lambda generation=2: full.append(generation == 2))
    loop = Loop()
    collector = Collector()
    for _ in range(LOOKS):
        collector._look(loop)
    assert full == [False] * (LOOKS - 1) + [collects]
    assert len(loop.later) == LOOKS  # it looks again


def test_python_itself_never_looks_through_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "freeze", lambda: None)
    before = gc.get_threshold()
    try:
        garbage.begin()
        assert gc.get_threshold() == (2_000, 2, NEVER)
    finally:
        gc.set_threshold(*before)


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    collector = Collector()
    collector.start(asyncio.get_running_loop())
    yield collector
    collector.stop()


@pytest.mark.usefixtures("collector")
async def test_new_objects_in_the_place_of_old_ones_do_not_stay_young() -> None:
    """Python counts what is made less what goes: then it sees nothing new, and later hundreds of thousands at once."""
    kept = [[number] for number in range(10_000)]
    gc.collect(1)
    for number in range(len(kept)):
        kept[number] = [number]

    def young() -> int:
        return sum(any(each is kept[place] for each in gc.get_objects(0) + gc.get_objects(1)) for place in (0, -1))

    assert young() == 2, "Python looks at them by itself: this test proves nothing"
    while young():
        await asyncio.sleep(0.05)
