"""How often each quota refused, for the plots of the master's page."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

import msgspec

from common.api.refusal_counts import (
    MAX_PART,
    MAX_QUOTAS,
    MAX_RESOURCES,
    PART,
    CountedPart,
    QuotaRefusals,
    RefusalCounts,
    part_of,
)
from seed.admission.types import Verdict

_OF_QUOTA, _OF_RESOURCE = 100, 24  # bytes of an answer, beside the name of the resource

_encode = msgspec.json.Encoder().encode


class RefusalCounter:
    """Bounded in quotas and in bytes: what finds no room is not counted, and the part says so."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._life = secrets.token_hex(8)
        self._since = clock()
        self._parts: dict[int, CountedPart] = {}
        self._bytes: dict[int, int] = {}

    def count(self, verdict: Verdict) -> None:
        """Under each quota that refused, and under each resource that it was short of."""
        for attempt in verdict.attempts:
            if attempt.refusal is not None:
                causes = attempt.refusal.causes
                self._add(
                    attempt.snapshot.quota.key.uid,
                    {cause.field for cause in causes if cause.reason == "QuotaExceeded"},
                )

    def page(self) -> bytes:
        begin = self._forget()
        parts = [self._parts.get(each, CountedPart(begin=each)) for each in (begin - PART, begin)]
        return _encode(RefusalCounts(life=self._life, since=self._since, parts=parts))

    def _add(self, uid: str, resources: set[str]) -> None:
        begin = self._forget()
        part = self._parts.setdefault(begin, CountedPart(begin=begin))
        known = part.quotas.get(uid)
        if known is None:
            if len(part.quotas) >= MAX_QUOTAS or not self._takes(begin, _OF_QUOTA):
                part.more = True
                return
            part.quotas[uid] = known = QuotaRefusals(total=1)
        else:
            known.total += 1
        for name in resources:
            if name in known.short:
                known.short[name] += 1
            elif len(known.short) < MAX_RESOURCES and self._takes(begin, _OF_RESOURCE + len(name)):
                known.short[name] = 1
            else:
                part.more = True

    def _takes(self, begin: int, more: int) -> bool:
        """Whether the part has room for so many bytes; then they are taken."""
        size = self._bytes.get(begin, 0) + more
        if size > MAX_PART:
            return False
        self._bytes[begin] = size
        return True

    def _forget(self) -> int:
        """All but the part of now, which is returned, and the one before."""
        begin = part_of(self._clock())
        for each in [each for each in self._parts if each not in (begin, begin - PART)]:
            del self._parts[each]
            self._bytes.pop(each, None)
        return begin
