"""Sizes that clouds reported, in Redis if there is one: shared by the replicas of a seed, and kept over a restart.

Nothing depends on it: a replica that cannot read it in time asks the cloud, and nothing waits for a write. It holds
sizes under hashes of where they were reported, no names and nothing secret. Each place has a key of its own, which
expires. A user cluster adds a bounded number of places in a day; beyond that, what it learns is not shared. So nothing
that is there has to make room.

Needed rights: +hget +hset +hlen +del +expire +set ~{seedquota:SEED}* (on a Cluster also +cluster|shards).
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Hashable, Iterable, Mapping

import msgspec

from common.quota import resources
from common.quota.quantity import QuantityError
from common.runtime.redis_access import RedisAccess, RedisUrl
from common.runtime.redis_client import MissingFunctionError, Primary, RedisUnavailableError
from seed.instance_types.breaker import Breaker
from seed.instance_types.catalogue import ReportedSize
from seed.providers.flavour import Flavour, Place

log = logging.getLogger(__name__)

VERSION = 2  # of what is written; others are never read
MAX_SIZES = 8192  # in one place, some 2 MB
MAX_PLACES = 32  # that one user cluster adds in a day
DAY = 24 * 3600.0
KEPT_SECONDS = 7 * 24 * 3600  # after the last write: what no replica refreshes any more goes
LISTING_SECONDS = 60  # for which one replica's listing keeps the others from listing, too
BATCH = 200
MAX_WRITES = 64  # under way; what comes beyond is not shared


class _Entry(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """`unknown`: why the size of its disk is not known. `name`: as in Flavour."""

    sizes: dict[str, str]
    as_of: str
    unknown: str = ""
    name: str = ""


class SharedSizes:
    """Of one seed. Nothing here raises: a Redis that fails is one that knows nothing. `close()` it."""

    def __init__(self, url: RedisUrl, access: RedisAccess, seed: str) -> None:
        tag = f"seedquota:{seed}"
        self._sizes = f"{{{tag}}}:sizes:{VERSION}"  # a hash that is there as long as there are sizes, and a prefix
        self._added: dict[Hashable, set[Place]] = {}  # today, by user cluster
        self._day = time.monotonic()
        self._primary = Primary(url, access, tag)
        self._breaker = Breaker()
        self._works = True
        self._writes: set[asyncio.Task[None]] = set()

    async def get(self, place: Place, flavour: str) -> ReportedSize | None:
        try:
            answer = await self._call("HGET", self._of(place), _hash(place, flavour))
        except RedisUnavailableError:
            return None
        return _read_entry(answer) if isinstance(answer, bytes) else None

    def put(self, place: Place, sizes: Mapping[str, ReportedSize], askers: Iterable[Hashable]) -> None:
        """In the background; for the first of the user clusters that may add the place."""
        if not sizes or len(sizes) > MAX_SIZES or len(self._writes) >= MAX_WRITES:
            return
        if not any(self._may_add(place, asker) for asker in askers):
            return
        task = asyncio.create_task(self._put(place, dict(sizes)), name=f"share sizes of {place}")
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    async def is_empty(self) -> bool:
        """True where Redis answers that there is nothing."""
        try:
            return await self._call("HLEN", self._sizes) == 0
        except RedisUnavailableError:
            return False

    async def may_list(self, place: Place) -> bool:
        """False while another replica lists all of the place's sizes, or has done so lately."""
        try:
            words = ("SET", self._listed(place), "1", "NX", "EX", str(LISTING_SECONDS))
            return await self._call(*words) is not None
        except RedisUnavailableError:
            return True

    async def list_again_after(self, place: Place, seconds: float) -> None:
        try:
            await self._call("SET", self._listed(place), "1", "EX", str(max(round(seconds), 1)))
        except RedisUnavailableError:
            return  # others list it as well

    async def close(self) -> None:
        for task in self._writes:
            task.cancel()
        await asyncio.gather(*self._writes, return_exceptions=True)
        await self._primary.close()

    async def _put(self, place: Place, sizes: Mapping[str, ReportedSize]) -> None:
        try:
            key = self._of(place)
            held = await self._call("HLEN", key)
            if isinstance(held, int) and held + len(sizes) > MAX_SIZES:
                await self._call("DEL", key)
            pairs = [(_hash(place, name), _text(one)) for name, one in sizes.items()]
            for start in range(0, len(pairs), BATCH):
                words = [part for pair in pairs[start : start + BATCH] for part in pair]
                await self._call("HSET", key, *words)
            await self._call("HSET", self._sizes, "filled", "1")
            for written in (key, self._sizes):
                await self._call("EXPIRE", written, str(KEPT_SECONDS))
        except RedisUnavailableError:
            return  # it was logged; a replica that needs it asks the cloud

    def _may_add(self, place: Place, asker: Hashable) -> bool:
        now = time.monotonic()
        if now - self._day >= DAY:
            self._added.clear()
            self._day = now
        added = self._added.setdefault(asker, set())
        if place not in added and len(added) < MAX_PLACES:
            added.add(place)
        return place in added

    async def _call(self, *words: str | bytes) -> object:
        """Raises RedisUnavailableError."""
        reason = self._breaker.closed_because(time.monotonic())
        if reason is not None:
            raise RedisUnavailableError(reason)
        try:
            answer = await self._primary.call(*words)
        except (RedisUnavailableError, MissingFunctionError) as error:
            self._breaker.failed(time.monotonic(), str(error))
            if self._works:
                log.warning("sizes are not shared", extra={"error": str(error)})
            self._works = False
            raise RedisUnavailableError(str(error)) from None
        self._breaker.succeeded()
        if not self._works:
            log.info("sizes are shared again")
        self._works = True
        return answer

    def _of(self, place: Place) -> str:
        return f"{self._sizes}:{_hash(place, '')}"

    def _listed(self, place: Place) -> str:
        return f"{self._sizes}:listed:{_hash(place, '')}"


def _hash(place: Place, flavour: str) -> str:
    return hashlib.sha256(msgspec.json.encode((place, flavour))).hexdigest()[:32]


def _text(size: ReportedSize) -> bytes:
    flavour = size.flavour
    sizes = {**flavour.devices, "cpu": flavour.cpu, "memory": flavour.memory}
    if isinstance(flavour.storage, int):
        sizes["storage"] = flavour.storage
    unknown = flavour.storage if isinstance(flavour.storage, str) else ""
    return msgspec.json.encode(_Entry(resources.render(sizes), size.as_of, unknown, flavour.name))


def _read_entry(text: bytes) -> ReportedSize | None:
    """None for what we cannot have written."""
    try:
        entry = _decode(text)
        sizes = resources.parse(entry.sizes)
    except (msgspec.MsgspecError, UnicodeDecodeError, QuantityError):
        return None
    cpu, memory = sizes.pop("cpu", 0), sizes.pop("memory", 0)
    storage = sizes.pop("storage", None)
    if cpu <= 0 or memory <= 0 or any(amount < 0 for amount in (*sizes.values(), storage or 0)):
        return None
    return ReportedSize(Flavour(cpu, memory, entry.unknown or storage, sizes, entry.name), entry.as_of)


_decode = msgspec.json.Decoder(_Entry).decode
