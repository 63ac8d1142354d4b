"""What clouds have said about their machine types, and for how long that is taken for fresh. Pure: the caller has the
clock, and everything is bounded.

A size does not change, so one that is known stays known. What does not exist is believed for a minute.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from common.runtime.lru import LruDict
from seed.providers.flavour import ALL, Catalogue, Flavour, Place
from seed.providers.spec import quoted

MISSING_SECONDS = 60.0  # for which a flavour that does not exist is not asked for again
MAX_PLACES = 1024
MAX_FLAVOURS = 8192  # in one place; Azure lists about 1,000
MAX_MISSING = 1024
LONGEST_NAME = 255
NEAREST = 3
_NEIGHBOURS = 64  # names before and after in the alphabet that are compared
_ALIKE = 0.6  # of 1


@dataclass(frozen=True, slots=True)
class Known:
    """A flavour and when it was learned: `as_of` for people (RFC 3339), the rest monotonic."""

    flavour: Flavour
    as_of: str
    learned: float
    fresh_until: float


@dataclass(slots=True)
class _Shelf:
    """What is known of one place."""

    flavours: dict[str, Known] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    missing: LruDict[str, float] = field(default_factory=LruDict)  # name -> until when (monotonic)
    listed_until: float = 0.0  # until then, what is not among the flavours does not exist (monotonic)
    sorted_names: Sequence[str] = ()  # of all that exist; empty until it is asked for

    def keep(self, name: str, known: Known, *, wanted: bool) -> None:
        """Where it is full only what is `wanted` gets in, in the place of another."""
        if name not in self.flavours and len(self.flavours) >= MAX_FLAVOURS:
            if not wanted:
                return
            del self.flavours[next(iter(self.flavours))]
        if name not in self.flavours:
            self.sorted_names = ()
        self.flavours[name] = known
        self.missing.pop(name, None)

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


class Shelves:
    def __init__(self) -> None:
        self._by_place: LruDict[Place, _Shelf] = LruDict()

    def __bool__(self) -> bool:
        return bool(self._by_place)

    def __repr__(self) -> str:
        return f"Shelves({self._by_place!r})"

    def __iter__(self) -> Iterator[tuple[Place, Mapping[str, Known]]]:
        for place, shelf in self._by_place.items():
            yield place, shelf.flavours

    def clear(self) -> None:
        self._by_place.clear()

    def known(self, place: Place, name: str) -> Known | None:
        shelf = self._by_place.get(place)
        return shelf.flavours.get(name) if shelf is not None else None

    def used(self, place: Place) -> None:
        """So that others go first."""
        self._by_place.move_to_end(place)

    def lacks(self, place: Place, name: str, now: float) -> bool:
        """True if it was asked for lately and does not exist; it may still be known from before."""
        shelf = self._by_place.get(place)
        if shelf is None:
            return False
        return now < shelf.missing.get(name, 0.0) or (now < shelf.listed_until and name not in shelf.flavours)

    def lacking(self, place: Place, name: str) -> str:
        """The words for what `lacks` says."""
        shelf = self._by_place[place]
        found = shelf.nearest(name)
        suggestion = f"; nearest: {', '.join(map(_plain, found))}" if found else ""
        return f"has no type {_plain(name)}{suggestion}"

    def learn(
        self, place: Place, asked: str, catalogue: Catalogue, *, all_of_it: bool, as_of: str, now: float, fresh: float
    ) -> None:
        """What a cloud answered to `asked`; `all_of_it`: what it does not name does not exist. Fresh for so long."""
        shelf = self._shelf(place)
        if all_of_it:
            shelf.listed_until = now + MISSING_SECONDS
        if asked not in catalogue.flavours and asked != ALL:
            shelf.missing.keep(asked, now + MISSING_SECONDS, MAX_MISSING)
        if catalogue.names:
            shelf.names = tuple(name for name in catalogue.names[:MAX_FLAVOURS] if len(name) <= LONGEST_NAME)
            shelf.sorted_names = ()
        for name, flavour in catalogue.flavours.items():
            if len(name) <= LONGEST_NAME:
                shelf.keep(name, Known(flavour, as_of, now, now + fresh), wanted=name == asked)

    def recall(self, place: Place, name: str, flavour: Flavour, *, as_of: str, now: float, fresh: float) -> None:
        """What another replica has learned, unless the cloud reported it meanwhile."""
        if self.known(place, name) is None:
            self._shelf(place).keep(name, Known(flavour, as_of, now, now + fresh), wanted=True)

    def oldest(self, now: float) -> dict[str, float]:
        """The age in seconds of the oldest flavour that is kept, by provider."""
        found: dict[str, float] = {}
        for place, flavours in self:
            age = max((now - known.learned for known in flavours.values()), default=0.0)
            found[place.provider] = max(found.get(place.provider, 0.0), age)
        return found

    def _shelf(self, place: Place) -> _Shelf:
        shelf = self._by_place.get(place) or _Shelf()
        self._by_place.keep(place, shelf, MAX_PLACES)
        return shelf


def _plain(name: str) -> str:
    """A flavour's name as it is, or in quotes where it is no plain word."""
    return (
        name if name.isascii() and name.replace("-", "").replace("_", "").replace(".", "").isalnum() else quoted(name)
    )
