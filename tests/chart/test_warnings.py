"""What `kubectl apply` warns of on the master, and what policies refuse there, as a real API server says it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from devcluster.controlplane import ControlPlane
from devcluster.manifests import apply, load
from devcluster.patience import patient_timeout
from tests.chart.conftest import CHARTS, MERGE, Api

API_VERSION = "seedquota.io/v1alpha1"
NAME = "kubernetes.io/metadata.name"
NAMESPACES_QUOTA = "owner-ann"
OBJECTS, ALLOCATIONS = "Objects", "Allocations"
COUNTED = {"clusters": "5", "example.com/idle": "5", "example.com/new": "5", "servers": "9"}


def quota(name: str, subject: dict, **limits: str) -> dict:
    spec = {"subject": subject, "quota": limits or {"pods": "50"}}
    return {"apiVersion": API_VERSION, "kind": "ResourceQuota", "metadata": {"name": name}, "spec": spec}


def allocation(**hard: str) -> dict:
    spec = {"selector": {"matchLabels": {"owner": "ann"}}, "allocation": {"hard": hard}}
    return {"apiVersion": API_VERSION, "kind": "ResourceQuotaAllocation", "metadata": {"name": "ann"}, "spec": spec}


def of_namespaces(selector: dict, **more: object) -> dict:
    return quota(NAMESPACES_QUOTA, {"kind": "namespaces", "selector": selector, **more})


def by_name(operator: str, *values: str) -> dict:
    return {"matchExpressions": [{"key": NAME, "operator": operator, **({"values": list(values)} if values else {})}]}


def seed(name: str, namespace_quotas: str, *exempt: str) -> dict:
    return {
        "apiVersion": API_VERSION,
        "kind": "Seed",
        "metadata": {"name": name, "labels": {"region": name[:2]}},
        "spec": {"kubeconfigSecretRef": {"name": name}, "namespaceQuotas": namespace_quotas},
        "status": {"exemptNamespaces": list(exempt)},
    }


@pytest.fixture(scope="module")
async def warned(plane: ControlPlane, api: Api) -> AsyncIterator[Api]:
    """One seed whose own namespaces take part, one whose do not, and a quota of which more is used than is left."""
    stored = [
        seed("eu-1", "Enabled", "kube-system", "cni"),
        seed("us-1", "Disabled", "other"),
        {
            **quota("project-used", {"kind": "project", "name": "used"}, cpu="64", memory="1Gi"),
            "status": {"globalUsage": {"cpu": "60"}},
        },
        {
            **quota("project-two", {"kind": "project", "name": "two"}, **COUNTED),
            "status": {"globalUsage": {"clusters": "2", "example.com/idle": "0", "servers": "5"}},
        },
        {
            **quota("org-two", {"kind": "organization", "name": "two"}, clusters="9"),
            "status": {"globalUsage": {"clusters": "3"}},
        },
        {
            **quota("project-alpha", {"kind": "project", "name": "alpha"}, cpu="24", machines="1"),
            "status": {"fits": {"most": {"cpu": "24", "memory": "64Gi"}, "guaranteed": {"cpu": "8"}}},
        },
        {
            **quota("org-acme", {"kind": "organization", "name": "acme"}, cpu="24"),
            "status": {"fits": {"least": {"cpu": "24"}}},
        },
        {**allocation(pods="50", **{"requests.cpu": "20"}), "status": {"allocated": {"used": {"pods": "30"}}}},
    ]
    for kind in ("resourcequotas", "resourcequotaallocations", "quotasettings", "seeds", "projects", "organizations"):
        await api.call("DELETE", f"/apis/{API_VERSION}/{kind}")  # what other tests have left would be warned of, too
    policies = load(CHARTS / "rbac" / "master-policy.yaml")
    try:
        for body in stored:
            await api.store(body)
        await apply(plane.cluster("charts"), policies)
        async with patient_timeout(60):
            while not (await api.create(of_namespaces(by_name("Exists")))).warnings:
                await asyncio.sleep(0.1)
            while len((await api.create(settings({"clusters": ALLOCATIONS}))).warnings) < 2:
                await asyncio.sleep(0.1)
            below = {"spec": {"allocation": {"hard": {"pods": "1"}}}}
            while not (await api.patch(allocation(), below)).warnings:
                await asyncio.sleep(0.1)
            unfit = {"spec": {"quota": {"cpu": "25"}}}
            while not (await api.patch(quota("project-alpha", {}), unfit)).warnings:
                await asyncio.sleep(0.1)
        yield api
    finally:  # others share the API server
        for body in (*policies, *stored):
            await api.call("DELETE", api.path(body))


@pytest.mark.parametrize(
    ("subject", "named"),
    [
        (by_name("In", "cni", "web"), "cni"),
        (by_name("In", "web"), ""),
        (by_name("Exists"), "kube-system, cni"),
        (by_name("NotIn", "cni"), "kube-system"),
        ({"matchLabels": {NAME: "kube-system"}}, "kube-system"),
        ({"matchLabels": {NAME: "other"}}, ""),
        ({"matchLabels": {"owner": "ann"}}, ""),
    ],
)
async def test_a_selector_that_names_exempt_namespaces_is_warned_of(warned: Api, subject: dict, named: str) -> None:
    answer = await warned.create(of_namespaces(subject))
    assert answer.status == 201
    said = [text for text in answer.warnings if "counts nothing in namespaces" in text]
    if not named:
        assert said == []
    else:
        (text,) = said
        assert f"exempt: {named};" in text


@pytest.mark.parametrize(
    ("seeds", "told"),
    [
        ({"names": ["eu-1"]}, True),
        ({"names": ["us-1"]}, False),
        ({"matchLabels": {"region": "eu"}}, True),
        ({"matchLabels": {"region": "us"}}, False),
        ({"names": ["eu-1"], "matchLabels": {"tier": "prod"}}, False),
        ({"matchExpressions": [{"key": "region", "operator": "In", "values": ["eu"]}]}, True),
        ({"matchExpressions": [{"key": "region", "operator": "NotIn", "values": ["eu"]}]}, False),
        ({"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["prod"]}]}, True),
        ({"matchExpressions": [{"key": "region", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "region", "operator": "DoesNotExist"}]}, False),
    ],
)
async def test_of_exempt_namespaces_of_seeds_that_the_quota_does_not_pick_nothing_is_said(
    warned: Api, seeds: dict, told: bool
) -> None:
    answer = await warned.create(of_namespaces(by_name("Exists"), seeds=seeds))
    assert answer.status == 201
    assert any("counts nothing in namespaces" in text for text in answer.warnings) is told


@pytest.mark.parametrize(("until", "told"), [("2020-01-01T00:00:00Z", True), ("2199-01-01T00:00:00+01:00", False)])
async def test_an_override_whose_end_has_passed_is_warned_of(warned: Api, until: str, told: bool) -> None:
    """Also of a quota that is there: the time of its creation says nothing."""
    overrides = [{"until": until, "quota": {"cpu": "65"}}]
    new = quota("project-new", {"kind": "project", "name": "new"}, cpu="64")
    new["spec"]["overrides"] = overrides
    used = warned.path(quota("project-used", {"kind": "project", "name": "used"}))
    patch = {"spec": {"overrides": overrides}}
    for answer in (
        await warned.create(new),
        await warned.call("PATCH", f"{used}?dryRun=All", patch, content_type=MERGE),
    ):
        assert answer.status in (200, 201), answer.body
        assert [("raises nothing: " + until) in text for text in answer.warnings] == [True] * told


async def test_an_override_that_has_ended_is_not_warned_of_at_each_edit(warned: Api) -> None:
    body = quota("project-ended", {"kind": "project", "name": "ended"}, cpu="64")
    body["spec"]["overrides"] = [{"until": "2020-01-01T00:00:00Z", "quota": {"cpu": "65"}}]
    await warned.store(body)
    patch = {"spec": {"enforcement": "warn"}}
    answer = await warned.call("PATCH", warned.path(body), patch, content_type=MERGE)
    assert (answer.status, answer.warnings) == (200, [])
    await warned.call("DELETE", warned.path(body))


async def test_a_quota_of_some_user_clusters_is_not_warned_of(warned: Api) -> None:
    answer = await warned.create(of_namespaces(by_name("In", "cni"), clusters={"matchLabels": {"tier": "prod"}}))
    assert (answer.status, answer.warnings) == (201, [])


@pytest.mark.parametrize(
    ("limits", "told"),
    [({"cpu": "59"}, "cpu=60 of 59"), ({"cpu": "60"}, ""), ({"memory": "512Mi"}, ""), ({"cpu": "80"}, "")],
)
async def test_a_limit_below_what_is_used_is_warned_of(warned: Api, limits: dict[str, str], told: str) -> None:
    body = quota("project-used", {"kind": "project", "name": "used"})
    answer = await warned.call(
        "PATCH", f"{warned.path(body)}?dryRun=All", {"spec": {"quota": limits}}, content_type=MERGE
    )
    assert answer.status == 200
    assert bool(told) == bool(answer.warnings)
    assert all(told in text for text in answer.warnings)


@pytest.mark.parametrize(
    ("hard", "told"),
    [({"pods": "29"}, "promised than the limit: pods=30 of 29;"), ({"pods": "30"}, ""), ({"requests.cpu": "1"}, "")],
)
async def test_an_allocation_below_what_is_promised_is_warned_of(warned: Api, hard: dict[str, str], told: str) -> None:
    answer = await warned.patch(allocation(), {"spec": {"allocation": {"hard": hard}}})
    assert answer.status == 200, answer.body
    assert [told in text for text in answer.warnings] == [True] * bool(told)


def settings(sides: dict[str, str], said: str = "") -> dict:
    metadata = {"name": "default", "annotations": {"seedquota.io/change-side": said}}
    listed = [{"name": name, "countFrom": side} for name, side in sides.items()]
    return {"apiVersion": API_VERSION, "kind": "QuotaSettings", "metadata": metadata, "spec": {"resources": listed}}


@pytest.mark.parametrize(
    ("before", "after", "said", "told"),
    [
        ({}, {"clusters": ALLOCATIONS}, "", "limits clusters (used: "),
        ({"clusters": OBJECTS}, {"clusters": ALLOCATIONS}, "", "limits clusters (used: "),
        ({}, {"example.com/new": ALLOCATIONS}, "", "limits example.com/new (used: not known yet)"),
        ({"servers": ALLOCATIONS}, {"servers": OBJECTS}, "", "limits servers (used: 5)"),
        ({"servers": ALLOCATIONS}, {"servers": OBJECTS}, "servers=Allocations", "limits servers (used: 5)"),
        ({"servers": ALLOCATIONS}, {"servers": OBJECTS}, "a=Objects, servers=Objects", ""),
        ({}, {"clusters": ALLOCATIONS}, "clusters=Allocations", ""),
        ({}, {"clusters": OBJECTS}, "", ""),
        ({}, {"example.com/idle": ALLOCATIONS}, "", ""),
        ({}, {"servers": ALLOCATIONS, "gpus": ALLOCATIONS}, "", ""),
        ({"servers": ALLOCATIONS}, {"gpus": ALLOCATIONS}, "", ""),
        ({"clusters": ALLOCATIONS}, {"clusters": ALLOCATIONS}, "", ""),
    ],
)
async def test_a_limit_does_not_lapse_because_the_catalogue_counts_another_side(
    warned: Api, before: dict[str, str], after: dict[str, str], said: str, told: str
) -> None:
    if before:
        meant = ",".join(f"{name}={side}" for name, side in before.items())
        await warned.store(settings(before, meant))
    try:
        body = settings(after, said)
        answer = await (warned.patch(body, body) if before else warned.create(body))
    finally:
        if before:
            await warned.call("DELETE", warned.path(settings({})))
    if not told:
        assert (answer.status, answer.warnings) == (200 if before else 201, [])
        return
    assert answer.status == 422, answer.body
    assert told in answer.message and "annotate QuotaSettings default: seedquota.io/change-side=" in answer.message
    limiting = {"project-two", "org-two"} if "clusters" in after else {"project-two"}
    assert {text.split("seedquota/")[1].split(" limits")[0] for text in answer.warnings} == limiting


@pytest.mark.parametrize(
    ("name", "limits", "told"),
    [
        ("project-alpha", {"cpu": "24", "memory": "64Gi"}, ()),
        (
            "project-alpha",
            {"cpu": "25", "memory": "65Gi"},
            ("the organization: ", "cpu=25 (at most 24)", "memory=65Gi (at most 64Gi)"),  # in any order
        ),
        ("project-alpha", {"machines": "9"}, ()),
        ("org-acme", {"cpu": "24"}, ()),
        ("org-acme", {"cpu": "23500m"}, ("its projects need: cpu=23500m (at least 24);",)),
        ("org-two", {"clusters": "99"}, ()),
    ],
)
async def test_limits_of_projects_and_their_organization_that_do_not_fit_are_warned_of(
    warned: Api, name: str, limits: dict[str, str], told: tuple[str, ...]
) -> None:
    answer = await warned.patch(quota(name, {}), {"spec": {"quota": limits}})
    assert (answer.status, len(answer.warnings)) == (200, 1 if told else 0), answer
    assert [part for text in answer.warnings for part in told if part not in text] == []
    refuses_nothing = {"spec": {"quota": limits, "enforcement": "warn"}}
    assert (await warned.patch(quota(name, {}), refuses_nothing)).warnings == []


@pytest.mark.parametrize(("cpu", "status"), [("8", 200), ("9", 422)])
async def test_no_more_is_guaranteed_than_the_organization_has_left(warned: Api, cpu: str, status: int) -> None:
    answer = await warned.patch(quota("project-alpha", {}), {"spec": {"guaranteed": {"cpu": cpu}}})
    assert answer.status == status, answer
    if status == 422:
        assert "more than the organization can guarantee: cpu=9 (at most 8)" in str(answer), answer
