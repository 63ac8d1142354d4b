"""What `seedquota start-check` says of an installation that does not work. That one works, real programs prove."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web

from cli.definitions import Schema, lacks
from cli.start_check import Check
from common.api.definitions import definitions
from common.api.labels import UNINSTALL_ANNOTATION
from common.kube.client.api_client import Cluster
from common.kube.client.kubeconfig import Access
from common.kube.controller.leader_election import SINCE_ANNOTATION
from common.runtime.metrics import build_version
from tests.unit.fake_api_server import status

HERE = "127.0.0.1"
TIMES = ("2026-01-01T00:00:00.000000Z", "2026-01-01T00:00:05.000000Z")
REFUSED = ("CanaryDenied", 'admission webhook "clusters.seedquota.io" denied the request: a canary')
UNREACHED = (
    "",
    'Internal error occurred: failed calling webhook "clusters.seedquota.io": Post "u": connection refused',
)


CRDS: list[dict[str, Any]] = definitions(dict[str, Any])


def measured(version: str = build_version(), leads: int = 1) -> str:
    return f'seedquota_build_info{{python="3",version="{version}"}} 1.0\nseedquota_leader {leads}.0\n'


@asynccontextmanager
async def server(*routes: web.RouteDef) -> AsyncIterator[int]:
    """Its port."""
    app = web.Application()
    app.add_routes(routes)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, HERE, 0).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def problems(
    *,
    metrics: str = measured(),
    code: int = 200,
    phase: str = "Running",
    served: int = len(CRDS),
    holder: str = "a",
    renewed: Sequence[str] = TIMES,
    annotations: dict[str, str] | None = None,
    canary: tuple[str, str] | None = REFUSED,
) -> list[str]:
    """Of the last look at a seed; at each one, the Lease has the next of the times."""
    times = iter(renewed)

    async def schemas(_request: web.Request) -> web.Response:
        if not served:
            return status(404, "NotFound", "404 page not found")
        shown = {
            f"io.seedquota.v1alpha1.{each['spec']['names']['kind']}": version["schema"]["openAPIV3Schema"]
            for each in CRDS[:served]
            for version in each["spec"]["versions"]
        }
        return web.json_response({"components": {"schemas": shown}})

    async def lease(_request: web.Request) -> web.Response:
        spec = {"holderIdentity": holder, "renewTime": next(times)}
        return web.json_response({"metadata": {"name": "l", "annotations": annotations or {}}, "spec": spec})

    async def create(_request: web.Request) -> web.Response:
        if canary is None:
            return web.json_response({"metadata": {"name": "c"}}, status=201)
        return status(
            *((403, "Forbidden") if canary[0] else (500, "InternalError")), canary[1], causes=[{"reason": canary[0]}]
        )

    async def measure(_request: web.Request) -> web.Response:
        return web.Response(text=metrics, status=code)

    async with server(web.get("/metrics", measure)) as port:

        async def pods(_request: web.Request) -> web.Response:
            container = {"name": "c", "ports": [{"name": "health", "containerPort": port}]}
            pod = {
                "metadata": {"name": "p", "namespace": "quotas"},
                "spec": {"containers": [container]},
                "status": {"phase": phase, "podIP": HERE},
            }
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": [pod]})

        ours = "/apis/seedquota.io/v1alpha1"
        routes = (
            web.get(f"/openapi/v3{ours}", schemas),
            web.get("/apis/coordination.k8s.io/v1/namespaces/quotas/leases/seedquota-seed", lease),
            web.post(f"{ours}/namespaces/quotas/userclusters", create),
            web.get("/api/v1/namespaces/quotas/pods", pods),
        )
        async with server(*routes) as api, aiohttp.ClientSession() as session:
            cluster = Cluster(Access(f"http://{HERE}:{api}", authorization="Bearer t"), name="seed", timeout=30)
            try:
                check = Check(cluster, session, "quotas", "seed")
                for _ in renewed:
                    found = await check.problems()
            finally:
                await cluster.close()
    return found


def withdrawn(run: str) -> dict[str, str]:
    """Of a Lease, as `seedquota uninstall seed` left it in the run 3."""
    return {SINCE_ANNOTATION: run, UNINSTALL_ANNOTATION: "3.5f2a"}


async def test_where_all_is_well_there_is_no_problem() -> None:
    assert await problems() == []


async def test_that_an_earlier_installation_was_removed_is_no_problem() -> None:
    assert await problems(annotations=withdrawn(run="4")) == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"renewed": TIMES[:1] * 3}, "^a has not renewed the Lease quotas/seedquota-seed; see `kubectl"),
        ({"holder": ""}, "^no replica leads: nobody holds the Lease"),
        ({"annotations": withdrawn(run="3")}, "^the webhooks are withdrawn by `seedquota uninstall seed`"),
        ({"metrics": measured(leads=0)}, "^no pod of seedquota-seed says that it leads"),
        ({"metrics": measured("0.1.0")}, f"^pod p leads, and is version 0.1.0, not {re.escape(build_version())}; see"),
        ({"metrics": "seedquota_leader 1.0\n"}, "^pod p leads, and is version unknown"),
        ({"code": 500}, "^pod p answers http://127.0.0.1:[0-9]+/metrics with the status 500"),
        ({"phase": "Pending"}, "^no pod of seedquota-seed runs; see `kubectl -n quotas describe pods"),
        ({"served": len(CRDS) - 1}, "^the API server does not serve userclusters of seedquota.io: set crds.install"),
        (
            {"served": 0},
            "^the API server does not serve allocations, .*, userclusters of seedquota.io: set",
        ),
        ({"canary": None}, "^the API server does not ask the agents: it admitted a dry run"),
        ({"canary": UNREACHED}, "does not reach the webhook: connection refused; .* set hostNetwork=true$"),
    ],
)
async def test_a_problem_is_named_with_what_to_do(wrong: dict[str, Any], said: str) -> None:
    (found,) = await problems(**wrong)
    assert re.search(said, found), found


@pytest.mark.parametrize(
    ("ours", "theirs", "lacking"),
    [
        ({"a": {}}, {"a": {}, "b": {}}, []),
        ({"a": {}, "b": {"properties": {"c": {}}}}, {}, [".a", ".b"]),
        ({"a": {"properties": {"b": {}}}}, {"a": {}}, [".a.b"]),
        ({"a": {"items": {"properties": {"b": {}}}}}, {"a": {"items": {}}}, [".a[].b"]),
        ({"a": {"additionalProperties": {"properties": {"b": {}}}}}, {"a": {"additionalProperties": {}}}, [".a.*.b"]),
        ({"a": {"additionalProperties": {}}}, {"a": {"additionalProperties": True}}, []),
        ({"a": {"enum": ["x", "y"]}}, {"a": {"enum": ["y", "z"]}}, [".a x"]),
        ({"a": {"enum": ["x"]}}, {"a": {}}, []),
        ({"a": {"maxLength": 9, "maxItems": 2}}, {"a": {"maxLength": 8, "maxItems": 3}}, [".a of more than 8"]),
        ({"a": {}}, {"a": {"maxProperties": 80}}, [".a of more than 80"]),
        ({"metadata": {"properties": {"name": {}}}}, {"metadata": {}}, []),
        (
            {"spec": {"properties": {"metadata": {"properties": {"name": {}}}}}},
            {"spec": {"properties": {"metadata": {}}}},
            [".spec.metadata.name"],
        ),
    ],
)
def test_what_an_older_schema_lacks(ours: object, theirs: object, lacking: list[str]) -> None:
    both = (msgspec.convert({"properties": each}, Schema) for each in (ours, theirs))
    assert list(lacks(*both)) == lacking
