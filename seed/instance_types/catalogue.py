"""What clouds have answered about their machine types, and how long that is fresh. Pure: the caller has the clock, and
everything is bounded.

A size does not change, so one that is known stays known. That a type does not exist is kept for a minute.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from common.runtime.lru import LruDict
from seed.providers.flavour import ALL, Catalogue, Flavour, Place
from seed.providers.spec import quoted

MISSING_SECONDS = 60.0  # for which a flavour that does not exist is not asked for again
MAX_PLACES = 32  # of one asker
MAX_ASKERS = 16_384  # a user cluster each: no tenant chooses how many
MAX_FLAVOURS = 8192  # in one place; Azure lists about 1,000
MAX_MISSING = 256  # in one place, for one asker
LONGEST_NAME = 255
NEAREST = 3
_NEIGHBOURS = 64  # names before and after in the alphabet that are compared
_ALIKE = 0.6  # of 1


class ReportedSize(NamedTuple):
    """A size, and when the cloud reported it, for people (RFC 3339)."""

    flavour: Flavour
    as_of: str


@dataclass(frozen=True, slots=True)
class Known:
    """A flavour and when it was learned: `as_of` for people (RFC 3339), the rest monotonic."""

    flavour: Flavour
    as_of: str
    learned: float
    fresh_until: float


@dataclass(slots=True)
class _Shelf:
    """What is known of one place, from all askers. `unreadable`: the names that were reported as such."""

    flavours: dict[str, Known] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    sorted_names: Sequence[str] = ()  # of all that exist; empty until it is asked for
    unreadable: set[str] = field(default_factory=set)
    askers: set[Hashable] = field(default_factory=set)

    def keep(self, name: str, known: Known, *, wanted: bool) -> None:
        """If it is full, only a `wanted` flavour is added, and replaces another one."""
        if name not in self.flavours and len(self.flavours) >= MAX_FLAVOURS:
            if not wanted:
                return
            del self.flavours[next(iter(self.flavours))]
        if name not in self.flavours:
            self.sorted_names = ()
        self.flavours[name] = known

    def nearest(self, name: str) -> list[str]:
        if not self.sorted_names:
            self.sorted_names = sorted({*self.flavours, *self.names})
        return nearest(name, self.sorted_names)


def nearest(name: str, known: Sequence[str]) -> list[str]:
    """Those of the sorted names that are most like it: of its neighbours in the alphabet, by the pairs of letters that
    they share. Machine types of one family begin alike, so a name is compared with few: a cloud has thousands."""
    wanted = _pairs(name)
    at = bisect_left(known, name)
    shares: list[tuple[float, str]] = []
    for other in known[max(at - _NEIGHBOURS, 0) : at + _NEIGHBOURS]:
        pairs = _pairs(other)
        share = 2 * len(wanted & pairs) / (len(wanted) + len(pairs))
        if share >= _ALIKE:
            shares.append((-share, other))
    return [other for _, other in sorted(shares)[:NEAREST]]


def _pairs(name: str) -> set[str]:
    name = f" {name[:LONGEST_NAME]} "
    return {name[index : index + 2] for index in range(len(name) - 1)}


@dataclass(slots=True)
class _Absent:
    """What a place does not have, by its answer to one asker: another account may see more."""

    missing: LruDict[str, float] = field(default_factory=LruDict)  # name -> until when (monotonic)
    unreadable: LruDict[str, tuple[float, str]] = field(default_factory=LruDict)  # ... and why
    listed_until: float = 0.0  # until then, what is not among the flavours does not exist (monotonic)


class Shelves:
    """A place is kept as long as one asker keeps it. An asker is a user cluster, and keeps the MAX_PLACES that it used
    last. So what one user cluster asks removes nothing that another one uses."""

    def __init__(self) -> None:
        self._by_place: dict[Place, _Shelf] = {}
        self._by_asker: LruDict[Hashable, LruDict[Place, _Absent]] = LruDict()

    def __bool__(self) -> bool:
        return bool(self._by_place)

    def __repr__(self) -> str:
        return f"Shelves({self._by_place!r})"

    def __iter__(self) -> Iterator[tuple[Place, Mapping[str, Known]]]:
        for place, shelf in self._by_place.items():
            yield place, shelf.flavours

    def of_asker(self, asker: Hashable) -> Iterator[tuple[Place, Mapping[str, Known]]]:
        """The places that it keeps, and what is known of them."""
        for place in tuple(self._by_asker.get(asker, ())):
            yield place, self._by_place[place].flavours

    def askers(self, place: Place) -> Iterable[Hashable]:
        shelf = self._by_place.get(place)
        return tuple(shelf.askers) if shelf is not None else ()

    def clear(self) -> None:
        self._by_place.clear()
        self._by_asker.clear()

    def known(self, place: Place, name: str) -> Known | None:
        shelf = self._by_place.get(place)
        return shelf.flavours.get(name) if shelf is not None else None

    def used(self, place: Place, asker: Hashable) -> None:
        """If this asker has too many places, another one is dropped first."""
        self._kept(place, asker)

    def join(self, place: Place, asker: Hashable) -> None:
        """As `used`, if anything is known of the place."""
        if place in self._by_place:
            self._kept(place, asker)

    def lacks(self, place: Place, name: str, asker: Hashable, now: float) -> bool:
        """True if this asker asked for it lately and it does not exist; it may still be known from before."""
        absent = self._absent(place, asker)
        if absent is None:
            return False
        listed = now < absent.listed_until and self.known(place, name) is None
        return listed or now < absent.missing.get(name, 0.0)

    def lacking(self, place: Place, name: str) -> str:
        """The words for what `lacks` says."""
        shelf = self._by_place[place]
        found = shelf.nearest(name)
        suggestion = f"; nearest: {', '.join(map(_plain, found))}" if found else ""
        return f"has no type {_plain(name)}{suggestion}"

    def unreadable(self, place: Place, name: str, asker: Hashable, now: float) -> str:
        """Why the size of a type that this asker asked for lately cannot be read; empty if that is not so."""
        absent = self._absent(place, asker)
        until, reason = absent.unreadable.get(name, (0.0, "")) if absent is not None else (0.0, "")
        return f"describes {_plain(name)} in a way that cannot be read: {reason}" if now < until else ""

    def learn(
        self,
        place: Place,
        asked: str,
        catalogue: Catalogue,
        *,
        asker: Hashable,
        all_of_it: bool,
        as_of: str,
        now: float,
        fresh: float,
    ) -> dict[str, str]:
        """What a cloud answered to `asked`; `all_of_it`: what it does not name does not exist. Fresh for so long.

        Returns what cannot be read, and why, that was not among it before.
        """
        absent = self._kept(place, asker)
        shelf = self._by_place[place]
        if all_of_it:
            absent.listed_until = now + MISSING_SECONDS
        if asked not in catalogue.flavours and asked not in catalogue.unreadable and asked != ALL:
            absent.missing.keep(asked, now + MISSING_SECONDS, MAX_MISSING)
        if catalogue.names:
            shelf.names = tuple(name for name in catalogue.names[:MAX_FLAVOURS] if len(name) <= LONGEST_NAME)
            shelf.sorted_names = ()
        for name, flavour in catalogue.flavours.items():
            if len(name) > LONGEST_NAME:
                continue
            shelf.keep(name, Known(flavour, as_of, now, now + fresh), wanted=name == asked)
            absent.missing.pop(name, None)
            absent.unreadable.pop(name, None)
        new: dict[str, str] = {}
        for name, reason in catalogue.unreadable.items():
            if len(name) > LONGEST_NAME:
                continue
            if name == asked or len(absent.unreadable) < MAX_MISSING:
                absent.unreadable.keep(name, (now + MISSING_SECONDS, reason), MAX_MISSING)
            if name not in shelf.unreadable and len(shelf.unreadable) < MAX_MISSING:
                shelf.unreadable.add(name)
                new[name] = reason
        return new

    def recall(
        self, place: Place, name: str, flavour: Flavour, *, asker: Hashable, as_of: str, now: float, fresh: float
    ) -> None:
        """What another replica has learned, unless the cloud reported it meanwhile."""
        if self.known(place, name) is None:
            self._kept(place, asker)
            self._by_place[place].keep(name, Known(flavour, as_of, now, now + fresh), wanted=True)

    def oldest(self, now: float) -> dict[str, float]:
        """The age in seconds of the oldest flavour that is kept, by provider."""
        found: dict[str, float] = {}
        for place, flavours in self:
            age = max((now - known.learned for known in flavours.values()), default=0.0)
            found[place.provider] = max(found.get(place.provider, 0.0), age)
        return found

    def _absent(self, place: Place, asker: Hashable) -> _Absent | None:
        places = self._by_asker.get(asker)
        return places.get(place) if places is not None else None

    def _kept(self, place: Place, asker: Hashable) -> _Absent:
        """Of a place that this asker keeps from now on."""
        places = self._by_asker.get(asker)
        if places is None:
            places = LruDict()
            while len(self._by_asker) >= MAX_ASKERS:
                gone, kept = self._by_asker.popitem(last=False)
                for each in kept:
                    self._release(each, gone)
            self._by_asker[asker] = places
        self._by_asker.move_to_end(asker)
        if place not in places and len(places) >= MAX_PLACES:
            self._release(places.popitem(last=False)[0], asker)
        absent = places.setdefault(place, _Absent())
        places.move_to_end(place)
        self._by_place.setdefault(place, _Shelf()).askers.add(asker)
        return absent

    def _release(self, place: Place, asker: Hashable) -> None:
        shelf = self._by_place[place]
        shelf.askers.discard(asker)
        if not shelf.askers:
            del self._by_place[place]


def _plain(name: str) -> str:
    """A flavour's name as it is, or in quotes where it is no plain word."""
    return (
        name if name.isascii() and name.replace("-", "").replace("_", "").replace(".", "").isalnum() else quoted(name)
    )
