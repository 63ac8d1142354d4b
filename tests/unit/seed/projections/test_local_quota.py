"""What a LocalResourceQuota says of a quota, and what it never says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from common.quota import resources
from common.quota.account import Account, AccountKey, Grant, Reservation
from seed.model.quota import Quota
from seed.projections.definition import ROLE
from seed.projections.local_quota import MASTER_SILENT, KnownQuota, LocalQuota, desired, manifest
from tests.unit.seed_world import nanos

CHARTS = Path(__file__).parents[4] / "charts"
HERE, THERE = "alpha/c1", "alpha/secret-cluster"
NOW = "2026-11-20T10:00:03Z"


def quota(limits: str = "cpu=64,memory=256Gi", usage: str = "cpu=60,memory=232Gi", **fields: Any) -> Quota:
    defaults: dict[str, Any] = {
        "key": AccountKey(uid="quota-uid", name="project-alpha"),
        "copy_uid": "copy-uid",
        "kind": "project",
        "subject": "alpha",
        "limits": nanos(limits),
        "ceilings": nanos(limits),
        "enforced": True,
        "warn_at_percent": 90,
        "grant": Grant(incarnation="m"),
        "global_usage": nanos(usage),
        "global_reserved": {},
        "out_of_reach": (),
        "learning": False,
        "draining": False,
        "published": None,
    }
    named = {**defaults, **fields}
    if named["kind"] == "namespaces":
        named["of_objects"] = frozenset(named["limits"])
    return Quota(**named)


def account(used: str = "cpu=22", being_created: str = "cpu=2", **fields: Any) -> Account:
    amount = nanos(being_created) if being_created else {}
    reservations = {(HERE, "u1"): Reservation(source=HERE, object="kube-system/m1", amount=amount)}
    return Account(
        incarnation="life",
        used={HERE: nanos(used), THERE: nanos("cpu=7")},
        reservations=reservations if amount else {},
        reserved=amount,
        **fields,
    )


def known(of: Quota | None = None, here: Account | None = None, **fields: Any) -> KnownQuota:
    defaults: dict[str, Any] = {"sources": (HERE,), "followed": True, "master_silent": 3.0}
    return KnownQuota(quota=of or quota(), account=here or account(), **{**defaults, **fields})


def test_it_has_the_totals_and_what_is_used_here() -> None:
    assert manifest(desired(known()), "kube-system", NOW) == {
        "metadata": {
            "name": "project-alpha",
            "namespace": "kube-system",
            "labels": {"app.kubernetes.io/managed-by": "seedquota-seed", "seedquota.io/uid": "quota-uid"},
        },
        "status": {
            "total": {"hard": {"cpu": "64", "memory": "256Gi"}, "used": {"cpu": "60", "memory": "232Gi"}},
            "here": {"used": {"cpu": "24", "memory": "0"}},
            "summary": {"usage": "cpu 60/64, memory 232Gi/256Gi", "here": "cpu 24, memory 0"},
            "currentTime": NOW,
        },
    }


def test_the_total_is_the_number_by_which_is_refused() -> None:
    """What this seed counts is in it at once, before the master has heard of it."""
    assert desired(known(here=account(used="cpu=60"))).used["cpu"] == nanos("cpu=69")["cpu"]


def test_what_nothing_counts_has_no_amount() -> None:
    of = quota("cpu=2003,gpus=4,nvidia.com/gpu=8,clusters=5", "cpu=2k,clusters=3,gpus=0,nvidia.com/gpu=0")
    found = manifest(desired(known(of)), "kube-system", "")
    assert found["status"] == {
        "total": {
            "hard": {"cpu": "2003", "gpus": "4", "nvidia.com/gpu": "8", "clusters": "5"},
            "used": {"cpu": "2k", "nvidia.com/gpu": "0", "clusters": "3"},
        },
        "here": {"used": {"cpu": "24", "nvidia.com/gpu": "0"}},
        "summary": {
            "usage": "cpu 2000/2003, clusters 3/5, gpus ?/4, nvidia.com/gpu 0/8",
            "here": "cpu 24, nvidia.com/gpu 0",
        },
    }


def test_what_is_allocated_is_in_the_total_and_in_no_cluster() -> None:
    found = manifest(desired(known(quota("cpu=64,servers=10", "cpu=60,servers=8"))), "kube-system", "")
    assert found["status"]["total"]["used"] == {"cpu": "60", "servers": "8"}
    assert found["status"]["summary"] == {"usage": "cpu 60/64, servers 8/10", "here": "cpu 24"}


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (known(), ""),
        (known(quota(grant=Grant(incarnation=""))), "the master has not said yet"),
        (known(master_silent=None), "the master has not said yet"),
        (known(master_silent=MASTER_SILENT + 1), "has not answered lately"),
        (known(quota(learning=True)), "is learning"),
        (known(quota(usage_stale=True)), "was not reported lately"),
        (known(here=account(nonce="n")), "counted again"),
        (known(followed=False), "cannot be read now"),
    ],
)
def test_it_says_why_an_amount_may_be_old(found: KnownQuota, why: str) -> None:
    assert (why in desired(found).stale) if why else desired(found).stale == ""


def test_nothing_is_said_of_this_cluster_before_its_account_is_known() -> None:
    found = desired(KnownQuota(quota=quota(), account=None, sources=(HERE,), followed=True, master_silent=1.0))
    assert found.here is None
    assert "counted again" in found.stale
    body = manifest(found, "kube-system", "")
    assert body["status"] == {
        "total": {"hard": {"cpu": "64", "memory": "256Gi"}, "used": {"cpu": "60", "memory": "232Gi"}},
        "summary": {"usage": "cpu 60/64, memory 232Gi/256Gi", "here": "cpu ?, memory ?"},
        "stale": "what is used is being counted again",
    }


def test_what_is_not_known_yet_is_not_called_zero() -> None:
    fenced = Account(incarnation="life", nonce="n", used={THERE: nanos("cpu=7")})
    found = desired(known(quota(usage="cpu=60"), fenced))
    assert (found.used, found.here) == (nanos("cpu=60"), None)
    summary = manifest(found, "kube-system", "")["status"]["summary"]
    assert summary == {"usage": "cpu 60/64, memory ?/256Gi", "here": "cpu ?, memory ?"}
    was_counted = msgspec.structs.replace(fenced, used={HERE: {}})
    assert desired(known(quota(), was_counted)).here == nanos("cpu=0,memory=0"), "the last count is kept"


NAMES = st.sampled_from(["cpu", "memory", "storage", "machines", "clusters", "gpus", "nvidia.com/gpu"])
AMOUNTS = st.integers(0, 10**15)
LISTS = st.dictionaries(NAMES, AMOUNTS, max_size=7)


@given(LISTS.filter(bool), LISTS, LISTS, LISTS, st.lists(LISTS, max_size=3), st.booleans())
def test_it_depends_on_nothing_of_others_but_the_totals(
    limits: dict[str, int],
    usage: dict[str, int],
    here: dict[str, int],
    reserved: dict[str, int],
    others: list[dict[str, int]],
    stale: bool,
) -> None:
    """However what others use is divided among them, and whatever they are called."""

    def seen(divided: list[dict[str, int]], name: str) -> LocalQuota:
        used = {HERE: here, **{f"{name}/{number}": amounts for number, amounts in enumerate(divided)}}
        kept = Reservation(source=HERE, object="kube-system/m", amount=reserved)
        of = Account(incarnation="l", used=used, reservations={(HERE, "u"): kept}, reserved=reserved)
        limited = quota(usage_stale=stale)
        limited = msgspec.structs.replace(limited, limits=limits, ceilings=limits, global_usage=usage)
        return desired(KnownQuota(quota=limited, account=of, sources=(HERE,), followed=True, master_silent=0.0))

    found = seen(others, "others-name")
    assert found == seen([resources.total(others)], "x")
    text = json.dumps(manifest(found, "kube-system", NOW))
    assert "others-name" not in text and "copy-uid" not in text
    for name, amount in (found.here or {}).items():
        assert amount == here.get(name, 0) + reserved.get(name, 0)
        assert amount <= found.used.get(name, amount), "what is used here is part of the total"
    assert found.hard == limits
    assert found.used.keys() <= limits.keys()


def test_the_role_that_is_installed_is_that_of_the_chart() -> None:
    chart = yaml.safe_load((CHARTS / "rbac" / "local-quotas.yaml").read_text())
    assert chart["rules"] == ROLE["rules"]


@pytest.mark.parametrize(
    ("name", "promises", "kind", "shown"),
    [
        ("allocation.owner-ann", True, "LocalResourceQuotaAllocation", "owner-ann"),
        ("owner-ann", True, "LocalResourceQuota", "owner-ann"),
        ("allocation.owner-ann", False, "LocalResourceQuota", "allocation.owner-ann"),
    ],
)
def test_the_quota_of_an_allocation_is_shown_as_the_allocation(
    name: str, promises: bool, kind: str, shown: str
) -> None:
    """No other quota is, whatever its name is: two of them would be written into one object."""
    of = quota("pods=50", "pods=30", kind="namespaces", key=AccountKey(uid="u", name=name), promises=promises)
    local = desired(KnownQuota(quota=of, account=account("", ""), sources=(HERE,), followed=True, master_silent=0.0))
    assert local.resource.kind == kind
    assert manifest(local, "web", "")["metadata"] == {
        "name": shown,
        "namespace": "web",
        "labels": {
            "app.kubernetes.io/managed-by": "seedquota-seed",
            "seedquota.io/subject-kind": "namespaces",
            "seedquota.io/uid": "u",
        },
    }
