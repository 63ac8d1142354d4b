"""What is true, kept beside the simulated world, and the invariants, checked at every event that could break one.

The promise is about what was admitted: an object counts with what it was admitted for, from the answer to its request
until it is gone, or can no longer come. What exists without having been admitted is not the promise's; nor is what was
admitted before a limit was lowered, until everybody knows: `ceiling` is the highest limit that somebody may still
act on, and comes down when everybody has heard (`tighten`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from common.quota import account as accounts
from common.quota import blocks, escrow, quantity, resources, surge
from common.quota.account import BLOCKS, Account, Grant, Reservation
from common.quota.blocks import sure_use
from common.quota.escrow import Holding, MasterLedger, Report
from common.quota.resources import ResourceList
from seed.admission.refusal import Refusal
from seed.ledger.own_block import OwnBlock
from seed.model.quota import Quota
from tests.sim.servers import name_of


class Violation(AssertionError):
    """What must never happen has happened."""


class Beside(NamedTuple):
    """What other things of a namespace have at a moment: the largest size, and, by quota uid, the largest that one of
    them was admitted for."""

    size: ResourceList
    admitted: Mapping[str, ResourceList]


class Wish:
    """One request to an API server: to create an object, or to change its size. `after` by quota uid. `replaces`: what
    its rollout would have it in place of.

    The API server makes several `calls` about it at the same time, one for each webhook that its configuration has for
    the object, and needs a yes to all. `allowed`: the webhook has said that, to those in `yes`. `told`: the API server
    has heard it, of those in `heard`.
    """

    __slots__ = (
        "after",
        "allowed",
        "answered",
        "answering",
        "calls",
        "decided",
        "ended",
        "generation",
        "heard",
        "need",
        "needs",
        "old",
        "reads",
        "repeats",
        "replaces",
        "since",
        "size",
        "slow",
        "thing",
        "told",
        "until",
        "verdicts",
        "yes",
    )

    def __init__(self, thing: Thing, size: ResourceList, generation: int, need: ResourceList, until: float) -> None:
        self.thing = thing
        self.size = size
        self.old = thing.size  # what is changed; None for what is created
        self.generation = generation
        self.need = need
        self.until = until
        self.allowed = False
        self.ended = False
        self.slow = False  # it takes long to be written
        self.told = False  # the API server has heard that it is allowed
        self.calls = [""]
        self.yes: set[str] = set()
        self.heard: set[str] = set()
        self.needs: dict[str, ResourceList] = {}  # by quota uid: what a yes was about
        self.answering: list[tuple[Any, asyncio.Task[None]]] = []  # with the replica that does
        self.answered: set[tuple[str, ...]] = set()  # the replica that did, and the quotas that it knew
        self.since: dict[str, tuple[float, int]] = {}  # by replica: when the call began by which it decided last
        self.decided: dict[str, float] = {}  # ... when that decision began
        self.repeats = 0
        self.replaces: list[str] = []
        self.reads: list[Beside] = []  # what was read of the others for the answer that came last
        self.verdicts: list[tuple[Refusal | None, list[Beside]]] = []  # ... for each answer that was decided
        self.after: dict[str, ResourceList] = {}

    @property
    def claimed(self) -> int:
        """The generation that its reservation names: 0 for a creation."""
        return self.generation if self.generation > 1 else 0


class Thing:
    """One object that costs. `admitted` by quota uid: what it was admitted for. `reserved`: the last of its generations
    that needed a reservation. `uid` is its name everywhere (servers.uid_of)."""

    __slots__ = ("admitted", "cost", "generation", "reserved", "size", "source", "uid", "wishes")

    def __init__(self, uid: str, source: str) -> None:
        self.uid = uid
        self.source = source
        self.size: ResourceList | None = None
        self.generation = 0
        self.reserved = 0
        self.admitted: dict[str, ResourceList] = {}
        self.wishes: list[Wish] = []
        self.cost: dict[str, ResourceList] = {}


class Told(NamedTuple):
    """By what a seed may refuse: the most that it used itself since it was asked, and that the others did as far as the
    master has told it since half a second before; None if he has not."""

    own: Mapping[str, int]
    elsewhere: Mapping[str, int] | None


class Truth:
    keeps_limited = False  # accounts reserve nothing by names that no quota limits

    def __init__(self, things: Mapping[str, Thing]) -> None:
        self._things = things
        self.totals: dict[str, dict[str, int]] = {}  # by quota uid
        self.limits: dict[str, ResourceList] = {}
        self.ceiling: dict[str, dict[str, int]] = {}
        self.clean: dict[str, bool] = {}  # nothing has happened that excuses grants past the limit
        self.durable: dict[tuple[str, str], Reservation] = {}  # by quota uid and name of what it is for
        self.doubted: set[str] = set()  # lives of ledgers and accounts that a restore has set back
        self.ledgers: dict[str, MasterLedger] = {}
        self.accounts: dict[tuple[str, str], Account] = {}  # by quota uid and seed
        self.replaced: dict[tuple[str, str], str] = {}  # by quota uid and name of what it was lent to
        self.history: dict[tuple[str, str], list[tuple[int, Account]]] = {}  # likewise: all that were, numbered
        self.writes = 0
        self.excused: set[str] = set()  # quotas of which an account or the ledger may not know what was lent
        self.used: dict[tuple[str, str], ResourceList] = {}  # by quota uid and seed: the most that was ever reported
        self.answered: dict[tuple[str, str, str], int] = {}  # nonces answered to a seed, and what was seen then
        self.admitted = 0
        self.loans = 0
        self.ahead = 0  # admitted from blocks
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

    def tighten(self, uid: str) -> None:
        """Everybody has heard the limits: what is past the limit, or stands past the surge, can only become less.
        A surge that was withdrawn counts as 0, or as what still uses it."""
        self.check(uid)
        total, ceiling, limits = self.totals[uid], self.ceiling[uid], self.limits[uid]
        before = dict(ceiling)
        withdrawn = {name: 0 for name in ceiling if name.startswith(surge.PREFIX) and name not in limits}
        for name in [name for name in ceiling if name not in limits]:
            del ceiling[name]
        for name, limit in (limits | withdrawn).items():
            if name.startswith(surge.PREFIX):
                standing = self._on_surge(uid, name.removeprefix(surge.PREFIX))
            else:
                lent = self._beside(uid, name) if surge.PREFIX + name in limits | withdrawn else 0
                standing = total.get(name, 0) - lent
            lowest = max(limit, standing)
            if lowest or name in limits:
                ceiling[name] = min(before.get(name, lowest), lowest)
        self.check(uid)

    def covered(self, uid: str, use_of: Callable[[Account], ResourceList] = sure_use) -> bool:
        """The master has heard of all use: what came before its resource had a limit is beyond what its seed holds."""
        ledger = self.ledgers.get(uid)
        for seed, holding in ledger.seeds.items() if ledger is not None else ():
            account, held = self.accounts.get((uid, seed)), escrow.held(holding)
            use, on_surge = use_of(account) if account is not None else {}, surge.beyond(held)
            if any(use.get(name, 0) > held.get(name, 0) + on_surge.get(name, 0) for name in self.limits[uid]):
                return False
        return ledger is not None

    def uncovered(self, uid: str, use_of: Callable[[Account], ResourceList]) -> dict[str, int]:
        """What is used beyond what its seed holds, though the limit has room for it, which another may hold idle."""
        ledger = self.ledgers[uid]
        uses = {seed: use_of(account) for (quota, seed), account in self.accounts.items() if quota == uid}
        there = {seed: (uses.get(seed, {}), escrow.held(holding)) for seed, holding in ledger.seeds.items()}
        beyond = resources.total(resources.at_least_zero(resources.subtract(use, held)) for use, held in there.values())
        limits = surge.regular(self.limits[uid])
        past = resources.subtract(resources.total(use for use, _ in there.values()), limits)
        return {name: more for name in limits if (more := beyond.get(name, 0) - max(past[name], 0)) > 0}

    def excuse(self) -> None:
        """Something happened after which the master may have to cover more than the limit."""
        for uid in self.clean:
            self.clean[uid] = False
        self.excused.update(self.clean)

    # What exists, and what may come ----------------------------------------------------------------------------------

    def recount(self, thing: Thing) -> None:
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
            was, now = self.shares(uid, thing, before), self.shares(uid, thing, cost)
            for name in {**was, **now}:
                change = now.get(name, 0) - was.get(name, 0)
                total[name] = total.get(name, 0) + change
                more |= change > 0
            thing.cost[uid] = cost
            if more:
                self.check(uid)

    def shares(self, uid: str, thing: Thing, cost: ResourceList) -> ResourceList:
        """What counts of the quota for the thing, and for those that it is counted together with, if it costs that."""
        return cost

    def allow(self, wish: Wish, call: str, quotas: Iterable[Quota], *, missing: bool, repeated: bool) -> None:
        """The webhook has said yes to one call: each quota's reservation must be durable. `missing`: it did not know
        them all. `repeated`: it says what it has said to another call, when it was durable."""
        thing = wish.thing
        for quota in quotas:
            uid = quota.key.uid
            all_kept = not quota.of_objects and not self.keeps_limited
            need = wish.need if all_kept else resources.only(wish.need, quota.limits)
            if repeated and wish.needs.get(uid) == need:
                continue
            kept = self.durable.get((uid, thing.uid))
            if wish.claimed and (thing.size is None or thing.generation >= wish.claimed):
                continue  # deleted or changed meanwhile, so nothing comes of it: that very write may have counted it
            if kept is None or kept.generation < wish.claimed:
                raise self._broken(f"{thing.uid} was admitted, and quota {uid} has no durable reservation of it")
            if kept.generation == wish.claimed and any(
                self._reserved(kept, wish, name) < amount for name, amount in need.items()
            ):
                raise self._broken(f"{thing.uid} was admitted for more than quota {uid} has reserved")
            wish.after[uid], wish.needs[uid] = self._admitted(uid, wish, need), need
        wish.yes.add(call)
        if missing:
            self.excuse()
        if wish.yes.issuperset(wish.calls):
            wish.allowed = True
            self.admitted += 1
            self.recount(thing)

    def from_block(self, uid: str, seed: str, life: str, own: OwnBlock) -> None:
        """A replica says yes by its block alone, in this life of the account: that must have all that was admitted, and
        has no name yet. A write whose answer is on its way named some, which may be counted by now."""
        self.ahead += 1
        account = self.accounts.get((uid, seed))
        if account is None or account.incarnation != life or life in self.doubted:
            return  # it cannot have heard yet
        owner, write = own.owner, own._write
        block = blocks.of(account, owner)
        is_done = write is not None and block is not None and block.generation == write.number
        named = account.reservations.keys() | (write.named if write is not None and is_done else frozenset())
        unnamed = resources.total(kept.amount for key, kept in own.admitted.items() if key not in named)
        for name, amount in unnamed.items():
            if amount > (block.amount.get(name, 0) if block is not None else 0):
                raise self._broken(f"{amount} {name} of {uid} admitted from the block {owner} of {block}")

    def _reserved(self, kept: Reservation, wish: Wish, name: str) -> int:
        """Of what it needs."""
        return kept.amount.get(name, 0) + kept.amount.get(surge.PREFIX + name, 0)

    def _admitted(self, uid: str, wish: Wish, need: ResourceList) -> ResourceList:
        """What it is admitted for, once it was written."""
        before = wish.thing.admitted.get(uid, {})
        return {name: min(size, before.get(name, 0) + need.get(name, 0)) for name, size in wish.size.items()}

    def used_since(self, uid: str, seed: str, number: int) -> dict[str, int]:
        """The most that was counted and reserved there, as far as it was durable, since so many writes were done."""
        most: ResourceList = {}
        for at, account in reversed(self.history.get((uid, seed), [])):
            most = resources.maximum(most, sure_use(account))
            if at <= number:
                break
        return dict(most)

    def refused(self, uid: str, told: Told, need: ResourceList, causes: Iterable[tuple[str, str]]) -> None:
        """With 403 and these causes. Each must add up, and one of those of the limit (and of the surge, where that was
        asked for too) must be so by what is durable on that seed, and by what the others had told the master when he
        answered, at most half a second ago."""
        justified, named = set(), set()
        for name, text in causes:
            numbers = _numbers(text)
            requested, used, limited = numbers["requested"], numbers["used"], numbers["limited"]
            named.add(name)
            if used + requested <= limited:
                raise self._broken(f"a refusal that does not add up: {name} of {uid}: {text}")
            if requested != need.get(name.removeprefix(surge.PREFIX), 0):
                raise self._broken(f"a refusal of what was not asked for: {name} of {uid}: {text}, not {need}")
            use = told.own.get(name, 0) + (told.elsewhere or {}).get(name, 0)
            if requested > limited - use:
                justified.add(name)
        kinds = [{name for name in named if not name.startswith(surge.PREFIX)}]
        if len(named) > len(kinds[0]):
            kinds.append(named - {name.removeprefix(surge.PREFIX) for name in named if name.startswith(surge.PREFIX)})
        if not all(kind & justified for kind in kinds):
            raise self._broken(
                f"refused although there is room in {uid}: {dict(causes)}; {told.own} used there, and "
                f"{told.elsewhere} elsewhere by what the master has told lately"
            )

    def unasked(self, thing: Thing, quotas: Collection[str]) -> Violation:
        return self._broken(f"{thing.uid} was admitted, and not all of {sorted(quotas)} were asked")

    def check(self, uid: str) -> None:
        total, ceilings = self.totals[uid], self.ceiling[uid]
        for name, ceiling in ceilings.items():
            admitted = total.get(name, 0)
            if admitted <= ceiling:
                continue
            extra = ceilings.get(surge.PREFIX + name, 0)
            if extra and self.clean[uid]:
                extra = min(extra, self._beside(uid, name))
            if extra and admitted > ceiling:
                extra = min(extra, self._beside_older(uid, name))
            if admitted > ceiling + extra:
                raise self._broken(f"{admitted} {name} of {uid} admitted, the limit is {ceiling} and {extra} of surge")

    def _beside_older(self, uid: str, name: str) -> int:
        """The Machines that were lent to, as far as their loan has not ended or the older Machine that each replaces is
        there. Each older Machine counts for one."""
        there = (account for (quota, _), account in self.accounts.items() if quota == uid)
        loans = {name_of(*key) for account in there for key, kept in account.reservations.items() if kept.replaces}
        beside: dict[str, int] = {}
        for (quota, new), older in self.replaced.items():
            if quota != uid or new not in self._things:
                continue
            replaced = self._things.get(older)
            if new in loans or (replaced is not None and replaced.size is not None):
                beside[older] = max(beside.get(older, 0), self._things[new].cost.get(uid, {}).get(name, 0))
        return sum(beside.values())

    def lent(self, uid: str, name: str) -> int:
        """What stands on the surge, as far as it is durable."""
        name = surge.PREFIX + name
        return sum(account.reserved.get(name, 0) for (quota, _), account in self.accounts.items() if quota == uid)

    def _on_surge(self, uid: str, name: str) -> int:
        """What is lent, and what its seeds use beyond what they hold."""
        there = (account for (quota, _), account in self.accounts.items() if quota == uid)
        return self.lent(uid, name) + sum(_under(_used(each), accounts.held(each)).get(name, 0) for each in there)

    def _beside(self, uid: str, name: str) -> int:
        """As `lent`, of what there is beside what it replaces: that one of both has gone its account may not know."""
        lent, things = 0, self._things
        for (quota, _), account in self.accounts.items():
            for (source, new_uid), reservation in account.reservations.items() if quota == uid else ():
                replaced = things.get(name_of(source, reservation.replaces))
                if (new := name_of(source, new_uid)) in things and replaced is not None and replaced.size is not None:
                    there = things[new].cost.get(uid, {}).get(name, 0)
                    lent += min(reservation.amount.get(surge.PREFIX + name, 0), there)
        return lent

    def _loans_end(self, uid: str, seed: str, after: Account) -> None:
        """Those that the account has now and not `after`. What there is past the limit without having been admitted may
        go while a rollout puts in its place what was admitted: there is no more than before. A seed that lost its
        ledger holds what was admitted there, although its account does not say so."""
        things, before = self._things, self.accounts.get((uid, seed))
        if before is None or before.reservations is after.reservations:
            return
        ended = [
            (things[name_of(*key)].cost.get(uid, {}), kept.amount)
            for key, kept in before.reservations.items()
            if kept.replaces
            and name_of(*key) in things
            and ((still := after.reservations.get(key)) is None or not still.replaces)
        ]
        if not ended:
            return
        there = (
            resources.maximum(accounts.held(account), _used(account))
            if account.granted
            else self._admitted_on(uid, holder)
            for (quota, holder), account in self.accounts.items()
            if quota == uid
        )
        beyond = resources.subtract(resources.total(there), self.limits[uid])
        ceiling = self.ceiling[uid]
        for name in self.limits[uid]:
            lent = sum(min(cost.get(name, 0), amount.get(surge.PREFIX + name, 0)) for cost, amount in ended)
            if name in ceiling:
                ceiling[name] += max(0, min(lent, beyond.get(name, 0)))

    def _admitted_on(self, uid: str, seed: str) -> dict[str, int]:
        on_seed = (thing for thing in self._things.values() if thing.source.partition("/")[0] == seed)
        return resources.total(thing.cost.get(uid, {}) for thing in on_seed)

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
        lends = False
        if before is None or after.reservations is not before.reservations:
            known = before.reservations if before is not None else {}
            replaced = [(kept.source, kept.replaces) for kept in after.reservations.values() if kept.replaces]
            if len(replaced) > len(set(replaced)):
                raise self._broken(f"account of {uid} on {seed}: two replace the same one, of {replaced}")
            for key, reservation in after.reservations.items():
                if known.get(key) is not reservation:
                    self.durable[uid, name_of(*key)] = reservation
                    if reservation.replaces:
                        self.loans += 1
                        self.replaced[uid, name_of(*key)] = name_of(reservation.source, reservation.replaces)
                        lends = True
        self.known(uid, seed, after)
        if lends:
            self._lends(uid)
        self._compare(uid, seed, after)

    def known(self, uid: str, seed: str, account: Account) -> None:
        """What is durable from now on, by a write or by a restore."""
        self._loans_end(uid, seed, account)
        self.accounts[uid, seed] = account
        self.writes += 1
        self.history.setdefault((uid, seed), []).append((self.writes, account))

    def _lends(self, uid: str) -> None:
        """Nothing is lent beyond the surge, nor while more stands on it than it is by now."""
        if uid in self.excused:
            return
        for name, most in self.ceiling[uid].items():
            if name.startswith(surge.PREFIX) and (lent := self._standing(uid, name)) > most:
                raise self._broken(f"{lent} {name} of {uid} lent, the surge is {most}")
        for name in {name for kept in self._loans(uid) for name in kept.amount if name.startswith(surge.PREFIX)}:
            if name not in self.ceiling[uid]:
                raise self._broken(f"{name} of {uid} is lent, and there is no such surge")

    def _loans(self, uid: str) -> list[Reservation]:
        """Of what there is or may come."""
        accounts_of = (account for (quota, _), account in self.accounts.items() if quota == uid)
        return [
            kept
            for account in accounts_of
            for key, kept in account.reservations.items()
            if kept.replaces and name_of(*key) in self._things
        ]

    def _standing(self, uid: str, name: str) -> int:
        return sum(kept.amount.get(name, 0) for kept in self._loans(uid))

    def obeyed(self, uid: str, seed: str, before: Account, after: Account, limits: Mapping[str, int]) -> None:
        """Who has heard of a limit claims nothing past it, before or after what else the same write counts."""
        if after.reservations is before.reservations:
            return
        both = (resources.minimum(used, after.used.get(source, {})) for source, used in before.used.items())
        least = resources.add(resources.total(both), after.reserved)
        for name, limit in limits.items():
            if least.get(name, 0) > limit and _claims_more(before, after, name):
                raise self._broken(f"{seed} reserves {name} of {uid} past the limit of {limit} that it has heard of")

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
            for seed in more_granted(before, after):
                self._covers_what_is_there(uid, seed, before.seeds[seed], after)
        self.ledgers[uid] = after
        if self.clean.get(uid):
            limits = self.ceiling[uid]
            for name, amount in escrow.outstanding(after).items():
                if amount > limits.get(name, amount):
                    raise self._broken(f"{amount} {name} of {uid} granted, the limit is {limits[name]}")
        for seed in after.seeds:
            if (account := self.accounts.get((uid, seed))) is not None:
                self._compare(uid, seed, account)

    def _covers_what_is_there(self, uid: str, seed: str, before: Holding, after: MasterLedger) -> None:
        """Past the limit nothing is granted but what was used there since as much was returned as the ledger knows."""
        holding, ceiling = after.seeds[seed], self.ceiling.get(uid, {})
        if holding.account in self.doubted or after.incarnation in self.doubted:
            return
        granted, held = escrow.outstanding(after), escrow.held(holding)
        for name, amount in holding.granted.items():
            if amount == before.granted.get(name, 0) or granted[name] <= ceiling.get(name, granted[name]):
                continue
            since = [
                account
                for _, account in self.history.get((uid, seed), ())
                if account.incarnation == holding.account
                and account.returned.get(name, 0) >= holding.returned.get(name, 0)
            ]
            if since and held[name] > max(accounts.use(account).get(name, 0) for account in since):
                raise self._broken(f"{held[name]} {name} of {uid} cover what {seed} gave back")

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
        used, used_before = (with_surge(_used(each), accounts.held(each)) for each in (after, before))
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
        if said.sequence == account.sequence:
            asked = resources.total(kept.amount for key, kept in account.reservations.items() if key[0] != BLOCKS)
            self._within(f"{seed} shows as reserved of {uid} what nobody asked for", said.reserved, asked)

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


def with_surge(used: ResourceList, held: ResourceList) -> dict[str, int]:
    """... and the surge under it."""
    return resources.add(used, {surge.PREFIX + name: amount for name, amount in _under(used, held).items()})


def _claims_more(before: Account, after: Account, name: str) -> bool:
    """Beyond what was reserved for the same object; a loan that ends does not claim what it becomes, nor does what is
    named what its block had."""
    return any(
        kept.amount.get(name, 0) > (known.amount.get(name, 0) if known is not None else 0)
        for key, kept in after.reservations.items()
        if (known := before.reservations.get(key)) is not kept
        and not (known is not None and known.replaces)
        and not kept.late
    )


def _claims(before: Account, after: Account, name: str) -> bool:
    return any(
        kept.amount.get(name, 0) and before.reservations.get(key) is not kept
        for key, kept in after.reservations.items()
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


def _numbers(cause: str) -> dict[str, int]:
    """What a cause says: "requested cpu=1, used cpu=2, limited cpu=2"."""
    words = (part.rpartition(" ") for part in cause.split(", "))
    return {word: quantity.parse(amount.partition("=")[2]) for word, _, amount in words}
