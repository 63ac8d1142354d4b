"""The simulated world with guarantees: three projects of one organization, of which one or two are kept something.

The amounts are part of the organization's limits here, under the names of the accounts' counters. All that is checked
of a quota is checked of all counters of a resource together. Beside that, what siblings use is checked, once what is
guaranteed is in force. Clusters go from one project to another.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import msgspec

from common.quota import account as accounts
from common.quota import escrow, guarantees, resources
from common.quota.account import Account, Grant
from common.quota.escrow import MasterLedger, Report
from common.quota.resources import ResourceList
from seed.admission.refusal import Refusal
from seed.model.quota import Quota
from tests.sim.checks import Thing, Told, Truth, Wish
from tests.sim.master_side import Usage
from tests.sim.seed_side import WEBHOOK_TIMEOUT, Replica
from tests.sim.servers import EVERYBODY, Source
from tests.sim.world import FRESH, Site, World

WITHOUT = ("rollouts",)
CLUSTERS = 3  # of each seed: one of each project


def merged_account(account: Account) -> Account:
    granted, returned = guarantees.merged(account.granted), guarantees.merged(account.returned)
    return msgspec.structs.replace(account, granted=granted, returned=returned)


def merged_ledger(ledger: MasterLedger) -> MasterLedger:
    seeds = {
        seed: msgspec.structs.replace(
            holding, granted=guarantees.merged(holding.granted), returned=guarantees.merged(holding.returned)
        )
        for seed, holding in ledger.seeds.items()
    }
    return msgspec.structs.replace(ledger, seeds=seeds)


class GuaranteesTruth(Truth):
    """Of all counters together, and of what siblings use."""

    def __init__(self, things: Mapping[str, Thing], project_of: Callable[[str], str]) -> None:
        super().__init__(things)
        self._project_of = project_of
        self.guaranteed: dict[str, ResourceList] = {}  # by quota uid: the amounts by counter
        self.shared: dict[str, dict[str, int]] = {}  # ... the most that may be used beyond them, in force
        self.by_counter: dict[str, MasterLedger] = {}
        self.raw: dict[tuple[str, str], Account] = {}
        self.kept: ResourceList = {}  # what is guaranteed to others, as the one that refuses knows it
        self.in_force = 0

    def quota(self, uid: str, limits: ResourceList) -> None:
        if limits != self.limits.get(uid, {}) | self.guaranteed.get(uid, {}):
            self.shared.pop(uid, None)
        self.guaranteed[uid] = guarantees.only(limits)
        super().quota(uid, guarantees.plain(limits))

    def tighten(self, uid: str) -> None:
        super().tighten(uid)
        ledger, given = self.by_counter.get(uid), self.guaranteed.get(uid, {})
        if ledger is None or not given or uid in self.shared:
            return
        outstanding = escrow.outstanding(ledger)
        most = guarantees.of_counters({**self.limits[uid], **given})
        of_resources = {guarantees.resource(name) for name in given}
        granted = all(outstanding.get(name, 0) <= most[name] for name in (*of_resources, *given))
        if granted and all(self._charged(uid, seed, name) for seed in ledger.seeds for name in of_resources):
            self.shared[uid] = {name: most[name] for name in of_resources}
            self.in_force += 1
            self.check(uid)

    def moved(self) -> None:
        """What a cluster has is another project's now, and what was kept for the one may be used by the other."""
        self.shared.clear()

    def _charged(self, uid: str, seed: str, resource: str) -> bool:
        """All that is used there is within what is held for it."""
        account = self.raw.get((uid, seed))
        if account is None or not all(self._knows(uid, account, key) for key in accounts.sources(account)):
            return False
        held, projects = accounts.held(account), guarantees.of_projects(account)
        charged = sum(amount for name, amount in guarantees.charges(projects, held).items() if name.endswith(resource))
        return accounts.use(account).get(resource, 0) - charged <= held.get(resource, 0)

    def _knows(self, uid: str, account: Account, source: str) -> bool:
        project, owner = self._project_of(source), account.owners.get(source)
        given = {guarantees.parts(name)[0] for name in self.guaranteed[uid]}
        return owner == project or (owner is None and project not in given)

    def beyond(self, uid: str, resource: str) -> int:
        """What projects have beyond what is guaranteed to them."""
        used: dict[str, int] = {}
        for thing in self._things.values():
            if amount := thing.cost.get(uid, {}).get(resource, 0):
                project = self._project_of(thing.source)
                used[project] = used.get(project, 0) + amount
        given = self.guaranteed[uid]
        return sum(max(amount - given.get(guarantees.counter(of, resource), 0), 0) for of, amount in used.items())

    def check(self, uid: str) -> None:
        super().check(uid)
        for resource, most in self.shared.get(uid, {}).items():
            if (beyond := self.beyond(uid, resource)) > most:
                raise self._broken(f"{beyond} {resource} of {uid} admitted beyond guarantees, {most} is not guaranteed")

    def refused(self, uid: str, told: Told, need: ResourceList, causes: Iterable[tuple[str, str]]) -> None:
        if self.kept:
            told = Told(resources.add(told.own, self.kept), told.elsewhere)
        super().refused(uid, told, need, causes)

    def obeyed(self, uid: str, seed: str, before: Account, after: Account, limits: Mapping[str, int]) -> None:
        super().obeyed(uid, seed, before, after, guarantees.plain(limits))

    def account_saved(self, seed: str, uid: str, before: Account | None, after: Account) -> None:
        super().account_saved(seed, uid, merged_account(before) if before else None, merged_account(after))
        self.raw[uid, seed] = after  # `known` was told what is merged

    def known(self, uid: str, seed: str, account: Account) -> None:
        self.raw[uid, seed] = account
        super().known(uid, seed, merged_account(account))

    def ledger_saved(self, uid: str, before: MasterLedger | None, after: MasterLedger) -> None:
        self.by_counter[uid] = after
        super().ledger_saved(uid, merged_ledger(before) if before else None, merged_ledger(after))

    def reported(self, seed: str, uid: str, said: Report) -> None:
        granted, returned = guarantees.merged(said.granted), guarantees.merged(said.returned)
        super().reported(seed, uid, msgspec.structs.replace(said, granted=granted, returned=returned))

    def shown(self, uid: str, seed: str, grant: Grant) -> None:
        super().shown(uid, seed, msgspec.structs.replace(grant, granted=guarantees.merged(grant.granted)))


class GuaranteesWorld(World):
    projects = "abc"
    truth: GuaranteesTruth

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._asked_for: dict[tuple[str, str], dict[str, float]] = {}  # by replica and source: projects, and when
        super().__init__(*arguments, **options)

    def _make_truth(self) -> Truth:
        return GuaranteesTruth(self.things, lambda source: self.site_of(source).ever[source].project)

    def _make_quotas(self) -> None:
        rng, swarm = self.rng, self.swarm
        for name in WITHOUT:
            swarm.rates.pop(name, None)
        swarm.seeds, swarm.clusters, swarm.two_quotas = max(swarm.seeds, 2), CLUSTERS, False
        for project in self.projects:
            self.master.write_project(project, EVERYBODY)
        units = rng.randint(4, 12)
        limits = {"cpu": units} if rng.random() < 0.5 else {"cpu": units, "memory": 2 * units}
        for project in "a" if rng.random() < 0.6 else "ab":
            for name in limits if rng.random() < 0.3 else ("cpu",):
                limits = limits | {guarantees.counter(project, name): rng.randint(1, max(units // 2, 1))}
        self._make_quota("all", EVERYBODY, fitting(limits))

    def add_cluster(self, site: Site, key: str, project: str) -> None:
        number = key.rpartition("/c")[2]
        super().add_cluster(site, key, self.projects[int(number) - 1] if number in ("1", "2", "3") else project)

    def add_site(self, name: str) -> Site:
        site = super().add_site(name)
        for project, organization in self.master.projects.items():
            site.api.write_project(project, organization)
        return site

    def _with_owners(self, account: Account, site: Site) -> Account:
        given = {guarantees.parts(name)[0] for name in account.granted if name.startswith(guarantees.PREFIX)}
        owners = {key: source.project for key, source in site.sources.items() if source.project in given}
        return msgspec.structs.replace(account, owners=owners)

    def _project_of(self, replica: Replica, source: Source) -> str:
        cluster = replica.view.cluster_cache.user_clusters.store.get(source.key)
        project = cluster.spec.project if cluster is not None else source.project
        self._asked_for.setdefault((replica.name, source.key), {})[project] = self.now
        return project

    def change_limits(self, name: str, limits: ResourceList) -> None:
        super().change_limits(name, fitting(limits))

    def move(self, site: Site, source: Source) -> None:
        """An admin gives the cluster to another project."""
        source.project = self.rng.choice(self.projects)
        if self.tracing:
            self.note(f"  {source.key} is of project {source.project}")
        self.truth.moved()
        site.api.write_cluster(source.key, source.project)

    def restore_master(self, snapshot: tuple[Any, ...]) -> None:
        super().restore_master(snapshot)
        self.truth.by_counter = self.truth.ledgers
        self.truth.ledgers = {uid: merged_ledger(ledger) for uid, ledger in self.truth.ledgers.items()}

    def repair(self) -> None:
        super().repair()
        for site in self.sites.values():
            for key, source in site.sources.items():
                if site.api.clusters.get(key) not in (None, source.project):
                    site.api.write_cluster(key, source.project)

    def _judge(self, wish: Wish, replica: Replica, no: Refusal, quotas: list[Quota], since: tuple[float, int]) -> None:
        asked_for = self._asked_for.get((replica.name, wish.thing.source), {})
        projects = [project for project, at in asked_for.items() if at >= self.now - 2 * WEBHOOK_TIMEOUT]
        quota = next(quota for quota in quotas if quota.name == no.quota)
        self.truth.kept = {}
        for at, use in replica.told.get(quota.key.uid, ()):
            if isinstance(use, Usage) and at >= since[0] - FRESH:
                for project in projects:
                    others = [each for each in use.guarantees if each.project != project]
                    kept = resources.total(each.unused for each in others)
                    self.truth.kept = resources.maximum(self.truth.kept, kept)
        super()._judge(wish, replica, no, quotas, since)
        self.truth.kept = {}

    def room(self, project: str, names: Collection[str] | None = None) -> int | None:
        """With what is kept for others."""
        room: int | None = None
        for spec in self.master.quotas.values():
            plain, given = guarantees.plain(spec.limits), guarantees.only(spec.limits)
            for name, limit in plain.items():
                if names is not None and name not in names:
                    continue
                left = limit
                for each in self.projects:
                    there = sum(
                        machine.resources.get(name, 0)
                        for site in self.sites.values()
                        for source in site.sources.values()
                        if source.project == each
                        for machine in source.machines.values()
                    )
                    kept = given.get(guarantees.counter(each, name), 0) if each != project else 0
                    left -= max(there, kept)
                room = max(left, 0) if room is None else min(room, max(left, 0))
        return room


def fitting(limits: ResourceList) -> ResourceList:
    """Without guarantees of what has no limit, and with no more than that."""
    found, left = dict(guarantees.plain(limits)), dict(guarantees.plain(limits))
    for name, amount in guarantees.only(limits).items():
        resource = guarantees.resource(name)
        if resource in left:
            found[name] = min(amount, left[resource])
            left[resource] -= found[name]
    return found
