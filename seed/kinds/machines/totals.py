"""The sum over a source's Machines, kept up to date change by change. Pure but for being mutable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from common.kube.controller.store import Change
from seed.machines.footprint import footprint, least
from seed.machines.machine_controller import Machine
from seed.providers.size import CONDITIONS, Footprint, NotSized, ProviderUnavailable
from seed.usage.object_sum import Counted, ObjectSum
from seed.usage.unadmitted import Unadmitted

MAX_UNSIZED_NAMED = 5


class CountedMachine(Counted, frozen=True, kw_only=True):
    """One Machine as it stands in the sum, at the generation whose size it is. `waiting`: its cloud has not
    reported its size yet.

    `unsized`: why its size is not known, and as which `condition`. `guessed`: it never was known. `unknown`: set where
    it takes something that is not in the sum: its spec does not tell the amount, or the name is none that is counted.
    """

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


class MachineTotals(ObjectSum[CountedMachine]):
    def __init__(
        self,
        before: MachineTotals | None = None,
        size: Callable[[Machine], Footprint] = footprint,
        unadmitted: Unadmitted | None = None,
    ) -> None:
        """`before` is asked for the last known size of what cannot be sized now. `unadmitted`: where there is none.

        `size` raises NotSized, and ProviderUnavailable for what a cloud has to be asked: see `waiting`.
        """
        super().__init__()
        self.line = before.line if before is not None else object()
        self.waiting: dict[str, Machine] = {}  # by uid: look again with `apply(Change(machine, machine))`
        self._before_unadmitted = before.unadmitted if before is not None else Unadmitted()
        self.unadmitted: Unadmitted = unadmitted if unadmitted is not None else self._before_unadmitted.after()
        self._footprint = size
        self._last_known: Mapping[str, CountedMachine] = before._objects if before is not None else {}
        self._names: dict[str, str] = {}  # uid -> namespace/name of what is not sized, for people

    def apply(self, change: Change[Machine]) -> bool:
        """True if something became free."""
        old, new = change.old, change.new
        if old is not None:
            self._names.pop(old.metadata.uid, None)
            self.waiting.pop(old.metadata.uid, None)
        if new is not None:
            return self._put(new.metadata.uid, new)
        if old is None:
            return False
        self.unadmitted.gone(old.metadata.uid)
        self._gone.keep(old.metadata.uid, None, self._remembered)  # also of one that could not be counted
        return self.remove(old.metadata.uid)

    def _put(self, uid: str, machine: Machine) -> bool:
        before, key = self._objects.get(uid), machine.metadata.key
        if before is None and uid in self._last_known:
            self.unadmitted.carried(self._before_unadmitted, uid, key)
        elif before is None:
            self.unadmitted.appeared(uid, key)
        counted = self._size(machine, before or self._last_known.get(uid))
        freed = self.keep(uid, counted)
        if counted.unsized or counted.unknown is not None:
            self._names[uid] = key
        if counted.waiting:
            self.waiting[uid] = machine
        if counted.guessed:
            self.guessed[uid] = counted.used
        return freed

    def _size(self, machine: Machine, before: CountedMachine | None) -> CountedMachine:
        try:
            size = self._footprint(machine)
        except (NotSized, ProviderUnavailable) as error:
            # Counted at its last known size (protocol.md section 5); as a machine it counts whatever its size.
            return CountedMachine(
                generation=before.generation if before is not None else machine.metadata.generation,
                used=before.used if before is not None else least(machine),
                unsized=str(error),
                condition=error.condition,
                waiting=isinstance(error, ProviderUnavailable),
                guessed=before is None or before.guessed,
            )
        partly = bool(size.unknown or size.excess)
        return CountedMachine(
            generation=machine.metadata.generation, used=size.resources, unknown=size if partly else None
        )

    def explain(self, uid: str, error: NotSized | ProviderUnavailable) -> None:
        """Why a Machine still waits, for people."""
        self._objects[uid] = msgspec.structs.replace(self._objects[uid], unsized=str(error), condition=error.condition)

    def unsized(self, limited: Iterable[str] = ()) -> Unsized:
        """`limited`: the resources of which no Machine may take an unknown amount, because a quota limits them."""
        counts: Counter[str] = Counter()
        named: list[str] = []
        for uid, name in self._names.items():
            condition, why = _why(self._objects[uid], limited)
            if not condition:
                continue
            counts[condition] += 1
            if len(named) < MAX_UNSIZED_NAMED:
                named.append(f"{name}: {why}")
        return Unsized(counts, named)

    @property
    def unknown(self) -> bool:
        """True if there are Machines that a quota of another resource would leave without a size."""
        return any(self._objects[uid].unknown is not None for uid in self._names)


def _why(counted: CountedMachine, limited: Iterable[str]) -> tuple[str, str]:
    """The condition and the reason, empty where the size is known."""
    if counted.unsized:
        return counted.condition, counted.unsized
    try:
        if counted.unknown is not None:
            counted.unknown.require(limited)
    except NotSized as error:
        return error.condition, str(error)
    return "", ""
