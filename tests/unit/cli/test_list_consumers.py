"""Who uses a quota, as a list: all of them, or the sums of projects."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from cli import consumers, list_consumers
from cli.__main__ import parser
from cli.consumers import Consumer
from cli.outcome import Failed
from cli.seeds import fleet, on_seed
from common.api.types import Seed, SeedSpec, UserCluster
from common.kube.client.api_client import Cluster
from common.kube.client.meta import ObjectMeta
from common.quota import resources
from tests.unit.cli.test_largest_and_last import REST, line, seeds, user
from tests.unit.quota_examples import ALPHA, ANN, NOW

LIMITS = resources.parse({"pods": "100", "requests.cpu": "10"})


def namespace(name: str, project: str, **used: str) -> Consumer:
    return Consumer(
        "namespace", name, {each.replace("_", "."): amount for each, amount in used.items()}, "", "eu-1", project
    )


EVERY = [
    namespace("alpha/c1/web", "alpha", pods="20", requests_cpu="100m"),
    namespace("eu-1/db", "beta", pods="5", requests_cpu="9"),
    namespace("alpha/c1/jobs", "alpha", pods="1", requests_cpu="200m"),
    namespace("eu-1/tools", "", pods="3"),
    namespace("alpha/c1/idle", "gamma", pods="0"),
]


def test_all_namespaces_take_the_place_of_the_largest_of_the_status() -> None:
    found = consumers.consumers(ANN, {}, EVERY)
    assert [each.name for each in found] == ["eu-1/db", "alpha/c1/web", "eu-1/tools", "alpha/c1/jobs"]
    (said,) = consumers.table(found, NOW, None, "wide")
    assert said.splitlines()[:2] == [
        "CONSUMER                  PODS   REQUESTS.CPU   PROJECT",
        "namespace/eu-1/db         5      9              beta",
    ]


def test_sums_by_project_are_exact_and_say_what_is_of_none() -> None:
    found = {each.name: each.used for each in consumers.by_project(EVERY, LIMITS)}
    assert found == {
        "beta": {"pods": "5", "requests.cpu": "9"},
        "alpha": {"pods": "21", "requests.cpu": "300m"},
        "-": {"pods": "3"},
    }


def test_the_status_says_how_many_others_there_are() -> None:
    assert list_consumers.only_status(ANN) == ["1 more namespace: --all asks the seeds"]


def test_what_no_cluster_of_a_project_uses_may_be_used_by_allocations() -> None:
    nobody = "no cluster and no namespace that is known uses it"
    assert list_consumers.nothing(ANN) == nobody
    assert list_consumers.nothing(ALPHA).startswith(f"{nobody}; Allocations may")


def test_sums_need_all_seeds() -> None:
    options = parser().parse_args(["consumers", "ann", "--by", "project"])
    with pytest.raises(Failed, match="--by needs --all"):
        asyncio.run(list_consumers.run(options))


async def test_what_no_cluster_has_and_what_could_not_be_read_is_named_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first is no failure: Allocations, and what is being created."""

    async def asked(*_arguments: object) -> tuple[dict[str, list[UserCluster]], list[str]]:
        return {"eu-1": [user(1, "8")]}, ["seed us-1 cannot be asked: no answer"]

    async def answered(_master: object, wanted: Sequence[Seed], *_: object) -> tuple[dict[str, Any], dict[str, str]]:
        return {}, {each.metadata.name: "no answer" for each in wanted}

    monkeypatch.setattr(on_seed, "clusters_of", asked)
    monkeypatch.setattr(fleet, "ask", answered)
    quota, there = seeds(line("eu-1", cpu="10")), [Seed(metadata=ObjectMeta(name="us-1"), spec=SeedSpec())]
    for limited, unread in (({"cpu": "64"}, []), ({"cpu": "64", "pods": "9"}, ["namespaces on us-1: no answer"])):
        limits, master = resources.parse(limited), cast(Cluster, None)
        found, failed, elsewhere = await list_consumers.everywhere(master, quota, there, "seedquota", limits)
        assert [(each.name, each.used["cpu"], each.project) for each in found] == [("alpha/c1", "8", "alpha")]
        assert failed == ["seed us-1 cannot be asked: no answer", *unread], "nobody is asked for what is not limited"
        (rest,) = elsewhere
        assert rest.startswith(REST.format("eu-1"))
