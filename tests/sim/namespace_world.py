"""The simulated world with quotas of kind namespaces alone: what there is lives in namespaces, whose labels move.

Two quotas select by a label each, so that a namespace may be in none, in one or in both. A thing counts as admitted by
a quota as long as its namespace stays in it. What comes in with its namespace was not admitted by that quota; as soon
as it has been counted everywhere it occupies the limit as if it had been (`tighten`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from common.api import label_selector
from common.api.label_selector import LabelSelector
from common.quota import escrow, resources
from common.quota.account import Account
from common.quota.resources import ResourceList
from seed.admission.refusal import Refusal
from seed.kinds.namespaces.configuration import desired, limits_of
from seed.kinds.namespaces.evaluators.namespaced import CREATE, UPDATE, NamespacedEvaluator, Write
from seed.kinds.namespaces.source import NamespacedSource
from seed.model.quota import Quota
from seed.model.selected_namespaces import METADATA_NAME, Exempt
from seed.model.source_key import SourceKey
from seed.registration.configuration import WebhookServer
from tests.sim import namespaces
from tests.sim.checks import Beside, Thing, Wish
from tests.sim.namespace_side import NamespaceLeader, NamespaceReplica, summed_anew
from tests.sim.namespaces import NamespacedCluster
from tests.sim.seed_side import WEBHOOK_TIMEOUT, Decided, Replica
from tests.sim.servers import LABELLED, PARTICIPANT, Copy, Machine, ObjectMeta, Source, Spec, label_of, uid_of
from tests.sim.world import SIZES, UNIT, Answered, Site, World

OLDEST = 28.0  # seconds that labels may be old by which a replica decides: 25 by its clock
REMEMBERED = 5.0  # seconds for which a replica gives all calls about one creation the same answer
MOST_NAMESPACES = 4
WITHOUT = ("rollouts", "projects", "restore_source")  # of Machines alone


@cache
def _configured(
    quotas: frozenset[tuple[str, bool, frozenset[str]]],
) -> Sequence[tuple[str, LabelSelector, frozenset[str]]]:
    """The webhooks in the configuration that a seed writes: the name, which namespaces, and which operations. The
    `quotas`: the label that each selects, whether it limits promises, and what it limits."""
    found = [
        SimpleNamespace(
            selector=LabelSelector(match_labels={label: ""}),
            promises=promises,
            of_objects=limits,
            scopes=(),
        )
        for label, promises, limits in sorted(quotas, key=str)
    ]
    server = WebhookServer(base_url="https://seed", token=lambda _kind: "token", ca_bundle=b"")
    limited = [limits_of(quota, quota.selector) for quota in cast("list[Any]", found)]
    written: list[Any] = desired(limited, server, "cluster", exempt=Exempt(), shared=False).webhooks
    return [
        (
            webhook["name"],
            msgspec.convert(webhook["namespaceSelector"], LabelSelector),
            frozenset(operation for rule in webhook["rules"] for operation in rule["operations"]),
        )
        for webhook in written
        if webhook["namespaceSelector"]  # the canary has none
    ]


class NamespaceWorld(World):
    replica_type = NamespaceReplica
    evaluator: NamespacedEvaluator[Any] = namespaces.PODS_EVALUATOR  # of the objects that cost
    make = staticmethod(namespaces.pod)
    subject = LABELLED  # begins that of a quota
    labels: Sequence[tuple[str, ...]] = (("a",), ("a",), ("b",), ("a", "b"), ("a", "b"), ())  # of a namespace

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._had: dict[str, float] = {}  # by source: until when an account had it that does not have it any more
        super().__init__(*arguments, **options)

    def _make_quotas(self) -> None:
        for name in WITHOUT:
            self.swarm.rates.pop(name, None)
        rng = self.rng
        self.overlapping = bool(self.swarm["overlapping"]) or rng.random() < 0.5
        for name in "ab" if self.swarm.two_quotas or rng.random() < 0.6 else "a":
            units = rng.randint(2, 10)
            limits = {"cpu": units}
            if rng.random() < 0.6:
                limits["memory"] = rng.randint(units, 2 * units)
            self._make_quota(name, self.subject + name, limits)

    def add_cluster(self, site: Site, key: str, project: str) -> None:
        cluster = NamespacedCluster(key, site.name, self, self.make)
        site.sources[key] = site.ever[key] = cluster
        for _ in range(self.rng.choice((1, 2, 2, 3))):
            self._make_namespace(cluster)
        site.api.write_cluster(key, PARTICIPANT)

    def _make_namespace(self, cluster: NamespacedCluster) -> str:
        name = f"n{self.token()}"
        cluster.label(name, self.rng.choice(self.labels))
        return name

    # What is selected ----------------------------------------------------------------------------------------------

    def _selects(self, spec: Spec, source: Source, namespace: str) -> bool:
        assert isinstance(source, NamespacedCluster), "there are no others here"
        return source.participates and self._picks(spec.subject, source.labelled(namespace))

    def _picks(self, subject: str, labels: Mapping[str, str]) -> bool:
        return label_of(subject) in labels

    def _applying(self, thing: Thing) -> list[Spec]:
        source = self._cluster(thing)
        inside = source.inside[thing.uid]
        quotas = self.master.quotas.values()
        return [spec for spec in quotas if self._selects(spec, source, inside) and spec.limits]

    def _cluster(self, thing: Thing) -> NamespacedCluster:
        source = self._source(thing)
        assert isinstance(source, NamespacedCluster), "there are no others here"
        return source

    def _counted(self, spec: Spec, source: NamespacedCluster) -> dict[str, int]:
        machines = source.machines.values()
        return resources.total(
            machine.resources
            for machine in machines
            if self._selects(spec, source, source.inside[machine.metadata.key])
        )

    def _used(self, spec: Spec, site: Site) -> dict[str, ResourceList]:
        clusters = [source for source in site.sources.values() if isinstance(source, NamespacedCluster)]
        return {
            SourceKey.of_namespaces(spec.key.uid, source.key): resources.only(self._counted(spec, source), spec.limits)
            for source in clusters
        }

    def _place(self, left: dict[str, dict[str, int]]) -> None:
        site = self.rng.choice(list(self.sites.values()))
        source = self.rng.choice(list(site.sources.values()))
        assert isinstance(source, NamespacedCluster), "there are no others here"
        size = self.rng.choice(SIZES)
        thing = Thing(f"{source.key}-{self.token()}", source.key)
        source.inside[thing.uid] = self.rng.choice(list(source.labels.present))
        applying = self._applying(thing)
        if any(resources.short(resources.only(size, spec.limits), left[spec.key.name]) for spec in applying):
            return
        admitted = {spec.key.uid: resources.only(size, spec.limits) for spec in applying}
        self._was_admitted(source, thing, size, admitted)
        self._take(left, applying, size)

    def there(self, site: Site, subject: str, without: Collection[str] = ()) -> dict[str, int]:
        total: dict[str, int] = {}
        for source in site.sources.values():
            if not isinstance(source, NamespacedCluster):
                continue
            for uid, machine in source.machines.items():
                picked = source.participates and self._picks(subject, source.labelled(source.inside[uid]))
                if picked and uid not in without:
                    for name, amount in machine.resources.items():
                        total[name] = total.get(name, 0) + amount
        return total

    def to_count(self, site: Site, copy: Copy, account: Account, without: Collection[str]) -> ResourceList:
        names = {*copy.limits, *account.granted}  # what was never limited is not read
        return resources.only(self.there(site, copy.subject, without=without), names)

    def room_of(self, source: Source) -> int | None:
        """In one of its namespaces, in which all is created from now on."""
        assert isinstance(source, NamespacedCluster), "there are no others here"
        if not source.filling:
            present = sorted(source.labels.present, key=lambda name: -len(source.labelled(name)))
            source.filling = present[0] if present else self._make_namespace(source)
        room: int | None = None
        for spec in self.master.quotas.values():
            if self._selects(spec, source, source.filling):
                there = resources.total(self.there(site, spec.subject) for site in self.sites.values())
                for name, limit in resources.only(spec.limits, UNIT).items():
                    left = max(limit - there.get(name, 0), 0)
                    room = left if room is None else min(room, left)
        return room

    # What users do -------------------------------------------------------------------------------------------------

    def create(self, site: Site, source: Source, size: ResourceList, replaces: Collection[str] = ()) -> Wish:
        thing = Thing(f"{source.key}-{self.token()}", source.key)
        self.things[thing.uid] = thing
        self._choose(source, thing)
        return self._wish(site, source, thing, size, size)

    def _choose(self, source: Source, thing: Thing) -> None:
        """A namespace for it; at times one that is made for it, with its labels."""
        assert isinstance(source, NamespacedCluster), "there are no others here"
        names = list(source.labels.present)
        if source.filling in names:
            source.inside[thing.uid] = source.filling
        elif not names or (len(names) < MOST_NAMESPACES and self.rng.random() < 0.05):
            source.inside[thing.uid] = self._make_namespace(source)
        else:
            source.inside[thing.uid] = self.rng.choice(names)

    def slip(self, source: Source, size: ResourceList) -> None:
        assert isinstance(source, NamespacedCluster), "there are no others here"
        if not source.labels.present:
            return
        thing = Thing(f"{source.key}-{self.token()}", source.key)
        thing.size, thing.generation = size, 1
        self.things[thing.uid] = thing
        self._choose(source, thing)
        source.write(None, Machine(ObjectMeta(uid_of(thing.uid), thing.uid, 1), size))
        self.truth.excuse()

    def _webhooks(self, source: Source, thing: Thing) -> list[str]:
        """... that the quotas of the seed ask for; or one for each selector, as in a configuration of an earlier
        release. Where none selects the namespace, it has been labelled a moment ago."""
        assert isinstance(source, NamespacedCluster), "there are no others here"
        inside, copies = source.inside[thing.uid], self.sites[source.seed].api.copies.values()
        labels = {**source.labelled(inside), METADATA_NAME: inside}
        if self.overlapping:
            selected = {label_of(copy.subject) for copy, _ in copies}
            return sorted(selected.intersection(labels)) or [""]
        operation = CREATE if thing.size is None else UPDATE
        quotas = frozenset(
            (label_of(copy.subject), seen.quota.promises, frozenset(copy.limits)) for copy, seen in copies
        )
        return [
            name
            for name, selector, operations in _configured(quotas)
            if operation in operations and label_selector.matches(selector, labels)
        ] or [""]

    def _asks(
        self,
        replica: Replica,
        source: Source,
        wish: Wish,
        there: set[str],
        answered: Answered,
    ) -> asyncio.Task[None]:
        assert isinstance(replica, NamespaceReplica), "there are no others here"
        assert isinstance(source, NamespacedCluster), "there are no others here"
        name, began = wish.thing.uid, self.now
        inside, generation = source.inside[name], wish.generation
        old = self.make(name, inside, wish.old, generation - 1) if wish.old is not None else None
        write: Write[Any] = Write(
            operation=CREATE if old is None else UPDATE,
            new=self.make(name, inside, wish.size, generation - 1),
            old=old,
            now=0.0,
        )
        before = self._known_to(replica, source, wish)
        reads: list[Beside] = []

        def heard(no: Refusal | None, quotas: list[Quota], decided: float, repeated: bool) -> None:
            since = source.labelled_since(inside, began - OLDEST)
            known = self._known_to(replica, source, wish)
            always = (uid for uid, of in known.items() if since and all(self._picks(of, labels) for labels in since))
            there.update(uid for uid in always if uid in before)
            if not repeated:
                wish.verdicts.append((no, reads))
                wish.decided[replica.name] = decided
            elif decided - wish.decided[replica.name] > REMEMBERED:
                self.fail(f"{wish.thing.uid} is answered by what was decided long ago")
            if no is None and not repeated:
                self._must_be_counted(replica, source, wish, quotas, began)
            wish.reads = next((found for told, found in reversed(wish.verdicts) if told is no), reads)
            answered(no, [quota for quota in quotas if resources.only(wish.need, quota.limits)], repeated)

        deadline = replica.loop.time() + 0.8 * WEBHOOK_TIMEOUT
        return replica.ask_in_namespace(
            source.key,
            self._evaluator_of(source, name),
            write,
            deadline,
            heard,
            lambda: reads.append(self._beside(wish.thing)),
        )

    def _must_be_counted(
        self, replica: Replica, source: NamespacedCluster, wish: Wish, quotas: list[Quota], began: float
    ) -> None:
        """Nothing is admitted where what is there already is not in the account: it is use that nobody knows."""
        for quota in quotas:
            uid = quota.key.uid
            key, stored = SourceKey.of_namespaces(uid, source.key).text, replica.api.ledger.get(uid)
            if not resources.only(wish.need, quota.limits) or stored is None:
                continue
            if key not in stored.account.used and self._had.get(key, -1.0) < began:
                self.fail(f"{wish.thing.uid} is admitted, and {source.key} is not counted by {quota.name}")

    def _evaluator_of(self, source: NamespacedCluster, name: str) -> NamespacedEvaluator[Any]:
        return self.evaluator

    def _beside(self, thing: Thing) -> Beside:
        """What else is in its namespace now."""
        return Beside({}, {})

    def _known_to(self, replica: Replica, source: NamespacedCluster, wish: Wish) -> dict[str, str]:
        """By uid: the subjects of quotas that count some of it, so far as the replica has heard of them."""
        view = replica.view
        if not view.cluster_cache.takes_part(source.key):
            return {}
        return {
            quota.key.uid: view.copies[quota.name].subject
            for quota in view.quota_cache.object_quotas()
            if quota.name in view.copies and resources.only(wish.need, quota.limits)
        }

    def _binding(self, wish: Wish, site: Site, quotas: list[Quota]) -> list[Quota]:
        """What a quota reserved that has lost the namespace meanwhile is not its use."""
        applying = {spec.key.uid for spec in self._applying(wish.thing)}
        return [quota for quota in super()._binding(wish, site, quotas) if quota.key.uid in applying]

    def finish(self, wish: Wish, *, persists: bool) -> None:
        source = self._cluster(wish.thing)
        super().finish(wish, persists=persists and source.inside[wish.thing.uid] in source.labels.present)

    def _followed(self, source: Source) -> bool:
        """Its labels may move."""
        return False

    # What admins do ------------------------------------------------------------------------------------------------

    def move(self, site: Site, source: Source) -> None:
        assert isinstance(source, NamespacedCluster), "there are no others here"
        names, chance = list(source.labels.present), self.rng.random()
        if not names or (chance < 0.1 and len(names) < MOST_NAMESPACES):
            self._make_namespace(source)
        elif chance < 0.2:
            self.delete_namespace(source, self.rng.choice(names))
        elif chance < 0.3:
            self.take_part(site, source, takes_part=not source.participates)
        else:
            self.relabel(source, self.rng.choice(names), self.rng.choice(self.labels))

    def relabel(self, source: NamespacedCluster, name: str, labels: Collection[str]) -> None:
        if self.tracing:
            self.note(f"  namespace {name} of {source.key} is labelled {list(labels)}")
        self.truth.excuse()
        source.label(name, labels)
        self._moved(source)

    def delete_namespace(self, source: NamespacedCluster, name: str) -> None:
        if self.tracing:
            self.note(f"  namespace {name} of {source.key} is deleted")
        for uid in [uid for uid in source.machines if source.inside[uid] == name]:
            self.delete(self.things[uid])
        source.label(name, None)
        self._moved(source)
        if source.filling == name:
            source.filling = ""

    def take_part(self, site: Site, source: NamespacedCluster, *, takes_part: bool) -> None:
        """All its namespaces come in or leave at once. Nothing is written while its seed is away."""
        if not site.api.up or site.dead:
            return
        if self.tracing:
            self.note(f"  {source.key} takes part: {takes_part}")
        self.truth.excuse()
        source.participates = takes_part
        source.project = PARTICIPANT if takes_part else "a"
        site.api.write_cluster(source.key, source.project)
        self._moved(source)

    def _moved(self, source: NamespacedCluster) -> None:
        """What has left a quota was not admitted by it, if it comes back."""
        for thing in [thing for thing in self.things.values() if thing.source == source.key]:
            applying = {spec.key.uid for spec in self._applying(thing)}
            for admitted in (thing.admitted, *(wish.after for wish in thing.wishes)):
                for uid in [uid for uid in admitted if uid not in applying]:
                    del admitted[uid]
            self.truth.recount(thing)

    def restore_seed(self, site: Site, snapshot: tuple[object, ...]) -> None:
        super().restore_seed(site, snapshot)
        for key, source in site.sources.items():
            if source.is_cluster and site.api.clusters[key] != source.project:
                site.api.write_cluster(key, source.project)

    def projects_return(self) -> None:
        """There are none."""

    # What is checked -----------------------------------------------------------------------------------------------

    def _seen(self, followed: object, name: str) -> int | None:
        assert isinstance(followed, NamespacedSource), "there are no others here"
        return followed.totals.seen([uid_of(name)]).get(uid_of(name), 0)

    def _written(self, replica: Replica, uid: str, before: Account, after: Account, decided: Decided) -> None:
        self._had.update(dict.fromkeys(before.used.keys() - after.used.keys(), self.now))
        leader = replica.leader
        for source in leader.counted().values() if isinstance(leader, NamespaceLeader) else ():
            if (anew := summed_anew(source)) != source.totals.used:
                self.fail(f"{source.key} sums up {source.totals.used} of what was seen, which is {anew}")
        super()._written(replica, uid, before, after, decided)

    def current(self) -> bool:
        for site in self.sites.values():
            for replica in site.replicas:
                if any(watch.wants_list or watch.at < watch.end for watch in replica.followed()):
                    return False
        return super().current()

    def tighten(self) -> None:
        """What came in occupies the limit from when all accounts and the master have it as it is."""
        if self.wishes or not self.current():
            return
        for spec in self.master.quotas.values():
            if self._is_exact(spec):
                for thing in self.things.values():
                    if thing.size is not None and spec in self._applying(thing):
                        self._occupy(spec, thing, resources.only(thing.size, spec.limits))
        super().tighten()

    def _occupy(self, spec: Spec, thing: Thing, size: ResourceList) -> None:
        """The limit gives way to what is there, and to nothing more."""
        truth, uid = self.truth, spec.key.uid
        ceiling, total = truth.ceiling[uid], truth.totals[uid]
        before, now = truth.shares(uid, thing, thing.cost.get(uid, {})), truth.shares(uid, thing, size)
        thing.admitted[uid] = size
        for name, amount in now.items():
            after = total.get(name, 0) - before.get(name, 0) + amount
            if name in ceiling:
                ceiling[name] = max(ceiling[name], after)
        self.truth.recount(thing)

    def _is_exact(self, spec: Spec) -> bool:
        for site in self.sites.values():
            both, stored = site.api.copies.get(spec.key.name), site.api.ledger.get(spec.key.uid)
            if both is None or stored is None or stored.account.fenced or stored.account.reservations:
                return False
            account, copy = stored.account, both[0]
            counted = {name: amount for name, amount in resources.total(account.used.values()).items() if amount}
            if counted != self.to_count(site, copy, account, ()):
                return False
            said = escrow.report(account)
            if copy.report is None or (copy.report.used, copy.report.reserved) != (said.used, said.reserved):
                return False
            if any(
                resources.at_least_zero(resources.subtract(account.granted, account.returned)).get(name, 0)
                > max(counted.get(name, 0), limit)
                for name, limit in spec.limits.items()
            ):
                return False
        return True
