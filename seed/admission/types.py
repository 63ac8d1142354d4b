"""What an admission request asks, and what it is answered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from common.quota.account import Admitted, Reservation
from common.quota.resources import ResourceList
from seed.accounts.snapshot import QuotaSnapshot
from seed.admission.denial import Refusal
from seed.model.consumer import Consumer


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One quota's part of a decision, with what this very request reserved: `snapshot` includes that.

    `waited`: capacity had to be asked for.
    """

    snapshot: QuotaSnapshot
    refusal: Refusal | None = None
    warnings: Sequence[str] = ()
    admitted: Admitted | None = None
    waited: bool = False


MARGIN = 0.4  # seconds of the API server's patience that are left for the answer to travel


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What one object asks of the quotas of its consumer. `need` is what it costs beyond what it cost before.

    `shares`, by quota: set where quotas count different parts of the object. Then these are all the quotas that limit
    it, `need` is the most that one of them counts, and `reservation` serves none. None: `reservation` serves every
    quota of the consumer.

    `asks_fits`: a dry run that every quota answers, also after one that refuses for certain.
    """

    uid: str
    consumer: Consumer
    need: ResourceList
    reservation: Reservation
    dry_run: bool
    deadline: float  # on the event loop's clock
    shares: Mapping[str, Reservation] | None = None
    asks_fits: bool = False

    def of(self, quota: str) -> Request:
        """What it asks of that quota."""
        if self.shares is None:
            return self
        reservation = self.shares[quota]
        return msgspec.structs.replace(self, need=reservation.amount, reservation=reservation)


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """`request` and `attempts` are what it was made from, as far as it came to that. `repeated`: it was made for an
    earlier call about the same write."""

    decision: str
    refusal: Refusal | None = None
    warnings: Sequence[str] = ()
    waited: bool = False  # capacity had to be asked for
    request: Request | None = None
    attempts: Sequence[Attempt] = ()
    repeated: bool = False


Replaceable = Callable[[bool], Awaitable[Sequence[str]]]
"""Asked once a quota is full: the uids of those that a rollout puts the object in place of. With True, by a read that
begins after the call. It may raise ApiError."""

Confirm = Callable[[], Awaitable[str]]
"""Asked once all is reserved and durable: why the request may not be admitted all the same, empty if it may."""
