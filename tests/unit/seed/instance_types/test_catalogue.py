"""What is fresh, what does not exist and whom not to ask: decided without a clock of their own."""

from __future__ import annotations

import time

import pytest

from common.quota.quantity import UNIT
from common.runtime.lru import LruDict
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
    kept.learn(HERE, asked, Catalogue(flavours), all_of_it=all_of_it, as_of="then", now=now, fresh=10.0)


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
    assert [kept.lacks(HERE, name, 100.0) for name in ("huge", "small", "other")] == [True, False, False]
    assert not kept.lacks(THERE, "huge", 100.0)
    assert not kept.lacks(HERE, "huge", 100.0 + MISSING_SECONDS)
    learned(kept, ALL, 200.0, all_of_it=True, small=SMALL)
    assert [kept.lacks(HERE, name, 200.0) for name in ("huge", "small", "other")] == [True, False, True]
    assert not kept.lacks(HERE, "other", 200.0 + MISSING_SECONDS)
    learned(kept, "huge", 201.0, huge=LARGE)
    assert not kept.lacks(HERE, "huge", 201.0)


def test_a_flavour_that_the_cloud_dropped_is_lacking_and_still_known() -> None:
    kept = Shelves()
    learned(kept, "small", 100.0, small=SMALL)
    learned(kept, "small", 200.0)
    assert kept.lacks(HERE, "small", 200.0)
    assert kept.known(HERE, "small") is not None


def test_what_another_replica_learned_does_not_replace_what_the_cloud_told_us() -> None:
    kept = Shelves()
    kept.recall(HERE, "small", SMALL, as_of="before", now=100.0, fresh=1.0)
    learned(kept, "large", 101.0, large=LARGE)
    kept.recall(HERE, "large", SMALL, as_of="before", now=102.0, fresh=1.0)
    assert [known.flavour for _, flavours in kept for known in flavours.values()] == [SMALL, LARGE]


def test_the_place_that_was_used_longest_ago_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "MAX_PLACES", 2)
    kept = Shelves()
    learned(kept, "small", 100.0, small=SMALL)
    kept.recall(THERE, "small", SMALL, as_of="", now=100.0, fresh=1.0)
    kept.used(HERE)
    kept.recall(Place("gce", "g", "z"), "small", SMALL, as_of="", now=100.0, fresh=1.0)
    assert kept.known(HERE, "small") is not None
    assert kept.known(THERE, "small") is None


def test_a_cloud_that_fails_again_and_again_is_closed_to_all_and_one_that_refuses_only_to_who_was_refused() -> None:
    gate = Gates()
    for _ in range(FAILURES):
        gate.check(HERE, "ann", 100.0)
        gate.failed(HERE, "ann", CloudError("answered 500"), 100.0)
    for asker in ("ann", "bob"):
        with pytest.raises(ProviderUnavailable, match="aws there answered 500"):  # of the same endpoint
            gate.check(THERE, asker, 100.0)
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
