"""Proof that an API server asks us: an object is sent to it as a dry run, and our refusal must come back.

A webhook configuration that is in place proves little: an API server may not reach us, may not trust our certificate,
or somebody's proxy may answer for us. So the seed's leader looks, now and then and after every change of the
configuration.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError, Forbidden
from common.kube.client.meta import ObjectMeta
from common.kube.client.resource import Resource
from common.runtime.unexpected import contained
from common.runtime.waiting import within
from seed.registration.health import DENIED, TOO_OFTEN, Proof

log = logging.getLogger(__name__)

ANNOTATION = "seedquota.io/canary"
EVERY = 60.0  # seconds
SOON = 5.0  # ... after one that proved nothing
TAKES_UP = 1.0  # ... in which an API server has taken up a configuration
TIMEOUT = 35.0  # ... for one: a webhook may take 30


class Sample(msgspec.Struct, frozen=True):
    """The object that is sent, as valid as any, and the webhook that is to refuse it."""

    resource: Resource[Any]
    namespace: str
    spec: Mapping[str, object]
    webhook: str
    labels: Mapping[str, str] = MappingProxyType({})


def is_canary(metadata: ObjectMeta, *, dry_run: bool) -> bool:
    """If somebody else sends one, only that dry run is refused."""
    return dry_run and ANNOTATION in metadata.annotations


def judge(error: ApiError | None, webhook: str, kind: str) -> Proof:
    """What the API server's answer to a canary proves; None: it was admitted."""
    if error is None:
        return Proof(
            False,
            "CanaryAdmitted",
            f"a dry-run {kind} that we refuse was admitted though our webhook is configured: look what stands between "
            "this API server and the webhook, and whether its version evaluates the configuration",
        )
    ours = f'admission webhook "{webhook}" denied the request' in error.message
    if any(cause.reason == DENIED for cause in error.causes):
        if ours:
            return Proof(True, DENIED)
        return Proof(None, "NotProven", "the API server has not taken up the latest webhook configuration yet")
    if ours and any(cause.reason == TOO_OFTEN for cause in error.causes):
        return Proof(True, DENIED)  # others there ask without a pause, and a canary has no place before them
    if isinstance(error, Forbidden) and "admission webhook" not in error.message:
        what = f"{kind.lower()}s"
        return Proof(None, "NotProven", f"the kubeconfig may not create {what}, so no dry run can prove it")
    if f'failed calling webhook "{webhook}"' in error.message:
        why = error.message.rpartition('": ')[2]  # what comes before has the URL, and that a token
        reason = "CertificateInvalid" if "x509:" in why or "tls:" in why else "NotServing"
        return Proof(False, reason, f"no {kind} can be created, the API server does not reach the webhook: {why}")
    return Proof(None, "NotProven", f"a dry run was refused before it came to us ({error.status} {error.reason})")


async def ask(cluster: Cluster, sample: Sample) -> Proof | None:
    """None where the API server does not answer: then nothing is known, and its source says so."""
    plural, error = sample.resource.plural, None
    path = sample.resource.path(sample.namespace)
    try:
        await cluster.request(
            "POST", f"{path}?dryRun=All", _body(sample), timeout=TIMEOUT, verb="create", plural=plural
        )
    except ApiError as refused:
        if refused.status == 0:
            return None
        error = refused
    return judge(error, sample.webhook, sample.resource.kind)


class Canary:
    """`run()` it; `proof` is None until there is one. `on_proof` must not block. `sample` is None while none can be.

    `proven`: the webhook that refused the last canary, empty if none did, or since `forget`.
    """

    def __init__(self, cluster: Cluster, sample: Callable[[], Sample | None], *, on_proof: Callable[[], None]) -> None:
        self.proof: Proof | None = None
        self.proven = ""
        self._forgotten = 0
        self._cluster = cluster
        self._sample = sample
        self._on_proof = on_proof
        self._wake = asyncio.Event()

    def look(self) -> None:
        """Something that matters to the webhook has changed."""
        self._wake.set()

    def forget(self) -> None:
        """Another configuration is wanted. The one that was proven may be gone when it is wanted again: neither that
        proof counts then, nor the answer to a canary that was sent before."""
        self.proven = ""
        self._forgotten += 1

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            await asyncio.sleep(TAKES_UP)
            proof, webhook = await self._ask()
            if proof is not None and proof.enforced is False:
                await asyncio.sleep(TAKES_UP)  # once may be the moment of a change
                proof, webhook = await self._ask()
            if proof is not None and (proof, webhook) != (self.proof, self.proven):
                level = logging.INFO if proof.enforced else logging.WARNING
                facts = {"cluster": self._cluster.name, "reason": proof.reason, "text": proof.message}
                log.log(level, "canary", extra=facts)
                self.proof, self.proven = proof, webhook
                self._on_proof()
            again = EVERY if proof is not None and proof.enforced else SOON
            await within(self._wake, again * random.uniform(0.8, 1.2))  # noqa: S311
            self._wake.set()

    async def _ask(self) -> tuple[Proof | None, str]:
        sample = self._sample()
        if sample is None:
            return None, ""
        proof: Proof | None = None
        forgotten = self._forgotten
        with contained("canary", self._cluster.name) as attempt:
            proof = await ask(self._cluster, sample)
        if attempt.failed:
            return Proof(None, "NotProven", "the API server's answer to a dry run was not understood"), ""
        proves = proof is not None and proof.enforced and forgotten == self._forgotten
        return proof, sample.webhook if proves else ""


def _body(sample: Sample) -> bytes:
    metadata: dict[str, object] = {"generateName": "seedquota-canary-", "annotations": {ANNOTATION: "true"}}
    if sample.namespace:
        metadata["namespace"] = sample.namespace
    if sample.labels:
        metadata["labels"] = dict(sample.labels)
    return msgspec.json.encode(
        {
            "apiVersion": sample.resource.api_version,
            "kind": sample.resource.kind,
            "metadata": metadata,
            "spec": sample.spec,
        }
    )
