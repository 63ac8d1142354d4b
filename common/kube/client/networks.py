"""Which addresses may be connected to where somebody else chooses the host."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

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


class Networks:
    """What a flag names, and nothing else. If it names nothing: every address but those in NEVER."""

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        """Raises ValueError for what is no network."""
        self._allowed = tuple(map(ip_network, allowed))

    def allows(self, address: str) -> bool:
        """`address`: as a socket is connected to it. Raises ValueError for what is no address."""
        found = ip_address(address)
        if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        if self._allowed:
            return any(found in network for network in self._allowed)
        return not any(each in network for each in (found, *_carried(found)) for network in NEVER)


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
