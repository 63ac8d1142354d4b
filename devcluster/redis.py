"""Redis servers on this machine: single ones, replicas, Sentinels and cluster members, with TLS and users on demand.

The executable is looked for on PATH; where it is missing it comes from Debian's registry, unpacked into the cache.
"""

from __future__ import annotations

import asyncio
import os
import platform
import re
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from devcluster import certificates, debian
from devcluster.binaries import BuildError, cache_directory
from devcluster.network import free_port
from devcluster.processes import ProcessGroup
from devcluster.servers import Server

LONG = 60.0  # seconds: a busy machine is no server that is down

_AT_LEAST = 7  # functions came with it
_PACKAGES = ("redis-server", "redis-tools", "libjemalloc2", "liblzf1")


@dataclass(frozen=True)
class Executable:
    """What runs redis-server: the path, and where its libraries are if it was fetched."""

    path: Path
    libraries: Path | None = None

    @property
    def command(self) -> list[str]:
        if self.libraries is None:
            return [str(self.path)]
        return ["env", f"LD_LIBRARY_PATH={self.libraries}", str(self.path)]


def find(environ: Mapping[str, str] = os.environ) -> Executable | None:
    """A redis-server of version 7 or later: on PATH, else fetched before."""
    if on_path := shutil.which("redis-server", path=environ.get("PATH", "")):
        found = Executable(Path(on_path))
        if _version(found) >= _AT_LEAST:
            return found
    root = _cached(environ)
    fetched = Executable(root / "usr/bin/redis-server", debian.library_path(root))
    return fetched if _version(fetched) >= _AT_LEAST else None


async def ensure() -> Executable:
    """redis-server, fetched if it must be. Raises BuildError, which says why there is none."""
    found = find()
    return found if found is not None else await asyncio.to_thread(_fetch)


def _cached(environ: Mapping[str, str]) -> Path:
    return cache_directory(environ) / f"redis-{platform.system()}-{platform.machine()}".lower()


def _version(executable: Executable) -> int:
    """The major version; 0 if it cannot be run."""
    try:
        command = [*executable.command, "--version"]
        said = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return 0
    found = re.search(r"\bv=(\d+)\.", said)
    return int(found[1]) if found else 0


def _fetch() -> Executable:
    """Debian's packages, without root: only apt's lists must be there."""
    if missing := debian.missing_tools():
        raise BuildError(
            f"redis-server {_AT_LEAST} is not on PATH, and without {' and '.join(missing)} it is not fetched"
        )
    target = _cached(os.environ)
    debian.unpack(_PACKAGES, target, lambda: find() is not None)
    found = find()
    if found is None:
        raise BuildError(f"the redis-server that was fetched into {target} does not run here")
    return found


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a server runs. `persistence`: "none", "rdb" (only when asked to SAVE) or "aof" (every write, synced).

    `password` is the administrator's (the user "default"). `users` are lines of an ACL file: the default user's too.
    `more` are further settings as in redis.conf.
    """

    persistence: str = "none"
    password: str = ""
    users: Sequence[str] = ()
    tls: bool = False
    replica_of: RedisServer | None = None
    cluster: bool = False
    more: Mapping[str, str] = field(default_factory=dict)


class RedisServer(Server):
    """One redis-server with a directory of its own. `dump` is its snapshot file."""

    def __init__(
        self, name: str, executable: Executable, directory: Path, group: ProcessGroup, settings: Settings
    ) -> None:
        self.port = free_port()
        self.settings = settings
        self.data = directory / name
        self.data.mkdir(parents=True, exist_ok=True)
        self.dump = self.data / "dump.rdb"
        self.ca: Path | None = None
        options = {
            "bind": "127.0.0.1",
            "port": "0" if settings.tls else str(self.port),
            "dir": str(self.data),
            "save": '""',
            "appendonly": "yes" if settings.persistence == "aof" else "no",
            "appendfsync": "always",
            "repl-diskless-sync-delay": "0",
            **self._security(),
            **settings.more,
        }
        if settings.replica_of is not None:
            options |= {"replicaof": f"127.0.0.1 {settings.replica_of.port}"}
        if settings.cluster:
            options |= {"cluster-enabled": "yes", "cluster-node-timeout": f"{LONG * 1000:.0f}"}
        config = self.data / "redis.conf"
        lines = [f"{name} {value}\n" for name, value in options.items()]
        config.write_text("".join(lines))
        super().__init__(name, [*executable.command, str(config)], directory, group)

    @property
    def url(self) -> str:
        return f"{'rediss' if self.settings.tls else 'redis'}://127.0.0.1:{self.port}"

    async def command(self, *words: str) -> bytes:
        """One command as the server's own administrator, over a connection of its own; the raw answer.

        Raises OSError and, for an answer that is an error, RuntimeError.
        """
        tls = None
        if self.ca is not None:
            tls = ssl.create_default_context(cafile=str(self.ca))
        async with asyncio.timeout(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=tls, limit=2**26)
            try:
                if self.settings.password:
                    await _exchange(reader, writer, ["AUTH", self.settings.password])
                return await _exchange(reader, writer, list(words))
            finally:
                writer.close()

    def _security(self) -> dict[str, str]:
        options: dict[str, str] = {}
        if self.settings.password:
            options |= {"requirepass": self.settings.password, "masterauth": self.settings.password}
        if self.settings.users:
            acl = self.data / "users.acl"
            acl.write_text("".join(f"{line}\n" for line in self.settings.users))
            options |= {"aclfile": str(acl)}
            options.pop("requirepass", None)
        if self.settings.tls:
            made = certificates.serving(f"redis-{self.port}")
            self.ca = self.data / "ca.crt"
            for name, text in (("ca.crt", made.ca), ("tls.crt", made.certificate), ("tls.key", made.key)):
                (self.data / name).write_text(text)
            options |= {
                "tls-port": str(self.port),
                "tls-cert-file": str(self.data / "tls.crt"),
                "tls-key-file": str(self.data / "tls.key"),
                "tls-ca-cert-file": str(self.ca),
                "tls-auth-clients": "no",
            }
        return options

    async def _ready(self) -> bool:
        try:
            return b"loading:0" in await self.command("INFO", "persistence")
        except (OSError, RuntimeError, asyncio.IncompleteReadError):
            return False


class Sentinel(Server):
    """One Sentinel that watches `primary` under the name "ledger" and promotes on its own word: soon after the primary
    was silent for LONG, or for what `down_after` says."""

    def __init__(
        self, name: str, executable: Executable, directory: Path, group: ProcessGroup, primary: RedisServer
    ) -> None:
        self.port = free_port()
        config = directory / f"{name}.conf"
        config.write_text(
            f"bind 127.0.0.1\nport {self.port}\ndir {directory}\n"
            f"sentinel monitor ledger 127.0.0.1 {primary.port} 1\n"
            f"sentinel down-after-milliseconds ledger {LONG * 1000:.0f}\n"
            "sentinel failover-timeout ledger 4000\n"
        )
        if primary.settings.password:
            with config.open("a") as file:
                file.write(f"sentinel auth-pass ledger {primary.settings.password}\n")
        super().__init__(name, [*executable.command, str(config), "--sentinel"], directory, group)

    @property
    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:{self.port}/ledger"

    async def primary(self) -> int:
        """The port of the one that it holds for the primary."""
        return int((await self._ask("GET-MASTER-ADDR-BY-NAME", "ledger")).split()[-1])

    async def down_after(self, seconds: float) -> None:
        await self._ask("SET", "ledger", "down-after-milliseconds", f"{seconds * 1000:.0f}")

    async def _ask(self, *words: str) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            return await _exchange(reader, writer, ["SENTINEL", *words])
        finally:
            writer.close()

    async def _ready(self) -> bool:
        try:
            return await self.primary() > 0
        except (OSError, RuntimeError, asyncio.IncompleteReadError, ValueError, IndexError):
            return False


@asynccontextmanager
async def redis_group() -> AsyncIterator[ProcessGroup]:
    """Everything that is spawned in it is gone when the block ends, however it ends."""
    group = ProcessGroup()
    try:
        yield group
    finally:
        await asyncio.to_thread(group.close)


async def _exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, words: list[str]) -> bytes:
    encoded = [word.encode() for word in words]
    writer.write(b"*%d\r\n" % len(encoded) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in encoded))
    return await _answer(reader)


async def _answer(reader: asyncio.StreamReader) -> bytes:
    line = (await reader.readuntil(b"\r\n"))[:-2]
    kind, rest = line[:1], line[1:]
    if kind == b"-":
        raise RuntimeError(rest.decode())
    if kind == b"$":
        if rest == b"-1":
            return b""
        return (await reader.readexactly(int(rest) + 2))[:-2]
    if kind == b"*":
        return b"\n".join([await _answer(reader) for _ in range(int(rest))])
    return rest
