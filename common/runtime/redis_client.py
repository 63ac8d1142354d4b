"""A seed's Redis: how it is spoken to, and that nobody waits for it too long.

All keys of a seed share one hash tag, so all are in one slot: also of a Cluster only one server matters, the slot's
owner. Whoever it is (the server of the URL, the primary that Sentinels name, the slot's owner) is spoken to by a plain
client without retries; where it moved is looked up again after every error that a move may explain, and by `look_up`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Iterable
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.connection import BlockingConnectionPool, Connection, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.credentials import CredentialProvider
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError

from common.runtime.redis_access import Address, RedisAccess, RedisUrl

log = logging.getLogger(__name__)

SOCKET_TIMEOUT = 0.8  # seconds for a connection, and for an answer
CALL_TIMEOUT = 1.2  # ... for all of a call; a webhook call has three
ASK_TIMEOUT = 0.5  # ... for one Sentinel or cluster member to say who the primary is
CONNECTIONS = 16
IDLE_CHECK = 5  # seconds after which an idle connection is tried before it is used


class RedisUnavailableError(Exception):
    """The outcome is unknown: the call may have been carried out."""


class _Credentials(CredentialProvider):
    def __init__(self, access: RedisAccess) -> None:
        self._access = access

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        password = self._access.password
        file = self._access.password_file
        if file is not None:
            try:
                password = file.read_text().strip()
            except (OSError, UnicodeDecodeError) as error:
                raise AuthenticationError(f"password file {file}: {type(error).__name__}") from None
        return (self._access.username, password) if self._access.username else (password,)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        return self.get_credentials()


def _credentials(access: RedisAccess) -> _Credentials | None:
    return _Credentials(access) if access.username or access.password or access.password_file else None


class MissingFunctionError(Exception):
    """The server does not know the function that was called: nothing was done."""


class Primary:
    """`call` reaches whoever owns `tag` at this moment."""

    def __init__(self, url: RedisUrl, access: RedisAccess, tag: str) -> None:
        self._url = url
        self._access = access
        self._slot = key_slot(tag.encode())
        self._address: Address | None = url.hosts[0] if url.topology == "single" else None
        self._client: Redis | None = None
        self._client_address: Address | None = None
        self._looking = asyncio.Lock()
        self._closing: set[asyncio.Task[None]] = set()

    async def call(self, *words: str | bytes) -> object:
        """One command's raw answer. Raises RedisUnavailableError, MissingFunctionError."""
        client: Redis | None = None
        task = asyncio.current_task()
        assert task is not None, "it runs in a task"
        cancelled = task.cancelling()
        try:
            async with asyncio.timeout(CALL_TIMEOUT):
                client = await self.client()
                answer: object = await client.execute_command(*words)  # type: ignore[no-untyped-call]
                return answer
        except ResponseError as error:
            if "Function not found" in str(error):
                raise MissingFunctionError(str(error)) from None
            self._moved(client)
            raise _unavailable(error) from None
        except (RedisError, OSError, TimeoutError) as error:
            self._moved(client)
            raise _unavailable(error) from None
        finally:
            if task.cancelling() > cancelled:  # the client library may drop a cancellation
                raise asyncio.CancelledError

    async def client(self) -> Redis:
        """Connected to the primary as it is known. Raises RedisError, OSError, TimeoutError."""
        if self._client is not None and self._client_address == self._address is not None:
            return self._client
        async with self._looking:
            if self._address is None:
                self._address = await self._find()
            return self._use(self._address)

    def is_current(self, client: Redis) -> bool:
        return client is self._client

    async def look_up(self) -> None:
        """Ask anew who it is: an old primary that was replaced may still answer. Raises RedisUnavailableError."""
        if self._url.topology == "single":
            return
        try:
            async with asyncio.timeout(CALL_TIMEOUT), self._looking:
                self._address = await self._find()
        except (RedisError, OSError, TimeoutError) as error:
            raise _unavailable(error) from None

    async def close(self) -> None:
        if self._client is not None:
            self._close_later(self._client)
            self._client = None
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _moved(self, client: Redis | None) -> None:
        """After an error: perhaps another is the primary now."""
        if self._url.topology != "single" and (client is None or client is self._client):
            self._address = None

    def _use(self, address: Address) -> Redis:
        if self._client is not None and self._client_address == address:
            return self._client
        if self._client is not None:
            self._close_later(self._client)
        log.info("redis", extra={"host": address[0], "port": address[1]})
        self._client = self._connect(address, _credentials(self._access), self._url.database)
        self._client_address = address
        return self._client

    def _close_later(self, client: Redis) -> None:
        task = asyncio.create_task(client.aclose(), name="redis connections")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _find(self) -> Address:
        if self._url.topology == "single":
            return self._url.hosts[0]
        ask = self._ask_sentinel if self._url.topology == "sentinel" else self._ask_cluster
        answers, errors = await _all(ask(host) for host in self._url.hosts)
        if not answers:
            raise RedisConnectionError("; ".join(errors) or "nobody knows the primary")
        # One that is cut off from the others may still name the old one.
        return Counter(answers).most_common(1)[0][0]

    async def _ask_sentinel(self, host: Address) -> Address:
        words = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._url.service)
        try:
            answer = await self._once(host, None, *words)
        except AuthenticationError:  # this Sentinel wants a password, others are called without any
            answer = await self._once(host, _credentials(self._access), *words)
        match answer:
            case [bytes() as name, bytes() as port]:
                return name.decode(), int(port)
        raise RedisConnectionError(f"sentinel {host[0]}:{host[1]} knows no {self._url.service!r}")

    async def _ask_cluster(self, host: Address) -> Address:
        answer = await self._once(host, _credentials(self._access), "CLUSTER", "SHARDS")
        for shard in answer if isinstance(answer, list) else ():
            facts = _pairs(shard)
            slots, nodes = facts.get("slots"), facts.get("nodes")
            if not isinstance(slots, list) or not isinstance(nodes, list):
                continue
            bounds = [int(bound) for bound in slots]
            if any(low <= self._slot <= high for low, high in zip(bounds[::2], bounds[1::2], strict=True)):
                for node in map(_pairs, nodes):
                    if node.get("role") == b"master":
                        return self._node(node, host)
        raise RedisConnectionError(f"{host[0]}:{host[1]} knows no owner of slot {self._slot}")

    def _node(self, node: dict[str, object], asked: Address) -> Address:
        port = node.get("tls-port" if self._url.tls else "port")
        name = node.get("endpoint")
        if not isinstance(port, int):
            raise RedisConnectionError(f"{asked[0]}:{asked[1]} names no port of slot {self._slot}'s owner")
        return (name.decode() if isinstance(name, bytes) and name not in (b"", b"?") else asked[0]), port

    async def _once(self, host: Address, credentials: _Credentials | None, *words: str) -> object:
        client = self._connect(host, credentials, 0)
        try:
            async with asyncio.timeout(ASK_TIMEOUT):
                answer: object = await client.execute_command(*words)  # type: ignore[no-untyped-call]
        finally:
            await client.aclose()
        return answer

    def _connect(self, address: Address, credentials: _Credentials | None, database: int) -> Redis:
        options: dict[str, Any] = {
            "host": address[0],
            "port": address[1],
            "db": database,
            "credential_provider": credentials,
            "socket_timeout": SOCKET_TIMEOUT,
            "socket_connect_timeout": SOCKET_TIMEOUT,
            "retry": Retry(NoBackoff(), 0),  # whoever called decides again from what is true then
            "retry_on_error": [],
            "health_check_interval": IDLE_CHECK,
            "protocol": 2,
            "driver_info": None,
        }
        if self._url.tls:
            options |= {
                "ssl_ca_certs": _text(self._access.ca_file),
                "ssl_certfile": _text(self._access.certificate_file),
                "ssl_keyfile": _text(self._access.key_file),
                "ssl_check_hostname": True,
            }
        pool = BlockingConnectionPool(
            max_connections=CONNECTIONS,
            timeout=SOCKET_TIMEOUT,
            connection_class=SSLConnection if self._url.tls else Connection,
            **options,
        )
        return Redis.from_pool(pool)


async def _all(asking: Iterable[Awaitable[Address]]) -> tuple[list[Address], list[str]]:
    """What each answered, and why the others did not."""
    ended = await asyncio.gather(*asking, return_exceptions=True)
    answers, errors = [], []
    for answer in ended:
        if isinstance(answer, tuple):
            answers.append(answer)
        elif isinstance(answer, RedisError | OSError | TimeoutError):
            errors.append(str(answer))
        else:
            raise answer
    return answers, errors


def _pairs(flat: object) -> dict[str, object]:
    """A map as RESP2 has it: names and values in turn."""
    if not isinstance(flat, list):
        return {}
    return {name.decode(): value for name, value in zip(flat[::2], flat[1::2], strict=False) if isinstance(name, bytes)}


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _unavailable(error: Exception) -> RedisUnavailableError:
    if isinstance(error, TimeoutError):
        return RedisUnavailableError(f"redis: no answer within {CALL_TIMEOUT:g} s")
    kind = "not let in: " if isinstance(error, AuthenticationError | NoPermissionError) else ""
    return RedisUnavailableError(f"redis: {kind}{error}")
