"""The store that the configuration names, with what keeps it from being used while another is in force."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from common.kube.client.api_client import Cluster
from common.runtime.flags import CommonOptions, Flag, UsageError, choice, path, text
from common.runtime.redis_access import RedisAccess, RedisUrl, redis_url
from seed.ledger.apiserver import ApiServerStore
from seed.ledger.store import Store
from seed.ledger.store_generation import API_SERVER, REDIS, InForce, StoreGeneration, fence_all

if TYPE_CHECKING:
    from seed.ledger.redis import RedisStore

PASSWORD_VARIABLE = "SEEDQUOTA_REDIS_PASSWORD"  # noqa: S105 (its name; no flag, which everybody on the machine could see)


@dataclass(frozen=True, kw_only=True)
class LedgerOptions(CommonOptions):
    ledger_store: Annotated[
        str,
        Flag(
            choice(API_SERVER, REDIS),
            "where accounts are kept, apiserver or redis; if it is changed on all replicas, the accounts move, and are "
            "fenced meanwhile",
        ),
    ] = API_SERVER
    redis_url: Annotated[
        RedisUrl | None,
        Flag(
            redis_url,
            "redis://host:6379[/db], redis+sentinel://host:26379,host:26379/service or redis+cluster://host:6379,...; "
            "rediss with TLS; without credentials; replicas also share there the sizes that clouds reported, with "
            "either ledger store",
        ),
    ] = None
    redis_username: Annotated[str | None, Flag(text, "the ACL user; not set: the default user")] = None
    redis_password_file: Annotated[
        Path | None,
        Flag(path, f"file with the password, read for each connection; without it {PASSWORD_VARIABLE} is the password"),
    ] = None
    redis_ca_file: Annotated[
        Path | None, Flag(path, "certificate authorities for TLS (PEM); not set: those of the system")
    ] = None
    redis_certificate_file: Annotated[Path | None, Flag(path, "client certificate (PEM), if Redis requires one")] = None
    redis_key_file: Annotated[Path | None, Flag(path, "private key of the client certificate (PEM)")] = None

    def problem(self) -> str | None:
        if self.ledger_store == REDIS and self.redis_url is None:
            return "--ledger-store redis needs a Redis: --redis-url (or SEEDQUOTA_REDIS_URL) is missing"
        return None


def redis_access(options: LedgerOptions) -> RedisAccess:
    """Raises UsageError."""
    for needed in (options.redis_ca_file, options.redis_certificate_file, options.redis_key_file):
        if needed is not None and not needed.is_file():
            raise UsageError(f"{needed} does not exist")
    return RedisAccess(
        username=options.redis_username or "",
        password=os.environ.get(PASSWORD_VARIABLE, ""),
        password_file=options.redis_password_file,
        ca_file=options.redis_ca_file,
        certificate_file=options.redis_certificate_file,
        key_file=options.redis_key_file,
    )


class ChosenStore:
    """`store` is for use as soon as `run` runs. `leads` says whether this replica leads the seed."""

    def __init__(
        self, options: LedgerOptions, cluster: Cluster, seed: str, leads: Callable[[], bool], lease: int
    ) -> None:
        """`lease` is the duration of the leader's lease in seconds. Raises UsageError."""
        self._api = ApiServerStore(cluster, options.namespace)
        self._redis: RedisStore | None = None
        self._generation = StoreGeneration(
            cluster,
            options.namespace,
            options.ledger_store,
            run_id=self._run_id,
            fence=self._fence,
            leads=leads,
            lease_duration=lease,
        )
        kept: Store = self._api
        if options.ledger_store == REDIS:
            kept = self._redis = self._redis_store(options, seed)
            self._generation.on_change(self._redis.refresh)
        self.store: Store = InForce(kept, self._generation)

    def not_ready(self) -> str | None:
        """Fits a check of /readyz."""
        if self._redis is None and self._api.reflector.error is not None:
            return self._api.reflector.error
        return self._generation.not_ready()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._generation.run(), name="store generation")
            group.create_task((self._api if self._redis is None else self._redis).run(), name="ledger")

    async def close(self) -> None:
        if self._redis is not None:
            await self._redis.close()

    async def _run_id(self) -> str:
        # The API server does not forget what it acknowledged: its store run id is always empty.
        return "" if self._redis is None else await self._redis.run_id()

    async def _fence(self) -> None:
        await fence_all(self._api)

    def _redis_store(self, options: LedgerOptions, seed: str) -> RedisStore:
        from seed.ledger.redis import RedisStore  # noqa: PLC0415 (loads the client library, which few need)

        assert options.redis_url is not None, "`problem` has seen to it"
        return RedisStore(
            options.redis_url,
            redis_access(options),
            seed,
            held=self._generation.held,
            on_elsewhere=self._generation.look_again,
        )
