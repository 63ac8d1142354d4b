"""Which user clusters use most of a quota, by what seeds say, and what they may not say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from common.api.labels import GROUP, VERSION
from common.kube.client.errors import TooMany
from master.apiserver import cluster_lists
from master.apiserver.cluster_lists import COUNTED_CLUSTERS, MOST_OF_SEED, CountedCluster, QuotaClusters
from master.cache.objects import MasterQuota
from tests.unit.fake_api_server import PLURALS, fake_api_server
from tests.unit.quota_examples import quota

NOW = "2026-11-20T10:00:00Z"


def cluster(name: str, project: str = "alpha", counted: str = NOW, /, **used: str) -> CountedCluster:
    body = {
        "metadata": {"name": name, "namespace": "ns", "labels": {"tier": name}},
        "spec": {"project": project},
        "status": {"resourceUsage": used, "lastCountTime": counted},
    }
    return msgspec.convert(body, CountedCluster)


def limited(limits: dict[str, Any], **subject: Any) -> MasterQuota:
    seeds = [
        {"name": "a", "state": "Current", "localUsage": {"cpu": "30", "memory": "1Gi", "clusters": "4"}},
        {"name": "b", "state": "Current", "localUsage": {"cpu": "8"}},
    ]
    return quota("q", {"kind": "project", "name": "alpha", **subject}, limits, seeds=seeds)


def listed(present: MasterQuota, limit: int = 10, /, **of_seeds: list[CountedCluster]) -> QuotaClusters:
    return cluster_lists.together(present, {"alpha"}, of_seeds, limit, "")


def test_the_largest_by_any_limit_come_first_and_the_rest_is_told() -> None:
    present = limited({"cpu": "100", "memory": "10Gi", "clusters": "9"})
    few, much = cluster("few", cpu="8", storage="1Ti"), cluster("much", cpu="1", memory="5Gi")
    found = listed(present, a=[few, cluster("idle", cpu="0"), much], b=[cluster("third", cpu="4")])
    assert [(each.seed, each.cluster, each.used) for each in found.items] == [
        ("a", "ns/much", {"cpu": "1", "memory": "5Gi"}),
        ("a", "ns/few", {"cpu": "8"}),
        ("b", "ns/third", {"cpu": "4"}),
    ]
    assert (found.omitted, found.not_counted, found.rest) == (0, 0, {"cpu": "25"})
    assert found.items[0].as_of == NOW
    fewer = listed(present, 1, a=[few, much])
    assert ([each.cluster for each in fewer.items], fewer.omitted, fewer.rest) == (["ns/much"], 1, {"cpu": "21"})


def test_only_what_the_quota_counts_is_listed() -> None:
    others = cluster("other", "beta", cpu="9")
    assert listed(limited({"cpu": "9"}), a=[others]).items == []
    part = limited({"cpu": "9"}, clusters={"matchLabels": {"tier": "one"}})
    found = listed(part, a=[cluster("one", cpu="1"), cluster("two", cpu="2")])
    assert [each.cluster for each in found.items] == ["ns/one"]


@pytest.mark.parametrize("used", [{"cpu": "many"}, {"cpu": "-1"}])
def test_what_was_not_counted_or_cannot_be_read_is_not_nothing(used: dict[str, str]) -> None:
    odd = [cluster("new", "alpha", time, cpu="1") for time in ("", "now", "2026-11-20T10:00:00", "9" * 5000)]
    found = listed(limited({"cpu": "9"}), a=[*odd, cluster("odd", **used), cluster("c", cpu="1")])
    assert ([each.cluster for each in found.items], found.not_counted) == (["ns/c"], 5)


@pytest.mark.parametrize("name", ["<script>", "../x", "", "x" * 300, "A"])
def test_a_name_that_no_api_server_takes_is_not_shown(name: str) -> None:
    assert listed(limited({"cpu": "9"}), a=[cluster(name, cpu="1")]).items == []


async def test_what_one_seed_lists_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each amount costs many times its bytes, and each is compared on the event loop."""
    monkeypatch.setitem(PLURALS, "userclusters", (f"{GROUP}/{VERSION}", "UserCluster"))
    spec, labels = {"project": "alpha"}, {f"l{number}": "v" for number in range(1000)}
    async with fake_api_server() as fake:
        for number in range(20):
            await fake.put("userclusters", "ns", f"c{number}", spec=spec, metadata={"labels": labels})
        await fake.put("userclusters", "ns", "x", spec=spec, status={"resourceUsage": {f"r{n}": 1 for n in range(65)}})
        found = await fake.cluster().list(COUNTED_CLUSTERS)
        assert (len(found.items), [each.key for each in found.broken]) == (20, ["ns/x"])
        assert COUNTED_CLUSTERS.most == MOST_OF_SEED
        with pytest.raises(TooMany):
            await fake.cluster().list(replace(COUNTED_CLUSTERS, most=2**20))
