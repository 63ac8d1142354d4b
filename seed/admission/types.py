"""What an admission request asks, and what it is answered."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from common.quota.account import Admitted, Reservation
from common.quota.resources import ResourceList
from seed.accounts.snapshot import QuotaSnapshot
from seed.admission.refusal import Refusal
from seed.model.consumer import Consumer


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One quota's part of a decision, with what this very request reserved: `snapshot` includes that.

    `waited`: capacity had to be asked for. `ahead`: it was admitted from what this replica had reserved before.
    """

    snapshot: QuotaSnapshot
    refusal: Refusal | None = None
    warnings: Sequence[str] = ()
    admitted: Admitted | None = None
    waited: bool = False
    ahead: bool = False


_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's base 32, as ULIDs are written
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]
MARGIN = 0.4  # seconds of the API server's patience that are left for the answer to travel


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What one object asks of the quotas of its consumer. `need` is what it costs beyond what it cost before.

    `shares`, by quota: set where quotas count different parts of the object. Then these are all the quotas that limit
    it, `need` is the most that one of them counts, and `reservation` serves none. None: `reservation` serves every
    quota of the consumer.

    `objects`: what is being created, as a refusal names it.

    `asks_fits`: a dry run that every quota answers, also after one that refuses for certain.
    """

    uid: str
    consumer: Consumer
    need: ResourceList
    reservation: Reservation
    dry_run: bool
    deadline: float  # on the event loop's clock
    shares: Mapping[str, Reservation] | None = None
    objects: str = "machines"
    asks_fits: bool = False

    def of(self, quota: str) -> Request:
        """What it asks of that quota."""
        if self.shares is None:
            return self
        reservation = self.shares[quota]
        return msgspec.structs.replace(self, need=reservation.amount, reservation=reservation)


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """`decision`: its id, empty where there was nothing to decide. `request` and `attempts` are what it was made from,
    as far as it came to that. `repeated`: it was made for an earlier call about the same write."""

    decision: str = ""
    refusal: Refusal | None = None
    warnings: Sequence[str] = ()
    waited: bool = False  # capacity had to be asked for
    request: Request | None = None
    attempts: Sequence[Attempt] = ()
    repeated: bool = False

    @property
    def message(self) -> str:
        """Of its refusal; empty if it admits."""
        return self.refusal.message(self.decision) if self.refusal is not None else ""


def decision_id() -> str:
    """Eight characters to find one decision by; random, since nothing orders decisions of several replicas."""
    number = random.getrandbits(40)
    return _PAIRS[number >> 30] + _PAIRS[number >> 20 & 1023] + _PAIRS[number >> 10 & 1023] + _PAIRS[number & 1023]


def refused(refusal: Refusal, request: Request | None = None) -> Verdict:
    """Before any quota was asked."""
    return Verdict(decision=decision_id(), refusal=refusal, request=request)


Replaceable = Callable[[bool], Awaitable[Sequence[str]]]
"""Asked once a quota is full: the uids of those that a rollout puts the object in place of. With True, by a read that
begins after the call. It may raise ApiError."""

Confirm = Callable[[], Awaitable[str]]
"""Asked once all is reserved and durable: why the request may not be admitted all the same, empty if it may."""
