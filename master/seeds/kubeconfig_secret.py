"""What a Seed and its Secret say about the connection to the seed, and the renewal of the token in that Secret.

`seedquota seed add` marks the Secret that it writes. Only the token of such a Secret is renewed: on the seed, with the
token itself, when half of its life has passed.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import time
from collections.abc import Callable

import msgspec

from common.api.cluster_identity import KUBE_SYSTEM, NAMESPACES
from common.api.core import SECRETS, Secret, kubeconfig_text
from common.api.labels import MANAGED_BY_LABEL
from common.api.types import ACCEPT_CLUSTER_ANNOTATION, Seed
from common.kube.client import service_account
from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError, Conflict
from common.kube.client.kubeconfig import InvalidKubeconfig
from common.kube.client.service_account import Token
from master.cache.informers import Caches
from master.seeds.seed_cluster import SeedCluster

log = logging.getLogger(__name__)

LOOK_EVERY = 10.0  # seconds, at the clock alone
PAUSE = 60.0  # ... after a renewal, and after one that failed: clocks may be far apart
TIMEOUT = 10.0

_BEARER = "Bearer "


class SeedKubeconfig(msgspec.Struct, frozen=True):
    """`text` is the kubeconfig; `problem` says why there is none, without credentials. `about`: what else, if it
    changes, needs a new connection."""

    text: str
    problem: str
    about: str


def seed_kubeconfig(seed: Seed, secret: Secret | None, namespace: str) -> SeedKubeconfig:
    ref = seed.spec.kubeconfig_secret_ref
    text = problem = ""
    if ref is not None:
        try:
            text = kubeconfig_text(secret, namespace, ref)
        except InvalidKubeconfig as error:
            problem = str(error)
    return SeedKubeconfig(text, problem, f"{ref}\0{seed.metadata.annotations.get(ACCEPT_CLUSTER_ANNOTATION, '')}")


def token_in(cluster: Cluster) -> tuple[str, Token | None]:
    """What the connection uses, and what can be read from it."""
    authorization = cluster.access.authorization or ""
    text = authorization.removeprefix(_BEARER) if authorization.startswith(_BEARER) else ""
    return text, service_account.read(text)


class TokenRenewal:
    """Of one Seed, whose object may change: `seed` gives the present one. `run()` it while the seed is connected.

    `ends`: when the token that is used ends, in Unix time; None where it does not, or is not read from a Secret.
    """

    def __init__(self, caches: Caches, namespace: str, seed: Callable[[], Seed]) -> None:
        self._caches = caches
        self._namespace = namespace
        self.ends: float | None = None
        self._seed = seed

    async def run(self, cluster: SeedCluster) -> None:
        """Until cancelled."""
        while True:
            try:
                pause = PAUSE if await self.renew(cluster) else LOOK_EVERY
            except ApiError as error:
                level = logging.INFO if isinstance(error, Conflict) else logging.WARNING
                log.log(level, "token not renewed", extra={"seed": self._seed().metadata.name, "error": error.message})
                pause = PAUSE
            await asyncio.sleep(pause)

    async def renew(self, cluster: SeedCluster) -> bool:
        """If it is due. The connection uses the old token until the Secret's change has come. Raises ApiError."""
        old, token = token_in(cluster)
        seed = self._seed()
        ref = seed.spec.kubeconfig_secret_ref
        self.ends = token.ends if ref is not None and token is not None else None
        if ref is None or token is None or not token.due(time.time()):
            return False
        secret = self._caches.secrets.store.get(f"{self._namespace}/{ref.name}")
        if secret is None or secret.metadata.labels.get(MANAGED_BY_LABEL) != "seedquota":
            return False
        text = secret.data.get(ref.key, b"").decode(errors="replace")
        if old not in text:
            return False  # another token is there by now
        new = await service_account.request_token(
            cluster, token.namespace, token.account, seconds=service_account.LIFE, timeout=TIMEOUT
        )
        await cluster.request(  # an API server may not accept yet, or not any more, what another one issues
            "GET",
            NAMESPACES.path(None, KUBE_SYSTEM),
            timeout=TIMEOUT,
            verb="get",
            plural=NAMESPACES.plural,
            more_headers={"Authorization": f"{_BEARER}{new}"},
        )
        data = {ref.key: base64.b64encode(text.replace(old, new).encode()).decode()}
        patch = {"metadata": {"resourceVersion": secret.metadata.resource_version}, "data": data}
        await self._caches.cluster.merge_patch(SECRETS, ref.name, patch, self._namespace)
        log.info("token renewed", extra={"seed": seed.metadata.name, "secret": secret.metadata.key})
        return True
