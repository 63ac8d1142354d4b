"""What a cloud lets an account have, from OpenStack's API through an agent and its API server to `seedquota where`."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from devcluster.manifests import apply
from devcluster.objects import API
from tests.integration.installed.commands import Commands
from tests.integration.installed.site import Site, cpus, until
from tests.unit.fake_cloud import fake_cloud

pytestmark = pytest.mark.integration

USER_CLUSTER = f"/apis/{API}/namespaces/alpha/userclusters/user-1"
PASSWORD = "s3cret-of-the-platform"
TOKEN = "gAAAAABkeystone-token"
ABSOLUTE = {
    "maxTotalCores": 20,
    "totalCoresUsed": 12,
    "maxTotalInstances": -1,
    "totalInstancesUsed": 3,
    "maxTotalRAMSize": 51200,
    "totalRAMUsed": 24576,
}


async def openstack(request: web.Request) -> web.StreamResponse:
    """Keystone and Nova of one host, as documented."""
    if request.path == "/v3/auth/tokens":
        user = (await request.json())["auth"]["identity"]["password"]["user"]
        if user["password"] != PASSWORD:
            return web.json_response({"error": {"code": 401, "title": "Unauthorized"}}, status=401)
        nova = {"interface": "public", "region_id": "RegionOne", "url": f"https://{request.host}/v2.1/project-id"}
        token = {
            "issued_at": "2026-01-01T00:00:00.000000Z",
            "expires_at": "2026-01-01T01:00:00.000000Z",
            "catalog": [{"type": "compute", "name": "nova", "endpoints": [nova]}],
        }
        return web.json_response({"token": token}, status=201, headers={"X-Subject-Token": TOKEN})
    if request.headers.get("X-Auth-Token") != TOKEN:
        return web.json_response({"error": {"code": 401, "title": "Unauthorized"}}, status=401)
    if request.path == "/v2.1/project-id/limits":
        return web.json_response({"limits": {"rate": [], "absolute": ABSOLUTE}})
    return web.json_response({"flavors": []})


async def test_room_in_a_cloud_account_is_shown_with_its_age_and_unknown_where_it_is(
    site: Site, tmp_path: Path
) -> None:
    seedquota = Commands(site, tmp_path)
    await site.quota(cpus(100))

    async def provider(value: object) -> None:
        await site.patch("seed-1", USER_CLUSTER, {"spec": {"provider": value}})

    async def told() -> dict[str, Any]:
        return (await site.get("seed-1", USER_CLUSTER))["status"].get("cloudQuota", {})

    async def where() -> dict[str, Any]:
        asked = ("where", "--subject", "project/alpha", "cpu=4", "--seed", "seed-1", "-o", "json")
        status, said = await seedquota("master", *asked)
        assert status == 0, said
        seeds = {each["seed"]: each["accounts"] for each in json.loads(said)["items"]}
        assert seeds["seed-2"] is None, "nobody asked"
        return {each["cluster"]: each for each in seeds["seed-1"]}["alpha/user-1"]

    assert (await where())["count"] is None
    async with fake_cloud(openstack, "127.0.0.1") as cloud:
        data = {
            "OS_AUTH_URL": f"https://127.0.0.1:{cloud.port}/v3",
            "OS_USER_NAME": "seed",
            "OS_PASSWORD": PASSWORD,
            "OS_DOMAIN_NAME": "Default",
            "OS_PROJECT_NAME": "workers",
            "OS_CACERT_DATA": cloud.ca,
        }
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "openstack", "namespace": "alpha"},
            "data": {key: base64.b64encode(text.encode()).decode() for key, text in data.items()},
        }
        await apply(site.server("seed-1"), [secret])
        named = {"name": "openstack", "credentialsSecretRef": {"name": "openstack"}}
        try:
            await provider({**named, "region": "RegionOne"})

            async def published() -> None:
                found = await told()
                assert found.get("limits") == {"cpu": "20", "memory": "50Gi"}, found
                assert (found["used"], "problem" in found) == ({"cpu": "12", "memory": "24Gi"}, False)

            await until(published, 90)
            found = await where()
            assert (found["count"], found["limitedBy"], found.get("problem")) == (2, "cpu", None)
            # Where it cannot be asked, what was told stays with its time.
            await provider({**named, "region": "RegionTwo"})

            async def unknown() -> None:
                assert "region has no compute service" in (await told()).get("problem", "")

            await until(unknown, 90)
            assert (await told())["limits"] == {"cpu": "20", "memory": "50Gi"}
            found = await where()
            assert found["count"] == 2 and "region has no compute service" in found["problem"]
            assert PASSWORD not in json.dumps(await site.get("seed-1", USER_CLUSTER))
        finally:
            await provider(None)

            async def gone() -> None:
                assert await told() == {}

            await until(gone, 90)
            await site.delete("seed-1", "/api/v1/namespaces/alpha/secrets/openstack")
