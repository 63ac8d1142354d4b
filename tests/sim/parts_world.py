"""The simulated world with quotas of some seeds: the admin gives Seeds the label that these pick, and takes it away.

What a seed has counts until it has closed its account because the quota was withdrawn. So nothing of what it held may
be granted elsewhere before.
"""

from __future__ import annotations

from collections.abc import Collection

from common.quota import fencing
from common.quota.account import Account
from tests.sim import servers
from tests.sim.checks import Thing
from tests.sim.seed_side import Replica
from tests.sim.servers import ELSEWHERE, Source, Spec
from tests.sim.world import Site, World


class PartsWorld(World):
    of_seeds = True

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
        withdrawn = any(copy.key.uid == uid and copy.withdrawn for copy, _ in api.copies.values())
        if not withdrawn or not fencing.is_closed(after):
            return
        for thing in [thing for thing in self.things.values() if self._source(thing).seed == api.name]:
            for admitted in (thing.admitted, *(wish.after for wish in thing.wishes)):
                admitted.pop(uid, None)
            self.truth.recount(thing)
