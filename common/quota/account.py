"""The account: what one quota may use on one seed, and what it does use. Pure: state in, state out.

The rules are in protocol.md, sections 3 and 4. An account holds two counters that only grow, `granted` (g) and
`returned` (r).

Invariant: an account admits only within g - r - used - reserved.

Who calls what, while an admitted object goes from "reserved" to "used":

* `Reserving.claim` (common/quota/reservations.py) takes capacity for an object that is about to exist,
* `blocks.hold` (common/quota/blocks.py) reserves capacity for one replica before anybody asks, and `blocks.named` turns
  what that replica admitted from it into reservations,
* `count` (the leader alone, fenced by its epoch) replaces a source's use and drops what it saw as objects,
* `release` drops reservations whose object provably never came to exist,
* `give_back` raises r by what is free, `receive` raises g to what the master granted,
* `fence` and `reopen` (common/quota/fencing.py) bracket every doubt about the counters (a lost ledger, another master).

Amounts are resource lists: integers of billionths by resource name (`common.quota.resources`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from common.quota import guarantees, resources, surge
from common.quota.resources import ResourceList

ReservationKey = tuple[str, str]  # the source, and the object's uid in it: clusters from one snapshot share uids

# One ledger object must stay well under etcd's 1.5 MiB, also with long names. What sources use may come to take more:
# it is counted, not admitted.
MAX_RESERVATIONS = 4_000
MAX_TEXT = 1_000_000  # characters of what is reserved and used, up to which more is reserved

BLOCKS = "block:/,?"  # in place of a source: reserved ahead of requests (rule 4.15; the name: decision 36)


class AccountKey(msgspec.Struct, frozen=True):
    """An account belongs to the uid of the master's quota; the name is for people."""

    uid: str
    name: str


class StaleEpochError(Exception):
    """The writer's lease term is older than the one that the account has seen: another leader counts now."""


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """Capacity for one admitted object that has not been counted yet.

    `generation` is 0 for an object that was created; for one that was updated it is the metadata.generation which
    the update produces: only an observed generation at least as high proves that the count includes the update.
    `earlier` is the part of `amount` that the generations before need, while they are not counted either. `claims`
    counts the requests that rely on it, `request` names the latest of them: evidence about an earlier one, or its end,
    says nothing of a later one, also where that asks for the same. `replaces` is the uid of the object of the same
    source in whose place a rollout puts this one, for which it may use surge (`common.quota.surge_loans`).
    `base`, where the largest of several objects counts: the part of the others on top of which `amount` comes. The
    source's count does not fall below it while the reservation is there (rule 4.14).
    `late`: it was admitted from a block, and named since. What was counted before may include its object (rule 4.15).
    `tenant`, where the objects of a source are of several: whose this one is.
    """

    source: str
    object: str  # "namespace/name", to look for it by a consistent read
    amount: ResourceList
    generation: int = 0
    earlier: ResourceList = {}
    claims: int = 1
    replaces: str = ""
    request: str = ""
    base: ResourceList = {}
    late: bool = False
    tenant: str = ""

    @property
    def party(self) -> str:
        """Who is held back, and has a share: the source, or one of its tenants."""
        return f"{self.source} {self.tenant}" if self.tenant else self.source


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """What waiting requests need beyond what is free: the first in line, and all of them together."""

    number: int = 0
    first: ResourceList = {}
    wanted: ResourceList = {}


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """One quota on one seed. Fenced while `nonce` is not empty: then it admits and returns nothing.

    `incarnation` names this life of the account, `master` the life of the master's ledger whose grants it accepts,
    `sequence` counts the writes, `epoch` is the lease term of the leader that may count. `fenced_at` is the sequence
    on which the last fence was put; `in_doubt`, while fenced: the ledger itself may be older than what it was.
    `held_back`: the parties of which much was admitted that did not appear. No more of them is created until that went.
    `scarce`: a request found too little, which blocks may have. Who has a block gives back what is left of it.
    `owners`: of sources whose project has a guarantee, which project (rule 4.16).
    """

    incarnation: str
    master: str = ""
    sequence: int = 0
    epoch: int = 0
    nonce: str = ""
    fenced_at: int = 0
    in_doubt: bool = False
    granted: ResourceList = {}
    returned: ResourceList = {}
    used: Mapping[str, ResourceList] = {}
    reserved: ResourceList = {}
    reservations: Mapping[ReservationKey, Reservation] = {}
    ask: Ask = Ask()
    held_back: tuple[str, ...] = ()
    scarce: bool = False
    owners: Mapping[str, str] = {}

    @property
    def fenced(self) -> bool:
        return bool(self.nonce)


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """The master's message to one seed about one quota.

    `granted` and `returned` are the master's counters for the account life `account`; `nonce` repeats the account's
    question. `recall` is the value that r should reach as far as there is idle capacity. `answered` is the number of
    the last ask which this message, with the global use beside it, answers. `seen` is the last sequence that the
    account had shown before it asked with `nonce`, as far as the master remembers. `unbroken`: it watched the seed
    without a break from before that was written until it asked, so no backup was restored meanwhile.
    """

    incarnation: str
    account: str = ""
    nonce: str = ""
    granted: ResourceList = {}
    returned: ResourceList = {}
    recall: ResourceList = {}
    answered: int = 0
    seen: int = 0
    unbroken: bool = False


class Terms(msgspec.Struct, frozen=True):
    """What the quota's copy says at this moment: the limits, and what the master granted."""

    limits: ResourceList
    grant: Grant


class Admitted(msgspec.Struct, frozen=True):
    """The capacity is reserved: `before` is what the account held for this object, None unless it is a repeat."""

    before: Reservation | None
    after: Reservation


class Short(msgspec.Struct, frozen=True):
    """This much is missing here; the master may have it."""

    missing: ResourceList


class Fenced(msgspec.Struct, frozen=True):
    """The account's counters are in doubt: nothing can be decided now."""


class Full(msgspec.Struct, frozen=True):
    """The account holds as much as one object may: wait until the leader has counted some."""


class OverShare(msgspec.Struct, frozen=True):
    """The source, or its tenant, has its share of what the account holds (`common.quota.shares`). Others go on."""

    tenant: str = ""


class HeldBack(msgspec.Struct, frozen=True):
    """Too much was admitted that did not appear, in this source or of its tenant: wait until some is released."""

    tenant: str = ""


class ReplacementConflict(msgspec.Struct, frozen=True):
    """What it would replace is not counted yet, or is being replaced already; or what it would change is on loan."""


class Occupied(msgspec.Struct, frozen=True):
    """So much of the surge that it would use is under use beyond what is held. None is lent beside that."""

    amounts: ResourceList


Denied = Short | Fenced | Full | OverShare | HeldBack | ReplacementConflict | Occupied
Outcome = Admitted | Denied


def of_source(account: Account, source: str) -> dict[str, Reservation]:
    """By uid."""
    return {uid: kept for (of, uid), kept in account.reservations.items() if of == source}


def use(account: Account) -> dict[str, int]:
    """Counted and reserved, and the surge under what of it is beyond what is held: what a decision sees."""
    used = _counted_and_reserved(account)
    return resources.add(used, surge.occupied(used, held(account)))


def occupied(account: Account) -> dict[str, int]:
    return surge.occupied(_counted_and_reserved(account), held(account))


def _counted_and_reserved(account: Account) -> dict[str, int]:
    return resources.add(resources.total(account.used.values()), account.reserved)


def held(account: Account) -> dict[str, int]:
    return resources.subtract(account.granted, account.returned)


def sources(account: Account) -> set[str]:
    """Those that were counted, or for whose objects something is reserved."""
    return {*account.used, *(source for source, _ in account.reservations if source != BLOCKS)}


def free(account: Account, limits: ResourceList) -> dict[str, int]:
    """What may still be admitted of every limited resource; negative where use was not admitted here.

    The limit itself bounds it too, so that a seed that knows of a lowered limit obeys it at once.
    """
    left, room = unused(held(account), use(account), limits), guarantees.room(account, limits)
    return room.free(left, "") if room is not None else left


def unused(holding: ResourceList, used: ResourceList, limits: ResourceList) -> dict[str, int]:
    return {name: min(holding.get(name, 0), limit) - used.get(name, 0) for name, limit in limits.items()}


def ever_limited(account: Account, limits: ResourceList) -> Collection[str]:
    """Also what is not limited any more: it is held still, and may be limited again at any moment."""
    return limits.keys() | account.granted.keys()


def without(account: Account, keys: Iterable[ReservationKey]) -> Account:
    dropped = [key for key in keys if key in account.reservations]
    if not dropped:
        return account
    kept = dict(account.reservations)
    released = resources.total(kept.pop(key).amount for key in dropped)
    return msgspec.structs.replace(account, reservations=kept, reserved=less(account.reserved, released))


def less(reserved: ResourceList, released: ResourceList) -> dict[str, int]:
    return {name: amount for name, amount in resources.subtract(reserved, released).items() if amount}


def claim_epoch(account: Account, epoch: int) -> Account:
    """A new leader's first write. Only lists that it takes afterwards may be counted (rule 4.4)."""
    if epoch < account.epoch:
        raise StaleEpochError(f"lease term {epoch} is older than {account.epoch}")
    return account if epoch == account.epoch else msgspec.structs.replace(account, epoch=epoch)


def check_epoch(account: Account, epoch: int) -> None:
    if epoch != account.epoch:
        raise StaleEpochError(f"lease term {epoch} does not own this account; {account.epoch} does")


def count(
    account: Account,
    epoch: int,
    source: str,
    used: ResourceList,
    seen: Mapping[str, int],
    gone: Collection[str] = (),
) -> Account:
    """Replace what `source` uses and drop, in the same write, the reservations that the count includes.

    `seen` maps the uids of objects in the counted state to their generation; `gone` are uids that were seen and have
    been deleted since. Both must come from the very state that `used` was summed from.
    """
    check_epoch(account, epoch)
    covered = [
        (source, uid)
        for uid, reservation in of_source(account, source).items()
        if uid in gone or seen.get(uid, -1) >= reservation.generation
    ]
    after = _without_earlier(without(account, covered), source, seen)
    present = {name: amount for name, amount in used.items() if amount}
    if present == account.used.get(source, {}) and source in account.used:
        return after
    return msgspec.structs.replace(after, used={**after.used, source: present})


def _without_earlier(account: Account, source: str, seen: Mapping[str, int]) -> Account:
    """What an update came on top of is counted now: its reservation keeps what the update itself needs."""
    counted = {
        (source, uid): msgspec.structs.replace(kept, amount=less(kept.amount, kept.earlier), earlier={})
        for uid, kept in of_source(account, source).items()
        if kept.earlier and seen.get(uid, -1) >= kept.generation - 1
    }
    if not counted:
        return account
    earlier = resources.total(account.reservations[key].earlier for key in counted)
    return msgspec.structs.replace(
        account, reservations={**account.reservations, **counted}, reserved=less(account.reserved, earlier)
    )


def forget_source(account: Account, epoch: int, source: str) -> Account:
    """The source does not exist any more: neither do its objects."""
    check_epoch(account, epoch)
    after = without(account, [key for key in account.reservations if key[0] == source])
    if source not in after.used:
        return after
    owners = {name: project for name, project in after.owners.items() if name != source}
    used = {name: used for name, used in after.used.items() if name != source}
    return msgspec.structs.replace(after, used=used, owners=owners)


def release(account: Account, epoch: int, absent: Mapping[ReservationKey, Reservation]) -> Account:
    """Drop reservations on evidence that their objects do not exist and cannot come to exist (rule 4.5).

    The evidence is about the reservations as they were: one that another request has claimed since stays.
    """
    check_epoch(account, epoch)
    return without(account, [key for key, known in absent.items() if account.reservations.get(key) == known])


def hold_back(account: Account, epoch: int, parties: Collection[str]) -> Account:
    """Of these nothing more is created, and of no others."""
    check_epoch(account, epoch)
    held_back = tuple(sorted(parties))
    return account if held_back == account.held_back else msgspec.structs.replace(account, held_back=held_back)


def held_back(account: Account, reservation: Reservation) -> HeldBack | None:
    """Also where a leader of an earlier release holds back all of the source."""
    if not account.held_back or reservation.generation:
        return None
    if reservation.source in account.held_back:
        return HeldBack()
    return HeldBack(reservation.tenant) if reservation.party in account.held_back else None


def ask(account: Account, limits: ResourceList, first: ResourceList, wanted: ResourceList, answered: int) -> Account:
    """Ask the master for more. An ask that was not answered yet (number above `answered`) stays part of it.

    However long the master is away, nobody asks for more than there is.
    """
    before = account.ask
    if before.number > answered:
        first, wanted = before.first, resources.add(before.wanted, wanted)
    first = resources.only(first, limits)
    wanted = {name: min(amount, limits[name]) for name, amount in wanted.items() if name in limits}
    return msgspec.structs.replace(account, ask=Ask(number=before.number + 1, first=first, wanted=wanted))


def receive(account: Account, grant: Grant) -> Account:
    """Keep the maximum of what was granted. Messages for another life of the account or of the master say nothing."""
    if account.fenced or grant.account != account.incarnation or grant.incarnation != account.master:
        return account
    granted = resources.maximum(account.granted, grant.granted)
    if granted == account.granted:
        return account
    return msgspec.structs.replace(account, granted=granted)


def give_back(account: Account, recall: ResourceList) -> Account:
    """Raise r towards `recall`, by no more than what is free: what is used or reserved is never returned, nor the surge
    under use beyond what is held."""
    if account.fenced or not any(target > account.returned.get(name, 0) for name, target in recall.items()):
        return account
    used, holding = use(account), held(account)
    left = resources.subtract(holding, used) | guarantees.returnable(used, guarantees.of_projects(account), holding)
    returned = guarantees.returned(account.returned, recall, left)
    if returned == account.returned:
        return account
    return msgspec.structs.replace(account, returned=returned)


def apply_grant(account: Account, grant: Grant) -> Account:
    """Take up a message: what it grants, and then give back what it recalls, as far as that is free by now.

    Before every admission too: what is recalled is no longer the seed's to use, also where it becomes free only now.
    """
    if account.fenced or grant.account != account.incarnation or grant.incarnation != account.master:
        return account
    return give_back(receive(account, grant), grant.recall)


def check(account: Account) -> None:
    """The invariants that hold in every state; called by tests and the simulator, and once per load of a ledger."""
    assert all(source == kept.source for (source, _), kept in account.reservations.items()), "keyed by their sources"
    reserved = resources.total(reservation.amount for reservation in account.reservations.values())
    assert less(reserved, {}) == less(account.reserved, {}), "reserved is the sum of the reservations"
    for name, amount in account.returned.items():
        assert 0 <= amount <= account.granted.get(name, 0), f"returned more {name} than was granted"
