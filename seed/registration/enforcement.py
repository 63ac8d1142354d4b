"""That the seed's own API server asks about something: the webhook's configuration, and the proof that it works."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from common.kube.client.api_client import Cluster
from common.runtime.unexpected import kept_running
from seed import metrics
from seed.registration import withdrawal
from seed.registration.configuration import WebhookConfiguration
from seed.registration.health import Proof
from seed.registration.keeper import ConfigurationKeeper
from seed.registration.probe import Canary, Sample


class Enforcement:
    """`run()` it while there is something to ask about."""

    def __init__(
        self,
        cluster: Cluster,
        key: str,
        desired: Callable[[], WebhookConfiguration],
        sample: Callable[[], Sample | None],
        *,
        on_proof: Callable[[str, Proof | None, bool | None], None],
        wanted: Callable[[], bool],
    ) -> None:
        """`key`: what is asked about, in metrics and for `on_proof`. That gets what the last canary showed, and whether
        one was refused and none that came later showed that nothing is asked; None for what is not known."""
        self._refused: bool | None = None
        self._key = key
        self._canary = Canary(cluster, lambda: sample() if wanted() else None, on_proof=self._proven)
        look = self._canary.look
        self._keeper = ConfigurationKeeper(cluster, desired, on_state=look, on_write=look, wanted=wanted)
        self._running = False
        self._on_proof = on_proof

    async def run(self) -> None:
        self._running = True
        try:
            async with asyncio.TaskGroup() as group:
                for each in (self._keeper, self._canary):
                    group.create_task(kept_running("webhook configurations", each.run, whose=self._key))
        finally:
            self._running = False

    def changed(self) -> None:
        """What the configuration should be, or whether it should be there, is another."""
        self._keeper.changed()
        if self._running:
            self._proven()

    async def withdraw(self) -> None:
        """What an earlier leader may have left, while nobody keeps it. Raises ApiError."""
        if not self._running:
            await self._keeper.remove()

    async def remove(self) -> None:
        """Nothing is left to ask about. Raises ApiError."""
        self._canary.proof = None
        self._proven()
        await self._keeper.remove()

    def _proven(self) -> None:
        if not self._keeper.wanted():
            self._canary.proof = None  # what was proven is not, once it is wanted again
        proof = self._canary.proof if self._keeper.wanted() else withdrawal.PROOF
        enforced = proof.enforced if proof is not None else None
        if proof is None:
            self._refused = None
        elif enforced is not None:
            self._refused = enforced
        else:
            self._refused = bool(self._refused)
        metrics.canary(self._key, enforced)
        self._on_proof(self._key, proof, self._refused)
