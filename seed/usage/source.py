"""A source: one API server whose objects are counted, whatever is followed there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Protocol

import msgspec

from common.quota.account import Account, Reservation
from common.quota.resources import ResourceList
from seed.model.consumer import Consumer
from seed.model.quota import Quota
from seed.model.source_key import SourceKey
from seed.usage.unadmitted import Unadmitted

MAX_REMEMBERED = 20_000  # deleted objects of a source whose reservation may still turn up
NOT_LISTED = "ResourceNotListed"  # the reason of a source that can be reached, and of which something cannot be listed
UNREADABLE = "ObjectsUnreadable"  # ... of which some objects cannot be read or counted
TOO_MUCH = "MachinesUnreadable"  # ... whose list is too large, or is none
KEPT_IN_PART = (NOT_LISTED, UNREADABLE, TOO_MUCH)


class Taken(Enum):
    """In place of a generation: the object is not there, and another one has its name. Its creation fails, unless the
    other is deleted before it is stored."""

    TAKEN = "taken"


Generation = int | Taken | None


class Problem(msgspec.Struct, frozen=True):
    """Why a source cannot be followed: a condition's reason and message."""

    reason: str
    message: str


class Usage(Protocol):
    """What a source uses at this moment, and which objects stand in that."""

    @property
    def used(self) -> ResourceList: ...

    def used_beside(self, reservations: Mapping[str, Reservation]) -> ResourceList:
        """What counts of it in an account with these reservations of the source, by uid."""

    @property
    def guessed(self) -> Mapping[str, ResourceList]:
        """What stands in it, by uid, of objects whose sizes were never known."""

    @property
    def unadmitted(self) -> Unadmitted | None:
        """None where that is not looked for."""

    @property
    def line(self) -> object:
        """The same of all that know what the one before knew."""

    def seen(self, reservations: Iterable[str]) -> dict[str, int]:
        """The generations of those of the objects, by uid, that stand in it."""

    def gone(self, reservations: Iterable[str]) -> set[str]:
        """Those that stood in it and do not any more."""

    def sizes(self, uids: Iterable[str]) -> dict[str, ResourceList]:
        """What those that are there take in it."""


class TotalsByNamespace(Usage, Protocol):
    @property
    def by_namespace(self) -> Mapping[str, ResourceList]: ...


class InNamespaces(Protocol):
    """What a source that counts objects in namespaces says of each."""

    @property
    def cluster(self) -> str: ...

    @property
    def totals(self) -> TotalsByNamespace: ...

    @property
    def namespaces(self) -> Sequence[str] | None:
        """Those that it counts, without those that are being deleted; None while that is not known."""

    def unlisted(self, since: int) -> list[str]:
        """Which kinds lack a complete list that began after that moment."""

    @property
    def told(self) -> frozenset[str]:
        """The names of resources that the totals tell, or may come to tell when a kind can be listed."""

    def doubtful(self, since: float) -> frozenset[str] | None:
        """The names of resources that the totals do not tell by lists that began after that moment. None: they tell of
        no resource."""

    def labels(self, namespace: str) -> Mapping[str, str]:
        """Of a namespace that it counts. Empty for one that is gone."""

    @property
    def not_served(self) -> frozenset[str]:
        """The names of resources whose kinds the cluster does not serve, and has nothing of."""

    @property
    def lacking(self) -> Mapping[str, list[str]]:
        """By namespace, what of the quota's promises no core ResourceQuota has."""


class UsageSource(Protocol):
    """What counting needs of a source, whatever it follows."""

    @property
    def key(self) -> SourceKey: ...

    @property
    def consumer(self) -> Consumer: ...

    @property
    def totals(self) -> Usage: ...

    @property
    def in_namespaces(self) -> InNamespaces | None:
        """None where it counts no objects in namespaces."""

    @property
    def counted(self) -> bool:
        """True once a complete list stands behind the sum, however old it is."""

    @property
    def current(self) -> bool: ...

    @property
    def live(self) -> bool:
        """True while no change there can have been missed, as in a restore from a backup."""

    @property
    def listed_from(self) -> float:
        """The reflector's `moment` at which the list behind the sum began; 0 before the first is complete."""

    @property
    def problem(self) -> Problem | None: ...

    @property
    def lost_at(self) -> float | None:
        """monotonic: since when the count is kept, not followed"""

    def relist(self) -> None:
        """Asks for a list that begins after this call. It is complete when `listed_from` says so; then the source tells
        its `on_state`."""

    async def generation(self, namespaced_name: str, uid: str) -> Generation:
        """The object's generation by a consistent read, None if it does not exist (rule 4.5), Taken if another has its
        name (rule 4.10). Raises ApiError."""


class KnownAccounts(Protocol):
    """The accounts, as far as they tell what to count."""

    def granted(self, quota: Quota) -> ResourceList: ...

    def used(self, quota: Quota, source: SourceKey) -> ResourceList | None: ...

    def on_account(self, listener: Callable[[str, Account | None], None]) -> Callable[[], None]: ...


def reason_of(status: int) -> str:
    match status:
        case 200:
            return TOO_MUCH
        case 401 | 403:
            return "Unauthorized"
        case 404:
            return "MachineAPIMissing"
        case _:
            return "Unreachable"
