"""How `seedquota fits` asks an API server, and what it takes for an answer."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest
from aiohttp import web

from cli.fitting import asking
from cli.fitting.asking import Found
from cli.outcome import Failed
from common.api.labels import FITS_ANNOTATION
from seed.previews import objects
from seed.webhooks.fits import REASON, Fits
from tests.unit.fake_api_server import fake_api_server, status

Answer = Callable[[web.Request], Coroutine[Any, Any, web.Response]]
FULL = Fits(decision="01JD3Y6K", asked=4, code=403, reason="QuotaExceeded", message="exceeded quota: a")
MAPS = {"resources": [{"name": "configmaps", "kind": "ConfigMap", "namespaced": True, "verbs": []}]}


def manifest(kind: str = "ConfigMap", **metadata: Any) -> objects.Manifest:
    body = {"apiVersion": "v1", "kind": kind, "metadata": {"name": "m", **metadata}}
    return objects.Manifest("v1", kind, body)


async def ask(
    answers: list[tuple[str, web.Response]], one: objects.Manifest, replicas: int | None = None
) -> tuple[Found, list[Any]]:
    """`answers`: the method of each request that is expected, and what it is told; also the bodies that were sent."""
    sent: list[Any] = []
    async with fake_api_server() as api:
        api.discovery["/api/v1"] = MAPS

        def answer(method: str, response: web.Response) -> Any:
            async def answered(request: web.Request) -> web.Response:
                assert request.method == method, f"{request.method} {request.path_qs}"
                if method != "GET":
                    assert request.query["dryRun"] == "All"
                    sent.append(await request.json())
                return response

            return answered

        async def discovered(_request: web.Request) -> None:
            return None

        api.answers = [discovered, *(answer(*each) for each in answers)]
        cluster = api.cluster()
        (found,) = await asking.ask(cluster, one, "web", replicas)
        assert api.answers == [], "each was asked for"
    return found, sent


def told(found: Fits) -> web.Response:
    causes = [{"reason": REASON, "message": msgspec.json.encode(found).decode()}]
    return status(403, "Forbidden", "webhook denied the request", causes=causes)


def stored() -> web.Response:
    return web.json_response({"metadata": {"name": "m"}})


def not_there() -> tuple[str, web.Response]:
    return "GET", status(404, "NotFound")


async def test_it_asks_once_as_it_is_and_once_how_many() -> None:
    found, sent = await ask([("POST", stored()), ("POST", told(FULL))], manifest(), replicas=4)
    assert (found.what, found.count, found.exists, found.answer) == ("configmap/m", 4, False, FULL)
    assert [each["metadata"].get("annotations") for each in sent] == [None, {FITS_ANNOTATION: "4"}]
    assert [each["metadata"]["generateName"] for each in sent] == ["m-", "m-"], "several are new ones"


async def test_what_exists_is_edited() -> None:
    found, _ = await ask([("GET", stored()), ("PATCH", stored()), ("PATCH", stored())], manifest())
    assert (found.exists, found.answer) == (True, None)


@pytest.mark.parametrize("reason", ["QuotaExceeded", "QuotaUnavailable", "NotSpecified"])
async def test_what_a_quota_refuses_is_asked_how_many_fit(reason: str) -> None:
    refused = status(403, "Forbidden", "exceeded quota: a", causes=[{"reason": reason, "message": "x"}])
    found, _ = await ask([not_there(), ("POST", refused), ("POST", told(FULL))], manifest())
    assert found.answer == FULL


@pytest.mark.parametrize("when", ["first", "then"])
async def test_what_else_refuses_it_is_no_answer_about_quotas(when: str) -> None:
    refused = ("POST", status(403, "Forbidden", "configmaps is forbidden: User ann cannot create it"))
    with pytest.raises(Failed, match=r"configmap/m: .*User ann cannot create it"):
        await ask([not_there(), refused] if when == "first" else [not_there(), ("POST", stored()), refused], manifest())


async def test_pods_of_a_workload_are_asked_for_in_its_own_namespace() -> None:
    """Not in the namespace of whoever asks: other quotas are there."""
    spec = {"replicas": 2, "template": {"spec": {"containers": []}}}
    body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "namespace": "shop"}, "spec": spec}
    asked: list[str] = []
    async with fake_api_server() as api:
        api.discovery["/apis/apps/v1"] = _served("deployments", "Deployment")
        api.discovery["/api/v1"] = _served("pods", "Pod")

        async def answer(request: web.Request) -> web.Response | None:
            if "/namespaces/" not in request.path:
                return None
            asked.append(f"{request.method} {request.path}")
            if request.method == "GET":
                return status(404, "NotFound")
            return told(FULL) if FITS_ANNOTATION in await request.text() else web.json_response(body)

        api.answers = [answer] * 7
        cluster = api.cluster()
        (found,) = await asking.ask(cluster, objects.Manifest("apps/v1", "Deployment", body), "web", None)
    assert (found.what, found.answer) == ("pods of deployment/d", FULL)
    assert {each.partition("/namespaces/")[2].partition("/")[0] for each in asked} == {"shop"}
    assert sum("/pods" in each for each in asked) == 2


def _served(plural: str, kind: str) -> dict[str, Any]:
    return {"resources": [{"name": plural, "kind": kind, "namespaced": True, "verbs": []}]}


async def test_an_answer_that_cannot_be_read_is_no_answer() -> None:
    causes = [{"reason": REASON, "message": "{"}]
    with pytest.raises(Failed, match="answers what cannot be read"):
        await ask([not_there(), ("POST", status(403, "Forbidden", causes=causes))], manifest())


async def test_a_kind_that_is_not_served_is_named_with_what_to_do() -> None:
    with pytest.raises(Failed, match=r"does not serve ConfigMaps of v1: --kubeconfig and --context name the cluster"):
        await ask([], manifest("ConfigMaps"))
