"""Of two masters on one seed, one waits."""

from __future__ import annotations

from common.api.labels import MASTER_ANNOTATION, MASTER_SEEN_ANNOTATION, UID_LABEL
from common.kube.client.meta import Object, ObjectMeta
from master.seeds.other_master import SILENT, OtherMaster


def copy(master: str, seen: str = "", uid: str = "copy", of: str = "another-seed-uid") -> Object:
    found = {MASTER_ANNOTATION: master, MASTER_SEEN_ANNOTATION: seen}
    annotations = {name: value for name, value in found.items() if value}
    return Object(metadata=ObjectMeta(name="eu-1", uid=uid, labels={UID_LABEL: of}, annotations=annotations))


class Clock:
    """`own.problem` at this time, after a read of the seed at this time."""

    def __init__(self) -> None:
        self.now = 5.0
        self.own = OtherMaster("own", lambda: self.now)

    def problem(self, found: Object | None, seed: str = "seed-uid", *, read_at: float | None = None) -> str:
        return self.own.problem(found, seed, self.now if read_at is None else read_at)

    def waits(self, found: Object, seconds: float) -> bool:
        """Reads every 5 s for so long; whether it found silence then."""
        for _ in range(int(seconds // 5)):
            self.now += 5
            assert self.problem(found), "nothing but the copy of the Seed may be written, however long it is silent"
        return self.own.silent


def test_no_other_master_serves_a_seed_without_a_copy_or_with_one_of_our_own_or_of_nobody() -> None:
    clock = Clock()
    assert [clock.problem(found) for found in (None, copy("own", "1"), copy("", "1"))] == ["", "", ""]


def test_another_master_is_waited_for_until_its_signs_have_stopped() -> None:
    clock = Clock()
    assert "whose Lease has uid other" in clock.problem(copy("other", "2026-11-23T00:00:00Z"))
    assert not clock.waits(copy("other", "2026-11-23T00:00:00Z"), SILENT - 5)
    assert clock.waits(copy("other", "2026-11-23T00:00:00Z"), 5)
    assert not clock.waits(copy("other", "2026-11-23T00:00:30Z"), 5), "it lives"
    assert clock.waits(copy("other", "2026-11-23T00:00:30Z"), SILENT)
    assert not clock.waits(copy("third", "2026-11-23T00:00:30Z"), 5), "another one came"
    assert clock.waits(copy("third", "2026-11-23T00:00:30Z"), SILENT)
    assert not clock.waits(copy("third", "2026-11-23T00:00:30Z", uid="made-again"), 5)


def test_a_time_in_which_the_seed_was_not_read_is_no_silence() -> None:
    """This master was cut off or stopped, or its watch hung; perhaps the seed was away, for the other one, too."""
    clock = Clock()
    found, begun = copy("other", "2026-11-23T00:00:00Z"), clock.now
    assert clock.problem(found)
    for _ in range(40):
        clock.now += 5
        assert clock.problem(found, read_at=begun) and not clock.own.silent, "nothing was read since"
    assert clock.problem(found) and not clock.own.silent, "now it can be read again"
    assert not clock.waits(found, SILENT - 5)
    assert clock.waits(found, 5)


def test_what_time_the_other_writes_does_not_matter() -> None:
    clock = Clock()
    assert clock.problem(copy("other", "2001-01-01T00:00:00Z")), "its clock may be wrong"
    assert clock.waits(copy("other", "2001-01-01T00:00:00Z"), SILENT)


def test_a_copy_of_our_own_seed_is_ours_although_the_lease_was_deleted() -> None:
    clock = Clock()
    assert clock.problem(copy("before", "1", of="seed-uid")) == ""
    assert clock.problem(copy("before", "1", of=""), ""), "without a Seed here nothing shows whose it is"
