"""A webhook that admits Allocations by one limit for each type, in the words of the real one: it stands for a seed's
agent where only what asks it is tested."""

from __future__ import annotations

import base64
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import trustme
from aiohttp import web

from common.api.types import Allocation
from common.quota import resources
from common.quota.quantity import UNIT
from seed.admission import denial
from seed.admission.refusal import Cause, Refusal
from seed.admission.types import Verdict
from seed.webhooks import review

NAME = "allocations.seedquota.io"
PATH = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
DECISION = "01JD3Y6K"


class AllocationWebhook:
    """`held`: what is admitted, by key. `limits`: by type; others are unknown."""

    def __init__(self) -> None:
        self.limits: dict[str, int] = {}
        self.held: dict[str, dict[str, int]] = {}
        self.unavailable = False
        self.port = 0
        self.ca = b""

    def used(self) -> dict[str, int]:
        return dict(resources.total(self.held.values()))

    def configuration(self) -> Mapping[str, object]:
        return {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "seedquota-allocations"},
            "webhooks": [
                {
                    "name": NAME,
                    "admissionReviewVersions": ["v1"],
                    "sideEffects": "NoneOnDryRun",
                    "clientConfig": {
                        "url": f"https://127.0.0.1:{self.port}/",
                        "caBundle": base64.b64encode(self.ca).decode(),
                    },
                    "rules": [
                        {
                            "apiGroups": ["seedquota.io"],
                            "apiVersions": ["v1alpha1"],
                            "operations": ["CREATE", "UPDATE", "DELETE"],
                            "resources": ["allocations"],
                        }
                    ],
                }
            ],
        }

    async def handle(self, request: web.Request) -> web.Response:
        asked: Any = (await request.json())["request"]
        refusal = self._decide(asked)
        answer = review.decided(asked["uid"], Verdict(decision=DECISION, refusal=refusal))
        return web.Response(body=answer.body, content_type="application/json")

    def _decide(self, asked: Any) -> Refusal | None:
        key = f"{asked['namespace']}/{asked['name']}"
        if asked["operation"] == "DELETE":
            self.held.pop(key, None)
            return None
        new = msgspec.convert(asked["object"], Allocation)
        if unknown := [
            (place, each.type) for place, each in enumerate(new.spec.resources) if each.type not in self.limits
        ]:
            return _unknown(unknown, sorted(self.limits))
        if self.unavailable:
            return denial.unavailable("org-acme", "servers=2 is free but held by seed us-1")
        amounts = {each.type: (each.committed + each.reserved) * UNIT for each in new.spec.resources}
        before = self.held.get(key, {}) if asked["operation"] == "UPDATE" else {}
        need = resources.at_least_zero(resources.subtract(amounts, before))
        limits = {name: limit * UNIT for name, limit in self.limits.items()}
        if resources.over_limit(need, self.used(), limits):
            return denial.exceeded("org-acme", need, self.used(), limits, {})
        if not asked.get("dryRun"):
            self.held[key] = amounts
        return None


def _unknown(unknown: list[tuple[int, str]], known: list[str]) -> Refusal:
    message = f"unknown resource type: {', '.join(name for _, name in unknown)}; known are {', '.join(known)}"
    causes = [
        Cause(reason="UnknownResourceType", message=message, field=f"spec.resources[{place}].type")
        for place, _ in unknown
    ]
    return Refusal(code=422, text=message, causes=causes)


@asynccontextmanager
async def serving() -> AsyncIterator[AllocationWebhook]:
    webhook = AllocationWebhook()
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    runner = web.ServerRunner(web.Server(webhook.handle, access_log=None))  # type: ignore[arg-type]
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    webhook.port = runner.addresses[0][1]
    webhook.ca = authority.cert_pem.bytes()
    yield webhook
    await runner.cleanup()
