"""The list of what each namespace uses of a quota, put together from what seeds answer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec
import pytest

from common.api.namespaces_page import NamespaceLine, NamespacesPage, Place
from master.apiserver.namespace_lists import (
    NO_LEADER,
    NOT_READ,
    POSITION,
    SEEDS,
    Position,
    QuotaNamespaces,
    position,
    together,
)

UID = "u"


def line(name: str) -> NamespaceLine:
    """`alpha/c1/web`, or `seed/web` of the seed's own API server."""
    cluster, _, namespace = name.rpartition("/")
    return NamespaceLine(cluster=cluster, namespace=namespace, project="alpha", used={"pods": "1"})


class Fleet:
    """What each seed has, and answers as an agent does."""

    def __init__(self, seeds: Mapping[str, Sequence[str]], not_asked: Mapping[str, str]) -> None:
        self.seeds = {seed: [line(name) for name in names] for seed, names in seeds.items()}
        self.not_asked = not_asked

    def page(self, begin: Position, limit: int) -> tuple[QuotaNamespaces, Position | None]:
        names = sorted(seed for seed in {*self.seeds, *self.not_asked} if seed >= begin.seed)
        answers = {}
        for seed in names[:SEEDS]:
            after = begin.after if seed == begin.seed else Place()
            rest = [each for each in self.seeds.get(seed, ()) if each.place > after]
            page = NamespacesPage(uid=UID, items=rest[:limit], more=len(rest) > limit)
            answers[seed] = [msgspec.json.encode(page)] if seed in self.seeds else []
        return together(UID, begin, limit, names, answers, self.not_asked)

    def every(self, limit: int) -> tuple[list[tuple[str, str, str]], list[str]]:
        found, not_asked = [], []
        begin: Position | None = Position()
        while begin is not None:
            page, rest = self.page(begin, limit)
            assert len(page.items) <= limit
            found += [(each.seed, each.cluster, each.namespace) for each in page.items]
            not_asked += [each.seed for each in page.not_asked]
            assert rest is None or re.fullmatch(POSITION, rest.text)
            assert rest is None or position(rest.text) == rest > begin, "each page goes on"
            begin = rest
        return found, not_asked


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 6, 500])
def test_each_namespace_of_each_seed_is_on_one_page(limit: int) -> None:
    names = {"ap-1": [], "eu-1": ["alpha/c1/db", "alpha/c1/web", "seed/web"], "us-1": ["alpha/c1/web", "beta/c2/web"]}
    found, not_asked = Fleet(names, {"eu-2": "it does not answer"}).every(limit)
    assert found == [
        ("eu-1", "alpha/c1", "db"),
        ("eu-1", "alpha/c1", "web"),
        ("eu-1", "eu-1", "web"),
        ("us-1", "alpha/c1", "web"),
        ("us-1", "beta/c2", "web"),
    ]
    assert set(not_asked) == {"eu-2"}


def test_of_very_many_seeds_some_are_asked_at_a_time() -> None:
    names = {f"seed-{number:03}": [f"alpha/c{number}/web"] for number in range(3 * SEEDS + 1)}
    fleet = Fleet(names, {})
    found, _ = fleet.every(500)
    assert [each[0] for each in found] == sorted(names)
    page, rest = fleet.page(Position(), 500)
    assert (len(page.items), rest) == (SEEDS, Position(f"seed-{SEEDS:03}"))


def test_a_seed_without_an_answer_is_named_with_the_reason() -> None:
    seeds = ["eu-1", "eu-2", "eu-3"]
    answers = {"eu-1": [b'{"uid": "of another quota", "items": []}'], "eu-2": []}
    page, rest = together(UID, Position(), 10, seeds, answers, {"eu-3": "it does not answer"})
    assert rest is None
    assert [(each.seed, each.why) for each in page.not_asked] == [
        ("eu-1", NOT_READ),
        ("eu-2", NO_LEADER),
        ("eu-3", "it does not answer"),
    ]


def test_clusters_that_are_not_current_have_the_name_of_their_seed() -> None:
    content = msgspec.json.encode(NamespacesPage(uid=UID, not_current=["alpha/c1"]))
    page, _ = together(UID, Position(), 10, ["eu-1"], {"eu-1": [content]}, {})
    assert page.not_current == ["eu-1: alpha/c1"]


@pytest.mark.parametrize("wrong", ["", ",", "eu-1,", "eu-1,alpha/c1", "eu-1,a/b/c,web", "eu-1,alpha/c1,", "../x", "EU"])
def test_what_no_answer_had_is_no_position(wrong: str) -> None:
    assert re.fullmatch(POSITION, wrong) is None
