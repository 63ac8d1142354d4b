"""Which addresses may be connected to where somebody else chooses the host."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

from common.runtime.flags import words

# This machine itself, its link (clouds tell a machine's credentials there), everybody, and nobody.
NEVER = tuple(
    map(
        ip_network,
        (
            *("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "255.255.255.255/32"),
            *("::/128", "::1/128", "fe80::/10", "ff00::/8"),
        ),
    )
)
_NAT64 = IPv6Network("64:ff9b::/96")
_COMPATIBLE = IPv6Network("::/96")


_GLOBAL_UNICAST = IPv6Network("2000::/3")


def listed(raw: str) -> tuple[str, ...]:
    """Of a flag. Raises ValueError."""
    found = words(raw)
    try:
        Networks(found)
    except ValueError as error:
        raise ValueError(f"{raw!r} is not a list of networks such as 10.0.0.0/8,fd00::/8: {error}") from None
    return found


class Networks:
    """What a flag names, and nothing else. If it names nothing: every address but those in NEVER."""

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        """Raises ValueError for what is no network."""
        self._allowed = tuple(map(ip_network, allowed))

    def allows(self, address: str) -> bool:
        """`address`: as a socket is connected to it. Raises ValueError for what is no address."""
        found = _parsed(address)
        if self._allowed:
            return self.names(address)
        return not any(each in network for each in (found, *_carried(found)) for network in NEVER)

    def names(self, address: str) -> bool:
        """Raises ValueError for what is no address."""
        found = _parsed(address)
        return any(found in network for network in self._allowed)


class PublicNetworks(Networks):
    """Public addresses, and what a flag names beside."""

    def allows(self, address: str) -> bool:
        found = _parsed(address)
        return self.names(address) or all(_is_public(each) for each in (found, *_carried(found)))


def _parsed(address: str) -> IPv4Address | IPv6Address:
    found = ip_address(address)
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return mapped if mapped is not None else found


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    """Python's `is_global` calls a multicast address global, and unassigned ones of IPv6."""
    if isinstance(address, IPv6Address) and address not in _GLOBAL_UNICAST:
        return address in _NAT64  # what it carries is looked at by itself
    return address.is_global and not address.is_multicast


def _carried(address: IPv4Address | IPv6Address) -> list[IPv4Address]:
    """The addresses of IPv4 to which one of IPv6 may be translated on its way."""
    if isinstance(address, IPv4Address):
        return []
    found = [IPv4Address(int(address) & 0xFFFFFFFF)] if address in _NAT64 or address in _COMPATIBLE else []
    if address.sixtofour is not None:
        found.append(address.sixtofour)
    if address.teredo is not None:
        found.extend(address.teredo)
    return found
