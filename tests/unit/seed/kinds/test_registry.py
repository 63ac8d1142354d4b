"""What is counted, refused and shown of a kind follows from its row alone: here one that the product does not have."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from common.api.labels import UID_LABEL
from common.api.types import ResourceQuota
from common.kube.client.api_client import Cluster
from common.kube.client.meta import Object
from common.kube.controller.leader_election import Lease, Term
from common.kube.controller.store import Change
from common.runtime import flags
from seed import build as build_module
from seed.admission.types import Verdict
from seed.build import build
from seed.cache.of_projects import OfProjects
from seed.controllers import term as term_module
from seed.controllers.term import Leadership
from seed.kinds.kind import AskedOfSeed, CountedKind, InTerm, Kind, Parts, Serving, proof_in_namespaces
from seed.kinds.registry import KINDS, OF_PROJECTS
from seed.model.source_key import SourceKey
from seed.options import SeedOptions
from seed.registration.configuration import WebhookConfiguration, WebhookServer, configuration
from seed.registration.health import Proof
from seed.registration.probe import Sample
from seed.usage.source import UsageSource
from seed.webhooks.endpoint import Question, Webhook, WebhookAnswer

LICENCES = "licences"
KEY = SourceKey.of_project(LICENCES, "alpha")


class LicenceWebhook(Webhook[Object]):
    about = "a licence"
    caller = LICENCES

    def decode(self, body: bytes) -> Question[Object]:
        raise AssertionError("not asked here")

    async def decide(self, caller: str, question: Question[Object], deadline: float) -> WebhookAnswer:
        return WebhookAnswer(verdict=Verdict(), kind="Licence")


def a_term() -> Term:
    return Term(number=1, previous_holder="", was_expired=False, created=True, continuous=True, since=0)


async def nothing() -> None:
    await asyncio.Event().wait()


def serving(parts: Parts) -> Serving:
    return Serving(webhooks={LICENCES: LicenceWebhook()}, follows={"holders of licences": nothing})


class LicenceCounting(CountedKind):
    def __init__(self, term: InTerm) -> None:
        source = cast(UsageSource, SimpleNamespace(key=KEY, in_namespaces=None))
        super().__init__({KEY: source}, {LICENCES: nothing})
        self.term = term
        self.changes = 0

    def configuration_changed(self) -> None:
        self.changes += 1

    def proof(self, cluster: str) -> Proof | None:
        return Proof(True, "Denied") if cluster == "alpha/c1" else None

    def left(self) -> list[str]:
        return ["licences of alpha/c1"]


def desired(server: WebhookServer) -> WebhookConfiguration:
    return configuration("seedquota-licences", "licences.seedquota.io", server, server.url(LICENCES), rules=[])


def sample(_served: object, _namespace: str) -> Sample | None:
    return None


FIFTH = Kind(
    serving=serving,
    counting=LicenceCounting,
    of_seed=AskedOfSeed(key=LICENCES, name="seedquota-licences", caller=LICENCES, desired=desired, sample=sample),
    of_projects=OfProjects(
        kind=LICENCES,
        asked=LICENCES,
        is_there=lambda _quota_cache: True,
        limits=lambda _quota_cache, quota: "example.com/licences" in quota.limits,
    ),
)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    assert FIFTH.of_projects is not None
    for module in (build_module, term_module):
        monkeypatch.setattr(module, "KINDS", (*KINDS, FIFTH))
    monkeypatch.setattr(build_module, "OF_PROJECTS", (*OF_PROJECTS, FIFTH.of_projects))


async def test_one_row_registers_a_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = ["--seed-name=a", "--webhook-url=https://a.example:8443"]
    options = flags.parse(SeedOptions, "seedquota-seed", "d", needed, {})
    served: list[Any] = []
    server_of = build_module.server_of

    def noted(endpoints: Any, *rest: Any) -> Any:
        served.append(endpoints)
        return server_of(endpoints, *rest)

    monkeypatch.setattr(build_module, "server_of", noted)
    cluster = cast(Cluster, SimpleNamespace(name="a"))
    agent = build(options, cluster, Lease(cluster, "seedquota-system", "l", "a"), lambda: False)
    assert served[0][LICENCES].caller == LICENCES, "its webhook answers"
    assert agent.follows["holders of licences"] is nothing
    assert {"namespaces", "organizations"} < agent.follows.keys()

    monkeypatch.setattr(type(agent.key), "token", lambda _key, kind, _caller: f"token-of-{kind}")
    monkeypatch.setattr(agent.certificates, "ca_bundle", b"CA", raising=False)
    leadership = Leadership(agent.leader._replica, a_term())
    counted = leadership._counted[-1]
    assert isinstance(counted, LicenceCounting)
    assert leadership.sources[KEY].key == KEY, "its sources are counted"
    leadership.configuration_changed()
    assert counted.changes == 1
    assert proof_in_namespaces(leadership._counted, "alpha/c1") == Proof(True, "Denied")
    assert LICENCES in leadership._enforcements, "the seed's API server asks, and that is proven"

    body = {
        "metadata": {"name": "alpha", "uid": "copy", "labels": {UID_LABEL: "uid"}},
        "spec": {"subject": {"kind": "project", "name": "alpha"}, "quota": {"example.com/licences": "5"}},
    }
    agent.replica.caches.quotas._quota_changed(Change(None, msgspec.convert(body, ResourceQuota)))
    quota = agent.replica.caches.quotas.quota("alpha")
    assert quota is not None
    clusters = agent.replica.caches.clusters
    assert KEY in clusters.source_keys(quota), "the quotas of its project count it"
    assert clusters.unenforced(quota) == [LICENCES], "... and say so while it is not proven that it is refused"
    assert clusters.tell_proven(LICENCES, True)
    assert clusters.unenforced(quota) == []
    await agent.replica.registry.close()
