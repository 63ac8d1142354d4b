"""That the seed's own API server asks about something: the webhook's configuration, and the proof that it works."""

from __future__ import annotations

from collections.abc import Callable

from common.kube.client.api_client import Cluster
from seed import metrics
from seed.registration.configuration import WebhookConfiguration
from seed.registration.health import Proof
from seed.registration.probe import Sample
from seed.registration.registered_webhook import RegisteredWebhook


class Enforcement:
    """`run()` it while there is something to ask about."""

    def __init__(
        self,
        cluster: Cluster,
        key: str,
        desired: Callable[[], WebhookConfiguration],
        sample: Callable[[], Sample | None],
        *,
        on_proof: Callable[[Proof | None, bool | None], None],
        wanted: Callable[[], bool],
    ) -> None:
        """`key`: what is asked about, in metrics. `on_proof` gets what the last canary showed, and whether
        one was refused and none that came later showed that nothing is asked; None for what is not known."""
        self._refused: bool | None = None
        self._key = key
        self._webhook = RegisteredWebhook(cluster, key, desired, sample, wanted=wanted, on_state=self._proven)
        self._running = False
        self._on_proof = on_proof

    async def run(self) -> None:
        self._running = True
        try:
            await self._webhook.run()
        finally:
            self._running = False

    def changed(self) -> None:
        """What the configuration should be, or whether it should be there, is another."""
        self._webhook.changed()
        if self._running:
            self._proven()

    async def withdraw(self) -> None:
        """What an earlier leader may have left, while nobody keeps it. Raises ApiError."""
        if not self._running:
            await self._webhook.remove()

    async def remove(self) -> None:
        """Nothing is left to ask about. Raises ApiError."""
        self._webhook.canary.proof = None
        self._proven()
        await self._webhook.remove()

    def _proven(self) -> None:
        proof = self._webhook.proof
        enforced = proof.enforced if proof is not None else None
        if proof is None:
            self._refused = None
        elif enforced is not None:
            self._refused = enforced
        else:
            self._refused = bool(self._refused)
        metrics.canary(self._key, enforced)
        self._on_proof(proof, self._refused)
