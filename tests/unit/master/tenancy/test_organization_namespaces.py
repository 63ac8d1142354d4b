"""The namespace of an Organization: made, taken over if it is ours, and never somebody else's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from common.kube.client.errors import AlreadyExists, ApiError, Forbidden
from common.kube.client.meta import Object, ObjectMeta, OwnerReference
from common.kube.controller.store import Change
from master.cache.objects import Named, OrganizationNamespace
from master.tenancy.organization_namespaces import LOOK_AGAIN, OrganizationNamespaces, owner

LABELS = {"seedquota.io/organization": "acme"}
OLD_OWNER = OwnerReference(api_version="seedquota.io/v1alpha1", kind="Organization", name="acme", uid="0")


def organization(uid: str = "1") -> Named:
    return Named(metadata=ObjectMeta(name="acme", uid=uid, generation=1))


class Master:
    """One Organization, and what its API server has under the name of its namespace."""

    def __init__(self, there: Object | None = None) -> None:
        self.there = there
        self.organization: Named | None = organization()
        self.error: ApiError | None = None
        self.patched: list[dict[str, Any]] = []
        self.changed: list[str] = []
        cluster: Any = SimpleNamespace(create=self._create, find=self._find, merge_patch=self._patch, name="master")
        caches: Any = SimpleNamespace(
            organizations=SimpleNamespace(store=SimpleNamespace(get=lambda _name: self.organization))
        )
        self.namespaces = OrganizationNamespaces(cluster, caches, on_change=self.changed.append)
        self.namespaces._reflector.synced.set()

    async def _create(self, _resource: object, made: Object) -> Object:
        if self.error is not None:
            raise self.error
        if self.there is not None:
            raise AlreadyExists(409, "AlreadyExists", "there is one")
        self.there = made
        return made

    async def _find(self, _resource: object, _name: str) -> Object | None:
        return self.there

    async def _patch(self, _resource: object, _name: str, patch: dict[str, Any]) -> None:
        self.patched.append(patch["metadata"])

    async def look(self) -> tuple[OrganizationNamespace | None, float | None]:
        again = await self.namespaces._reconcile("acme")
        return self.namespaces.of("acme"), again


def namespace(**metadata: Any) -> Object:
    return Object(metadata=ObjectMeta(name="org-acme", uid="n", resource_version="7", **metadata))


def said(found: OrganizationNamespace | None) -> tuple[str, str]:
    assert found is not None and found.ready is not None
    return found.name, found.ready.reason


async def test_it_is_made_with_its_label_and_owned_by_its_organization() -> None:
    master = Master()
    assert master.namespaces.of("acme") is None
    found, again = await master.look()
    assert (said(found), again, master.changed) == (("org-acme", "Made"), None, ["acme"])
    assert master.there is not None
    made = master.there.metadata
    assert (made.name, made.owner_references) == ("org-acme", (owner(organization()),))
    assert LABELS.items() <= master.there.metadata.labels.items()
    await master.look()
    assert master.changed == ["acme"] and master.patched == [], "nothing is new"


@pytest.mark.parametrize("owners", [(), (OLD_OWNER,)])
async def test_one_with_the_label_is_taken_over_from_whoever_owned_it(owners: tuple[OwnerReference, ...]) -> None:
    master = Master(namespace(labels=LABELS, owner_references=owners))
    found, _ = await master.look()
    assert said(found) == ("org-acme", "Made")
    assert master.patched == [{"resourceVersion": "7", "ownerReferences": [msgspec.to_builtins(owner(organization()))]}]


@pytest.mark.parametrize("labels", [{}, {"seedquota.io/organization": "other"}])
async def test_one_without_the_label_is_not_touched_and_looked_at_again(labels: dict[str, str]) -> None:
    master = Master(namespace(labels=labels))
    found, again = await master.look()
    assert (said(found), again, master.patched) == (("", "NotOurs"), LOOK_AGAIN, [])
    master.there = namespace(labels=LABELS, owner_references=(owner(organization()),))
    found, again = await master.look()
    assert (said(found), again, master.changed) == (("org-acme", "Made"), None, ["acme", "acme"])


async def test_one_that_is_being_deleted_is_waited_for() -> None:
    master = Master(namespace(labels=LABELS, deletion_timestamp="2026-11-20T10:00:00Z"))
    found, again = await master.look()
    assert (said(found), again, master.patched) == (("", "Terminating"), LOOK_AGAIN, [])


async def test_what_cannot_be_made_says_so_and_is_tried_again() -> None:
    master = Master()
    master.error = Forbidden(403, "Forbidden", "namespaces is forbidden")
    with pytest.raises(Forbidden):
        await master.look()
    assert said(master.namespaces.of("acme")) == ("", "NotMade")


async def test_of_an_organization_that_is_gone_nothing_is_known() -> None:
    master = Master()
    await master.look()
    master.organization = None
    assert await master.look() == (None, None)


async def test_namespaces_and_organizations_that_come_and_go_are_looked_at() -> None:
    master = Master()
    queue = master.namespaces._controller.queue
    master.namespaces._namespace_changed(Change(namespace(labels=LABELS), None))
    assert await queue.get() == "acme"
    queue.done("acme")
    master.namespaces._changed("organizations", Change(organization("1"), organization("2")))
    assert await queue.get() == "acme"
