"""Accounts in Redis 7: faster than the API server, and no load on etcd. Safety does not depend on Redis' disk.

One account is one key (a hash: version, tenure, object). The changes are one channel, and the list of accounts is one
more key. All share the hash tag of the seed, so that they are together in a Cluster. A compare-and-set is one FCALL
(seed/ledger/redis_functions.py). The field `tenure` is the store generation in which the account was written.

**Every loss is noticed.** Redis acknowledges writes that it can lose, so nothing here depends on what it keeps:

* A server's *store run id* is its run_id and its replication id. A process that starts has a new run_id, whatever it
  loaded from disk. A server that becomes a primary has a new replication id, also one that was the primary before and
  was overwritten meanwhile. While both stay the same, the data set was changed by commands in this one memory only.
* The marker of the store generation, in the API server, names one store run id (seed/ledger/store_generation.py). Each
  call carries it, and the function refuses, in the same atomic step, on a server with another one: after a restart with
  or without persistence, an older snapshot, a failover with lost writes, another Redis under the address, the old
  primary of a split brain for callers that should be at the new one. A new process reads the marker first.
* The leader then begins a new store generation. An account of an earlier generation is handed out only after it was
  stored as a new life, fenced. Replicas that still reach the former server stop before the new generation is in force:
  they confirm the marker all the time, before and after each write.
* A key that is gone while the store run id stays (FLUSHALL, DEL, eviction, expiry) is an account that does not exist:
  no write fits it, and what the leader makes in its place is a new life, fenced. The version's second half is random
  for each new key, so that no write from before fits by chance. Redis tells nobody of such a loss, and nothing may be
  written to an idle account for an hour: so all versions are compared every 5 seconds.

A new life opens as every lost ledger does: after the master answered a fresh nonce, the in-flight window has passed,
and all sources were recounted. Neither WAIT nor AOF is needed for safety; they do not prevent the fence either.

This does not notice an older value put into a key of the same memory by an administrator's command (RESTORE, SWAPDB,
DEBUG RELOAD NOSAVE), and a machine set back with its memory by its hypervisor. A running writer notices that by the
sequence that it remembers (seed/ledger/writer.py), the master by a counter R that went back. And two thirds of the
lease's duration must pass no faster on any replica's clock than the whole duration on the leader's.

Needed rights: +fcall +function|load +ping +subscribe +info +hget +hmget +hset +hdel +hgetall +del +publish
~{seedquota:SEED}* &{seedquota:SEED}* (on a Cluster also +cluster|shards). `maxmemory-policy noeviction` is advised.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
from redis.exceptions import RedisError

from common.api.ledger_types import QuotaRef
from common.quota.account import Account, AccountKey
from common.runtime.redis_access import RedisAccess, RedisUrl
from common.runtime.redis_client import CALL_TIMEOUT, MissingFunctionError, Primary, RedisUnavailableError
from seed.ledger.encoding import Encoder, MalformedLedgerError, decode
from seed.ledger.redis_functions import LIBRARY, LIBRARY_CODE
from seed.ledger.store import ConflictError, Stored, StoreUnavailableError
from seed.ledger.store_generation import Held, new_life

log = logging.getLogger(__name__)

ADOPTIONS = 8  # attempts to begin an account's new life while others do the same
BEAT = 2.0  # seconds between two pings of the connection that receives changes
PAUSE = 0.5  # seconds before it is made anew
COMPARED_EVERY = 5.0  # seconds
COMPARED_AT_ONCE = 500  # accounts


class _Record(msgspec.Struct):
    """The object as it is stored: the same as in the API server."""

    quota: QuotaRef
    account: msgspec.Raw


_record = msgspec.json.Decoder(_Record)


class RedisStore:
    """`held` returns the generation in force. `on_elsewhere` is called when a server of another run id answered."""

    def __init__(
        self,
        url: RedisUrl,
        access: RedisAccess,
        seed: str,
        *,
        held: Callable[[], Held],
        on_elsewhere: Callable[[], None] = lambda: None,
    ) -> None:
        self._tag = f"seedquota:{seed}"
        self._list = f"{{{self._tag}}}:accounts"
        self._channel = f"{{{self._tag}}}:changes"
        self._primary = Primary(url, access, self._tag)
        self._held = held
        self._on_elsewhere = on_elsewhere
        self._encoders: dict[str, Encoder] = {}
        self._subscribers: dict[str, list[Callable[[Stored | None], None]]] = {}
        self._last: dict[str, Stored] = {}
        self._saving: dict[str, str | None] = {}  # the version that was received while a write is under way
        self._stale: dict[str, None] = {}  # uids that somebody else wrote, in order
        self._stale_some = asyncio.Event()

    async def run(self) -> None:
        """Receives changes by others, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._listen(), name="ledger changes")
            group.create_task(self._refresh(), name="ledger refresh")
            group.create_task(self._compare_all(), name="ledger comparison")

    async def close(self) -> None:
        await self._primary.close()

    async def run_id(self) -> str:
        """The store run id of the present primary. Raises StoreUnavailableError, also while there is none."""
        with _as_of_the_store():
            await self._primary.look_up()
        run_id = await self._call("who", [self._list], [])
        if not isinstance(run_id, bytes) or not run_id:
            raise StoreUnavailableError("redis: the server is not a primary, or does not tell its run_id")
        return run_id.decode()

    def refresh(self) -> None:
        """Read every account again that somebody follows: another generation is in force, or changes were missed."""
        for uid in self._subscribers:
            self._mark(uid)

    async def load(self, key: AccountKey) -> Stored | None:
        return await self._load(key.uid)

    async def take(self, key: AccountKey) -> Stored | None:
        return await self._load(key.uid, take=True)

    async def _load(self, uid: str, *, take: bool = False) -> Stored | None:
        for _ in range(ADOPTIONS):
            held = self._held()
            last = self._last.get(uid)
            known = last.version if last is not None else ""
            function, seen = ("take", held.generation) if take else ("load", known)
            match await self._do(function, [self._account(uid)], [held.run_id, seen]):
                case [b"none"]:
                    self._last.pop(uid, None)
                    return None
                case [b"same", _, bytes() as generation]:
                    if last is not None and generation.decode() == held.generation:
                        return last
                    self._last.pop(uid, None)
                case [b"found", bytes() as version, bytes() as generation, bytes() as body]:
                    key, account = _decode(uid, body)
                    stored: Stored | None = Stored(account, version.decode())
                    if stored is not None and generation.decode() != held.generation:
                        stored = await self._adopt(key, stored, held)
                    if stored is not None:
                        self._last[uid] = stored
                        return stored
                case answer:
                    raise _unexpected(uid, answer)
        raise StoreUnavailableError(f"{uid}: others write it all the time")

    async def _adopt(self, key: AccountKey, found: Stored, held: Held) -> Stored | None:
        """What is left of an account of an earlier generation begins a new life. None if another replica was first."""
        life = new_life(found.account)
        try:
            version = await self._write(key, life, found.version, held, "adopt")
        except ConflictError:
            return None
        log.warning("account begins a new life", extra={"quota": key.name, "generation": held.generation})
        return Stored(life, version)

    async def save(self, key: AccountKey, account: Account, version: str | None) -> str:
        self._saving[key.uid] = None
        written = None
        try:
            written = await self._write(key, account, version or "", self._held(), "keep")
            self._last[key.uid] = Stored(account, written)
        finally:
            received = self._saving.pop(key.uid)
            if received is not None and received != written:
                self._mark(key.uid)
        return written

    async def delete(self, key: AccountKey) -> None:
        self._encoders.pop(key.uid, None)
        self._last.pop(key.uid, None)
        answer = await self._do(
            "delete", [self._account(key.uid), self._list], [self._held().run_id, key.uid, self._channel]
        )
        if answer != [b"deleted"]:
            raise _unexpected(key.uid, answer)

    async def keys(self) -> list[AccountKey]:
        match await self._do("list", [self._list], [self._held().run_id]):
            case [b"listed", list() as flat]:
                texts = [text.decode() for text in flat if isinstance(text, bytes)]
                return [AccountKey(uid=uid, name=name) for uid, name in zip(texts[::2], texts[1::2], strict=True)]
            case answer:
                raise _unexpected("the list of accounts", answer)

    def subscribe(self, uid: str, on_change: Callable[[Stored | None], None]) -> Callable[[], None]:
        listeners = self._subscribers.setdefault(uid, [])
        listeners.append(on_change)

        def stop() -> None:
            listeners.remove(on_change)
            if not listeners:
                for known in (self._subscribers, self._stale, self._last, self._encoders):
                    known.pop(uid, None)

        return stop

    def _account(self, uid: str) -> str:
        return f"{{{self._tag}}}:account:{uid}"

    async def _write(self, key: AccountKey, account: Account, version: str, held: Held, mode: str) -> str:
        encoder = self._encoders.get(key.uid)
        if encoder is None:
            encoder = self._encoders[key.uid] = Encoder(key, "")
        arguments: list[str | bytes] = [
            *(held.run_id, held.generation, version, secrets.token_hex(8)),
            *(key.uid, key.name, self._channel, mode),
            encoder.encode(account, None),
        ]
        match await self._do("save", [self._account(key.uid), self._list], arguments):
            case [b"written", bytes() as written]:
                return written.decode()
            case [b"conflict"]:
                raise ConflictError(f"{key.name}: written since version {version or 'nothing'}")
            case answer:
                raise _unexpected(key.uid, answer)

    async def _do(self, function: str, keys: list[str], arguments: list[str | bytes]) -> object:
        """An answer of the server whose store run id is in force. Raises StoreUnavailableError."""
        answer = await self._call(function, keys, arguments)
        if answer == [b"elsewhere"]:
            self._on_elsewhere()
            raise StoreUnavailableError("redis restarted, failed over or was replaced: a new store generation begins")
        return answer

    async def _call(self, function: str, keys: list[str], arguments: list[str | bytes]) -> object:
        words = ["FCALL", f"{LIBRARY}_{function}", str(len(keys)), *keys, *arguments]
        with _as_of_the_store():
            try:
                return await self._primary.call(*words)
            except MissingFunctionError:  # a new server, or its functions were flushed: nothing was done
                await self._primary.call("FUNCTION", "LOAD", "REPLACE", LIBRARY_CODE)
                log.info("functions loaded into the ledger's redis", extra={"library": LIBRARY})
            try:
                return await self._primary.call(*words)
            except MissingFunctionError as error:
                raise StoreUnavailableError(f"redis: {error}") from None

    async def _listen(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "it runs in a task"
        while not task.cancelling():  # the client library may have kept the cancellation to itself
            try:
                await self._follow(task)
            except (RedisError, OSError, TimeoutError) as error:
                log.info("changes of the ledger are not received", extra={"error": str(error) or "no answer to a ping"})
            await asyncio.sleep(PAUSE)

    async def _follow(self, task: asyncio.Task[None]) -> None:
        """Until the connection breaks, falls silent, or another server is the primary."""
        async with asyncio.timeout(CALL_TIMEOUT):
            client = await self._primary.client()
        async with client.pubsub() as changes:
            async with asyncio.timeout(CALL_TIMEOUT):
                await changes.subscribe(self._channel)
            asked = False
            while self._primary.is_current(client) and not task.cancelling():
                message = await changes.get_message(timeout=BEAT)
                if message is None:
                    if asked:
                        raise TimeoutError
                    await changes.ping()
                    asked = True
                    continue
                asked = False
                match message:
                    case {"type": "subscribe"}:
                        self.refresh()  # changes before this were not received
                    case {"type": "message", "data": bytes() as data}:
                        uid, _, version = data.decode(errors="replace").partition(" ")
                        self._received(uid, version)

    def _received(self, uid: str, version: str) -> None:
        last = self._last.get(uid)
        if uid in self._saving:
            self._saving[uid] = version  # mostly the echo of this very write
        elif last is None or last.version != version:
            self._mark(uid)

    def _mark(self, uid: str) -> None:
        if uid in self._subscribers:
            self._stale[uid] = None
            self._stale_some.set()

    async def _refresh(self) -> None:
        while True:
            await self._stale_some.wait()
            self._stale_some.clear()
            while self._stale:
                uid = next(iter(self._stale))
                del self._stale[uid]
                try:
                    self._notify(uid, await self._load(uid))
                except MalformedLedgerError as error:
                    log.warning("ledger is malformed", extra={"ledger": uid, "error": str(error)})
                except StoreUnavailableError:
                    self._mark(uid)
                    await asyncio.sleep(PAUSE)

    async def _compare_all(self) -> None:
        while True:
            await asyncio.sleep(COMPARED_EVERY)
            followed = list(self._subscribers)
            for start in range(0, len(followed), COMPARED_AT_ONCE):
                try:
                    await self._compare(followed[start : start + COMPARED_AT_ONCE])
                except StoreUnavailableError:
                    break  # all are read again once the changes can be received (`_follow`)

    async def _compare(self, uids: list[str]) -> None:
        match await self._do("versions", [self._account(uid) for uid in uids], [self._held().run_id]):
            case [b"versions", *versions] if len(versions) == len(uids):
                for uid, found in zip(uids, versions, strict=True):
                    last = self._last.get(uid)
                    known = last.version if last is not None else ""
                    if uid not in self._saving and found != known.encode():
                        self._mark(uid)
            case answer:
                raise _unexpected("the versions of accounts", answer)

    def _notify(self, uid: str, stored: Stored | None) -> None:
        for on_change in list(self._subscribers.get(uid, ())):
            on_change(stored)


def _decode(uid: str, body: bytes) -> tuple[AccountKey, Account]:
    try:
        record = _record.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise MalformedLedgerError(f"{uid}: {error}") from None
    return AccountKey(uid=uid, name=record.quota.name), decode(record.account)


@contextmanager
def _as_of_the_store() -> Iterator[None]:
    try:
        yield
    except RedisUnavailableError as error:
        raise StoreUnavailableError(str(error)) from error


def _unexpected(what: str, answer: object) -> StoreUnavailableError:
    return StoreUnavailableError(f"redis: {what}: an answer that no function of ours gives: {str(answer)[:100]}")
