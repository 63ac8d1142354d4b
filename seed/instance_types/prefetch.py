"""Catalogues of the clouds where user clusters say they are: asked for before a Machine needs them, and kept fresh."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable

from common.api.types import UserCluster
from common.runtime.unexpected import contained
from seed.instance_types.cache import FRESH_SECONDS, FlavourCache, Question
from seed.providers.flavour import Place
from seed.providers.size import NotSized, ProviderUnavailable

log = logging.getLogger(__name__)

START_SECONDS = 5.0  # within which replicas that start together begin
ROUND_SECONDS = 60.0  # between two looks at what is due
AGAIN_SECONDS = 300.0  # after which a catalogue is asked for again that could not be had
AT_A_TIME = 4


class Prefetch:
    """Of one replica; each place is asked with the credentials of one of its user clusters."""

    def __init__(
        self,
        cache: FlavourCache,
        clusters: Callable[[], Iterable[UserCluster]],
        catalogue_of: Callable[[UserCluster], Awaitable[Question | None]],
    ) -> None:
        """`catalogue_of` raises NotSized and ProviderUnavailable."""
        self._cache = cache
        self._clusters = clusters
        self._catalogue_of = catalogue_of
        self._due: dict[str, float] = {}  # monotonic, by user cluster's uid
        self._fresh: dict[Place, float] = {}  # monotonic: until when

    async def run(self) -> None:
        """Until cancelled."""
        await asyncio.sleep(random.uniform(0, START_SECONDS))  # noqa: S311
        while True:
            for work in (self.look, self._cache.share_again):
                with contained("prefetch"):
                    await work()
            await asyncio.sleep(_jittered(ROUND_SECONDS))

    async def look(self) -> None:
        """Asks for what is due now."""
        now = time.monotonic()
        clusters = {cluster.metadata.uid: cluster for cluster in self._clusters()}
        self._due = {uid: at for uid, at in self._due.items() if uid in clusters}
        self._fresh = {place: until for place, until in self._fresh.items() if until > now}
        wanted: dict[Place, tuple[UserCluster, Question]] = {}
        seen: list[Question] = []
        for uid, cluster in clusters.items():
            if self._due.get(uid, now) > now:
                continue
            self._due[uid] = now + _jittered(AGAIN_SECONDS)
            question = None
            with contained("prefetch", cluster.metadata.key):
                try:
                    question = await self._catalogue_of(cluster)
                except (NotSized, ProviderUnavailable) as error:
                    _log(cluster, error)
            if question is None:
                continue
            seen.append(question)
            if question.place in self._fresh:
                self._due[uid] = self._fresh[question.place]
            else:
                wanted.setdefault(question.place, (cluster, question))
        limit = asyncio.Semaphore(AT_A_TIME)
        await asyncio.gather(*(self._ask(cluster, question, limit) for cluster, question in wanted.values()))
        for question in seen:
            self._cache.keep(question.place, question.asker)

    async def _ask(self, cluster: UserCluster, question: Question, limit: asyncio.Semaphore) -> None:
        with contained("prefetch", cluster.metadata.key):
            try:
                async with limit:
                    await self._cache.prefetch(question)
                self._fresh[question.place] = time.monotonic() + _jittered(FRESH_SECONDS)
            except (NotSized, ProviderUnavailable) as error:
                _log(cluster, error)


def _log(cluster: UserCluster, error: Exception) -> None:
    log.info("catalogue is not prefetched", extra={"cluster": cluster.metadata.key, "error": str(error)})


def _jittered(seconds: float) -> float:
    return seconds * random.uniform(0.8, 1.2)  # noqa: S311
