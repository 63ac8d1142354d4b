"""Which connections are kept, and which end for a newer one. No I/O.

A connection is unproven until its first request names a caller by a token. Unproven ones are counted by the address
that they come from, and the oldest of the address that has most gives way: an API server needs some milliseconds to
prove itself, also where a load balancer gives all callers one address. Proven ones are counted by their caller, and
what unproven ones do never costs one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from ipaddress import IPv6Address, ip_address
from typing import Generic, Protocol, TypeVar

from common.server.http_parser import Head

Identify = Callable[[Head], str | None]
"""Who calls, by a head that has come. None: nobody who is served here. UNNAMED: somebody who is served, and who goes on
to be counted by address."""

UNNAMED = ""

MAX_UNPROVEN = 1024
MAX_UNPROVEN_OF_ONE = 256  # address
MAX_PROVEN = 4096
MAX_PROVEN_OF_ONE = 512  # caller


class Connection(Protocol):
    @property
    def idle(self) -> bool: ...

    @property
    def due(self) -> float:
        """When it ends if nothing comes: of idle ones, the first was idle for longest."""
        ...


C = TypeVar("C", bound=Connection)


class _Pool(Generic[C]):
    """Connections by party, in the order in which they came."""

    def __init__(self) -> None:
        self.size = 0
        self._of: dict[str, dict[C, None]] = {}

    def of(self, party: str) -> Iterable[C]:
        return self._of.get(party, {})

    def count(self, party: str) -> int:
        return len(self._of.get(party, ()))

    def largest(self) -> list[str]:
        """Parties, the one with most first."""
        return sorted(self._of, key=lambda party: len(self._of[party]), reverse=True)

    def first(self, party: str) -> C:
        """Taken out."""
        found = next(iter(self._of[party]))
        self.remove(party, found)
        return found

    def add(self, party: str, connection: C) -> None:
        self._of.setdefault(party, {})[connection] = None
        self.size += 1

    def remove(self, party: str, connection: C) -> bool:
        connections = self._of.get(party, {})
        if connection not in connections:
            return False
        del connections[connection]
        self.size -= 1
        if not connections:
            del self._of[party]
        return True


class Connections(Generic[C]):
    def __init__(self) -> None:
        self._unproven: _Pool[C] = _Pool()
        self._proven: _Pool[C] = _Pool()

    def __len__(self) -> int:
        return self._unproven.size + self._proven.size

    @property
    def unproven(self) -> int:
        return self._unproven.size

    def arrived(self, connection: C, address: str) -> C | None:
        """Which other one must end."""
        pool = self._unproven
        victim = None
        if pool.count(address) >= MAX_UNPROVEN_OF_ONE:
            victim = pool.first(address)
        elif pool.size >= MAX_UNPROVEN:
            victim = pool.first(pool.largest()[0])
        pool.add(address, connection)
        return victim

    def proved(self, connection: C, address: str, caller: str) -> tuple[bool, C | None]:
        """Whether it may stay, and which other one must end."""
        self._unproven.remove(address, connection)
        pool = self._proven
        if pool.count(caller) < MAX_PROVEN_OF_ONE and pool.size < MAX_PROVEN:
            pool.add(caller, connection)
            return True, None
        parties = [caller] if pool.count(caller) >= MAX_PROVEN_OF_ONE else pool.largest()
        victim = _victim(pool, parties, pool.count(caller))
        if victim is None:
            return False, None
        pool.add(caller, connection)
        return True, victim

    def left(self, connection: C, address: str, caller: str | None) -> None:
        if caller is None or not self._proven.remove(caller, connection):
            self._unproven.remove(address, connection)


def _victim(pool: _Pool[C], parties: list[str], has: int) -> C | None:
    """Taken out, for one of a caller that `has` so many. Else those who keep all theirs busy would keep it out."""
    larger = [party for party in parties if pool.count(party) > has + 1]
    for party in larger:
        if (idle := _idle(pool.of(party))) is not None:
            pool.remove(party, idle)
            return idle
    if larger:
        return pool.first(larger[0])
    for party in parties:
        if (idle := _idle(pool.of(party))) is not None:
            pool.remove(party, idle)
            return idle
    return None


def _idle(connections: Iterable[C]) -> C | None:
    """The one that is idle for longest."""
    return min((one for one in connections if one.idle), key=lambda one: one.due, default=None)


def party_of(peer: object) -> str:
    """The address of a socket's peer. For IPv6 it is the network /64: a host can use all addresses in it. Only this
    host has the loopback address."""
    host = str(peer[0]) if isinstance(peer, tuple) and peer else ""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    if address.is_loopback:
        return str(address)
    return f"{IPv6Address(int(address) >> 64 << 64)}/64"
