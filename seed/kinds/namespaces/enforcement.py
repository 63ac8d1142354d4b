"""Makes one cluster ask about objects in its namespaces, and says for which quotas that is proven."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from common.api.conditions import some
from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError, Forbidden, NotFound
from common.quota.account import Account
from common.quota.object_names import GroupResource
from common.runtime.waiting import first_of, within
from seed.accounts.registry import AccountRegistry
from seed.cache.clusters import ClusterCache
from seed.cache.quotas import QuotaCache
from seed.kinds.namespaces import configuration as namespaces
from seed.kinds.namespaces.configuration import Limits
from seed.model.quota import Quota
from seed.model.source_key import SourceKey
from seed.registration import withdrawal
from seed.registration.configuration import WEBHOOK_CONFIGURATIONS, WebhookConfiguration
from seed.registration.health import DENIED, Proof
from seed.registration.probe import Sample
from seed.registration.registered_webhook import RegisteredWebhook

log = logging.getLogger(__name__)

RETRY_SECONDS = 10.0

CONNECTING = Proof(None, "Connecting", "the webhook for namespaces is being configured")
CONTESTED = Proof(
    False,
    "WebhookContested",
    "somebody deletes or changes the webhook configuration again and again; it is restored each time, and what was "
    "created in between is counted",
)


class NamespacedWebhook:
    """`run()` it while this replica leads. Where the cluster does not take part, it keeps no configuration there.

    A quota is enforced from when an API server has refused a canary by a configuration that asks about all that the
    quota counts. It stays so while the configuration is extended for other quotas. A new quota is asked about once its
    account is open: before that, the answer could only be that it cannot be decided.
    """

    def __init__(
        self,
        cluster: Cluster,
        key: str,
        quota_cache: QuotaCache,
        cluster_cache: ClusterCache,
        registry: AccountRegistry,
        desired: Callable[[Sequence[Limits]], WebhookConfiguration],
        *,
        unserved: Callable[[], frozenset[GroupResource]],
        wanted: Callable[[], bool],
        on_enforced: Callable[[str], None],
        on_state: Callable[[], None] = lambda: None,
    ) -> None:
        """`key`: the cluster's, or OWN_API_SERVER. `unserved`: the kinds that the cluster serves in another version
        than a quota names. `wanted`: False while webhooks are withdrawn. `on_enforced` gets the name of a quota that
        is, or is no longer, enforced there, and `on_state` tells that `shown` has changed. They must not block."""
        self.shown: Proof | None = None  # whether all that quotas limit there is checked; None: they limit nothing
        self._cluster = cluster
        self._key = key
        self._quota_cache = quota_cache
        self._cluster_cache = cluster_cache
        self._registry = registry
        self._wanted = desired
        self._find_unserved = unserved
        self._unserved: frozenset[GroupResource] = frozenset()
        self._are_wanted = wanted
        self._on_enforced = on_enforced
        self._on_state = on_state
        self._proven: dict[str, Limits] = {}  # by the quota's uid
        self._waiting: set[str] = set()  # names of new quotas, which are not asked about yet
        self._asked = ""  # the webhook that is to refuse canaries
        self._written: bool | None = None  # it may be there still; None: the leader before may have left it
        self._registered: RegisteredWebhook | None = None  # while the cluster takes part
        self._wake = asyncio.Event()

    def configuration_changed(self) -> None:
        """What is asked, the CA bundle or the token."""
        self._unserved = self._find_unserved()
        if self._registered is not None:
            self._registered.changed()
        self._judge()
        self._wake.set()

    def kinds_changed(self) -> None:
        """What the cluster serves may have."""
        if self._find_unserved() != self._unserved:
            self.configuration_changed()

    async def run(self) -> None:
        """Until cancelled. The configuration stays."""
        stops = [
            self._quota_cache.on_spec(lambda _name: self.configuration_changed()),
            self._quota_cache.on_members(lambda _name: self.configuration_changed()),
            self._cluster_cache.on_participants(self.configuration_changed),
            self._registry.on_account(self._account_changed),
        ]
        try:
            while True:
                self._wake.clear()
                self._show()
                if self._takes_part():
                    self._written = True
                    await self._keep()
                    continue
                if self._written is not False:
                    self._written = not await self._let_go()
                await within(self._wake, RETRY_SECONDS if self._written else None)
        finally:
            for stop in stops:
                stop()

    async def _keep(self) -> None:
        """As long as the cluster takes part."""
        webhook = self._registered = RegisteredWebhook(
            self._cluster, self._key, self._desired, self._sample, wanted=self._are_wanted, on_state=self._judge
        )
        try:
            (await first_of(webhook.run(), self._until_let_go())).result()
        finally:
            self._registered, self._proven = None, {}

    @property
    def absent(self) -> bool:
        """Nothing is asked there by us."""
        return self._registered.absent if self._registered is not None else self._written is False

    def _sample(self) -> Sample | None:
        return namespaces.sample_of(self._desired()) if self._are_wanted() else None

    async def _until_let_go(self) -> None:
        while self._takes_part():
            self._wake.clear()
            await self._wake.wait()

    async def _let_go(self) -> bool:
        """False if the configuration may be there still."""
        try:
            await self._cluster.delete(WEBHOOK_CONFIGURATIONS, namespaces.NAME)
        except NotFound:
            return True
        except ApiError as error:
            if self._written is None and isinstance(error, Forbidden):
                return True  # whoever has no right to it has written none
            log.warning("webhook configuration left behind", extra={"cluster": self._key, "error": error.message})
            return False
        log.info("webhook configuration removed", extra={"cluster": self._key, "configuration": namespaces.NAME})
        return True

    def _takes_part(self) -> bool:
        return self._cluster_cache.takes_part(self._key)

    def _limits(self) -> dict[str, tuple[Quota, Limits]]:
        """By the quota's uid: what each of them counts there."""
        found = ((quota, self._cluster_cache.selector(quota, self._key)) for quota in self._quota_cache.object_quotas())
        return {
            quota.key.uid: (quota, namespaces.limits_of(quota, selector, self._unserved))
            for quota, selector in found
            if selector is not None
        }

    def _asked_about(self) -> dict[str, Limits]:
        """By the quota's uid."""
        found = self._limits()
        self._waiting = {quota.name for quota, _ in found.values() if self._registry.is_new(quota)}
        return {uid: limits for uid, (quota, limits) in found.items() if quota.name not in self._waiting}

    def _account_changed(self, name: str, account: Account | None) -> None:
        if name in self._waiting and account is not None and account.master:
            self.configuration_changed()

    def _desired(self) -> WebhookConfiguration:
        return self._wanted(list(self._asked_about().values()))

    def _judge(self) -> None:
        self._prove()
        self._show()

    def _prove(self) -> None:
        if self._registered is None:
            return
        keeper, canary, proof = self._registered.keeper, self._registered.canary, self._registered.proof
        quotas = self._limits()
        sample = self._sample()
        asked = sample.webhook if sample is not None else ""
        if asked != self._asked:
            self._asked = asked
            canary.forget()
            self._proven = {uid: limits for uid, limits in self._proven.items() if uid in quotas}
        if asked and asked == canary.proven:
            self._proven = self._asked_about()
        works = proof is not None and proof.enforced is not False
        works = works and keeper.error is None and not keeper.contested
        for uid, (quota, limits) in quotas.items():
            enforced = works and self._proven.get(uid) == limits
            if proof is None and keeper.error is None and not keeper.began:
                continue  # nothing is known yet: what the leader before said stays
            if self._cluster_cache.tell_proven(SourceKey.of_namespaces(uid, self._key), enforced, quota):
                self._on_enforced(quota.name)

    def _show(self) -> None:
        quotas = self._limits()
        shown = self._found(quotas.values()) if quotas else None
        if shown != self.shown:
            self.shown = shown
            self._on_state()

    def _found(self, quotas: Iterable[tuple[Quota, Limits]]) -> Proof:
        if not self._are_wanted():
            return withdrawal.PROOF
        if self._registered is None:
            return CONNECTING
        keeper, proof = self._registered.keeper, self._registered.proof
        if keeper.contested:
            return CONTESTED
        if keeper.error is not None:
            return Proof(False, "WebhookMissing", keeper.error)
        if proof is None or not keeper.in_place:
            return CONNECTING
        if not proof.enforced:
            return proof
        unproven = [quota.name for quota, limits in quotas if self._proven.get(quota.key.uid) != limits]
        if unproven:
            return Proof(None, "NotProven", f"no dry run has been refused yet for {some(sorted(unproven))}")
        return Proof(True, DENIED)
