"""A webhook that a cluster's API server is to call: its configuration, which is kept, and the proof that it works."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from common.kube.client.api_client import Cluster
from common.runtime.unexpected import kept_running
from seed.registration import withdrawal
from seed.registration.configuration import STAMPING_CONFIGURATIONS, WebhookConfiguration
from seed.registration.health import Proof
from seed.registration.keeper import ConfigurationKeeper
from seed.registration.probe import Canary, Sample


class RegisteredWebhook:
    """`run()` it. `sample` is None while there is nothing to prove. While not `wanted()`, no configuration is there."""

    def __init__(
        self,
        cluster: Cluster,
        key: str,
        desired: Callable[[], WebhookConfiguration],
        sample: Callable[[], Sample | None],
        *,
        wanted: Callable[[], bool],
        on_state: Callable[[], None],
        on_restore: Callable[[], None] = lambda: None,
        stamping: Callable[[], WebhookConfiguration] | None = None,
    ) -> None:
        """`on_state` tells that `proof`, or what the keeper sees, may have changed; `on_restore` that somebody had
        deleted or changed a configuration. `stamping`: the mutating one that goes with it, which nothing depends on."""
        self._key = key
        self._on_state = on_state
        self.canary = Canary(cluster, lambda: sample() if wanted() else None, on_proof=self._told)
        self.keeper = ConfigurationKeeper(
            cluster, desired, on_state=self._kept, on_write=self.canary.look, on_restore=on_restore, wanted=wanted
        )
        self._keepers = [self.keeper]
        if stamping is not None:
            beside = ConfigurationKeeper(
                cluster, stamping, resource=STAMPING_CONFIGURATIONS, on_restore=on_restore, wanted=wanted
            )
            self._keepers.append(beside)

    @property
    def proof(self) -> Proof | None:
        """None: nothing is known yet."""
        return self.canary.proof if self.keeper.wanted() else withdrawal.PROOF

    @property
    def absent(self) -> bool:
        """Nothing of it was seen to be there."""
        return all(keeper.absent for keeper in self._keepers)

    def changed(self) -> None:
        """What a configuration should be, or whether it should be there, is another."""
        for keeper in self._keepers:
            keeper.changed()
        self._forget_withdrawn()

    async def run(self) -> None:
        """Until cancelled. The configurations stay."""
        async with asyncio.TaskGroup() as group:
            for run in (*(keeper.run for keeper in self._keepers), self.canary.run):
                group.create_task(kept_running("webhook configurations", run, whose=self._key))

    async def remove(self) -> None:
        """Not while it runs. Raises ApiError."""
        for keeper in self._keepers:
            await keeper.remove()

    def _forget_withdrawn(self) -> None:
        """What was proven is not, once it is wanted again."""
        if not self.keeper.wanted():
            self.canary.proof = None

    def _kept(self) -> None:
        self.canary.look()
        self._told()

    def _told(self) -> None:
        self._forget_withdrawn()
        self._on_state()
