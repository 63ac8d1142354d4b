"""The configurations that make a cluster ask us about its Machines, and what keeps them there.

The validating one admits, and answers what MachineDeployments ask for. The mutating one stamps; a Machine that it
misses is sized all the same.

A tenant who is admin of his cluster can delete or change it. It is put back at once, and what slipped in meanwhile is
counted.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType

from msgspec import structs

from common.api.types import MANAGED_BY_LABEL, UserCluster
from common.kube.client.api_client import Cluster
from common.kube.client.errors import AlreadyExists, ApiError, Conflict, NotFound
from common.kube.client.meta import Object, ObjectMeta
from common.kube.client.resource import Resource
from common.kube.controller.reflector import Change, Reflector
from seed.machines.machine_controller import FOOTPRINT_ANNOTATION

log = logging.getLogger(__name__)

NAME = "seedquota-machines"
WEBHOOK = "machines.seedquota.io"
STAMPING_WEBHOOK = "stamp.machines.seedquota.io"
SCALE_WEBHOOK = "scale.seedquota.io"
LABELS = {MANAGED_BY_LABEL: "seedquota"}

RETRY_SECONDS = (0.2, 10.0)  # first and longest pause after a refused write
MAX_WRITES = 10  # in PACE_SECONDS; whoever fights us over the object gets at most so many answers
PACE_SECONDS = 10.0
MATCH_CONDITIONS = "matchConditions"
BREAK_GLASS = "break-glass"

Webhook = dict[str, object]


class WebhookConfiguration(Object, frozen=True, kw_only=True):
    webhooks: list[Webhook] = []


WEBHOOK_CONFIGURATIONS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    False,
    WebhookConfiguration,
)

STAMPING_CONFIGURATIONS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    False,
    WebhookConfiguration,
)


def name_for(cluster: UserCluster) -> str:
    """On a seed that counts its own Machines there is one for each UserCluster of that kind."""
    if cluster.spec.kubeconfig_secret_ref is not None:
        return NAME
    return f"{NAME}.{cluster.metadata.namespace}.{cluster.metadata.name}"


def desired(
    cluster: UserCluster,
    *,
    base_url: str,
    token: str,
    ca_bundle: bytes,
    timeout_seconds: int = 3,
    break_glass_group: str = "seedquota:break-glass",
) -> WebhookConfiguration:
    """What belongs into the cluster. It holds the token: never log it."""
    own_source = cluster.spec.kubeconfig_secret_ref is None
    selector = {"matchLabels": {"kubernetes.io/metadata.name": cluster.metadata.namespace}} if own_source else {}
    admitting = configuration(
        name_for(cluster),
        WEBHOOK,
        url=f"{base_url}/machines/{cluster.metadata.uid}/{token}",
        ca_bundle=ca_bundle,
        timeout_seconds=timeout_seconds,
        break_glass_group=break_glass_group,
        rules=[
            {
                "apiGroups": ["cluster.k8s.io"],
                "apiVersions": ["v1alpha1"],
                "operations": ["CREATE", "UPDATE"],
                "resources": ["machines"],
                "scope": "Namespaced",
            }
        ],
        namespaces=selector,
        sized_by=["providerSpec"],
    )
    return with_scale_checks(admitting, f"{base_url}/scale/{cluster.metadata.uid}/{token}")


def configuration(
    name: str,
    webhook: str,
    *,
    url: str,
    ca_bundle: bytes,
    timeout_seconds: int,
    break_glass_group: str,
    rules: Sequence[Mapping[str, object]],
    namespaces: Mapping[str, object] = MappingProxyType({}),
    sized_by: Sequence[str] = (),
) -> WebhookConfiguration:
    """One that admits by these rules, in the `namespaces` of that selector.

    `sized_by`: the fields of `spec` that tell what an object costs and who pays. If given, an update that leaves them
    as they are is not asked about.

    Everything is written out, also what is the API server's default, so that comparing finds what a tenant changed.
    """
    written: Webhook = {
        "name": webhook,
        "clientConfig": {"url": url, "caBundle": base64.b64encode(ca_bundle).decode()},
        "rules": [dict(rule) for rule in rules],
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
        "namespaceSelector": dict(namespaces),
        "objectSelector": {},
        "sideEffects": "NoneOnDryRun",  # a dry run decides and writes nothing
        "timeoutSeconds": timeout_seconds,
        "admissionReviewVersions": ["v1"],
        # Evaluated by the API server: both work with every one of our pods dead.
        MATCH_CONDITIONS: [
            {"name": BREAK_GLASS, "expression": f"!({_cel_string(break_glass_group)} in request.userInfo.groups)"},
            *([{"name": "changes-size", "expression": _changes_size(sized_by)}] if sized_by else []),
        ],
    }
    return WebhookConfiguration(metadata=ObjectMeta(name=name, labels=LABELS), webhooks=[written])


def with_scale_checks(admitting: WebhookConfiguration, url: str) -> WebhookConfiguration:
    """With a webhook for the MachineDeployments and MachineSets of the same API.

    It is advice, which stops nobody while we are down: their Machines are admitted by the other one.
    """
    (webhook,) = admitting.webhooks
    client, rules = webhook["clientConfig"], webhook["rules"]
    assert isinstance(client, dict) and isinstance(rules, list), "as `configuration` writes them"
    resources = ["machinedeployments", "machinedeployments/scale", "machinesets", "machinesets/scale"]
    scale: Webhook = {
        **webhook,
        MATCH_CONDITIONS: _only_break_glass(webhook),
        "name": SCALE_WEBHOOK,
        "clientConfig": {**client, "url": url},
        "rules": [{**rule, "resources": resources} for rule in rules],
        "failurePolicy": "Ignore",
        "sideEffects": "None",
    }
    return structs.replace(admitting, webhooks=[webhook, scale])


def stamping(admitting: WebhookConfiguration) -> WebhookConfiguration:
    """The mutating configuration that goes with it, of the same name: for the same Machines, in the same way.

    It is asked about every update: one that changes no size may be the first that it sees of a Machine.
    """
    webhook, _ = admitting.webhooks
    client = webhook["clientConfig"]
    assert isinstance(client, dict)
    url = str(client["url"]).replace("/machines/", "/stamp/")
    changed: Webhook = {
        **webhook,
        MATCH_CONDITIONS: _only_break_glass(webhook),
        "name": STAMPING_WEBHOOK,
        "clientConfig": {**client, "url": url},
        "failurePolicy": "Ignore",
        "sideEffects": "None",
        "reinvocationPolicy": "IfNeeded",  # a webhook after ours may change the spec
    }
    return structs.replace(admitting, webhooks=[changed])


def _only_break_glass(webhook: Webhook) -> list[object]:
    conditions = webhook[MATCH_CONDITIONS]
    assert isinstance(conditions, list), "as `configuration` writes them"
    return [condition for condition in conditions if condition["name"] == BREAK_GLASS]


def _changes_size(fields: Sequence[str]) -> str:
    """CEL: false for an update that leaves these fields of `spec` and our stamp as they are.

    An error would refuse the update, also while we answer. So no expression reads what may be missing or of another
    type, and none costs more for a larger object.
    """
    same = f"{_same('spec', fields)} && {_same('metadata.annotations', [FOOTPRINT_ANNOTATION])}"
    return f"!(request.operation == 'UPDATE' && {same})"


def _same(path: str, names: Sequence[str]) -> str:
    """CEL: these entries of the map at `path` are the same in the old and the new object. False where it is no map."""
    new, old = (f"[has({which}.{path}) ? {which}.{path} : {{}}]" for which in ("object", "oldObject"))
    quoted = ", ".join(_cel_string(name) for name in names)
    equal = "(name in new) == (name in old) && (!(name in new) || new[name] == old[name])"
    maps = "type(new) == map && type(old) == map"
    return f"{new}.all(new, {old}.all(old, {maps} && [{quoted}].all(name, {equal})))"


def _cel_string(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def lost(want: list[Webhook], have: list[Webhook]) -> list[str]:
    """The fields in which `have` is not what was wanted. What an API server adds is no loss.

    matchConditions are not counted: API servers before 1.28 drop them, and without them we are asked about more.
    """
    if len(want) != len(have):
        return ["webhooks"]
    return [
        key
        for wanted, had in zip(want, have, strict=True)
        for key, value in wanted.items()
        if key != MATCH_CONDITIONS and not _contains(had.get(key), value)
    ]


def _contains(have: object, want: object) -> bool:
    if isinstance(want, dict) and isinstance(have, dict):
        # An empty selector takes everything: something in it is not an addition, it takes less.
        return bool(want or not have) and all(_contains(have.get(key), value) for key, value in want.items())
    if isinstance(want, list) and isinstance(have, list):
        return len(want) == len(have) and all(_contains(h, w) for h, w in zip(have, want, strict=True))
    return have == want


@dataclass(frozen=True)
class _Accepted:
    """What the API server made of what we wrote, which is what must be there from then on."""

    want: list[Webhook]
    have: list[Webhook]
    list_number: int  # older than the present list: perhaps another API server's version by now


class ConfigurationKeeper:
    """Keeps the configuration in one cluster as `desired()` says. `run()` it.

    `in_place`: what was last seen there is right. `error`: why it cannot be kept, or not be followed, now; holds no
    token. `break_glass`: whether the API server evaluates the way in.
    """

    def __init__(
        self,
        cluster: Cluster,
        desired: Callable[[], WebhookConfiguration],
        *,
        resource: Resource[WebhookConfiguration] = WEBHOOK_CONFIGURATIONS,
        on_state: Callable[[], None] = lambda: None,
        on_write: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_state` tells that `in_place` or `error` may have changed, `on_write` that it was written; they must not
        block."""
        self.in_place = False
        self.break_glass = False
        self._cluster = cluster
        self._desired = desired
        self._resource = resource
        self._on_state = on_state
        self._on_write = on_write
        self._name = desired().metadata.name
        self._facts = {"cluster": cluster.name, "kind": resource.kind, "configuration": self._name}
        self._refused: str | None = None
        self._accepted: _Accepted | None = None
        self._was_right: list[Webhook] | None = None  # what was wanted when it was last there
        self._writes: deque[float] = deque(maxlen=MAX_WRITES)
        self._wake = asyncio.Event()
        self._reflector = Reflector(
            cluster,
            resource,
            field_selector=f"metadata.name={self._name}",
            on_change=self._seen,
        )

    @property
    def error(self) -> str | None:
        return self._refused or self._reflector.error

    def changed(self) -> None:
        """What `desired` returns has changed."""
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled. The configuration stays: see `remove`."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._reflector.run(), name=f"{self._name}: follow")
            group.create_task(self._keep(), name=f"{self._name}: keep")

    async def remove(self) -> None:
        """Lets the cluster go. Not while `run` runs, which would put it back. Raises ApiError."""
        with suppress(NotFound):
            await self._cluster.delete(self._resource, self._name)
        self.in_place = False

    def _seen(self, _change: Change[WebhookConfiguration]) -> None:
        self._wake.set()

    async def _keep(self) -> None:
        await self._reflector.synced.wait()
        failures = 0
        while True:
            self._wake.clear()
            before = self.in_place, self._refused
            pause: float | None = None
            try:
                await self._step()
                failures = 0
            except (Conflict, AlreadyExists):
                pause = RETRY_SECONDS[0]  # the watch will bring what is there by now
            except ApiError as error:
                pause = min(RETRY_SECONDS[0] * 2.0 ** min(failures, 20), RETRY_SECONDS[1])
                failures += 1
                self._failed(error.message)
            if before != (self.in_place, self._refused):
                self._on_state()
            # not wait_for, which before Python 3.12 can lose a cancellation that comes with the wake-up
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()

    async def _step(self) -> None:
        want = self._desired()
        have = self._reflector.store.get(self._name)
        if have is not None and self._is_right(want, have):
            self._note(want.webhooks, have.webhooks)
            return
        self.in_place = False
        drifted = self._was_right == want.webhooks
        await self._pace()
        number = self._reflector.lists_completed
        written = await self._write(want, have)
        self._accepted = _Accepted(want.webhooks, written.webhooks, number)
        self._note(want.webhooks, written.webhooks)
        self._on_write()
        why = "missing" if have is None else ", ".join(lost(want.webhooks, have.webhooks)) or "other fields or labels"
        log.log(
            logging.WARNING if drifted else logging.INFO,
            "webhook configuration put back" if drifted else "webhook configuration written",
            extra={**self._facts, "why": why},
        )

    def _is_right(self, want: WebhookConfiguration, have: WebhookConfiguration) -> bool:
        if not want.metadata.labels.items() <= have.metadata.labels.items():
            return False
        accepted = self._accepted
        if have.webhooks == want.webhooks:
            return True
        return (
            accepted is not None
            and accepted.list_number == self._reflector.lists_completed
            and accepted.want == want.webhooks
            and accepted.have == have.webhooks
        )

    def _note(self, want: list[Webhook], have: list[Webhook]) -> None:
        self._was_right = want
        missing = lost(want, have)
        self.in_place = not missing
        self.break_glass = all(webhook.get(MATCH_CONDITIONS) for webhook in have)
        if missing:
            self._failed(f"the API server did not keep {', '.join(missing)}")
        else:
            self._refused = None

    async def _write(self, want: WebhookConfiguration, have: WebhookConfiguration | None) -> WebhookConfiguration:
        try:
            return await self._put(want, have)
        except ApiError as error:
            if error.status not in (400, 422) or MATCH_CONDITIONS not in error.message:
                raise
            log.info("API server takes no matchConditions: no break-glass there", extra=self._facts)
            plain = [{key: webhook[key] for key in webhook if key != MATCH_CONDITIONS} for webhook in want.webhooks]
            return await self._put(structs.replace(want, webhooks=plain), have)

    async def _put(self, want: WebhookConfiguration, have: WebhookConfiguration | None) -> WebhookConfiguration:
        self._writes.append(time.monotonic())
        if have is None:
            return await self._cluster.create(self._resource, want)
        metadata = ObjectMeta(
            name=self._name,
            resource_version=have.metadata.resource_version,
            labels={**have.metadata.labels, **want.metadata.labels},
            annotations=have.metadata.annotations,
        )
        return await self._cluster.replace(self._resource, structs.replace(want, metadata=metadata))

    async def _pace(self) -> None:
        if len(self._writes) == MAX_WRITES:
            await asyncio.sleep(self._writes[0] + PACE_SECONDS - time.monotonic())

    def _failed(self, message: str) -> None:
        for webhook in self._desired().webhooks:
            message = message.replace(_token(webhook), "***")  # API servers quote what they find wrong
        if message != self._refused:
            log.warning("webhook configuration cannot be kept", extra={**self._facts, "error": message})
        self._refused = message


def _token(webhook: Mapping[str, object]) -> str:
    client = webhook["clientConfig"]
    assert isinstance(client, dict)
    return str(client["url"]).rpartition("/")[2]
