"""What is true, kept beside the simulated world, and the invariants, checked at every event that could break one.

The promise is about what was admitted: an object counts with what it was admitted for, from the answer to its request
until it is gone, or can no longer come. What exists without having been admitted is not the promise's; nor is what was
admitted before a limit was lowered, until everybody knows: `ceiling` is the highest limit that somebody may still
act on, and comes down when everybody has heard (`tighten`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from common import account as accounts
from common import grants, resources, surge
from common.account import Account, Grant, Reservation
from common.grants import Holding, MasterLedger, Report
from common.resources import ResourceList
from seed.catalog import Quota


class Violation(AssertionError):
    """What must never happen has happened."""


class Wish:
    """One request to an API server: to create an object, or to change its size. `after` by quota uid. `replaces`: what
    its rollout would have it in place of."""

    __slots__ = (
        "after",
        "allowed",
        "ended",
        "generation",
        "need",
        "repeats",
        "replaces",
        "size",
        "slow",
        "thing",
        "told",
        "until",
    )

    def __init__(self, thing: Thing, size: ResourceList, generation: int, need: ResourceList, until: float) -> None:
        self.thing = thing
        self.size = size
        self.generation = generation
        self.need = need
        self.until = until
        self.allowed = False
        self.ended = False
        self.slow = False  # it takes long to be written
        self.told = False  # the API server has heard that it is allowed
        self.repeats = 0
        self.replaces: list[str] = []
        self.after: dict[str, ResourceList] = {}

    @property
    def claimed(self) -> int:
        """The generation that its reservation names: 0 for a creation."""
        return self.generation if self.generation > 1 else 0


class Thing:
    """One object that costs. `admitted` by quota uid: what it was admitted for. `reserved`: the last of its generations
    that needed a reservation. `resurrected`: it was deleted, and a restore brought it back under its uid; who is told
    late of its deletion takes that for the end of it."""

    __slots__ = ("admitted", "cost", "generation", "reserved", "resurrected", "size", "source", "uid", "wishes")

    def __init__(self, uid: str, source: str) -> None:
        self.uid = uid
        self.source = source
        self.size: ResourceList | None = None
        self.generation = 0
        self.reserved = 0
        self.resurrected = False
        self.admitted: dict[str, ResourceList] = {}
        self.wishes: list[Wish] = []
        self.cost: dict[str, ResourceList] = {}


class Truth:
    def __init__(self) -> None:
        self.totals: dict[str, dict[str, int]] = {}  # by quota uid
        self.limits: dict[str, ResourceList] = {}
        self.ceiling: dict[str, dict[str, int]] = {}
        self.clean: dict[str, bool] = {}  # nothing has happened that excuses grants past the limit
        self.durable: dict[tuple[str, str], Reservation] = {}
        self.doubted: set[str] = set()  # lives of ledgers and accounts that a restore has set back
        self.ledgers: dict[str, MasterLedger] = {}
        self.accounts: dict[tuple[str, str], Account] = {}  # by quota uid and seed
        self.replaced: dict[tuple[str, str], str] = {}  # by quota uid and the one that was lent to
        self.things: dict[str, Thing] = {}
        self.used: dict[tuple[str, str], ResourceList] = {}  # by quota uid and seed: the most that was ever reported
        self.answered: dict[tuple[str, str, str], int] = {}  # nonces answered to a seed, and what was seen then
        self.admitted = 0
        self.loans = 0
        self.found: Violation | None = None  # the first; the product may have swallowed it

    def _broken(self, text: str) -> Violation:
        self.found = self.found or Violation(text)
        return self.found

    # Limits --------------------------------------------------------------------------------------------------------

    def quota(self, uid: str, limits: ResourceList) -> None:
        """The admin made it, or changed it."""
        if uid not in self.limits:
            self.limits[uid], self.ceiling[uid], self.totals[uid] = limits, dict(limits), {}
            self.clean[uid] = True
            return
        ceiling, before = self.ceiling[uid], self.limits[uid]
        lowered = any(name not in before or amount < before[name] for name, amount in limits.items())
        if lowered or any(name not in limits for name in before if name.startswith(surge.PREFIX)):
            self.clean[uid] = False
        for name in [name for name in ceiling if name not in limits and not name.startswith(surge.PREFIX)]:
            del ceiling[name]
        for name, limit in limits.items():
            if name in ceiling:
                ceiling[name] = max(ceiling[name], limit)
        self.limits[uid] = limits

    def tighten(self, uid: str, things: Mapping[str, Thing]) -> None:
        """Everybody has heard the limits: what is past the limit, or stands past the surge, can only become less."""
        self.check(uid)
        total, ceiling, limits = self.totals[uid], self.ceiling[uid], self.limits[uid]
        for name in [name for name in ceiling if name not in limits]:
            del ceiling[name]
        for name, limit in limits.items():
            if name.startswith(surge.PREFIX):
                standing = self.on_surge(uid, name.removeprefix(surge.PREFIX))
            else:
                lent = self._beside(uid, name, things) if surge.PREFIX + name in limits else 0
                standing = total.get(name, 0) - lent
            lowest = max(limit, standing)
            ceiling[name] = min(ceiling.get(name, lowest), lowest)
        self.check(uid)

    def covered(self, uid: str) -> bool:
        """The master has heard of all use: what came before its resource had a limit is beyond what its seed holds."""
        ledger = self.ledgers.get(uid)
        for seed, holding in ledger.seeds.items() if ledger is not None else ():
            account, held = self.accounts.get((uid, seed)), grants.held(holding)
            use = _used(account) if account is not None else {}
            on_surge = surge.beyond(held)
            if any(use.get(name, 0) > held.get(name, 0) + on_surge.get(name, 0) for name in self.limits[uid]):
                return False
        return ledger is not None

    def excuse(self) -> None:
        """Something happened after which the master may have to cover more than the limit."""
        for uid in self.clean:
            self.clean[uid] = False

    # What exists, and what may come ----------------------------------------------------------------------------------

    def recount(self, thing: Thing) -> None:
        self.things[thing.uid] = thing
        uids = {*thing.cost, *thing.admitted}
        for wish in thing.wishes:
            uids.update(wish.after)
        for uid in uids:
            cost: dict[str, int] = dict(thing.admitted.get(uid, {})) if thing.size is not None else {}
            for wish in thing.wishes:
                if wish.allowed and wish.generation == thing.generation + 1 and uid in wish.after:
                    for name, amount in wish.after[uid].items():
                        if amount > cost.get(name, 0):
                            cost[name] = amount
            before = thing.cost.get(uid, {})
            if cost == before:
                continue
            total = self.totals[uid]
            more = False
            for name in {**before, **cost}:
                change = cost.get(name, 0) - before.get(name, 0)
                total[name] = total.get(name, 0) + change
                more |= change > 0
            thing.cost[uid] = cost
            if more:
                self.check(uid)

    def allow(self, wish: Wish, quotas: Iterable[Quota], *, missing: bool) -> None:
        """The webhook has said yes: each quota's reservation must be durable. `missing`: it did not know them all."""
        thing = wish.thing
        for quota in quotas:
            uid = quota.key.uid
            kept = self.durable.get((uid, thing.uid))
            if wish.claimed and thing.size is None:
                continue  # deleted meanwhile: what was reserved for a change of it may be gone in that very write
            if kept is None or kept.generation < wish.claimed:
                raise self._broken(f"{thing.uid} was admitted, and quota {uid} has no durable reservation of it")
            if kept.generation == wish.claimed:
                for name, amount in wish.need.items():
                    if kept.amount.get(name, 0) + kept.amount.get(surge.PREFIX + name, 0) < amount:
                        raise self._broken(f"{thing.uid} was admitted for more than quota {uid} has reserved")
            before = thing.admitted.get(uid, {})
            wish.after[uid] = {
                name: min(size, before.get(name, 0) + wish.need.get(name, 0)) for name, size in wish.size.items()
            }
        wish.allowed = True
        self.admitted += 1
        if missing:
            self.excuse()
        self.recount(thing)

    def check(self, uid: str) -> None:
        total, ceilings = self.totals[uid], self.ceiling[uid]
        for name, ceiling in ceilings.items():
            admitted = total.get(name, 0)
            if admitted <= ceiling:
                continue
            extra = ceilings.get(surge.PREFIX + name, 0)
            if extra and self.clean[uid]:
                extra = min(extra, self.lent(uid, name))
            if extra and admitted > ceiling:
                extra = min(extra, self.beside_older(uid, name))
            if admitted > ceiling + extra:
                raise self._broken(f"{admitted} {name} of {uid} admitted, the limit is {ceiling} and {extra} of surge")

    def beside_older(self, uid: str, name: str) -> int:
        """What was lent and has its older one beside it, of which each counts once; or stands on its loan for want of a
        place."""
        there = (account.reservations for (quota, _), account in self.accounts.items() if quota == uid)
        loans = {new for reservations in there for new, kept in reservations.items() if kept.replaces}
        beside: dict[str, int] = {}
        for (quota, new), older in self.replaced.items():
            if quota != uid or new not in self.things:
                continue
            replaced = self.things.get(older)
            if new in loans or (replaced is not None and replaced.size is not None):
                beside[older] = max(beside.get(older, 0), self.things[new].cost.get(uid, {}).get(name, 0))
        return sum(beside.values())

    def lent(self, uid: str, name: str) -> int:
        """What stands on the surge, as far as it is durable."""
        name = surge.PREFIX + name
        return sum(account.reserved.get(name, 0) for (quota, _), account in self.accounts.items() if quota == uid)

    def on_surge(self, uid: str, name: str) -> int:
        """What is lent, and what its seeds have beyond what they hold."""
        there = (account for (quota, _), account in self.accounts.items() if quota == uid)
        return self.lent(uid, name) + sum(_under(_used(each), accounts.held(each)).get(name, 0) for each in there)

    def _beside(self, uid: str, name: str, things: Mapping[str, Thing]) -> int:
        """As `lent`, of what there is beside what it replaces: that one of both has gone its account may not know."""
        lent = 0
        for (quota, _), account in self.accounts.items():
            for new, reservation in account.reservations.items() if quota == uid else ():
                replaced = things.get(reservation.replaces)
                if new in things and replaced is not None and replaced.size is not None:
                    there = things[new].cost.get(uid, {}).get(name, 0)
                    lent += min(reservation.amount.get(surge.PREFIX + name, 0), there)
        return lent

    def loans_end(self, uid: str, seed: str, after: Account) -> None:
        """Those that the account has now and not `after`. What there is past the limit without having been admitted may
        go while a rollout puts in its place what was admitted: there is no more than before."""
        before = self.accounts.get((uid, seed))
        if before is None or before.reservations is after.reservations:
            return
        ended = [
            (self.things[new].cost.get(uid, {}), kept.amount)
            for new, kept in before.reservations.items()
            if kept.replaces and new in self.things and new not in after.reservations
        ]
        if not ended:
            return
        there = (account for (quota, _), account in self.accounts.items() if quota == uid)
        beyond = resources.subtract(resources.total(_held(account) for account in there), self.limits[uid])
        ceiling = self.ceiling[uid]
        for name in self.limits[uid]:
            lent = sum(min(cost.get(name, 0), amount.get(surge.PREFIX + name, 0)) for cost, amount in ended)
            if name in ceiling:
                ceiling[name] += max(0, min(lent, beyond.get(name, 0)))

    # Ledgers -------------------------------------------------------------------------------------------------------

    def account_saved(self, seed: str, uid: str, before: Account | None, after: Account) -> None:
        try:
            accounts.check(after)
        except AssertionError as error:
            raise self._broken(f"account of {uid} on {seed}: {error}") from error
        if before is not None and before.incarnation == after.incarnation:
            self._grows(f"granted of {uid} on {seed}", before.granted, after.granted)
            self._grows(f"returned of {uid} on {seed}", before.returned, after.returned)
            self._only_free(uid, seed, before, after)
            if before.fenced and not after.fenced:
                seen = self.answered.get((uid, seed, before.nonce))
                if seen is None:
                    raise self._broken(f"account of {uid} on {seed} opens, and nobody has answered its nonce")
                if seen > before.fenced_at:
                    raise self._broken(f"account of {uid} on {seed} opens, and the master has seen a later one")
            if after.sequence <= before.sequence:
                raise self._broken(f"account of {uid} on {seed}: sequence {before.sequence}, then {after.sequence}")
            if after.epoch < before.epoch:
                raise self._broken(f"account of {uid} on {seed}: epoch {before.epoch}, then {after.epoch}")
        if before is None or after.reservations is not before.reservations:
            known = before.reservations if before is not None else {}
            replaced = [kept.replaces for kept in after.reservations.values() if kept.replaces]
            if len(replaced) > len(set(replaced)):
                raise self._broken(f"account of {uid} on {seed}: two replace the same one, of {replaced}")
            for name, reservation in after.reservations.items():
                if known.get(name) is not reservation:
                    if reservation.replaces:
                        self.loans += 1
                        self.replaced[uid, name] = reservation.replaces
                    self.durable[uid, name] = reservation
        self.loans_end(uid, seed, after)
        self.accounts[uid, seed] = after
        self._compare(uid, seed, after)

    def counted(self, uid: str, epoch: int, term: int) -> None:
        if term < epoch:
            raise self._broken(f"{uid} of epoch {epoch} is counted in term {term}")

    def listed(self, uid: str, source: str, listed_at: int, claimed_at: int) -> None:
        if listed_at < claimed_at:
            raise self._broken(f"{source} is counted for {uid} from a list that began before the epoch was written")

    def dropped(self, uid: str, thing: Thing, kept: Reservation, seen: int | None) -> None:
        """A reservation went: its object must be counted, or must not be able to come. `seen` by the leader."""
        may_come = [wish for wish in thing.wishes if wish.allowed and wish.generation == thing.generation + 1]
        if any(uid in wish.after and wish.need and wish.claimed <= kept.generation for wish in may_come):
            raise self._broken(f"{uid} drops the reservation of {thing.uid}, which may still come")
        if thing.size is None or uid not in thing.admitted or seen is None:
            return
        covers = max(kept.generation, 1)
        due = min(thing.reserved, covers)
        if seen < due and (due == covers or kept.earlier):
            raise self._broken(f"{uid} drops the reservation of {thing.uid}, which is not counted")

    def ledger_saved(self, uid: str, before: MasterLedger | None, after: MasterLedger) -> None:
        if before is not None and before.incarnation == after.incarnation:
            for seed, holding in after.seeds.items():
                known = before.seeds.get(seed)
                if known is not None and known.learned:
                    self._grows(f"G of {uid} for {seed}", known.granted, holding.granted)
                    self._grows(f"R of {uid} for {seed}", known.returned, holding.returned)
            for seed in more_granted(before, after) if after.learning else ():
                if not self._covers(uid, seed, before.seeds[seed], after.seeds[seed]):
                    raise self._broken(f"ledger of {uid} grants while it is learning")
        self.ledgers[uid] = after
        if self.clean.get(uid):
            limits = self.ceiling[uid]
            for name, amount in grants.outstanding(after).items():
                if amount > limits.get(name, amount):
                    raise self._broken(f"{amount} {name} of {uid} granted, the limit is {limits[name]}")
        for seed in after.seeds:
            if (account := self.accounts.get((uid, seed))) is not None:
                self._compare(uid, seed, account)

    def _covers(self, uid: str, seed: str, before: Holding, after: Holding) -> bool:
        """Nothing is granted but what is used there."""
        used = self.used.get((uid, seed), {})
        return all(
            amount == before.granted.get(name, 0) or amount - after.returned.get(name, 0) <= used.get(name, 0)
            for name, amount in after.granted.items()
        )

    def _only_free(self, uid: str, seed: str, before: Account, after: Account) -> None:
        """Only what is free is returned or reserved, before what else the same write counts."""
        if after.fenced or before.fenced or (after.returned is before.returned and after.reserved is before.reserved):
            return
        used, used_before = _occupied(after), _occupied(before)
        claimed = resources.add(resources.total(before.used.values()), after.reserved)
        for name, granted in after.granted.items():
            returned = after.returned.get(name, 0)
            if granted - returned >= used.get(name, 0):
                continue
            certain = name in self.limits[uid] and self.clean[uid]
            if returned > before.returned.get(name, 0) and granted - returned < used_before.get(name, 0):
                if certain or not _claims(before, after, name):  # who knows of no limit may, after it was given back
                    raise self._broken(f"{seed} returns {name} of {uid} that is in use")
            elif (
                certain
                and after.reserved.get(name, 0) > before.reserved.get(name, 0)
                and claimed[name] > granted - returned
            ):
                raise self._broken(f"{seed} reserves {name} of {uid} that it does not hold")

    def _compare(self, uid: str, seed: str, account: Account) -> None:
        """G >= g and r >= R, between two that know each other and that no restore has set back."""
        ledger = self.ledgers.get(uid)
        holding = ledger.seeds.get(seed) if ledger is not None else None
        if (
            ledger is None
            or holding is None
            or not holding.learned
            or holding.account != account.incarnation
            or account.master != ledger.incarnation
            or account.incarnation in self.doubted
            or ledger.incarnation in self.doubted
        ):
            return
        self._within(f"{seed} has more of {uid} than was granted", account.granted, holding.granted)
        if not account.fenced:
            self._within(f"the master believes that {seed} returned more of {uid}", holding.returned, account.returned)

    def reported(self, seed: str, uid: str, said: Report) -> None:
        """What a seed shows must be durable."""
        self.used[uid, seed] = resources.maximum(self.used.get((uid, seed), {}), said.used)
        account = self.accounts.get((uid, seed))
        if account is None or account.incarnation != said.incarnation or said.incarnation in self.doubted:
            return
        if said.sequence > account.sequence:
            raise self._broken(f"{seed} shows {uid} as it was not written")
        self._within(f"{seed} shows more granted of {uid} than is durable", said.granted, account.granted)
        self._within(f"{seed} shows more returned of {uid} than is durable", said.returned, account.returned)

    def shown(self, uid: str, seed: str, grant: Grant) -> None:
        """What the master shows must be durable."""
        if grant.nonce:
            self.answered.setdefault((uid, seed, grant.nonce), grant.seen)
        ledger = self.ledgers.get(uid)
        if ledger is None or ledger.incarnation != grant.incarnation or grant.incarnation in self.doubted:
            return
        holding = ledger.seeds.get(seed)
        if holding is not None and holding.account == grant.account:
            self._within(f"{seed} is shown more of {uid} than the master's ledger has", grant.granted, holding.granted)

    def _grows(self, what: str, before: ResourceList, after: ResourceList) -> None:
        if before is not after:
            for name, amount in before.items():
                if after.get(name, 0) < amount:
                    raise self._broken(f"{what}: {amount} {name}, then {after.get(name, 0)}")

    def _within(self, what: str, part: ResourceList, whole: Mapping[str, int]) -> None:
        for name, amount in part.items():
            if amount > whole.get(name, 0):
                raise self._broken(f"{what}: {amount} {name}, {whole.get(name, 0)}")


def _used(account: Account) -> dict[str, int]:
    return resources.add(resources.total(account.used.values()), account.reserved)


def _under(used: ResourceList, held: ResourceList) -> dict[str, int]:
    """What is used beyond what is held, as far as surge is held that is not lent."""
    left = resources.subtract(surge.beyond(held), surge.beyond(used))
    return {
        name: min(used.get(name, 0) - held.get(name, 0), more)
        for name, more in left.items()
        if more > 0 and used.get(name, 0) > held.get(name, 0)
    }


def _held(account: Account) -> dict[str, int]:
    """What is held, or used beyond that and not on surge: that the master covers, or will."""
    held, used = accounts.held(account), _used(account)
    return resources.maximum(held, resources.subtract(used, _under(used, held)))


def _occupied(account: Account) -> dict[str, int]:
    used = _used(account)
    under = _under(used, accounts.held(account))
    return resources.add(used, {surge.PREFIX + name: amount for name, amount in under.items()})


def _claims(before: Account, after: Account, name: str) -> bool:
    return any(
        kept.amount.get(name, 0) and before.reservations.get(uid) is not kept
        for uid, kept in after.reservations.items()
    )


def more_granted(before: MasterLedger, after: MasterLedger) -> list[str]:
    """The seeds that were granted anything: what an account that asks with a nonce has, is only taken up."""
    both = ((seed, before.seeds.get(seed), holding) for seed, holding in after.seeds.items())
    return [
        seed
        for seed, known, holding in both
        if known is not None
        and known.learned
        and (known.account, known.nonce) == (holding.account, holding.nonce)
        and any(amount > known.granted.get(name, 0) for name, amount in holding.granted.items())
    ]
