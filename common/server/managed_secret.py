"""One Secret of ours in the release's namespace: followed, and corrected by whichever replica comes first."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from common.api.core import SECRETS, Secret
from common.api.labels import MANAGED_BY_LABEL
from common.kube.client.api_client import Cluster
from common.kube.client.errors import AlreadyExists, ApiError, Conflict
from common.kube.client.meta import object_key
from common.kube.client.resource import by_name
from common.kube.controller.reflector import Reflector
from common.kube.controller.store import Change
from common.runtime.waiting import within

log = logging.getLogger(__name__)

RETRY_SECONDS = 2.0


@dataclass(frozen=True)
class Correction:
    """What to write: None removes a key, keys that are not named stay. `why` goes to the log, as a warning or not."""

    data: Mapping[str, bytes | None]
    why: str
    warn: bool = False


class OwnSecret:
    """`correct(secret)` says what is wrong with it (None: it does not exist), and is asked again every so often.

    `on_data` gets the data of each version that comes. All replicas run this; writes are compare-and-set. `error` says
    why it cannot be followed or corrected now.
    """

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        name: str,
        *,
        correct: Callable[[Mapping[str, bytes] | None], Correction | None],
        on_data: Callable[[Mapping[str, bytes]], None],
        recheck_seconds: float = 60.0,
    ) -> None:
        self.name = object_key(namespace, name)
        self._cluster = cluster
        self._identity = {"name": name, "namespace": namespace}
        self._correct = correct
        self._on_data = on_data
        self._recheck_seconds = recheck_seconds
        self._refused: str | None = None
        self._wake = asyncio.Event()
        self._reflector = Reflector(
            cluster, SECRETS, namespace=namespace, field_selector=by_name(name), on_change=self._changed
        )

    @property
    def error(self) -> str | None:
        return self._refused or self._reflector.error

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._reflector.run(), name=f"{self.name}: follow")
            group.create_task(self._keep(), name=f"{self.name}: keep")

    async def _keep(self) -> None:
        await self._reflector.synced.wait()
        while True:
            self._wake.clear()
            pause = self._recheck_seconds
            try:
                await self._step()
                self._refused = None
            except (Conflict, AlreadyExists):
                pause = RETRY_SECONDS  # another replica was faster; the watch will bring what it wrote
            except ApiError as error:
                pause = RETRY_SECONDS
                if self._refused != error.message:
                    self._refused = error.message
                    log.warning("secret cannot be corrected", extra={"secret": self.name, "error": error.message})
            await within(self._wake, pause)  # time alone may have made something due

    async def _step(self) -> None:
        secret = self._reflector.store.get(self.name)
        correction = self._correct(secret.data if secret is not None else None)
        if correction is None:
            return
        data = {key: base64.b64encode(value).decode() for key, value in correction.data.items() if value is not None}
        if secret is None:
            metadata = {**self._identity, "labels": {MANAGED_BY_LABEL: "seedquota"}}
            await self._cluster.create(SECRETS, {"metadata": metadata, "data": data})
        else:
            patch = {
                "metadata": {"resourceVersion": secret.metadata.resource_version},
                "data": {**dict.fromkeys(correction.data), **data},
            }
            await self._cluster.merge_patch(SECRETS, self._identity["name"], patch, self._identity["namespace"])
        level = logging.WARNING if correction.warn else logging.INFO
        log.log(level, "secret written", extra={"secret": self.name, "why": correction.why})

    def _changed(self, change: Change[Secret]) -> None:
        self._wake.set()
        if change.new is not None:
            self._on_data(change.new.data)
