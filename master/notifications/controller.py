"""Tells the receivers of QuotaNotifications what begins and, in forms that say so, what ends at quotas.

Level-triggered: what lasts is compared with what the status says was told, so nothing is queued, lost by a crash or
repeated by the next leader. What is over before it could be told is not told. A message that was delivered just before
a leader crashed is sent again under its id, by which receivers know it.

Each object is a key of its own in the work queue, one delivery takes at most ten seconds, and failures back off. Rates
are bounded for each namespace, also where a tenant makes objects again and again.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Iterator
from itertools import chain

import msgspec

from common.api.conditions import condition, now, transition
from common.api.core import SECRETS, Secret
from common.api.labels import MASTER_MANAGER
from common.api.status import write_status
from common.api.types import Condition
from common.kube.client.api_client import Cluster
from common.kube.client.errors import Forbidden, NotFound
from common.kube.client.meta import Object
from common.kube.client.networks import Networks
from common.kube.controller.controller import Controller, ReconcileHook
from common.kube.controller.reflector import Reflector
from common.kube.controller.store import Change
from common.runtime.token_bucket import TokenBucket
from master.cache.informers import BY_ORGANIZATION, BY_SUBJECT, Caches, changed_name, organization_of
from master.cache.objects import MasterQuota
from master.notifications import forms, metrics
from master.notifications.active import Active, active
from master.notifications.delivery import Undelivered, deliver
from master.notifications.interest import Scope, wanted
from master.notifications.objects import QUOTA_NOTIFICATIONS, QuotaNotification
from master.notifications.plan import Next, message_id, next_message
from master.notifications.receiver import InvalidReceiver, Receiver, receiver_of
from master.tenancy.organization_namespaces import PREFIX, OrganizationNamespaces

log = logging.getLogger(__name__)

WORKERS = 32
TIMEOUT = 30.0  # seconds for one object
MAX_IN_NAMESPACE = 10
TOGETHER = 0.5  # seconds after something began: what begins meanwhile is told together
PAUSE = 10.0  # seconds between two messages of one object: what comes meanwhile is told together
PER_SECOND, AT_ONCE = 0.2, 20  # messages of one namespace
FIRST_BACKOFF, LONGEST_BACKOFF = 5.0, 600.0
SECRET_AGAIN = 60.0  # seconds until a Secret that cannot be used is read again; it is not watched
BY_NAMESPACE = "namespace"


class _NotReady(Exception):
    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class _Known:
    """What is remembered of one object, by uid."""

    def __init__(self, found: QuotaNotification) -> None:
        self.status = found.status
        self.checked = 0  # the generation for which its Secret was last found to be usable
        self.tried = 0  # ... and for which it was last tried
        self.not_before = float("-inf")  # monotonic; of the next message
        self.failures = 0


class Notifications:
    """`run` works until cancelled; the caches are synced. `namespace`: the master's own."""

    def __init__(
        self,
        cluster: Cluster,
        caches: Caches,
        organizations: OrganizationNamespaces,
        namespace: str,
        networks: Networks,
        *,
        on_reconcile: ReconcileHook | None = None,
    ) -> None:
        self._cluster = cluster
        self._caches = caches
        self._organizations = organizations
        self._namespace = namespace
        self._networks = networks
        self._lasting: dict[str, tuple[Active, ...]] = {}  # by quota; of those that have any
        self._known: dict[str, _Known] = {}
        self._buckets: dict[str, TokenBucket] = {}
        self._controller: Controller[str] = Controller(
            "notifications", self._reconcile, workers=WORKERS, timeout=TIMEOUT, on_reconcile=on_reconcile
        )
        self._reflector = Reflector(
            cluster,
            QUOTA_NOTIFICATIONS,
            indexes={BY_NAMESPACE: lambda found: [found.metadata.namespace]},
            on_change=self._notification_changed,
        )

    async def run(self) -> None:
        ends = self._caches.listen(self._changed)
        try:
            for quota in self._caches.quotas.store.values():
                self._look(quota.metadata.name, quota)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._reflector.run(), name="watch quotanotifications")
                group.create_task(self._controller.run())
        finally:
            ends()

    def organization_changed(self, organization: str) -> None:
        """Whether its namespace can be used, or its projects."""
        self._review(PREFIX + organization)

    # What changed ----------------------------------------------------------------------------------------------

    def _notification_changed(self, change: Change[QuotaNotification]) -> None:
        found = change.new if change.new is not None else change.old
        assert found is not None, "a change has an object before or after"
        if change.old is None or change.new is None:
            self._review(found.metadata.namespace)  # others may be within the bound now
        if change.old is None or change.new is None or change.old.metadata.generation != found.metadata.generation:
            self._controller.queue.add(found.metadata.key)

    def _changed(self, plural: str, change: Change[Object]) -> None:
        if plural == "resourcequotas":
            self._look(changed_name(change), change.new)
        elif plural == "projects":
            for project in (change.old, change.new):
                if project is not None and (organization := self._organization(project.metadata.name)):
                    self.organization_changed(organization)
        elif plural == "secrets":
            self._review(self._namespace)

    def _look(self, name: str, quota: Object | None) -> None:
        found = active(quota) if isinstance(quota, MasterQuota) else ()
        before = self._lasting.pop(name, ())
        if found:
            self._lasting[name] = found
        if [each.key for each in found] == [each.key for each in before]:
            return
        self._review(self._namespace)
        for subject in {each.subject for each in (*found, *before)}:
            kind, _, of = subject.partition("/")
            if organization := of if kind == "organization" else self._organization(of) if kind == "project" else "":
                self.organization_changed(organization)

    def _review(self, namespace: str) -> None:
        for found in self._reflector.store.by_index(BY_NAMESPACE, namespace):
            self._controller.queue.add_after(found.metadata.key, TOGETHER)

    def _organization(self, project: str) -> str:
        found = self._caches.projects.store.get(project)
        return organization_of(found) if found is not None else ""

    # One object ------------------------------------------------------------------------------------------------

    async def _reconcile(self, key: str) -> float | None:
        found = self._reflector.store.get(key)
        if found is None or found.metadata.deletion_timestamp is not None:
            self._forget()
            return None
        known = self._known.setdefault(found.metadata.uid, _Known(found))
        try:
            if (scope := self._scope(found)) is None:
                return None
            said = self._next(found, known, scope)
            if said.empty and known.checked == found.metadata.generation:
                await self._show(found, known, *_as_said(known, "Ready", "Delivered"), said=said)
                return None
            receiver = receiver_of(await self._secret(found))
            known.checked = found.metadata.generation
        except _NotReady as error:
            return await self._not_ready(found, known, error.reason, str(error))
        except InvalidReceiver as error:
            text = f"secret {found.spec.secret_ref.name} {error}"
            return await self._not_ready(found, known, "InvalidSecret", text)
        if said.empty:
            await self._show(found, known, _ready(receiver), *_as_said(known, "Delivered"), said=said)
            return None
        if known.tried == found.metadata.generation and (wait := known.not_before - time.monotonic()) > 0:
            return wait
        if not self._bucket(found.metadata.namespace).take(time.monotonic()):
            return 1 / PER_SECOND
        return await self._tell(found, known, receiver, said)

    async def _tell(self, found: QuotaNotification, known: _Known, receiver: Receiver, said: Next) -> float | None:
        known.tried = found.metadata.generation
        identity = message_id(found.metadata.uid, known.status.deliveries, said)
        key, form = found.metadata.key, found.spec.form
        message = forms.message(form, said, identity=identity, name=key, now=now())
        try:
            await deliver(receiver, message, identity=identity, notification=key, networks=self._networks)
        except Undelivered as error:
            known.failures += 1
            longest = min(FIRST_BACKOFF * 2.0 ** min(known.failures - 1, 20), LONGEST_BACKOFF)
            wait = longest * random.uniform(0.75, 1.0)  # noqa: S311 (spread, not a secret)
            known.not_before = time.monotonic() + wait
            metrics.DELIVERIES.labels(form, "failed").inc()
            text = f"{error}; {len(said.begun) + len(said.ended)} not told yet, tried again within {longest:.0f} s"
            await self._show(found, known, _ready(receiver), condition("Delivered", False, error.reason, text))
            return wait
        known.failures, known.not_before = 0, time.monotonic() + PAUSE
        metrics.DELIVERIES.labels(form, "delivered").inc()
        known.status = msgspec.structs.replace(
            known.status, deliveries=known.status.deliveries + 1, last_delivery_time=now(), notified=said.notified
        )
        await self._show(found, known, _ready(receiver), condition("Delivered", True, "Delivered", ""), said=said)
        return PAUSE if said.more else None

    def _scope(self, found: QuotaNotification) -> Scope | None:
        """None: it is not known yet whose the namespace is. Raises _NotReady."""
        namespace = found.metadata.namespace
        scope = Scope() if namespace == self._namespace else None
        if scope is None:
            organization = namespace.removeprefix(PREFIX)
            there = self._organizations.of(organization)
            if there is None and organization in self._caches.organizations.store:
                return None
            if there is None or there.name != namespace:
                text = "this namespace is not that of an Organization, nor that of seedquota-master: nothing is told"
                raise _NotReady("NoSubject", text)
            scope = Scope(organization)
        names = sorted(each.metadata.name for each in self._reflector.store.by_index(BY_NAMESPACE, namespace))
        if found.metadata.name in names[MAX_IN_NAMESPACE:]:
            text = f"a namespace has at most {MAX_IN_NAMESPACE} of them, the first by name: delete others"
            raise _NotReady("TooMany", text)
        return scope

    def _next(self, found: QuotaNotification, known: _Known, scope: Scope) -> Next:
        of = wanted(found.spec, scope, self._lasting_in(scope), self._organization, time.time())
        said = next_message(found.spec.form, known.status.notified, of)
        if said.left_out > known.status.left_out:
            metrics.LEFT_OUT.inc(said.left_out - known.status.left_out)
        return said

    def _lasting_in(self, scope: Scope) -> Iterator[Active]:
        """Of an organization only its own are looked at: there may be many others."""
        if not scope.organization:
            yield from chain.from_iterable(list(self._lasting.values()))
            return
        projects = self._caches.projects.store.by_index(BY_ORGANIZATION, scope.organization)
        subjects = [f"organization/{scope.organization}", *(f"project/{each.metadata.name}" for each in projects)]
        for subject in subjects:
            for quota in self._caches.quotas.store.by_index(BY_SUBJECT, subject):
                yield from self._lasting.get(quota.metadata.name, ())

    async def _secret(self, found: QuotaNotification) -> dict[str, bytes]:
        """Of its own namespace, and of none other. Raises _NotReady, ApiError."""
        namespace, name = found.metadata.namespace, found.spec.secret_ref.name
        if namespace == self._namespace:
            there: Secret | None = self._caches.secrets.store.get(f"{namespace}/{name}")
            if there is None:
                raise _NotReady("SecretNotFound", f"there is no secret {name}")
            return there.data
        try:
            return (await self._cluster.get(SECRETS, name, namespace)).data
        except NotFound:
            raise _NotReady("SecretNotFound", f"there is no secret {name}") from None
        except Forbidden:
            role = f"seedquota-read-{name}"
            text = (
                f"seedquota-master may not read secret {name}; allow it: kubectl -n {namespace} create role {role} "
                f"--verb=get --resource=secrets --resource-name={name} && kubectl -n {namespace} create rolebinding "
                f"{role} --role={role} --serviceaccount={self._namespace}:seedquota-master"
            )
            raise _NotReady("SecretForbidden", text) from None

    async def _not_ready(self, found: QuotaNotification, known: _Known, reason: str, text: str) -> float | None:
        known.checked = 0
        await self._show(found, known, condition("Ready", False, reason, text), *_as_said(known, "Delivered"))
        return None if reason in ("NoSubject", "TooMany") else SECRET_AGAIN

    async def _show(
        self, found: QuotaNotification, known: _Known, *conditions: Condition, said: Next | None = None
    ) -> None:
        """`said`: what is recorded with it; nothing of it is left to be told, or it was told."""
        generation = found.metadata.generation
        before = known.status
        if said is not None:
            before = msgspec.structs.replace(before, notified=said.notified, left_out=said.left_out)
        stamped = [msgspec.structs.replace(each, observed_generation=generation) for each in conditions]
        known.status = msgspec.structs.replace(
            before,
            observed_generation=generation,
            conditions=transition(known.status.conditions, stamped, now()),
        )
        if known.status != found.status:
            await write_status(self._cluster, QUOTA_NOTIFICATIONS, found, known.status, MASTER_MANAGER)

    def _bucket(self, namespace: str) -> TokenBucket:
        return self._buckets.setdefault(namespace, TokenBucket(PER_SECOND, AT_ONCE))

    def _forget(self) -> None:
        """What is remembered of objects that are gone. Buckets of namespaces stay: they may come back at once."""
        there = {found.metadata.uid for found in self._reflector.store.values()}
        for uid in self._known.keys() - there:
            del self._known[uid]


def _ready(receiver: Receiver) -> Condition:
    unsigned = "" if receiver.signing_key else "messages are not signed: the secret has no key signingKey"
    return condition("Ready", True, "Valid", unsigned)


def _as_said(known: _Known, *kinds: str) -> Iterator[Condition]:
    """Conditions that nothing new is known of."""
    yield from (each for each in known.status.conditions if each.type in kinds)
