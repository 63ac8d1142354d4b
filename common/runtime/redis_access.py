"""Where a seed's Redis is, and how to be let in. The client library is loaded by who speaks to one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

Address = tuple[str, int]

_SCHEME = re.compile(r"redis(s?)(?:\+(sentinel|cluster))?")


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """Where the Redis is. `topology`: "single", "sentinel" or "cluster"; `service`: its name at Sentinels."""

    topology: str
    tls: bool
    hosts: tuple[Address, ...]
    service: str = ""
    database: int = 0


def redis_url(raw: str) -> RedisUrl:
    """redis://HOST[:PORT][/DB], redis+sentinel://HOST[:PORT],.../SERVICE[/DB], redis+cluster://HOST[:PORT],...

    With rediss in place of redis over TLS. Raises ValueError, whose text never holds what may be a password.
    """
    if "@" in raw:
        raise ValueError("a URL without credentials is needed: they have settings of their own")
    scheme, separator, rest = raw.partition("://")
    match = _SCHEME.fullmatch(scheme)
    if match is None or not separator or any(mark in rest for mark in "?#"):
        raise ValueError(f"{raw!r} is not a URL such as redis://host:6379, rediss://host or redis+sentinel://host/name")
    topology = match[2] or "single"
    hosts, *path = rest.rstrip("/").split("/")
    addresses = tuple(_address(host, 26379 if topology == "sentinel" else 6379, raw) for host in hosts.split(","))
    service = path.pop(0) if topology == "sentinel" and path else ""
    database = path.pop(0) if path and topology != "cluster" else "0"
    if path or not database.isdecimal() or (topology == "sentinel" and not service):
        raise ValueError(f"{raw!r}: a Sentinel URL ends with /SERVICE, others with nothing or a database's number")
    if topology == "single" and len(addresses) > 1:
        raise ValueError(f"{raw!r} names several servers: write redis+sentinel:// or redis+cluster://")
    return RedisUrl(topology, bool(match[1]), addresses, service, int(database))


def _address(text: str, port: int, raw: str) -> Address:
    parts = urlsplit(f"//{text}")
    try:
        found = parts.port
    except ValueError:
        found = 0
    if not parts.hostname or found == 0:
        raise ValueError(f"{raw!r}: {text!r} is not an address such as host:{port}")
    return parts.hostname, found or port


@dataclass(frozen=True, kw_only=True)
class RedisAccess:
    """How to be let in. The password's file is read again for each connection, so that it can be changed."""

    username: str = ""
    password: str = ""
    password_file: Path | None = None
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None

    def __repr__(self) -> str:
        return f"RedisAccess(username={self.username!r})"
