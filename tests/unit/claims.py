"""One claim on an account by itself. The programs decide several for one write."""

from __future__ import annotations

from common.quota.account import Account, Outcome, Reservation
from common.quota.reservations import Reserving
from common.quota.resources import ResourceList


def reserve(account: Account, limits: ResourceList, uid: str, reservation: Reservation) -> tuple[Account, Outcome]:
    reserving = Reserving(account, limits)
    outcome = reserving.claim(uid, reservation)
    return reserving.account(), outcome
