"""The machine types in one answer of a cloud: those that can be read, and the reason for each that cannot.

An entry that cannot be read does not affect the others: only a Machine that names it cannot be sized.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec

from seed.providers.flavour import Catalogue, Flavour, Unreadable

_LONGEST_NAME = 255
_LONGEST_REASON = 100
_NAMELESS = "an entry without a name"
T = TypeVar("T")


class Entries:
    def __init__(self) -> None:
        self._flavours: dict[str, Flavour] = {}
        self._unreadable: dict[str, str] = {}

    def add(self, names: Iterable[str], read: Callable[[], Flavour]) -> None:
        """One entry, by all its names. `read` raises Unreadable, or what decoding raises."""
        known = [name for name in names if 0 < len(name) <= _LONGEST_NAME]
        try:
            flavour = read()
            if len(flavour.name) > _LONGEST_NAME:
                raise Unreadable("its name is too long")
        except (Unreadable, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            reason = str(error).encode("ascii", "backslashreplace").decode()[:_LONGEST_REASON]
            self._unreadable |= dict.fromkeys(known or [_NAMELESS], reason)
            return
        self._flavours |= dict.fromkeys(known, flavour)

    def add_json(
        self, raw: bytes | msgspec.Raw, named_by: Iterable[str], shape: type[T], read: Callable[[T], Flavour]
    ) -> None:
        """One entry that is a JSON object, named by its fields `named_by`."""
        self.add(_names(raw, named_by), lambda: read(msgspec.json.decode(raw, type=shape)))

    def catalogue(self) -> Catalogue:
        """Where two entries have one name and one of them cannot be read, the name cannot be."""
        readable = {name: flavour for name, flavour in self._flavours.items() if name not in self._unreadable}
        return Catalogue(readable, unreadable=self._unreadable)


def _names(raw: bytes | msgspec.Raw, fields: Iterable[str]) -> list[str]:
    try:
        entry = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        found = [msgspec.json.decode(entry[field]) for field in fields if field in entry]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return []
    return [str(name) for name in found if isinstance(name, (str, int)) and not isinstance(name, bool)]
