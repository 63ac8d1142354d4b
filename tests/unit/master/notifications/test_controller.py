"""How often messages are sent, what is sent again and what is not. The test plays the API server and the receiver."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from common.api.conditions import condition
from common.api.core import Secret
from common.kube.client.api_client import Cluster
from common.kube.client.errors import Unavailable
from common.kube.client.meta import ObjectMeta
from common.kube.client.networks import PublicNetworks
from common.kube.controller.store import Change
from master.cache.informers import Caches
from master.cache.objects import MasterQuota, Named, OrganizationNamespace, QuotaStatus, Summary
from master.notifications import controller
from master.notifications.controller import AT_ONCE, LONGEST_BACKOFF, Notifications
from master.notifications.delivery import Undelivered
from master.notifications.objects import NotificationSpec, QuotaNotification, SecretName
from master.tenancy.organization_namespaces import OrganizationNamespaces

ACME = "org-acme"
EVENTS = ["NearLimit", "Full", "Exceeded"]


class Sides:
    """The API server and the receivers. `fails`: why nothing is delivered; `lost`: how many writes of a status fail."""

    name = "master"

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[tuple[str, str]] = []  # of which object, under which id
        self.asked: list[tuple[str, str]] = []
        self.fails: Undelivered | None = None
        self.lost = 0
        self.caches = Caches(cast(Cluster, self), "seedquota")
        namespaces = SimpleNamespace(of=lambda name: OrganizationNamespace(f"org-{name}") if name == "acme" else None)
        self.told = Notifications(
            cast(Cluster, self), self.caches, cast(OrganizationNamespaces, namespaces), "seedquota", PublicNetworks()
        )
        monkeypatch.setattr(controller, "deliver", self.deliver)
        monkeypatch.setattr(controller, "PAUSE", 0.0)
        spec: dict[str, object] = {"organization": "acme"}
        self.caches.projects.store._set("alpha", Named(metadata=ObjectMeta(name="alpha"), spec=spec))

    async def get(self, _resource: object, name: str, namespace: str) -> Secret:
        self.asked.append((namespace, name))
        return Secret(metadata=ObjectMeta(name=name), data={"url": b"https://hooks.example.com/"})

    async def apply(self, _resource: object, body: dict[str, Any], _manager: str, _subresource: str) -> None:
        if self.lost:
            self.lost -= 1
            raise Unavailable(0, "Unavailable", "nobody is there")
        key = f"{body['metadata']['namespace']}/{body['metadata']['name']}"
        found = self.told._reflector.store.get(key)
        assert found is not None
        self.told._reflector.store._set(key, replace(found, status=body["status"]))

    async def deliver(
        self, _receiver: object, _message: object, *, identity: str, notification: str, **_: object
    ) -> None:
        self.sent.append((notification, identity))
        if self.fails is not None:
            raise self.fails

    def add(self, name: str = "hook", *, generation: int = 1, namespace: str = ACME) -> str:
        metadata = ObjectMeta(name=name, namespace=namespace, uid=name, generation=generation)
        spec = NotificationSpec(events=EVENTS, form="slack", secret_ref=SecretName(name="mine"))
        self.told._reflector.store._set(metadata.key, QuotaNotification(metadata=metadata, spec=spec))
        return metadata.key

    def says(self, *reasons: str, quota: str = "alpha") -> None:
        """Of the quota's limit."""
        found = [condition("NearLimit", True, reason, "cpu 10/10") for reason in reasons]
        status = QuotaStatus(summary=Summary(subject="project/alpha"), conditions=found)
        of: dict[str, object] = {"subject": {"kind": "project", "name": "alpha"}}
        changed = MasterQuota(metadata=ObjectMeta(name=quota), spec=of, status=status)
        self.caches.quotas.store._set(quota, changed)
        self.told._changed("resourcequotas", Change(None, changed))

    async def look(self, key: str) -> float | None:
        return await self.told._reconcile(key)


@pytest.fixture
async def sides(monkeypatch: pytest.MonkeyPatch) -> Sides:
    return Sides(monkeypatch)


async def test_a_tenant_who_changes_everything_all_the_time_is_sent_a_bounded_number_of_messages(sides: Sides) -> None:
    """Also by objects that are made again and again."""
    keys = [sides.add(f"hook-{number}") for number in range(5)]
    for round in range(50):
        sides.says("AboveWarnPercent", quota=f"q-{round}")
        for number, key in enumerate(keys):
            sides.add(f"hook-{number}", generation=round)
            wait = await sides.look(key)
    assert len(sides.sent) == AT_ONCE
    assert wait is not None
    assert wait > 1


async def test_what_fails_is_tried_later_and_later_also_where_quotas_change_meanwhile(sides: Sides) -> None:
    key = sides.add()
    sides.says("Full")
    sides.fails = Undelivered("ReceiverUnreachable", "cannot be reached")
    waits = []
    for _ in range(12):
        waits.append(await sides.look(key))
        sent = len(sides.sent)
        sides.says("Full", quota=f"more-{sent}")
        left = await sides.look(key)
        assert len(sides.sent) == sent, "it is not its turn"
        assert left is not None
        known = next(iter(sides.told._known.values()))
        known.not_before = 0.0
    assert waits[0] is not None and waits[0] <= 5
    assert all(wait is not None and wait <= LONGEST_BACKOFF for wait in waits)
    assert cast(float, waits[-1]) > LONGEST_BACKOFF / 2
    delivered = known.status.conditions[-1]
    assert (delivered.type, delivered.status, delivered.reason) == ("Delivered", "False", "ReceiverUnreachable")
    sides.fails = None
    known.not_before = 0.0
    await sides.look(key)
    assert known.status.conditions[-1].status == "True"
    assert known.failures == 0


async def test_a_message_is_not_sent_again_because_its_record_was_not_written(sides: Sides) -> None:
    key = sides.add()
    sides.says("Full")
    sides.lost = 1
    with pytest.raises(Unavailable):
        await sides.look(key)
    await sides.look(key)
    await sides.look(key)
    assert len(sides.sent) == 1
    found = sides.told._reflector.store.get(key)
    assert found is not None
    assert sorted(each.event for each in found.status.notified) == ["Full", "NearLimit"]
    assert found.status.deliveries == 1


async def test_a_leader_that_ended_before_its_record_was_written_leaves_the_id_to_the_next(
    sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = sides.add()
    sides.says("Full")
    sides.lost = 1
    with pytest.raises(Unavailable):
        await sides.look(key)
    after = Sides(monkeypatch)
    after.add()
    after.says("Full")
    await after.look(key)
    assert after.sent == sides.sent


async def test_one_s_receiver_has_no_part_in_what_another_is_sent(sides: Sides) -> None:
    first, second = sides.add("first"), sides.add("second")
    sides.says("Full")
    sides.fails = Undelivered("ReceiverRefused", "no")
    await sides.look(first)
    sides.fails = None
    await sides.look(second)
    assert [key for key, _ in sides.sent] == [first, second]


async def test_only_the_secret_of_its_own_namespace_is_read_and_only_for_what_can_be_sent(sides: Sides) -> None:
    await sides.look(sides.add())
    await sides.look(sides.add(namespace="org-other"))
    await sides.look(sides.add(namespace="kube-system"))
    assert sides.asked == [(ACME, "mine")]
    assert sides.sent == []


async def test_nothing_is_said_before_it_is_known_whose_a_namespace_is(sides: Sides) -> None:
    """A master that has just begun has not looked for it."""
    sides.caches.organizations.store._set("later", Named(metadata=ObjectMeta(name="later")))
    key = sides.add(namespace="org-later")
    assert await sides.look(key) is None
    found = sides.told._reflector.store.get(key)
    assert found is not None
    assert found.status.conditions == []
