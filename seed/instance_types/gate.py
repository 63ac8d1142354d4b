"""Whether a cloud is to be asked now: not while it fails, and not with what it has just refused. Pure: the caller has
the clock.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from common.runtime.lru import LruDict
from seed.instance_types.breaker import Breaker
from seed.providers.flavour import CloudError, Place
from seed.providers.size import CredentialsRejected, ProviderUnavailable

REFUSED_SECONDS = 5.0  # for which the same asker's credentials are not tried again
MAX_PLACES = 1024


class _Refusal(NamedTuple):
    until: float  # monotonic
    reason: str


@dataclass(slots=True)
class Gates:
    breakers: LruDict[tuple[str, str], Breaker] = field(default_factory=LruDict)  # by provider and endpoint
    refusals: LruDict[tuple[Place, Hashable], _Refusal] = field(default_factory=LruDict)  # by asker

    def check(self, place: Place, asker: Hashable, now: float) -> None:
        """Raises ProviderUnavailable where asking would do no good. Otherwise ask, and say how it went."""
        refusal = self.refusals.get((place, asker))
        if refusal is not None and now < refusal.until:
            raise CredentialsRejected(str(place), refusal.reason)
        reason = self._breaker(place).closed_because(now)
        if reason is not None:
            raise ProviderUnavailable(str(place), reason)

    def answered(self, place: Place) -> None:
        self._breaker(place).succeeded()

    def failed(self, place: Place, asker: Hashable, error: CloudError, now: float) -> None:
        """A cloud that refuses is well: only this asker waits."""
        if error.refused:
            self._breaker(place).succeeded()
            self.refusals.keep((place, asker), _Refusal(now + REFUSED_SECONDS, str(error)), MAX_PLACES)
        else:
            self._breaker(place).failed(now, str(error), error.retry_after)

    def _breaker(self, place: Place) -> Breaker:
        key = (place.provider, place.endpoint)
        breaker = self.breakers.get(key)
        if breaker is None:
            breaker = Breaker()
            self.breakers.keep(key, breaker, MAX_PLACES)
        return breaker
