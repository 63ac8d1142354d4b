"""Accounts in Redis 7: faster than the API server, whose etcd is spared every write. Safe without trusting Redis' disk.

One account is one key (a hash: version, tenure, object), the changes are one channel, the list of accounts is one more
key; all share the hash tag of the seed, so that they are together in a Cluster. A compare-and-set is one FCALL.

**Every loss is noticed.** Redis acknowledges writes that it can lose, so nothing here rests on what it keeps:

* A server's *reign* is its run_id and its replication id. A process that starts has a new run_id, whatever it loaded
  from disk; a server that becomes a primary, also one that was the primary before and was overwritten meanwhile, has a
  new replication id. While both stay the same the data set was changed by commands in this one memory only.
* The marker of the seed's tenure, in the API server, names one reign (seed/ledger/tenure.py). Each call carries it, and
  the function refuses, in the same atomic step, on any other server and in any other reign: a restart with or without
  persistence, an older snapshot, a failover with lost writes, another Redis under the address, the old primary of a
  split brain for those who should be at the new one. A process that knows nothing is told by the marker.
* The leader then begins a new tenure. Each account carries the tenure that it was written in; one of an earlier tenure
  is handed out only after it was stored as a new life, fenced. Those who still reach the former server stop before
  the new tenure is in force: they confirm the marker all the time, before and after each write.
* A key that is gone within a reign (FLUSHALL, DEL, eviction, expiry) is an account that does not exist: no write fits
  it, and what the leader makes in its place is a new life, fenced. The version's second half is random for each new
  key, so that no write from before fits by chance.

A new life opens as every lost ledger does: after the master answered a fresh nonce, the in-flight window has passed,
and all sources were recounted. Neither WAIT nor AOF is needed for safety; they do not prevent the fence either.

What is not noticed by this: an older value put into a key of the same memory by an administrator's command (RESTORE,
SWAPDB, DEBUG RELOAD NOSAVE), and a machine set back with its memory by its hypervisor. A running writer notices from
the sequence that it remembers (seed/ledger/writer.py), the master from a counter R that went back. And two thirds of
the lease's duration must pass no faster on any replica's clock than the whole duration on the leader's.

Needed rights: +fcall +function|load +ping +subscribe +info +hget +hmget +hset +hdel +hgetall +del +publish
~{seedquota:SEED}* &{seedquota:SEED}* (on a Cluster also +cluster|shards). `maxmemory-policy noeviction` is advised.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
from redis.exceptions import RedisError

from common.api.types import QuotaRef
from common.quota.account import Account
from common.runtime.redis_client import (
    CALL_TIMEOUT,
    MissingFunctionError,
    Primary,
    RedisAccess,
    RedisUnavailableError,
    RedisUrl,
)
from seed.ledger.encoding import Encoder, MalformedLedgerError, decode
from seed.ledger.store import ConflictError, Key, Stored, StoreUnavailableError
from seed.ledger.tenure import Held, new_life

log = logging.getLogger(__name__)

ADOPTIONS = 8  # attempts to begin an account's new life while others do the same
BEAT = 2.0  # seconds between two signs of life of the connection that hears of changes
PAUSE = 0.5  # seconds before it is made anew

_FUNCTIONS = """
local function reign()
  local info = redis.call('INFO', 'server', 'replication')
  local role = string.match(info, 'role:(%a+)')
  local process, history = string.match(info, 'run_id:(%x+)'), string.match(info, 'master_replid:(%x+)')
  if role ~= 'master' or not process or not history then return '' end
  return process .. '.' .. history
end

local function following(number, salt) return string.format('%.0f', number + 1) .. '.' .. salt end

local function who() return reign() end

-- keys: account; args: reign, version known to the caller
local function load(keys, args)
  if reign() ~= args[1] then return {'elsewhere'} end
  local found = redis.call('HMGET', keys[1], 'version', 'tenure')
  if not found[1] then return {'none'} end
  if found[1] == args[2] then return {'same', found[1], found[2]} end
  return {'found', found[1], found[2], redis.call('HGET', keys[1], 'object')}
end

-- keys: account; args: reign, tenure
local function take(keys, args)
  if reign() ~= args[1] then return {'elsewhere'} end
  local found = redis.call('HMGET', keys[1], 'version', 'tenure', 'object')
  if not found[1] then return {'none'} end
  local version = found[1]
  if found[2] == args[2] then
    version = following(string.match(version, '^(%d+)%.(%x+)$'))
    redis.call('HSET', keys[1], 'version', version)
  end
  return {'found', version, found[2], found[3]}
end

-- keys: account, list; args: reign, tenure, version that must be there, salt, uid, name, channel, adopt or keep, object
local function save(keys, args)
  if reign() ~= args[1] then return {'elsewhere'} end
  local found = redis.call('HMGET', keys[1], 'version', 'tenure')
  if (found[1] or '') ~= args[3] then return {'conflict'} end
  local number, salt = 0, args[4]
  if found[1] then
    if (found[2] == args[2]) ~= (args[8] == 'keep') then return {'conflict'} end
    number, salt = string.match(found[1], '^(%d+)%.(%x+)$')
  end
  local version = following(number, salt)
  redis.call('HSET', keys[1], 'version', version, 'tenure', args[2], 'object', args[9])
  redis.call('HSET', keys[2], args[5], args[6])
  redis.call('PUBLISH', args[7], args[5] .. ' ' .. version)
  return {'written', version}
end

-- keys: account, list; args: reign, uid, channel
local function delete(keys, args)
  if reign() ~= args[1] then return {'elsewhere'} end
  redis.call('HDEL', keys[2], args[2])
  if redis.call('DEL', keys[1]) > 0 then redis.call('PUBLISH', args[3], args[2] .. ' ') end
  return {'deleted'}
end

-- keys: list; args: reign
local function list(keys, args)
  if reign() ~= args[1] then return {'elsewhere'} end
  return {'listed', redis.call('HGETALL', keys[1])}
end
"""

# Two versions of the program serve side by side while it is rolled out: each has functions of its own.
_LIBRARY = "seedquota_" + hashlib.sha256(_FUNCTIONS.encode()).hexdigest()[:12]
_FLAGS = {
    "who": "'no-writes'",
    "load": "'no-writes'",
    "list": "'no-writes'",
    "take": "",
    "save": "",
    "delete": "'allow-oom'",
}
LIBRARY_CODE = f"#!lua name={_LIBRARY}\n{_FUNCTIONS}\n" + "".join(
    f"redis.register_function{{function_name='{_LIBRARY}_{name}', callback={name}, flags={{{flags}}}}}\n"
    for name, flags in _FLAGS.items()
)


class _Record(msgspec.Struct):
    """The object as it is stored: the same as in the API server."""

    quota: QuotaRef
    account: msgspec.Raw


_record = msgspec.json.Decoder(_Record)


class RedisStore:
    """`held` names the tenure in force; `on_elsewhere` is told when a server of another reign answered."""

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
        self._saving: dict[str, str | None] = {}  # the version that was heard of while a write is under way
        self._stale: dict[str, None] = {}  # uids that somebody else wrote, in order
        self._stale_some = asyncio.Event()

    async def run(self) -> None:
        """Hears of changes by others, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._listen(), name="ledger changes")
            group.create_task(self._refresh(), name="ledger refresh")

    async def close(self) -> None:
        await self._primary.close()

    async def reign(self) -> str:
        """Who the present primary is. Raises StoreUnavailableError, also while it is none."""
        with _as_of_the_store():
            await self._primary.look_up()
        reign = await self._call("who", [self._list], [])
        if not isinstance(reign, bytes) or not reign:
            raise StoreUnavailableError("redis: the server is not a primary, or does not tell its run_id")
        return reign.decode()

    def refresh(self) -> None:
        """Read every account again that somebody follows: another tenure is in force, or changes were missed."""
        for uid in self._subscribers:
            self._mark(uid)

    async def load(self, key: Key) -> Stored | None:
        return await self._load(key.uid)

    async def take(self, key: Key) -> Stored | None:
        return await self._load(key.uid, take=True)

    async def _load(self, uid: str, *, take: bool = False) -> Stored | None:
        for _ in range(ADOPTIONS):
            held = self._held()
            last = self._last.get(uid)
            known = last.version if last is not None else ""
            function, seen = ("take", held.tenure) if take else ("load", known)
            match await self._do(function, [self._account(uid)], [held.reign, seen]):
                case [b"none"]:
                    self._last.pop(uid, None)
                    return None
                case [b"same", _, bytes() as tenure]:
                    if last is not None and tenure.decode() == held.tenure:
                        return last
                    self._last.pop(uid, None)
                case [b"found", bytes() as version, bytes() as tenure, bytes() as body]:
                    key, account = _decode(uid, body)
                    stored: Stored | None = Stored(account, version.decode())
                    if stored is not None and tenure.decode() != held.tenure:
                        stored = await self._adopt(key, stored, held)
                    if stored is not None:
                        self._last[uid] = stored
                        return stored
                case answer:
                    raise _strange(uid, answer)
        raise StoreUnavailableError(f"{uid}: others write it all the time")

    async def _adopt(self, key: Key, found: Stored, held: Held) -> Stored | None:
        """What is left of an account of an earlier tenure begins a new life. None if another replica was first."""
        life = new_life(found.account)
        try:
            version = await self._write(key, life, found.version, held, "adopt")
        except ConflictError:
            return None
        log.warning("account begins a new life", extra={"quota": key.name, "tenure": held.tenure})
        return Stored(life, version)

    async def save(self, key: Key, account: Account, version: str | None) -> str:
        self._saving[key.uid] = None
        written = None
        try:
            written = await self._write(key, account, version or "", self._held(), "keep")
            self._last[key.uid] = Stored(account, written)
        finally:
            heard = self._saving.pop(key.uid)
            if heard is not None and heard != written:
                self._mark(key.uid)
        return written

    async def delete(self, key: Key) -> None:
        self._encoders.pop(key.uid, None)
        self._last.pop(key.uid, None)
        answer = await self._do(
            "delete", [self._account(key.uid), self._list], [self._held().reign, key.uid, self._channel]
        )
        if answer != [b"deleted"]:
            raise _strange(key.uid, answer)

    async def keys(self) -> list[Key]:
        match await self._do("list", [self._list], [self._held().reign]):
            case [b"listed", list() as flat]:
                texts = [text.decode() for text in flat if isinstance(text, bytes)]
                return [Key(uid=uid, name=name) for uid, name in zip(texts[::2], texts[1::2], strict=True)]
            case answer:
                raise _strange("the list of accounts", answer)

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

    async def _write(self, key: Key, account: Account, version: str, held: Held, mode: str) -> str:
        encoder = self._encoders.get(key.uid)
        if encoder is None:
            encoder = self._encoders[key.uid] = Encoder(key, "")
        arguments: list[str | bytes] = [
            *(held.reign, held.tenure, version, secrets.token_hex(8)),
            *(key.uid, key.name, self._channel, mode),
            encoder.encode(account, None),
        ]
        match await self._do("save", [self._account(key.uid), self._list], arguments):
            case [b"written", bytes() as written]:
                return written.decode()
            case [b"conflict"]:
                raise ConflictError(f"{key.name}: written since version {version or 'nothing'}")
            case answer:
                raise _strange(key.uid, answer)

    async def _do(self, function: str, keys: list[str], arguments: list[str | bytes]) -> object:
        """An answer of the server whose reign is in force. Raises StoreUnavailableError."""
        answer = await self._call(function, keys, arguments)
        if answer == [b"elsewhere"]:
            self._on_elsewhere()
            raise StoreUnavailableError("redis restarted, failed over or was replaced: the ledger begins a new tenure")
        return answer

    async def _call(self, function: str, keys: list[str], arguments: list[str | bytes]) -> object:
        words = ["FCALL", f"{_LIBRARY}_{function}", str(len(keys)), *keys, *arguments]
        with _as_of_the_store():
            try:
                return await self._primary.call(*words)
            except MissingFunctionError:  # a new server, or one that forgot: nothing was done
                await self._primary.call("FUNCTION", "LOAD", "REPLACE", LIBRARY_CODE)
                log.info("functions loaded into the ledger's redis", extra={"library": _LIBRARY})
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
                log.info("ledger's changes are not heard", extra={"error": str(error) or "no sign of life"})
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
                        self.refresh()  # nobody told what happened before
                    case {"type": "message", "data": bytes() as data}:
                        uid, _, version = data.decode(errors="replace").partition(" ")
                        self._heard(uid, version)

    def _heard(self, uid: str, version: str) -> None:
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
                    self._tell(uid, await self._load(uid))
                except MalformedLedgerError as error:
                    log.warning("ledger is malformed", extra={"ledger": uid, "error": str(error)})
                except StoreUnavailableError:
                    self._mark(uid)
                    await asyncio.sleep(PAUSE)

    def _tell(self, uid: str, stored: Stored | None) -> None:
        for on_change in list(self._subscribers.get(uid, ())):
            on_change(stored)


def _decode(uid: str, body: bytes) -> tuple[Key, Account]:
    try:
        record = _record.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise MalformedLedgerError(f"{uid}: {error}") from None
    return Key(uid=uid, name=record.quota.name), decode(record.account)


@contextmanager
def _as_of_the_store() -> Iterator[None]:
    try:
        yield
    except RedisUnavailableError as error:
        raise StoreUnavailableError(str(error)) from error


def _strange(what: str, answer: object) -> StoreUnavailableError:
    return StoreUnavailableError(f"redis: {what}: an answer that no function of ours gives: {str(answer)[:100]}")
