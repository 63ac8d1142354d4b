"""Projects that nobody has declared, and ones that come to an organization later."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.integration.installed.site import API, CLUSTERS, PROJECT, Answer, Json, Site, cpus, named, until
from tests.integration.installed.test_lives import without_user_cluster

pytestmark = pytest.mark.integration

TYPO = "alhpa"
PATH = f"{CLUSTERS}/typo"
EVENTS = f"/apis/events.k8s.io/v1/namespaces/{PROJECT}/events"


def typo() -> Json:
    """A UserCluster that leads to user-1."""
    spec = {"project": TYPO, "kubeconfigSecretRef": {"name": "user-1"}}
    return {
        "apiVersion": API,
        "kind": "UserCluster",
        "metadata": {"name": "typo", "namespace": PROJECT},
        "spec": spec,
    }


async def unknown_projects(site: Site, word: str) -> None:
    await site.apply("master", named("QuotaSettings", "default", unknownProjects=word))


@pytest_asyncio.fixture
async def registered(site: Site) -> AsyncIterator[Answer]:
    """In place of user-1. What its creation was answered."""
    async with without_user_cluster(site):
        try:
            yield await site.call("seed-1", "POST", CLUSTERS, typo())
        finally:
            await site.delete("seed-1", PATH)
            await site.delete("master", f"projects/{TYPO}")
            await site.delete("master", "quotasettings/default")


async def machines_get(site: Site, status: int, text: str = "") -> None:
    async def holds() -> None:
        answer = await site.create("user-1")
        assert answer.status == status, answer
        assert text in answer.message

    await until(holds, 30)


async def test_in_a_cluster_whose_project_is_unknown_no_machine_can_be_created(site: Site, registered: Answer) -> None:
    assert registered.status == 201, registered
    assert any("did you mean alpha?" in warning for warning in registered.warnings)
    await site.comes("seed-1", PATH, "ProjectKnown", "False", "UnknownProject", "did you mean alpha?")
    await site.comes("seed-1", PATH, "Ready", "False", "UnknownProject")
    await machines_get(site, 403, f"project {TYPO} is unknown: this seed has no Project of that name")

    async def told() -> None:
        notes = [
            event["note"]
            for event in await site.items("seed-1", EVENTS)
            if (event["reason"], event["regarding"]["name"]) == ("UnknownProject", "typo")
        ]
        assert any("create the Project on the master" in note for note in notes), notes

    await until(told, 40)

    await site.apply("master", named("Project", TYPO))
    await site.comes("seed-1", PATH, "Ready", "True")
    await machines_get(site, 201)

    await site.delete("master", f"projects/{TYPO}")
    await site.comes("seed-1", PATH, "ProjectKnown", "False", "AllowedBefore")
    await site.comes("seed-1", PATH, "Ready", "False", "AllowedBefore")
    await machines_get(site, 201)


async def test_settings_can_allow_unknown_projects(site: Site, registered: Answer) -> None:
    assert registered.status == 201, registered
    await site.comes("seed-1", PATH, "ProjectKnown", "False", "UnknownProject")
    await unknown_projects(site, "Allow")
    await site.comes("seed-1", PATH, "ProjectKnown", "False", "AllowedBySettings")
    await site.comes("seed-1", PATH, "Ready", "True", "Enforced")
    await machines_get(site, 201)


async def test_what_a_project_has_counts_in_the_organization_that_it_is_given_later(site: Site) -> None:
    await site.apply("master", named("Organization", "acme"))
    await site.admitted("user-1", 2)
    await site.admitted("user-2", 1)
    try:
        await site.quota(cpus(4), "by-organization", kind="organization", subject="acme")
        await site.uses(cpus(0), "by-organization")
        organization = {"spec": {"organization": "acme"}}
        await site.patch("master", f"projects/{PROJECT}", organization)
        await site.uses(cpus(3), "by-organization")
        await site.admitted("user-2", 1)
        for cluster in ("user-1", "user-2"):
            answer = await site.refused(cluster)
            assert "exceeded quota: by-organization, requested: cpu=1, used: cpu=4, limited: cpu=4" in answer.message
        for other in ("other", None):
            answer = await site.call("master", "PATCH", f"projects/{PROJECT}", {"spec": {"organization": other}})
            assert answer.status == 422, answer
    finally:
        await site.delete("master", "resourcequotas/by-organization")
        await site.project()
        await site.delete("master", "organizations/acme")
