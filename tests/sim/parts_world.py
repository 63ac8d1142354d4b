"""The simulated world with quotas of some seeds: the admin gives Seeds the label that these pick, and takes it away.

What a seed has counts until it has closed its account because the quota was withdrawn. So nothing of what it held may
be granted elsewhere before.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from common.quota import account as accounts
from common.quota import fencing
from common.quota.account import Account
from seed.model.quota import Quota
from tests.sim import servers
from tests.sim.checks import Thing, Wish
from tests.sim.seed_side import Replica
from tests.sim.servers import ELSEWHERE, Source, Spec
from tests.sim.world import Site, World


class PartsWorld(World):
    of_seeds = True

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._closed: set[tuple[str, str]] = set()  # accounts, by seed and quota's uid
        super().__init__(*arguments, **options)

    def _is_picked(self, seed: str) -> bool:
        return not self.master.seeds.get(seed, "").endswith(ELSEWHERE)

    def _counts(self, spec: Spec, source: Source) -> bool:
        return self._is_picked(source.seed) and super()._counts(spec, source)

    def _applying(self, thing: Thing) -> list[Spec]:
        return super()._applying(thing) if self._is_picked(self._source(thing).seed) else []

    def there(self, site: Site, subject: str, without: Collection[str] = ()) -> dict[str, int]:
        return super().there(site, subject, without) if self._is_picked(site.name) else {}

    def _still_limiting(self, replica: Replica, there: set[str]) -> set[str]:
        """A replica that was paused may have heard meanwhile that one is withdrawn."""
        return there & set(replica.view.limits.values())

    def _look_at_blocks(self, wish: Wish, site: Site, replica: Replica, quotas: list[Quota]) -> None:
        super()._look_at_blocks(wish, site, replica, self._binding(wish, site, quotas))

    def _binding(self, wish: Wish, site: Site, quotas: list[Quota]) -> list[Quota]:
        """Not those of a closed account. A replica that has not heard yet admits from its block for a moment. That does
        not count before the account is opened again, which waits for longer."""
        found = super()._binding(wish, site, quotas)
        return [quota for quota in found if (site.name, quota.key.uid) not in self._closed]

    def relabel(self, seed: str) -> None:
        state = self.master.seeds.get(seed)
        if state is None or state == "Lost":
            return
        if self._is_picked(seed):
            self.master.write_seed(seed, f"{state}{ELSEWHERE}")
        else:
            self.truth.excuse()  # what was created there meanwhile was not asked about
            self.master.write_seed(seed, state.removesuffix(ELSEWHERE))

    def repair(self) -> None:
        for seed in list(self.master.seeds):
            if not self._is_picked(seed):
                self.relabel(seed)
        super().repair()

    def _account_saved(self, api: servers.Seed, uid: str, before: Account | None, after: Account) -> None:
        super()._account_saved(api, uid, before, after)
        self._closed.discard((api.name, uid))
        if not fencing.is_closed(after):
            return
        withdrawn = any(copy.key.uid == uid and copy.withdrawn for copy, _ in api.copies.values())
        if not (withdrawn or (before is not None and _holds(before, after.incarnation))):
            return
        self._closed.add((api.name, uid))
        for thing in [thing for thing in self.things.values() if self._source(thing).seed == api.name]:
            for admitted in (thing.admitted, *(wish.after for wish in thing.wishes)):
                admitted.pop(uid, None)
            self.truth.recount(thing)


def _holds(account: Account, life: str) -> bool:
    """The write that ends this closes the account, also if its seed is picked again meanwhile."""
    return account.incarnation == life and any(accounts.held(account).values())
