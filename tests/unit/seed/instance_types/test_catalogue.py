"""What is fresh, what does not exist and whom not to ask: decided without a clock of their own."""

from __future__ import annotations

import time

import pytest

from common.quota.quantity import UNIT
from common.runtime import lru
from common.runtime.lru import LruByOwner, LruDict
from seed.instance_types import catalogue
from seed.instance_types import gate as gates
from seed.instance_types.breaker import FAILURES, FIRST_REST
from seed.instance_types.catalogue import MAX_FLAVOURS, MISSING_SECONDS, Shelves
from seed.instance_types.gate import Gates
from seed.providers.flavour import ALL, Catalogue, CloudError, Flavour, Place
from seed.providers.size import CredentialsRejected, ProviderUnavailable

HERE, THERE = Place("aws", "https://ec2.example/", "here"), Place("aws", "https://ec2.example/", "there")
SMALL, LARGE = Flavour(UNIT, UNIT), Flavour(2 * UNIT, UNIT)


def learned(kept: Shelves, asked: str, now: float, *, all_of_it: bool = False, **flavours: Flavour) -> None:
    kept.learn(HERE, asked, Catalogue(flavours), asker="ann", all_of_it=all_of_it, as_of="then", now=now, fresh=10.0)


def test_what_was_learned_stays_known_and_is_fresh_for_its_time() -> None:
    kept = Shelves()
    assert not kept
    learned(kept, "small", 100.0, small=SMALL)
    known = kept.known(HERE, "small")
    assert known is not None
    assert (known.flavour, known.as_of, known.learned, known.fresh_until) == (SMALL, "then", 100.0, 110.0)
    assert kept.known(THERE, "small") is None
    assert kept.oldest(130.0) == {"aws": 30.0}


def test_what_does_not_exist_is_believed_for_a_minute_by_name_or_by_a_list() -> None:
    kept = Shelves()
    learned(kept, "huge", 100.0, small=SMALL)
    assert [kept.lacks(HERE, name, "ann", 100.0) for name in ("huge", "small", "other")] == [True, False, False]
    assert not kept.lacks(THERE, "huge", "ann", 100.0)
    assert not kept.lacks(HERE, "huge", "ann", 100.0 + MISSING_SECONDS)
    learned(kept, ALL, 200.0, all_of_it=True, small=SMALL)
    assert [kept.lacks(HERE, name, "ann", 200.0) for name in ("huge", "small", "other")] == [True, False, True]
    assert not kept.lacks(HERE, "other", "ann", 200.0 + MISSING_SECONDS)
    learned(kept, "huge", 201.0, huge=LARGE)
    assert not kept.lacks(HERE, "huge", "ann", 201.0)


def test_a_flavour_that_the_cloud_dropped_is_lacking_and_still_known() -> None:
    kept = Shelves()
    learned(kept, "small", 100.0, small=SMALL)
    learned(kept, "small", 200.0)
    assert kept.lacks(HERE, "small", "ann", 200.0)
    assert kept.known(HERE, "small") is not None


def test_what_another_replica_learned_does_not_replace_what_the_cloud_told_us() -> None:
    kept = Shelves()
    kept.recall(HERE, "small", SMALL, asker="ann", as_of="before", now=100.0, fresh=1.0)
    learned(kept, "large", 101.0, large=LARGE)
    kept.recall(HERE, "large", SMALL, asker="ann", as_of="before", now=102.0, fresh=1.0)
    assert [known.flavour for _, flavours in kept for known in flavours.values()] == [SMALL, LARGE]


def test_the_place_that_was_used_longest_ago_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "MAX_PLACES", 2)
    kept = Shelves()
    learned(kept, "small", 100.0, small=SMALL)
    kept.recall(THERE, "small", SMALL, asker="ann", as_of="", now=100.0, fresh=1.0)
    kept.used(HERE, "ann")
    kept.recall(Place("gce", "g", "z"), "small", SMALL, asker="ann", as_of="", now=100.0, fresh=1.0)
    assert kept.known(HERE, "small") is not None
    assert kept.known(THERE, "small") is None


def test_a_cloud_that_fails_again_and_again_is_closed_to_the_user_cluster_for_which_it_fails() -> None:
    gate = Gates()
    for _ in range(FAILURES):
        gate.check(HERE, "ann", 100.0)
        gate.failed(HERE, "ann", CloudError("answered 500"), 100.0)
    with pytest.raises(ProviderUnavailable, match="aws there answered 500"):  # of the same endpoint
        gate.check(THERE, "ann", 100.0)
    gate.check(THERE, "bob", 100.0)  # what ann sends may be what makes it fail
    gate.check(HERE, "ann", 100.0 + FIRST_REST)
    gate.failed(HERE, "ann", CloudError("refuses these credentials (401)", refused=True), 200.0)
    with pytest.raises(CredentialsRejected, match="aws here refuses these credentials"):
        gate.check(HERE, "ann", 200.0)
    gate.check(HERE, "bob", 200.0)
    gate.check(THERE, "ann", 200.0)
    gate.check(HERE, "ann", 200.0 + gates.REFUSED_SECONDS)


def test_what_was_kept_longest_ago_goes_first() -> None:
    kept: LruDict[str, int] = LruDict()
    for key, value in (("a", 1), ("b", 2), ("a", 3), ("c", 4)):
        kept.keep(key, value, 2)
    assert list(kept.items()) == [("a", 3), ("c", 4)]


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("m5.larg", ["m5.large", "m5.xlarge"]),
        ("m5large", ["m5.large", "m5.xlarge"]),
        ("cx23", ["cx22"]),
        ("nothing-alike", []),
        ("", []),
    ],
)
def test_the_nearest_names_are_those_that_look_alike(name: str, nearest: list[str]) -> None:
    known = sorted(["m5.large", "m5.xlarge", "c5.metal", "cx22", "t3.nano"])
    assert catalogue.nearest(name, known) == nearest


def test_looking_for_the_nearest_of_thousands_of_long_names_takes_milliseconds() -> None:
    kept = Shelves()
    names = {"a" * 120 + f"{number:08}" + "a" * 120: SMALL for number in range(MAX_FLAVOURS)}
    learned(kept, ALL, 0.0, all_of_it=True, **names)
    kept.lacking(HERE, "sorted once")
    started = time.process_time()
    for _ in range(10):
        kept.lacking(HERE, "a" * 255)
    assert time.process_time() - started < 1.0


def test_names_that_are_too_long_are_not_kept() -> None:
    kept = Shelves()
    long = "x" * (catalogue.LONGEST_NAME + 1)
    kept.learn(
        HERE,
        ALL,
        Catalogue({long: SMALL, "small": SMALL}, (long, "other")),
        asker="ann",
        all_of_it=True,
        as_of="",
        now=0.0,
        fresh=1.0,
    )
    assert kept.known(HERE, long) is None
    assert kept.known(HERE, "small") is not None
    assert long not in kept.lacking(HERE, long[:-3])


def test_a_name_of_a_cloud_is_quoted_where_it_is_no_word() -> None:
    kept = Shelves()
    learned(kept, ALL, 0.0, all_of_it=True, **{"m5.large\x1b[31m": SMALL})
    assert "\x1b" not in kept.lacking(HERE, "m5.larg")


def test_what_one_user_cluster_asks_pushes_out_nothing_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "MAX_PLACES", 3)
    kept = Shelves()
    learned(kept, "small", 100.0, small=SMALL)
    for number in range(1000):
        place = Place("azure", "management.azure.com", f"made-up-{number}")
        answer = Catalogue({"small": SMALL})
        kept.learn(place, "small", answer, asker="mallory", all_of_it=True, as_of="then", now=101.0, fresh=10.0)
    assert kept.known(HERE, "small") is not None
    assert len(list(kept)) == 4
    kept.used(HERE, "mallory")
    for number in range(3):
        kept.used(Place("gce", "g", str(number)), "mallory")
    assert kept.known(HERE, "small") is not None  # ann keeps it still


def test_user_clusters_that_ask_no_more_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "MAX_ASKERS", 2)
    kept = Shelves()
    for asker, region in (("ann", "1"), ("bob", "2"), ("ann", "1"), ("eve", "3")):
        kept.recall(Place("gce", "g", region), "x", SMALL, asker=asker, as_of="", now=1.0, fresh=1.0)
        kept.used(Place("gce", "g", region), asker)
    assert [place.region for place, _ in kept] == ["1", "3"]


def test_what_one_user_cluster_s_account_does_not_see_another_s_may() -> None:
    kept = Shelves()
    learned(kept, "huge", 100.0, all_of_it=True, small=SMALL)
    assert kept.lacks(HERE, "huge", "ann", 100.0)
    assert not kept.lacks(HERE, "huge", "bob", 100.0)
    assert not kept.unreadable(HERE, "huge", "bob", 100.0)


def test_what_cannot_be_read_is_reported_once_and_believed_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "MAX_MISSING", 3)
    kept = Shelves()
    many = {f"t{number}": "no cores" for number in range(10)}

    def learn(asked: str, now: float, answer: Catalogue) -> dict[str, str]:
        return kept.learn(HERE, asked, answer, asker="ann", all_of_it=True, as_of="then", now=now, fresh=10.0)

    assert list(learn("t9", 100.0, Catalogue({"small": SMALL}, unreadable=many))) == ["t0", "t1", "t2"]  # bounded
    assert learn("t9", 101.0, Catalogue({}, unreadable=many)) == {}
    assert kept.unreadable(HERE, "t9", "ann", 102.0) == "describes t9 in a way that cannot be read: no cores"
    assert kept.unreadable(HERE, "t9", "ann", 101.0 + MISSING_SECONDS) == ""
    learn("t9", 103.0, Catalogue({"t9": LARGE}))
    assert kept.unreadable(HERE, "t9", "ann", 104.0) == ""


def test_what_one_user_cluster_is_refused_pushes_out_no_pause_of_another() -> None:
    gate = Gates()
    refused = CloudError("refuses these credentials (401)", refused=True)
    gate.failed(HERE, "ann", refused, 100.0)
    for _ in range(FAILURES):
        gate.failed(THERE, "ann", CloudError("answered 500"), 100.0)
    for number in range(10_000):
        gate.failed(Place("aws", f"https://{number}", "x"), "mallory", refused, 100.0)
        gate.failed(Place("aws", f"https://{number}", "x"), "mallory", CloudError("answered 500"), 100.0)
    for place, error in ((HERE, CredentialsRejected), (THERE, ProviderUnavailable)):
        with pytest.raises(error):
            gate.check(place, "ann", 100.0)


def test_each_owner_has_a_bound_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lru, "MAX_OWNERS", 2)
    kept: LruByOwner[int, str] = LruByOwner(2)
    kept.keep("ann", 0, "hers")
    for number in range(100):
        kept.keep("bob", number, "his")
    assert [kept.get("ann", 0), kept.get("bob", 97), kept.get("bob", 98), kept.get("bob", 99)] == [
        "hers",
        None,
        "his",
        "his",
    ]
    kept.pop("bob", 99)
    assert kept.get("bob", 99) is None
    kept.keep("eve", 0, "hers, too")
    assert (kept.get("ann", 0), kept.get("eve", 0)) == (None, "hers, too")
