"""Keeps a cluster's webhook configurations as they should be."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from msgspec import structs

from common.kube.client.api_client import Cluster
from common.kube.client.errors import AlreadyExists, ApiError, Conflict, NotFound
from common.kube.client.meta import ObjectMeta
from common.kube.client.resource import Resource, by_name
from common.kube.controller.reflector import Reflector
from common.kube.controller.store import Change
from common.runtime import unexpected
from common.runtime.waiting import within
from seed.registration.configuration import (
    MATCH_CONDITIONS,
    RETRY_SECONDS,
    WEBHOOK_CONFIGURATIONS,
    Webhook,
    WebhookConfiguration,
    has_break_glass,
    log,
    lost,
    token_of,
)

INTERNAL = "it is not known whether it is kept, because of an unexpected error: see the log of seedquota-seed"
BURST = 20  # writes at once
WRITE_SECONDS = 0.05  # ... then between two
CONTESTED = 5  # restores within CONTESTED_SECONDS
CONTESTED_SECONDS = 60.0


@dataclass(frozen=True)
class _Accepted:
    """What the API server made of what we wrote, which is what must be there from then on."""

    want: list[Webhook]
    have: list[Webhook]
    list_number: int  # older than the present list: perhaps another API server's version by now


class ConfigurationKeeper:
    """Keeps the configuration in one cluster as `desired()` says. `run()` it.

    While not `wanted()`, it removes the configuration and keeps it away. `absent`: it was seen to be away. `began`:
    there was none when it began to keep it, so nothing was asked before.
    `in_place`: what was last seen there is right. `error`: why it cannot be kept, or not be followed, now; holds no
    token. `break_glass`: whether the API server lets the group pass.
    """

    def __init__(
        self,
        cluster: Cluster,
        desired: Callable[[], WebhookConfiguration],
        *,
        resource: Resource[WebhookConfiguration] = WEBHOOK_CONFIGURATIONS,
        on_state: Callable[[], None] = lambda: None,
        on_write: Callable[[], None] = lambda: None,
        on_restore: Callable[[], None] = lambda: None,
        wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """`on_state` tells that `in_place`, `error` or `contested` may have changed, `on_write` that it was written,
        `on_restore` that it was because somebody had deleted or changed it; they must not block."""
        self.in_place = False
        self.absent = False
        self.began = False
        self.break_glass = False
        self.wanted = wanted
        self._cluster = cluster
        self._desired = desired
        self._resource = resource
        self._on_state = on_state
        self._on_write = on_write
        self._on_restore = on_restore
        self._name = desired().metadata.name
        self._facts = {"cluster": cluster.name, "kind": resource.kind, "configuration": self._name}
        self._refused: str | None = None
        self._accepted: _Accepted | None = None
        self._was_right: list[Webhook] | None = None  # what was wanted when it was last there
        self._next_write = float("-inf")  # monotonic: see `_pace`
        self._restored: deque[float] = deque(maxlen=CONTESTED)
        self._wake = asyncio.Event()
        self._reflector = Reflector(
            cluster,
            resource,
            field_selector=by_name(self._name),
            on_change=self._seen,
        )

    @property
    def error(self) -> str | None:
        return self._refused or self._reflector.error

    @property
    def contested(self) -> bool:
        """Somebody deletes or changes it again and again: Machines come in between."""
        restored = self._restored
        return len(restored) == CONTESTED and time.monotonic() - restored[0] < CONTESTED_SECONDS

    def changed(self) -> None:
        """What `desired` or `wanted` returns has changed."""
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
            before = self.in_place, self.absent, self._refused
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
            except Exception as error:  # noqa: BLE001 (logged; that it is kept is not known any more)
                unexpected.tell("webhook configurations", self._cluster.name, error)
                pause, self.in_place, self._refused = RETRY_SECONDS[1], False, INTERNAL
            if before != (self.in_place, self.absent, self._refused):
                self._on_state()
            await within(self._wake, pause)

    async def _withdraw(self) -> None:
        self.in_place, self._was_right, self._accepted = False, None, None
        if self._reflector.store.get(self._name) is None:
            self.absent = True
            return
        with suppress(NotFound):
            await self._cluster.delete(self._resource, self._name)
        log.warning("webhook configuration withdrawn", extra=self._facts)

    async def _step(self) -> None:
        if not self.wanted():
            await self._withdraw()
            return
        self.absent = False
        if self._found_right():
            return
        self.in_place = False
        await self._pace()
        if self._found_right():  # by now
            return
        want, have = self._desired(), self._reflector.store.get(self._name)
        drifted = self._was_right == want.webhooks
        number = self._reflector.lists_completed
        written = await self._write(want, have)
        self.began = self.began or (have is None and self._was_right is None)
        self._accepted = _Accepted(want.webhooks, written.webhooks, number)
        self._note(want.webhooks, written.webhooks)
        self._on_write()
        if drifted:
            self._restored.append(time.monotonic())
            self._on_restore()
        why = "missing" if have is None else ", ".join(lost(want.webhooks, have.webhooks)) or "other fields or labels"
        log.log(
            logging.WARNING if drifted else logging.INFO,
            "webhook configuration restored" if drifted else "webhook configuration written",
            extra={**self._facts, "why": why},
        )

    def _found_right(self) -> bool:
        want, have = self._desired(), self._reflector.store.get(self._name)
        if have is None or not self._is_right(want, have):
            return False
        self._note(want.webhooks, have.webhooks)
        return True

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
        self.break_glass = bool(have) and all(map(has_break_glass, have))
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
        """The first BURST writes at once, those after them WRITE_SECONDS apart. A pause would leave the cluster without
        it for as long as somebody deletes it."""
        now = time.monotonic()
        self._next_write = max(self._next_write, now - BURST * WRITE_SECONDS) + WRITE_SECONDS
        if self._next_write > now:
            await asyncio.sleep(self._next_write - now)

    def _failed(self, message: str) -> None:
        for webhook in self._desired().webhooks:
            message = message.replace(token_of(webhook), "***")  # API servers quote what they find wrong
        if message != self._refused:
            log.warning("webhook configuration cannot be kept", extra={**self._facts, "error": message})
        self._refused = message
