"""When much comes at once, what can wait does, but not for ever."""

from __future__ import annotations

from common.runtime.burst import GAP, MANY, PATIENCE, SPAN, BurstDetector


class Site:
    def __init__(self) -> None:
        self.now = 100.0
        self.busy = False
        self.rush = BurstDetector(lambda: self.busy, clock=lambda: self.now)

    def come(self, count: int, every: float = 0.01) -> None:
        for _ in range(count):
            self.now += every
            self.rush.note()


def test_nothing_waits_for_a_few() -> None:
    site = Site()
    site.come(MANY - 1)
    assert not site.rush.defers("a")
    site.come(MANY, every=SPAN / MANY * 1.1)
    assert not site.rush.defers("a")


def test_what_can_wait_does_until_no_more_come() -> None:
    site = Site()
    site.come(MANY)
    assert site.rush.defers("a")
    site.now += GAP / 2
    site.come(1)
    site.now += GAP / 2
    assert site.rush.defers("a")
    site.now += GAP
    assert not site.rush.defers("a")


def test_it_waits_while_what_came_is_not_done() -> None:
    site = Site()
    site.busy = True
    assert site.rush.defers("a")
    site.busy = False
    assert not site.rush.defers("a")


def test_nothing_waits_for_longer_than_its_patience_and_what_comes_later_waits_anew() -> None:
    site = Site()
    site.busy = True
    assert site.rush.defers("a")
    site.now += PATIENCE
    assert not site.rush.defers("a")
    assert site.rush.defers("b")
    assert not site.rush.defers("a")
    site.busy = False
    assert not site.rush.defers("b")
    site.busy = True
    assert site.rush.defers("a")
