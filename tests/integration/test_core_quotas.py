"""Kubernetes' own ResourceQuota as the oracle of seed/evaluators: the same verdicts, and the same use.

Each write of a scenario goes to a real API server with core quotas. A webhook there, which allows everything, sees what
SeedQuota's would see, and what we make of it is compared with what core answers and adds to `status.used`. At the end
the real controller counts everything again. The differences that are meant are in the last tests; seed/evaluators/
namespaced.py lists them.

SEEDQUOTA_SCENARIOS=1000 makes up that many, others each time.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import pytest_asyncio
from aiohttp import web
from hypothesis import HealthCheck, Phase, given, settings

from common.quota import resources, scopes
from common.quota.object_names import GroupResource
from devcluster import certificates
from devcluster.controlplane import ControlPlane
from devcluster.manifests import apply
from devcluster.patience import patient_timeout
from seed.admission import denial
from seed.kinds.namespaces.evaluators import namespaced, pods, registry
from seed.kinds.namespaces.evaluators.amounts import amounts
from seed.kinds.namespaces.evaluators.namespaced import Refused, Terms, Write
from seed.webhooks.review import RawReview
from tests.integration import quota_writes
from tests.integration.quota_writes import (
    PATHS,
    Body,
    Change,
    Create,
    Delete,
    Quota,
    Scenario,
    Step,
    path_of,
    resource_of,
)

pytestmark = pytest.mark.integration

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
LABEL = "quotas.example.com"
LABELS = {LABEL: "true", "resource.kubernetes.io/admin-access": "true"}
SENTINEL = "zz-sentinel"

_ASKED_FOR = int(os.environ.get("SEEDQUOTA_SCENARIOS", "0"))
SETTINGS = settings(
    max_examples=_ASKED_FOR or 30,
    derandomize=not _ASKED_FOR,
    database=None,
    deadline=None,
    phases=(Phase.generate,),  # to shrink takes minutes
    suppress_health_check=list(HealthCheck),
)

THINGS = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "things.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "things", "singular": "thing", "kind": "Thing"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object"}},
            }
        ],
    },
}

VERDICTS = ("admitted", "refused")
MUST = (
    "pods",
    "pods/resize",
    "services",
    "persistentvolumeclaims",
    "resourceclaims",
    "resourceclaims v1beta2",
    "resourceclaims v1beta1",
    "configmaps",
    "deployments",
    "things",
)
"""Enough of them must have been written and refused, or nothing was compared."""

BOUND: Body = {"status": {"phase": "Bound", "capacity": {"storage": "1"}}}

_EXCEEDED = re.compile(r"exceeded quota: (\S+), requested: (\S+), used: (\S+), limited: ([^\s;]+)")
_FAILED = re.compile(r"failed quota: (\S+): (.*)")


class Oracle:
    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session = session
        self.reviews: list[RawReview] = []
        self.quotas: dict[str, dict[str, Quota]] = {}  # by namespace and name
        self.namespaces = count()
        self.seen: Counter[str] = Counter()

    async def send(
        self, method: str, path: str, body: Body | None = None, content: str = "application/json", **query: str
    ) -> tuple[int, Any]:
        data = None if body is None else msgspec.json.encode(body)
        headers = {"Content-Type": content}
        async with self.session.request(method, path, data=data, headers=headers, params=query) as answer:
            return answer.status, msgspec.json.decode(await answer.read())

    async def must(self, method: str, path: str, body: Body | None = None, content: str = "application/json") -> Any:
        status, found = await self.send(method, path, body, content)
        assert status < 300, found
        return found

    async def namespace(self, quotas: Iterable[Quota]) -> str:
        """With these quotas, which the API server's plugin knows."""
        name = f"n{next(self.namespaces)}"
        await self.must("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": LABELS}})
        await self.must("POST", f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": "default"}})
        self.quotas[name] = {f"q{number}": quota for number, quota in enumerate(quotas)}
        made = {**self.quotas[name], SENTINEL: Quota({"count/endpoints": "0"})}
        path = path_of("resourcequotas", name)
        for quota, wanted in made.items():
            await self.must("POST", path, {"metadata": {"name": quota}, "spec": wanted.spec})
        for quota, wanted in made.items():
            # As the controller would: it is not there, since it would race with admission.
            status = {"hard": wanted.hard, "used": dict.fromkeys(wanted.hard, "0")}
            await self.must("PATCH", f"{path}/{quota}/status", {"status": status}, MERGE)
        async with patient_timeout(30):
            while True:
                probe = {"metadata": {"name": "probe"}}
                answer, _ = await self.send("POST", f"/api/v1/namespaces/{name}/endpoints", probe, dryRun="All")
                if answer == 403:
                    return name

    async def used(self, namespace: str) -> dict[str, dict[str, int]]:
        found = await self.must("GET", path_of("resourcequotas", namespace))
        return {
            item["metadata"]["name"]: amounts(item.get("status", {}).get("used", {}))
            for item in found["items"]
            if item["metadata"]["name"] in self.quotas[namespace]
        }

    async def objects(self, plural: str, namespace: str) -> list[Any]:
        return (await self.must("GET", path_of(plural, namespace)))["items"]


@pytest_asyncio.fixture(scope="module")
async def oracle(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Oracle]:
    claims = [f"resource.k8s.io/{version}" for version in ("v1", "v1beta2", "v1beta1")]
    await control_plane.start(["core-quotas"], also_served=["apps/v1", *claims])
    server = control_plane.cluster("core-quotas")
    found = Oracle(server.session())

    async def review(request: web.Request) -> web.Response:
        made = msgspec.json.decode(await request.read(), type=RawReview)
        found.reviews.append(made)
        answer = {"uid": made.request.uid, "allowed": True}
        return web.json_response({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer})

    app = web.Application(client_max_size=2**23)
    app.router.add_post("/", review)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=serving(tmp_path_factory.mktemp("webhook")))
    await site.start()
    url = f"https://127.0.0.1:{runner.addresses[0][1]}/"
    await apply(server, [THINGS])
    await found.must(
        "POST", "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", configuration(url)
    )
    yield found
    await found.session.close()
    await runner.cleanup()
    await server.kill()


CERTIFICATE = certificates.serving("webhook")


def serving(directory: Path) -> ssl.SSLContext:
    (directory / "tls.crt").write_text(CERTIFICATE.certificate)
    (directory / "tls.key").write_text(CERTIFICATE.key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(directory / "tls.crt", directory / "tls.key")
    return context


def configuration(url: str) -> Body:
    rule = {"operations": ["CREATE", "UPDATE"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}
    webhook = {
        "name": "all.example.com",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "timeoutSeconds": 30,
        "rules": [rule | {"scope": "Namespaced"}],
        "namespaceSelector": {"matchLabels": {LABEL: "true"}},
        # What the quota plugin itself writes.
        "matchConditions": [{"name": "ours", "expression": "request.userInfo.username == 'admin'"}],
        "clientConfig": {"url": url, "caBundle": msgspec.json.decode(msgspec.json.encode(CERTIFICATE.ca.encode()))},
    }
    return {"metadata": {"name": "all"}, "webhooks": [webhook]}


@dataclass(frozen=True)
class Expected:
    """What we say of a write: what it adds to each quota, and how each that refuses says so."""

    added: dict[str, Mapping[str, int]] = field(default_factory=dict)
    exceeded: dict[str, tuple[dict[str, int], ...]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def expected(review: RawReview, quotas: Mapping[str, Quota], used: Mapping[str, Mapping[str, int]]) -> Expected:
    request = review.request
    resource = GroupResource(request.resource.resource, request.resource.group)
    evaluator = registry.evaluator_of(resource)
    if evaluator is None:
        return Expected()
    decode = msgspec.json.Decoder(evaluator.type | None).decode
    new, old = decode(request.object), decode(request.old_object)
    write = Write(operation=request.operation, subresource=request.sub_resource, new=new, old=old, now=time.time())
    found = Expected()
    for name, quota in quotas.items():
        terms = Terms(limited=frozenset(quota.hard), scopes=quota.requirements)
        try:
            added = namespaced.added(evaluator, terms, write)
        except Refused as refused:
            found.failed[name] = str(refused)
            continue
        limits = resources.parse(quota.hard)
        if resources.over_limit(added, used[name], limits):
            message = denial.exceeded(name, added, used[name], limits, {}).message("decision")
            found.exceeded[name] = exceeded_by(message)[1]
        found.added[name] = added
    return found


def exceeded_by(message: str) -> tuple[str, tuple[dict[str, int], ...]]:
    """The quota, and what was requested, used and limited."""
    match = _EXCEEDED.search(message)
    assert match is not None, message
    lists = [dict(pair.split("=", 1) for pair in text.split(",")) for text in match.groups()[1:]]
    return match[1], tuple(resources.parse(found) for found in lists)


def changed_status_of_claim(review: RawReview) -> bool:
    return review.request.resource.resource == "persistentvolumeclaims" and review.request.sub_resource == "status"


async def take(oracle: Oracle, namespace: str, step: Step, number: int) -> tuple[int, Any] | None:
    """None where there is no object to change."""
    if isinstance(step, Create):
        metadata = step.body.get("metadata", {}) | {"name": f"{step.plural}-{number}"}
        body = step.body | {"metadata": metadata}
        if step.plural == "events":
            body |= {"involvedObject": {"namespace": namespace}}
        query = {"dryRun": "All"} if step.dry_run else {}
        return await oracle.send("POST", path_of(step.plural, namespace, version=step.version), body, **query)
    existing = await oracle.objects(step.plural, namespace)
    if not existing:
        return None
    name = existing[step.which % len(existing)]["metadata"]["name"]
    if isinstance(step, Change):
        path = path_of(step.plural, namespace, name, step.subresource)
        return await oracle.send("PATCH", path, step.patch, STRATEGIC)
    body = {} if step.grace is None else {"gracePeriodSeconds": step.grace}
    return await oracle.send("DELETE", path_of(step.plural, namespace, name), body)


async def play(oracle: Oracle, scenario: Scenario) -> None:
    namespace = await oracle.namespace(scenario.quotas)
    quotas = oracle.quotas[namespace]
    used = await oracle.used(namespace)
    for number, step in enumerate(scenario.steps):
        oracle.reviews.clear()
        answered = await take(oracle, namespace, step, number)
        if answered is None or isinstance(step, Delete):
            continue
        code, answer = answered
        of_change = f"/{step.subresource}" if isinstance(step, Change) and step.subresource else ""
        of_version = f" {step.version}" if isinstance(step, Create) and step.version else ""
        kind = f"{step.plural}{of_change}{of_version}"
        after = await oracle.used(namespace)
        if not oracle.reviews:
            assert code in (400, 403, 404, 405, 409, 422), answer
            assert "quota" not in answer.get("message", ""), answer
            oracle.seen[f"{kind} not valid"] += 1
            continue
        review = oracle.reviews[0]
        if len(oracle.reviews) > 1:
            # It met a newer version than the API server had in its cache, and core may have charged each attempt.
            oracle.seen[f"{kind} repeated"] += 1
            used = after
            continue
        wanted = expected(review, quotas, used)
        oracle.seen[f"{kind} {'refused' if wanted.failed or wanted.exceeded else 'admitted'}"] += 1
        check_answer(wanted, code, answer, step)
        if code >= 300 or (isinstance(step, Create) and step.dry_run):
            assert after == used, step
        elif not changed_status_of_claim(review):
            assert after == {name: resources.add(used[name], wanted.added.get(name, {})) for name in quotas}, step
        used = after
        if code == 201 and step.plural == "persistentvolumeclaims":
            # Others cannot be changed.
            path = path_of(step.plural, namespace, f"{step.plural}-{number}", "status")
            await oracle.send("PATCH", path, BOUND, MERGE)


def check_answer(wanted: Expected, code: int, answer: Any, step: Step) -> None:
    message = answer.get("message", "")
    if wanted.failed:
        failed = _FAILED.search(message)
        assert code == 403 and failed is not None, f"{message or code}, not {wanted.failed}: {step}"
        assert wanted.failed[failed[1]] == failed[2], step
    elif wanted.exceeded:
        assert code == 403, f"{message or code}, not {wanted.exceeded}: {step}"
        name, numbers = exceeded_by(message)
        assert numbers == wanted.exceeded[name], step
    else:
        assert code < 300, f"{message}: {step}"


@SETTINGS
@given(scenario=quota_writes.examples(quota_writes.scenarios()))
async def test_each_write_gets_cores_answer_and_costs_what_core_adds(oracle: Oracle, scenario: Scenario) -> None:
    await play(oracle, scenario)


@settings(SETTINGS, max_examples=_ASKED_FOR or 60)
@given(quota=quota_writes.examples(quota_writes.any_quotas()))
async def test_scopes_that_core_refuses_are_refused(oracle: Oracle, quota: Quota) -> None:
    """Beyond that, names that no object in the scopes uses are refused; core accepts and never counts them."""
    problem = scopes.problem(list(quota.hard), quota.requirements)
    body = {"metadata": {"name": "any"}, "spec": quota.spec}
    code, answer = await oracle.send("POST", path_of("resourcequotas", "default"), body, dryRun="All")
    assert code == 201 or problem, (quota, answer)
    if problem and code == 201:
        assert " cannot limit count/" in problem or "/" in problem, (quota, problem)


async def test_a_resize_after_one_that_was_infeasible_costs(oracle: Oracle) -> None:
    """Core sees that the node refused the resize before, and so charges nothing for this one, whatever it asks for."""
    namespace = await oracle.namespace([Quota({"requests.cpu": "2"})])
    wanted = {"name": "c0", "image": "none", "resources": {"requests": {"cpu": "1"}}}
    body = {"metadata": {"name": "web"}, "spec": {"nodeName": "nowhere", "containers": [wanted]}}
    await oracle.must("POST", path_of("pods", namespace), body)
    path = path_of("pods", namespace, "web")

    def resized(cpu: str) -> Body:
        return {"spec": {"containers": [{"name": "c0", "resources": {"requests": {"cpu": cpu}}}]}}

    pod = await oracle.must("PATCH", f"{path}/resize", resized("2"), STRATEGIC)
    given = {"name": "c0", "resources": {"requests": {"cpu": "1"}}, "allocatedResources": {"cpu": "1"}}
    refused = {"type": "PodResizePending", "status": "True", "reason": "Infeasible"}
    refused |= {"observedGeneration": pod["metadata"]["generation"]}
    status = {"phase": "Running", "conditions": [refused], "containerStatuses": [given | quota_writes.RUNNING]}
    await oracle.must("PATCH", f"{path}/status", {"status": status}, STRATEGIC)
    used = await oracle.used(namespace)
    oracle.reviews.clear()
    code, answer = await oracle.send("PATCH", f"{path}/resize", resized("100"), STRATEGIC)
    assert code == 200 and await oracle.used(namespace) == used, answer
    requested, *_ = expected(oracle.reviews[-1], oracle.quotas[namespace], used).exceeded["q0"]
    assert requested == amounts({"requests.cpu": "99"})
    del oracle.quotas[namespace]  # the controller counts it as admission does


async def test_a_device_may_be_limited_by_its_name_alone(oracle: Oracle) -> None:
    """Core accepts such a quota and never counts anything for it."""
    namespace = await oracle.namespace([Quota({quota_writes.GPU: "1"})])
    needs = {quota_writes.GPU: "2"}
    container = {"name": "c0", "image": "none", "resources": {"requests": needs, "limits": needs}}
    used = await oracle.used(namespace)
    oracle.reviews.clear()
    body = {"metadata": {"name": "web"}, "spec": {"containers": [container]}}
    await oracle.must("POST", path_of("pods", namespace), body)
    assert await oracle.used(namespace) == used
    assert expected(oracle.reviews[-1], oracle.quotas[namespace], used).exceeded["q0"][0] == amounts(needs)
    del oracle.quotas[namespace]  # nor does the controller


async def test_the_real_controller_counts_the_same(oracle: Oracle, control_plane: ControlPlane) -> None:
    """Everything that the scenarios above left: ended, resized, deleted, expanded and in other scopes than before."""
    assert oracle.quotas, "the scenarios run before"
    everything = [
        (resource_of(plural), item["metadata"]["namespace"], msgspec.json.encode(item))
        for plural, path in PATHS.items()
        for item in (await oracle.must("GET", f"{path}/{plural}"))["items"]
    ]
    leaving = [pods.EVALUATOR.released_at(read(*found[::2])) for found in everything if found[0].resource == "pods"]
    now = max((at + 2 for at in leaving if at is not None and at < time.time() + 60), default=time.time())
    await asyncio.sleep(max(0.0, now - time.time()))
    wanted = {
        (namespace, name): dict.fromkeys((one for one in quota.hard if one != "count/events"), 0)
        for namespace, quotas in oracle.quotas.items()
        for name, quota in quotas.items()
    }
    for resource, namespace, raw in everything:
        evaluator = registry.evaluator_of(resource)
        for name, quota in oracle.quotas.get(namespace, {}).items() if evaluator is not None else ():
            terms = Terms(limited=frozenset(quota.hard), scopes=quota.requirements)
            counted = namespaced.used(evaluator, terms, read(resource, raw), time.time())
            wanted[namespace, name] = resources.add(wanted[namespace, name], counted)
    for namespace, name in wanted:
        path = f"{path_of('resourcequotas', namespace)}/{name}/status"
        await oracle.must("PATCH", path, {"status": {"used": None}}, MERGE)
    controller = await control_plane.controllers("core-quotas", "resourcequota-controller")
    try:
        async with patient_timeout(120 + len(wanted) / 2):  # the controller writes twenty in a second at most
            while True:
                found = {
                    (space, name): used for space in oracle.quotas for name, used in (await oracle.used(space)).items()
                }
                if all(found[quota] for quota, counts in wanted.items() if counts):
                    break
                await asyncio.sleep(0.5)
    finally:
        await controller.kill()
    assert found == wanted
    assert sum(number for kind, number in oracle.seen.items() if kind.endswith(VERDICTS)) >= 400, oracle.seen
    lacking = [(kind, verdict) for kind in MUST for verdict in VERDICTS if not oracle.seen[f"{kind} {verdict}"]]
    assert not lacking, oracle.seen


def read(resource: GroupResource, raw: bytes) -> Any:
    evaluator = registry.evaluator_of(resource)
    assert evaluator is not None
    return msgspec.json.decode(raw, type=evaluator.type)
