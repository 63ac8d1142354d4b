"""Accounts as QuotaLedger objects in the seed's API server: nothing to install. The version is the resourceVersion."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable

import msgspec

from common.api.labels import ACCOUNTS, GROUP, MANAGED_BY_LABEL, VERSION
from common.api.ledger_types import QuotaRef
from common.kube.client import deep_json
from common.kube.client.api_client import MERGE_PATCH, METADATA, Cluster
from common.kube.client.errors import AlreadyExists, ApiError, Conflict, NotFound
from common.kube.client.meta import Object
from common.kube.client.resource import Resource
from common.kube.controller.reflector import Reflector
from common.kube.controller.store import Change
from common.quota.account import Account, AccountKey
from seed.ledger.encoding import Encoder, LedgerHead, MalformedLedgerError, decode
from seed.ledger.store import ConflictError, Stored, StoreUnavailableError

log = logging.getLogger(__name__)

WRITE_TIMEOUT = 2.0  # seconds; a webhook call has three
TAKEN_ANNOTATION = "seedquota.io/taken"


class LedgerObject(Object, frozen=True, kw_only=True):
    """As read: the account stays bytes until somebody needs it."""

    quota: QuotaRef
    account: msgspec.Raw = msgspec.Raw(b"null")


LEDGERS = Resource(GROUP, VERSION, "quotaledgers", "QuotaLedger", True, LedgerObject)


class _Written(msgspec.Struct):
    metadata: _Version


class _Version(msgspec.Struct, rename="camel"):
    resource_version: str


_written = msgspec.json.Decoder(_Written)
_object = msgspec.json.Decoder(LedgerObject)
_head = msgspec.json.Decoder(LedgerHead | None)


class ApiServerStore:
    """One compare-and-set is one PUT. `run` watches for what other replicas write."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._encoders: dict[str, Encoder] = {}
        self._subscribers: dict[str, list[Callable[[Stored | None], None]]] = {}
        self._last: dict[str, Stored] = {}
        self._saving: dict[str, Change[LedgerObject] | None] = {}  # what the watch brought while a write is under way
        self.reflector = Reflector(cluster, LEDGERS, namespace=namespace, on_change=self._changed)

    async def run(self) -> None:
        await self.reflector.run()

    async def load(self, key: AccountKey) -> Stored | None:
        return await self._read(key, "GET", None)

    async def take(self, key: AccountKey) -> Stored | None:
        # The next write drops the annotation again.
        mark = msgspec.json.encode({"metadata": {"annotations": {TAKEN_ANNOTATION: secrets.token_hex(8)}}})
        return await self._read(key, "PATCH", mark)

    async def _read(self, key: AccountKey, method: str, body: bytes | None) -> Stored | None:
        try:
            answer = await self._cluster.request(
                method, self._path(key.uid), body, timeout=WRITE_TIMEOUT, content_type=MERGE_PATCH
            )
        except NotFound:
            return None
        except ApiError as error:
            raise StoreUnavailableError(f"{key.name}: reading the ledger: {error}") from error
        try:
            found = deep_json.decode(_object.decode, answer)
        except msgspec.MsgspecError as error:
            raise MalformedLedgerError(f"{key.name}: {error}") from None
        last = self._last.get(key.uid)
        if last is not None and last.version == found.metadata.resource_version:
            return last
        stored = self._last[key.uid] = Stored(decode(found.account), found.metadata.resource_version)
        return stored

    async def save(self, key: AccountKey, account: Account, version: str | None) -> str:
        encoder = self._encoders.get(key.uid)
        if encoder is None:
            encoder = self._encoders[key.uid] = Encoder(key, self._namespace)
        body = encoder.encode(account, version)
        self._saving[key.uid] = None
        try:
            version = await self._write(key, body, version)
            self._last[key.uid] = Stored(account, version)
        finally:
            received = self._saving.pop(key.uid)
            if received is not None:
                self._changed(received)  # mostly the echo of this very write
        return version

    async def _write(self, key: AccountKey, body: bytes, version: str | None) -> str:
        method, path = ("POST", self._path(None)) if version is None else ("PUT", self._path(key.uid))
        try:
            answer = await self._cluster.request(method, path, body, timeout=WRITE_TIMEOUT, accept=METADATA)
        except (Conflict, AlreadyExists, NotFound) as error:
            raise ConflictError(f"{key.name}: {error}") from error
        except ApiError as error:
            raise StoreUnavailableError(f"{key.name}: writing the ledger: {error}") from error
        try:
            return deep_json.decode(_written.decode, answer).metadata.resource_version
        except msgspec.MsgspecError as error:
            raise StoreUnavailableError(f"{key.name}: the answer to a write cannot be read: {error}") from None

    async def delete(self, key: AccountKey) -> None:
        self._encoders.pop(key.uid, None)
        self._last.pop(key.uid, None)
        try:
            await self._cluster.delete(LEDGERS, key.uid, self._namespace)
        except NotFound:
            return
        except ApiError as error:
            raise StoreUnavailableError(f"{key.name}: deleting the ledger: {error}") from error

    async def keys(self) -> list[AccountKey]:
        try:
            listing = await self._cluster.list(
                LEDGERS, self._namespace, label_selector=f"{MANAGED_BY_LABEL}={ACCOUNTS}"
            )
        except ApiError as error:
            raise StoreUnavailableError(f"listing ledgers: {error}") from error
        return [AccountKey(uid=ledger.metadata.name, name=ledger.quota.name) for ledger in listing.items]

    def subscribe(self, uid: str, on_change: Callable[[Stored | None], None]) -> Callable[[], None]:
        listeners = self._subscribers.setdefault(uid, [])
        listeners.append(on_change)

        def stop() -> None:
            listeners.remove(on_change)
            if not listeners:
                self._subscribers.pop(uid, None)

        return stop

    def _path(self, name: str | None) -> str:
        return LEDGERS.path(self._namespace, name)

    def _changed(self, change: Change[LedgerObject]) -> None:
        present = change.new if change.new is not None else change.old
        assert present is not None, "a change has an object before or after"
        uid = present.metadata.name
        if uid in self._saving:
            self._saving[uid] = change
            return
        listeners = self._subscribers.get(uid)
        if not listeners:
            return
        if change.new is None:
            stored = None
            self._last.pop(uid, None)
        else:
            try:
                head = deep_json.decode(_head.decode, present.account) or LedgerHead()
                if self._is_known(uid, head):
                    return  # the echo of our own write: thousands of reservations need not be read again
                stored = Stored(decode(present.account), present.metadata.resource_version)
            except (MalformedLedgerError, msgspec.MsgspecError) as error:
                log.warning("ledger is malformed", extra={"ledger": uid, "error": str(error)})
                return
            self._last[uid] = stored
        for on_change in list(listeners):
            on_change(stored)

    def _is_known(self, uid: str, head: LedgerHead) -> bool:
        last = self._last.get(uid)
        return (
            last is not None and head.incarnation == last.account.incarnation and head.sequence <= last.account.sequence
        )
