"""Of two masters on one seed, one waits."""

from __future__ import annotations

from types import SimpleNamespace

from common.api.labels import MASTER_ANNOTATION, MASTER_SEEN_ANNOTATION, UID_LABEL
from common.kube.client.meta import Object, ObjectMeta
from master.seeds.other_master import SILENT, OtherMaster


def copy(master: str, seen: str = "", uid: str = "copy", of: str = "another-seed-uid") -> Object:
    found = {MASTER_ANNOTATION: master, MASTER_SEEN_ANNOTATION: seen}
    annotations = {name: value for name, value in found.items() if value}
    return Object(metadata=ObjectMeta(name="eu-1", uid=uid, labels={UID_LABEL: of}, annotations=annotations))


def test_no_other_master_serves_a_seed_without_a_copy_or_with_one_of_our_own_or_of_nobody() -> None:
    own = OtherMaster("own")
    assert [own.problem(found, "seed-uid") for found in (None, copy("own", "1"), copy("", "1"))] == ["", "", ""]


def test_another_master_is_waited_for_until_its_signs_have_stopped() -> None:
    clock = SimpleNamespace(now=5.0)
    own = OtherMaster("own", lambda: clock.now)
    assert "whose Lease has uid other" in own.problem(copy("other", "2026-11-23T00:00:00Z"), "seed-uid")
    clock.now += SILENT - 1
    assert own.problem(copy("other", "2026-11-23T00:00:00Z"), "seed-uid")
    clock.now += 1
    assert own.problem(copy("other", "2026-11-23T00:00:00Z"), "seed-uid") == ""
    assert own.problem(copy("other", "2026-11-23T00:00:30Z"), "seed-uid"), "it lives"
    clock.now += SILENT
    assert own.problem(copy("other", "2026-11-23T00:00:30Z"), "seed-uid") == ""
    assert own.problem(copy("third", "2026-11-23T00:00:30Z"), "seed-uid"), "another one came"
    assert own.problem(copy("third", "2026-11-23T00:00:30Z", uid="made-again"), "seed-uid")


def test_what_time_the_other_writes_does_not_matter() -> None:
    clock = SimpleNamespace(now=5.0)
    own = OtherMaster("own", lambda: clock.now)
    assert own.problem(copy("other", "2001-01-01T00:00:00Z"), "seed-uid"), "its clock may be wrong"
    clock.now += SILENT
    assert own.problem(copy("other", "2001-01-01T00:00:00Z"), "seed-uid") == ""


def test_a_copy_of_our_own_seed_is_ours_although_the_lease_was_deleted() -> None:
    own = OtherMaster("own")
    assert own.problem(copy("before", "1", of="seed-uid"), "seed-uid") == ""
    assert own.problem(copy("before", "1", of=""), ""), "without a Seed here nothing shows whose it is"
