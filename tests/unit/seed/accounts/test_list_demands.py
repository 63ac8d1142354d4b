from types import SimpleNamespace
from typing import cast

from seed.accounts.list_demands import ListDemands
from seed.model.quota import Quota
from seed.usage.source import UsageSource


class Asked:
    """A source that notes what it is asked for."""

    key = "alpha/c1"

    def __init__(self) -> None:
        self.lists = 0

    def relist(self) -> None:
        self.lists += 1


def test_each_source_is_asked_once_for_a_list_after_each_moment() -> None:
    """Also another one that takes the place of the first: it may share watch caches that were listed before."""
    quota = cast(Quota, SimpleNamespace(key=SimpleNamespace(uid="uid")))
    demands, first, second = ListDemands(), Asked(), Asked()

    def demand(source: Asked) -> int:
        demands.demand(quota, cast(UsageSource, source))
        return source.lists

    demands.demand_all(quota, [cast(UsageSource, first)])
    began = demands.lists_from("uid")
    assert (demand(first), demand(second), demand(second)) == (1, 1, 1)
    demands.demand_all(quota, [cast(UsageSource, first)])
    assert demands.lists_from("uid") > began
    assert (first.lists, demand(second)) == (2, 2)
    demands.forget("uid")
    assert (demands.lists_from("uid"), demand(first)) == (0, 3)
