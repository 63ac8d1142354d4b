from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from common.quota import shares
from common.quota.account import MAX_RESERVATIONS, MAX_TEXT

ROOM = 4000
LEAST = ROOM // shares.KEPT // shares.FEW


class Room:
    def __init__(self, room: int = ROOM) -> None:
        self.room = room
        self.has: dict[int, int] = {}

    @property
    def filled(self) -> int:
        return sum(self.has.values())

    def take(self, source: int, more: int = 1) -> bool:
        has = self.has.get(source, 0)
        if not shares.may_take(has, more, self.filled, self.room):
            return False
        self.has[source] = has + more
        return True

    def fill(self, source: int) -> int:
        step = self.room
        while step:
            if not self.take(source, step):
                step //= 2
        return self.has.get(source, 0)


def test_one_source_alone_may_fill_most_of_it() -> None:
    assert ROOM / 2 < Room().fill(1) < ROOM * 3 / 4


def test_sources_that_take_in_turn_get_as_much_as_each_other() -> None:
    for sources in (2, 3, 10, 40):
        room = Room()
        while sum(room.take(source) for source in range(sources)):
            pass
        assert max(room.has.values()) - min(room.has.values()) <= shares.TIMES
        assert room.filled > ROOM * 3 / 5


def test_each_that_comes_later_finds_room_while_the_others_keep_theirs() -> None:
    room = Room()
    assert [room.fill(source) for source in range(8)] == [2250, 562, 141, 35, 20, 20, 20, 20]
    assert all(room.fill(source) == LEAST for source in range(8, shares.FEW))


@given(st.integers(0, 5000), st.integers(0, 5000), st.integers(1, 5000))
def test_tenants_share_what_their_source_may_have(has: int, others: int, room: int) -> None:
    most = shares.of_source(has, others + has, room)
    if others <= room:
        assert not shares.may_take(has, most + 1 - has, others + has, room) or most < has
        assert most <= has or shares.may_take(has, most - has, others + has, room) or most + others > room


def test_sources_take_turns_and_in_each_its_tenants() -> None:
    waiting = [*[("a", "x")] * 3, *[("a", "y")] * 2, *[("b", "")] * 3]
    assert shares.rounds(waiting) == [0, 2, 4, 1, 3, 0, 1, 2]
    assert shares.rounds([]) == []


def test_a_source_that_has_little_has_room_for_some_machines_in_a_ledger() -> None:
    assert MAX_RESERVATIONS // shares.KEPT // shares.FEW == 20
    assert MAX_TEXT // shares.KEPT // shares.FEW == 5000


@given(
    st.integers(400, 5000),
    st.lists(st.tuples(st.integers(0, shares.FEW - 1), st.one_of(st.none(), st.integers(1, 3000))), max_size=120),
    st.integers(0, shares.FEW - 1),
)
def test_whatever_others_took_and_gave_back_each_of_few_sources_finds_its_least_share(
    size: int, steps: list[tuple[int, int | None]], late: int
) -> None:
    """A step is a source that fills its share, or gives so much back."""
    room = Room(size)
    for source, back in steps:
        if back is None:
            room.fill(source)
        else:
            room.has[source] = max(room.has.get(source, 0) - back, 0)
        assert room.filled <= room.room
    assert room.fill(late) >= size // shares.KEPT // shares.FEW


@given(st.integers(0, 10**7), st.integers(0, 10**7), st.integers(1, 10**7), st.integers(0, 10**7))
def test_who_has_less_may_take_what_one_that_has_more_may(has: int, less: int, more: int, room: int) -> None:
    filled = max(has, less)
    if shares.may_take(max(has, less), more, filled, room):
        assert shares.may_take(min(has, less), more, filled, room)
        assert filled + more <= room
