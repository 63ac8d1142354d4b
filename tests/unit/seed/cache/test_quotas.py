"""Which quotas limit whom, as copies come and go."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import msgspec

from common.api.labels import UID_LABEL
from common.api.types import ResourceQuota
from common.kube.client.api_client import Cluster
from common.kube.controller.store import Change
from seed.cache.quotas import QuotaCache
from seed.model.consumer import Consumer


def copy(uid: str, project: str) -> ResourceQuota:
    body = {
        "metadata": {"name": "team", "uid": f"{uid}-copy", "labels": {UID_LABEL: uid}},
        "spec": {"subject": {"kind": "project", "name": project}, "quota": {"cpu": "4"}},
    }
    return msgspec.convert(body, ResourceQuota)


async def test_a_quota_that_was_made_again_limits_its_own_subject_alone() -> None:
    """Also where the copy of the one before was deleted by somebody, and so had stayed in force."""
    cache = QuotaCache(cast(Cluster, SimpleNamespace(name="eu-1")))

    def limited() -> dict[str, list[str]]:
        projects = ("alpha", "beta")
        return {project: [quota.key.uid for quota in cache.quotas_of(Consumer(project))] for project in projects}

    first, second = copy("first", "alpha"), copy("second", "beta")
    cache._quota_changed(Change(None, first))
    cache._quota_changed(Change(first, None))
    assert limited() == {"alpha": ["first"], "beta": []}
    cache._quota_changed(Change(None, second))
    assert limited() == {"alpha": [], "beta": ["second"]}
    assert [quota.key.uid for quota in cache.all_quotas()] == ["second"]


def test_a_quota_whose_account_is_granted_again_what_it_once_limited_counts_objects_again() -> None:
    """Its ledger was lost while it limited nothing any more. What it was granted is known when the master answers."""
    cache, told = QuotaCache(cast(Cluster, SimpleNamespace(name="eu-1"))), list[str]()
    cache.on_spec(told.append)

    def granted(*amounts: str) -> ResourceQuota:
        account = {"incarnation": "life", "granted": dict.fromkeys(amounts, "8")}
        body = {
            "metadata": {"name": "team", "uid": "copy", "labels": {UID_LABEL: "uid"}},
            "spec": {"subject": {"kind": "namespaces"}, "quota": {}},
            "status": {"account": account},
        }
        return msgspec.convert(body, ResourceQuota)

    states = [granted("pods"), granted(), granted(), granted("pods")]
    for before, after in zip([None, *states], states, strict=False):
        cache._quota_changed(Change(before, after))
    assert told == ["team"] * 3
    assert [quota.name for quota in cache.object_quotas()] == ["team"]
