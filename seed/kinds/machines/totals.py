"""The sum over a source's Machines, kept up to date change by change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from common.kube.controller.store import Change
from common.quota import resources
from common.quota.account import Reservation
from common.quota.resources import ResourceList
from common.runtime.lru import LruDict
from seed.machines.footprint import footprint, least
from seed.machines.machine_controller import Machine
from seed.providers.size import CONDITIONS, Footprint, NotSized, ProviderUnavailable
from seed.usage.source import MAX_REMEMBERED
from seed.usage.unadmitted import Unadmitted

MAX_UNSIZED_NAMED = 5


class Counted(msgspec.Struct, frozen=True):
    """One Machine as it stands in the sum, at the generation whose size it is. `waiting`: its cloud has not
    reported its size yet.

    `unsized`: why its size is not known, and as which `condition`. `guessed`: it never was known. `unknown`: set where
    it takes something that is not in the sum: its spec does not tell the amount, or the name is none that is counted.
    """

    size: ResourceList
    generation: int
    unsized: str = ""
    condition: str = ""
    unknown: Footprint | None = None
    waiting: bool = False
    guessed: bool = False


class Unsized(msgspec.Struct, frozen=True):
    """Machines that are counted without their size: how many by condition, and a few of them in words."""

    counts: Mapping[str, int]
    named: Sequence[str] = ()

    @property
    def count(self) -> int:
        return sum(self.counts.values())

    @property
    def condition(self) -> str:
        """What people must correct first; empty if there is none."""
        return next((condition for condition in CONDITIONS if condition in self.counts), "")


class MachineTotals:
    """The sum over a source's Machines, kept up to date change by change. Pure but for being mutable."""

    def __init__(
        self,
        before: MachineTotals | None = None,
        size: Callable[[Machine], Footprint] = footprint,
        unadmitted: Unadmitted | None = None,
    ) -> None:
        """`before` is asked for the last known size of what cannot be sized now. `unadmitted`: where there is none.

        `size` raises NotSized, and ProviderUnavailable for what a cloud has to be asked: see `waiting`.
        """
        self.line: object = before.line if before is not None else object()
        self.used: dict[str, int] = {}
        self.guessed: dict[str, ResourceList] = {}  # by uid: what stands in the sum of those that were never sized
        self.waiting: dict[str, Machine] = {}  # by uid: look again with `apply(Change(machine, machine))`
        self._before_unadmitted = before.unadmitted if before is not None else Unadmitted()
        self.unadmitted: Unadmitted = unadmitted if unadmitted is not None else self._before_unadmitted.after()
        self._footprint = size
        self._last_known: Mapping[str, Counted] = before._machines if before is not None else {}
        self._machines: dict[str, Counted] = {}
        self._names: dict[str, str] = {}  # uid -> namespace/name of what is not sized, for people
        self._deleted: LruDict[str, None] = LruDict()

    def __len__(self) -> int:
        return len(self._machines)

    def apply(self, change: Change[Machine]) -> bool:
        """True if something became free."""
        before: Counted | None = None
        if change.old is not None:
            before = self._machines.pop(change.old.metadata.uid, None)
            self._names.pop(change.old.metadata.uid, None)
            self.waiting.pop(change.old.metadata.uid, None)
            self.guessed.pop(change.old.metadata.uid, None)
        after: ResourceList = {}
        if change.new is not None:
            uid = change.new.metadata.uid
            self._deleted.pop(uid, None)  # a backup brought it back
            if before is None and uid in self._last_known:
                self.unadmitted.carried(self._before_unadmitted, uid, change.new.metadata.key)
            elif before is None:
                self.unadmitted.appeared(uid, change.new.metadata.key)
            counted = self._size(change.new, before or self._last_known.get(uid))
            self._machines[uid] = counted
            if counted.unsized or counted.unknown is not None:
                self._names[uid] = change.new.metadata.key
            if counted.waiting:
                self.waiting[uid] = change.new
            if counted.guessed:
                self.guessed[uid] = counted.size
            after = counted.size
        elif change.old is not None:
            self._deleted.keep(change.old.metadata.uid, None, MAX_REMEMBERED)
            self.unadmitted.gone(change.old.metadata.uid)
        gone = before.size if before is not None else {}
        for name, amount in resources.subtract(after, gone).items():
            total = self.used.get(name, 0) + amount
            if total:
                self.used[name] = total
            else:
                self.used.pop(name, None)
        return any(after.get(name, 0) < amount for name, amount in gone.items())

    def _size(self, machine: Machine, before: Counted | None) -> Counted:
        try:
            size = self._footprint(machine)
        except (NotSized, ProviderUnavailable) as error:
            # Counted at its last known size (docs/protocol.md section 5); as a machine it counts whatever its size.
            known = before.size if before is not None else least(machine)
            return Counted(
                known,
                before.generation if before is not None else machine.metadata.generation,
                str(error),
                error.condition,
                waiting=isinstance(error, ProviderUnavailable),
                guessed=before is None or before.guessed,
            )
        partly = bool(size.unknown or size.excess)
        return Counted(size.resources, machine.metadata.generation, unknown=size if partly else None)

    def used_beside(self, _reservations: Mapping[str, Reservation]) -> ResourceList:
        return self.used

    def seen(self, reservations: Iterable[str]) -> dict[str, int]:
        """Which of the reserved objects stand in the sum, and at which generation.

        One whose size was never known does not: its reservation holds what it costs. One whose size is not known any
        more stands there as of the generation whose size it was.
        """
        machines = self._machines
        return {uid: machines[uid].generation for uid in reservations if uid in machines and not machines[uid].guessed}

    def sizes(self, uids: Iterable[str]) -> dict[str, ResourceList]:
        """What those that are there take in the sum."""
        machines = self._machines
        return {uid: machines[uid].size for uid in uids if uid in machines}

    def explain(self, uid: str, error: NotSized | ProviderUnavailable) -> None:
        """Why a Machine still waits, for people."""
        self._machines[uid] = msgspec.structs.replace(
            self._machines[uid], unsized=str(error), condition=error.condition
        )

    def gone(self, reservations: Iterable[str]) -> set[str]:
        """Which of the reserved objects have been seen and deleted since."""
        return {uid for uid in reservations if uid in self._deleted}

    def unsized(self, limited: Iterable[str] = ()) -> Unsized:
        """`limited`: the resources of which no Machine may take an unknown amount, because a quota limits them."""
        counts: Counter[str] = Counter()
        named: list[str] = []
        for uid, name in self._names.items():
            condition, why = _why(self._machines[uid], limited)
            if not condition:
                continue
            counts[condition] += 1
            if len(named) < MAX_UNSIZED_NAMED:
                named.append(f"{name}: {why}")
        return Unsized(counts, named)

    @property
    def unknown(self) -> bool:
        """True if there are Machines that a quota of another resource would leave without a size."""
        return any(self._machines[uid].unknown is not None for uid in self._names)


def _why(counted: Counted, limited: Iterable[str]) -> tuple[str, str]:
    """The condition and the reason, empty where the size is known."""
    if counted.unsized:
        return counted.condition, counted.unsized
    try:
        if counted.unknown is not None:
            counted.unknown.require(limited)
    except NotSized as error:
        return error.condition, str(error)
    return "", ""
