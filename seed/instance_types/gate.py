"""Whether a cloud is to be asked now: not while it fails, and not with what it has just refused. Pure: the caller has
the clock.

Each user cluster has a gate of its own. What makes a cloud fail, or throttle, may be what one tenant sends it.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from common.runtime.lru import LruByOwner
from seed.instance_types.breaker import Breaker
from seed.providers.flavour import CloudError, Place
from seed.providers.size import CredentialsRejected, ProviderUnavailable

REFUSED_SECONDS = 5.0  # for which the same asker's credentials are not tried again
MAX_PLACES = 64  # of one asker


class _Refusal(NamedTuple):
    until: float  # monotonic
    reason: str


@dataclass(slots=True)
class Gates:
    """By asker. Breakers by provider and endpoint."""

    breakers: LruByOwner[tuple[str, str], Breaker] = field(default_factory=lambda: LruByOwner(MAX_PLACES))
    refusals: LruByOwner[Place, _Refusal] = field(default_factory=lambda: LruByOwner(MAX_PLACES))

    def check(self, place: Place, asker: Hashable, now: float) -> None:
        """Raises ProviderUnavailable where asking would do no good. Otherwise ask, and say how it went."""
        refusal = self.refusals.get(asker, place)
        if refusal is not None and now < refusal.until:
            raise CredentialsRejected(str(place), refusal.reason)
        reason = self._breaker(place, asker).closed_because(now)
        if reason is not None:
            raise ProviderUnavailable(str(place), reason)

    def answered(self, place: Place, asker: Hashable) -> None:
        self._breaker(place, asker).succeeded()

    def failed(self, place: Place, asker: Hashable, error: CloudError, now: float) -> None:
        """A cloud that refuses does not fail: only these credentials have to wait."""
        if error.refused:
            self._breaker(place, asker).succeeded()
            self.refusals.keep(asker, place, _Refusal(now + REFUSED_SECONDS, str(error)))
        else:
            self._breaker(place, asker).failed(now, str(error), error.retry_after)

    def _breaker(self, place: Place, asker: Hashable) -> Breaker:
        key = (place.provider, place.endpoint)
        breaker = self.breakers.get(asker, key)
        if breaker is None:
            breaker = Breaker()
            self.breakers.keep(asker, key, breaker)
        return breaker
