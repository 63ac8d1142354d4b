"""What an API server may answer. Tenants run API servers, and a compromised one lies: every bound on it is here.

| of | at most |
|---|---|
| the server's side of a TLS handshake | 16 KiB |
| one head, with all that comes before it | 64 KiB, in it 8 interim answers (1xx), 128 fields of 8 KiB |
| what is no body: framing, extensions, trailers | as much as the body, and 1 MiB |
| one page of a list, one event of a watch, and each other answer | 8 MiB |
| one page of a list | as many objects as were asked for |
| ... of several objects | 1,000,000 values |
| one object | 150,000 values, also where they are not read; an error 10,000 |
| all answers of one API server that are not complete | 64 MiB, with lines of watches; 4 pages of lists |
| one list | 500,000 objects, of which 1,000 cannot be read, and 100 empty pages |
| the event loop's time for lists and watches of one API server that others run | a fifth, and 0.25 s at once |
| what nobody asked for: compression, another protocol, a second answer | nothing |

Redirects are not followed. `Connection` bounds the time and the number of connections. Whoever goes beyond loses the
connection, and the answer is malformed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from common.kube.client.errors import TooLarge

MAX_HANDSHAKE = 16 * 1024  # chains of API servers and clouds have 3 to 8 KiB
MAX_HEAD = 64 * 1024
MAX_INTERIM = 8
MAX_OVERHEAD = 1024 * 1024
MAX_BODY = 8 * 1024 * 1024  # etcd holds objects of at most 1.5 MiB by default
MAX_VALUES = 150_000
MAX_PAGE_VALUES = 1_000_000
MAX_ITEMS = 500_000
MAX_BROKEN = 1000
MAX_EMPTY_PAGES = 100
MAX_INCOMPLETE = 64 * 1024 * 1024
PAGES_AT_ONCE = 4
SHARE = 0.2
AT_ONCE = 0.25  # seconds of work; a list of 5,000 Machines takes half of it


class Room:
    """For the answers of one API server that are not complete."""

    def __init__(self) -> None:
        self.taken = 0

    @contextmanager
    def of(self, what: str) -> Iterator[Taken]:
        taken = Taken(self, what)
        try:
            yield taken
        finally:
            taken.free()


class Taken:
    """The part that one answer takes."""

    def __init__(self, room: Room, what: str) -> None:
        self._room = room
        self._what = what
        self.size = 0

    def add(self, size: int) -> None:
        """Raises TooLarge."""
        if self._room.taken + size > MAX_INCOMPLETE:
            raise TooLarge(f"{self._what}: all answers together are larger than {MAX_INCOMPLETE} bytes")
        self._room.taken += size
        self.size += size

    def free(self) -> None:
        self._room.taken -= self.size
        self.size = 0
