"""Messages of a real master on a real API server to real HTTPS receivers. The seed's program is played by the test."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio

from common.api.core import SECRETS
from common.api.types import ORGANIZATIONS
from common.kube.client.api_client import Cluster
from devcluster import manifests
from devcluster.controlplane import ControlPlane
from master.cache.objects import MASTER_QUOTAS, PROJECTS
from master.manager import Master
from master.notifications import controller
from master.notifications.objects import QUOTA_NOTIFICATIONS, NotificationStatus
from tests.integration.test_master_program import (
    NAMESPACE,
    USER,
    FakeSeed,
    World,
    condition,
    fake_seeds,
    until,
)
from tests.unit.master.notifications.receivers import OK, Web

pytestmark = pytest.mark.integration

KEY = b"k" * 32
FAILED = b"HTTP/1.1 503 x\r\nContent-Length: 0\r\n\r\n"


class Told(World):
    prefix = "qn"

    async def start_master(self, connection: type[Cluster] = Cluster) -> Master:
        cluster = await connection.from_kubeconfig(self.server("master").kubeconfig(USER), name="master")
        master = Master(cluster, NAMESPACE, secrets.token_hex(4), notification_networks=["127.0.0.0/8"])
        self._running.append((asyncio.create_task(master.run()), cluster))
        return master

    async def organization(self, name: str, project: str) -> None:
        await self.master.apply(ORGANIZATIONS, {"metadata": {"name": name}, "spec": {}}, manager="test")
        spec = {"organization": name}
        await self.master.apply(PROJECTS, {"metadata": {"name": project}, "spec": spec}, manager="test")

    async def hook(self, namespace: str, web: Web, name: str = "hook", url: bytes = b"") -> None:
        data = {"url": url or web.url(), "signingKey": KEY, "ca.crt": web.authorities}
        body = {
            "metadata": {"name": name, "namespace": namespace},
            "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
        }
        await until(lambda: self.applied(SECRETS, body))

    async def applied(self, resource: Any, body: dict[str, Any]) -> bool:
        """The namespace may not be there yet, which is NotFound."""
        await self.master.apply(resource, body, manager="test")
        return True

    async def notify(
        self, namespace: str, *events: str, name: str = "told", form: str = "slack", **more: object
    ) -> None:
        spec = {"events": list(events), "form": form, "secretRef": {"name": "hook"}, **more}
        body = {"metadata": {"name": name, "namespace": namespace}, "spec": spec}
        await until(lambda: self.applied(QUOTA_NOTIFICATIONS, body))

    async def allow(self, namespace: str) -> None:
        """As the message of the condition says."""
        rule = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"], "resourceNames": ["hook"]}
        metadata = {"name": "seedquota-read-hook", "namespace": namespace}
        api = "rbac.authorization.k8s.io"
        role = {"apiVersion": f"{api}/v1", "kind": "Role", "metadata": metadata, "rules": [rule]}
        binding = {
            "apiVersion": f"{api}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": api, "kind": "Role", "name": metadata["name"]},
            "subjects": [{"kind": "User", "apiGroup": api, "name": USER}],
        }
        await manifests.apply(self.server("master"), [role, binding])

    async def status(self, namespace: str, name: str = "told") -> NotificationStatus:
        return (await self.master.get(QUOTA_NOTIFICATIONS, name, namespace)).status

    async def comes(self, namespace: str, kind: str, status: str, reason: str, name: str = "told") -> str:
        async def holds() -> object:
            return condition(await self.status(namespace, name), kind)[:2] == (status, reason)

        await until(holds)
        return condition(await self.status(namespace, name), kind)[2]

    async def clean(self) -> None:
        await super().clean()
        for found in (await self.master.list(QUOTA_NOTIFICATIONS)).items:
            await self.master.delete(QUOTA_NOTIFICATIONS, found.metadata.name, found.metadata.namespace)


@pytest_asyncio.fixture(scope="module")
async def servers(control_plane: ControlPlane) -> AsyncIterator[Told]:
    told = Told(control_plane)
    await asyncio.gather(*(told.add_server(name) for name in ("master", "eu-1")))
    yield told
    for cluster in told.admin.values():
        await cluster.close()
    for name in ("master", "eu-1"):
        await told.server(name).kill()


@pytest_asyncio.fixture
async def world(servers: Told, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Told]:
    for name, seconds in (("SECRET_AGAIN", 0.5), ("PAUSE", 0.1), ("FIRST_BACKOFF", 0.2), ("PER_SECOND", 50.0)):
        monkeypatch.setattr(controller, name, seconds)
    yield servers
    await servers.clean()


@asynccontextmanager
async def used(world: Told, quota: str, **limits: str) -> AsyncIterator[FakeSeed]:
    await world.add_seed("eu-1", server="eu-1")
    await world.apply_quota(quota, **limits)
    await world.start_master()
    async with fake_seeds(world, quota, "eu-1") as (seed,):
        yield seed


async def came(web: Web, number: int) -> list[str]:
    async def holds() -> object:
        return len(web.told) >= number

    await until(holds)
    assert len(web.told) == number
    return [json.loads(each.body)["text"] for each in web.told]


async def test_an_organization_is_told_once_and_signed_whichever_master_leads(world: Told) -> None:
    await world.organization("acme", "alpha")
    await world.organization("other", "beta")
    async with Web().serve() as web, Web().serve() as others, used(world, "alpha", cpu="10") as seed:
        for namespace, receiver in (("org-acme", web), ("org-other", others)):
            await world.hook(namespace, receiver)
            await world.notify(namespace, "NearLimit", "Full")
            text = await world.comes(namespace, "Ready", "False", "SecretForbidden")
            assert f"kubectl -n {namespace} create role seedquota-read-hook --verb=get --resource=secrets" in text
            await world.allow(namespace)
            await world.comes(namespace, "Ready", "True", "Valid")
        assert web.told == [], "nothing lasts yet"
        await seed.use(cpu="9500m")
        (text,) = await came(web, 1)
        assert text == "seedquota/alpha (project/alpha): NearLimit: cpu 9500m/10", text
        told = web.told[0]
        signed = f"{told.head['webhook-id']}.{told.head['webhook-timestamp']}.".encode() + told.body
        expected = base64.b64encode(hmac.new(KEY, signed, hashlib.sha256).digest()).decode()
        assert told.head["webhook-signature"] == f"v1,{expected}"
        await world.comes("org-acme", "Delivered", "True", "Delivered")
        await seed.use(cpu="10")
        assert "Full: cpu 10/10" in (await came(web, 2))[1]

        async def recorded(*events: str) -> object:
            status = await world.status("org-acme")
            return sorted(each.event for each in status.notified) == sorted(events)

        await until(lambda: recorded("Full", "NearLimit"))
        await world.stop_master()
        await world.start_master()
        await seed.use(cpu="9600m")
        await until(lambda: recorded("NearLimit"))  # by the next leader, which tells nothing again
        await seed.use(cpu="1")
        await until(recorded)
        await seed.use(cpu="9700m")
        assert "NearLimit: cpu 9700m/10" in (await came(web, 3))[2]
        status = await world.status("org-acme")
        assert (status.deliveries, len({each.head["webhook-id"] for each in web.told})) == (3, 3)
        assert others.told == []


async def test_a_message_that_fails_is_tried_again_under_its_id_and_no_status_says_where_to(world: Told) -> None:
    await world.organization("acme-2", "gamma")
    async with Web(answers=[FAILED, FAILED, OK]).serve() as web, used(world, "gamma", cpu="10") as seed:
        await world.hook("org-acme-2", web, url=web.url("/hidden-token"))
        await world.allow("org-acme-2")
        await world.notify("org-acme-2", "Full", form="cloudevents")
        await seed.use(cpu="10")
        await world.comes("org-acme-2", "Delivered", "True", "Delivered")
        assert len(web.told) == 3
        assert len({each.head["webhook-id"] for each in web.told}) == 1
        assert json.loads(web.told[2].body)["id"] == web.told[2].head["webhook-id"]
        await world.hook("org-acme-2", web, url=b"https://169.254.169.254/latest/hidden-token")
        await seed.use(cpu="1")

        async def over() -> object:
            return not (await world.status("org-acme-2")).notified

        await until(over)
        await seed.use(cpu="10")
        text = await world.comes("org-acme-2", "Delivered", "False", "AddressForbidden")
        assert "not public" in text
        found = await world.master.get(QUOTA_NOTIFICATIONS, "told", "org-acme-2")
        assert "hidden" not in repr(found) and "169.254" not in repr(found)


async def test_the_platform_is_told_of_all_and_elsewhere_nothing_is_told(world: Told) -> None:
    """Of an end that is near, at once."""
    elsewhere = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "elsewhere"}}
    await manifests.apply(world.server("master"), [elsewhere])
    end = (datetime.now(UTC) + timedelta(hours=2)).strftime("%Y-%m-%dT%H:%M:%SZ")
    await world.apply_quota("delta", cpu="10")
    overrides = [{"until": end, "quota": {"cpu": "20"}, "reason": "launch"}]
    await world.master.merge_patch(MASTER_QUOTAS, "delta", {"spec": {"overrides": overrides}})
    async with Web().serve() as web:
        for namespace in (NAMESPACE, "elsewhere"):
            await world.hook(namespace, web)
            await world.notify(namespace, "OverrideEnds", form="alertmanager")
        await world.start_master()
        await world.comes("elsewhere", "Ready", "False", "NoSubject")
        await world.comes(NAMESPACE, "Delivered", "True", "Delivered")
        (alert,) = json.loads(web.told[0].body)["alerts"]
        assert (alert["status"], alert["labels"]["alertname"]) == ("firing", "OverrideEnds")
        assert alert["annotations"]["summary"] == f"cpu=20 until {end} (launch): ends"
        await world.master.merge_patch(MASTER_QUOTAS, "delta", {"spec": {"overrides": None}})

        async def resolved() -> object:
            return len(web.told) == 2

        await until(resolved)
        (over,) = json.loads(web.told[1].body)["alerts"]
        assert (over["status"], over["fingerprint"]) == ("resolved", alert["fingerprint"])


async def test_a_namespace_has_a_bounded_number_of_them(world: Told) -> None:
    async with Web().serve() as web:
        await world.hook(NAMESPACE, web)
        for number in range(controller.MAX_IN_NAMESPACE + 1):
            await world.notify(NAMESPACE, "Full", name=f"told-{number:02}")
        await world.start_master()
        last = f"told-{controller.MAX_IN_NAMESPACE:02}"
        await world.comes(NAMESPACE, "Ready", "False", "TooMany", name=last)
        await world.comes(NAMESPACE, "Ready", "True", "Valid", name="told-00")
        await world.master.delete(QUOTA_NOTIFICATIONS, "told-00", NAMESPACE)
        await world.comes(NAMESPACE, "Ready", "True", "Valid", name=last)
