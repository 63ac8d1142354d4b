"""The key of sessions, in a Secret that the replicas share. Whoever deletes it ends all sessions."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from common.kube.client.api_client import Cluster
from common.server.managed_secret import Correction, OwnSecret
from master.page.session import Sealer, new_key

log = logging.getLogger(__name__)

SECRET_NAME = "seedquota-page"  # noqa: S105 (its name)
KEY = "session.key"


class SessionKey:
    """`run()` it. `sealer` is None until the key is there."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.sealer: Sealer | None = None
        self._secret = OwnSecret(cluster, namespace, SECRET_NAME, correct=_correct, on_data=self._take)

    def not_ready(self) -> str | None:
        """A readiness check."""
        return None if self.sealer is not None else f"{self._secret.name}: {self._secret.error or 'no key yet'}"

    async def run(self) -> None:
        await self._secret.run()

    def _take(self, data: Mapping[str, bytes]) -> None:
        key = data.get(KEY)
        self.sealer = Sealer(key) if key is not None and _is_key(key) else None


def _correct(data: Mapping[str, bytes] | None) -> Correction | None:
    key = data.get(KEY) if data is not None else None
    if key is not None and _is_key(key):
        return None
    why = "the key cannot be used" if key is not None else "there was no key"
    return Correction({KEY: new_key()}, why, warn=key is not None)


def _is_key(key: bytes) -> bool:
    try:
        Sealer(key)
    except ValueError:
        return False
    return True
