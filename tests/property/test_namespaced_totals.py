"""What a quota counts in namespaces, kept up to date change by change, is what a sum over everything would find."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from common.api.label_selector import LabelSelector
from common.kube.client.api_client import Cluster
from common.kube.client.resource import Listing, Resource, WatchEvent
from common.kube.controller.reflector import Reflector
from common.quota import resources
from common.quota.object_names import PODS, SERVICES, GroupResource
from common.quota.scopes import ScopeRequirement
from common.runtime import pieces
from seed.kinds.namespaces import cluster_objects, entering
from seed.kinds.namespaces.cache import Namespace
from seed.kinds.namespaces.cluster_objects import ClusterObjects, QuotaNamespaces
from seed.kinds.namespaces.evaluators.namespaced import Terms, used
from seed.kinds.namespaces.evaluators.pods import Pod
from seed.kinds.namespaces.evaluators.registry import evaluator_of
from seed.kinds.namespaces.evaluators.services import Service
from seed.kinds.namespaces.kind_informer import BY_NAMESPACE, KindInformer
from seed.model.reserved_object import generation_of

NAMESPACES = st.sampled_from(["a", "b", "c"])
NAMES = st.sampled_from(["x", "y"])
LABELS = st.dictionaries(st.sampled_from(["owner", "tier"]), st.sampled_from(["ann", "bob"]), max_size=2)
TYPES: dict[GroupResource, type[Any]] = {PODS: Pod, SERVICES: Service}


def selector(**body: Any) -> LabelSelector:
    return msgspec.convert(body, LabelSelector)


QUOTAS = {
    "ann": (selector(matchLabels={"owner": "ann"}), ("pods", "requests.cpu", "services.nodeports"), ()),
    "both": (
        selector(matchExpressions=[{"key": "tier", "operator": "NotIn", "values": ["bob"]}]),
        ("count/pods", "limits.cpu"),
        (ScopeRequirement("NotTerminating"),),
    ),
}
OTHER_SELECTORS = [
    selector(matchLabels={"tier": "ann"}),
    selector(matchExpressions=[{"key": "owner", "operator": "Exists"}]),
]


class Informer(KindInformer):
    """Without an API server: the test tells what its watch would."""

    async def run(self) -> None:
        await asyncio.Event().wait()


class Totals(RuleBasedStateMachine):
    forgets_namespaces = False  # a mistake, for the test of this test

    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.now, self.version, self.uids = 1_000_000.0, 0, 0
        self.namespaces: dict[str, dict[str, str]] = {}
        self.objects: dict[tuple[GroupResource, str, str], Any] = {}
        self.loop.run_until_complete(self.start())

    async def start(self) -> None:
        cluster = cast(Cluster, SimpleNamespace(name="c1"))
        self.followed = ClusterObjects("c1", cluster, lambda: None, clock=lambda: self.now)
        self.enters = asyncio.create_task(self.followed._entering.run())
        self.counting = {name: self.counts(*of) for name, of in QUOTAS.items()}
        for informer in self.followed.informers.values():
            kind = informer.resource
            resource = Resource(kind.group, "v1", kind.resource, "", True, TYPES[kind])
            indexes = {BY_NAMESPACE: lambda found: [found.metadata.namespace]}
            informer._reflector = Reflector(cluster, resource, indexes=indexes, on_change=informer._on_change)

    def counts(self, chosen: LabelSelector, limited: Any, scopes: Any) -> QuotaNamespaces:
        made = QuotaNamespaces(
            self.followed, chosen, Terms(limited=frozenset(limited), scopes=scopes), lambda _counting, _freed: None
        )
        self.followed.add(made)
        return made

    @rule(steps=st.integers(1, 4))
    def what_enters_comes_in_a_little(self, steps: int) -> None:
        """Namespaces with more than one object come in by pieces."""

        async def some() -> None:
            for _ in range(steps):
                await asyncio.sleep(0)

        self.loop.run_until_complete(some())

    def teardown(self) -> None:
        """In the end, all has come in, and what left was freed."""
        try:
            self.what_enters_comes_in_a_little(50)
            assert not any(counting.entering for counting in self.counting.values())
            totals = [counting.totals for counting in self.counting.values()]
            assert all(len(each._objects) == len(each) for each in totals), "nothing is left of what left"
            self.the_sum_is_that_of_everything()
        finally:
            self.loop.run_until_complete(self.end())
            self.loop.close()

    async def end(self) -> None:
        tasks = [self.enters, *self.followed._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def tell(self, reflector: Reflector[Any], event: str, subject: Any) -> None:
        reflector._apply(WatchEvent(event, subject.metadata.resource_version, subject))

    def metadata(self, name: str, namespace: str = "", **fields: Any) -> dict[str, Any]:
        self.version += 1
        self.uids += 1
        uid = fields.pop("uid", f"uid-{self.uids}")
        return {
            "name": name,
            "namespace": namespace,
            "uid": uid,
            "resourceVersion": str(self.version),
            **fields,
        }

    # What happens ------------------------------------------------------------------------------------------------

    @rule(name=NAMESPACES, labels=LABELS)
    def namespace_is(self, name: str, labels: dict[str, str]) -> None:
        if self.forgets_namespaces and name in self.namespaces:
            self.namespaces[name] = labels
            return
        self.namespaces[name] = labels
        made = {"metadata": self.metadata(name, labels=labels, uid=f"namespace-{name}")}
        self.tell(self.followed.namespaces, "MODIFIED", msgspec.convert(made, Namespace))

    @rule(name=NAMESPACES)
    def namespace_goes(self, name: str) -> None:
        """Its objects' deletions may come later, or have come."""
        if self.namespaces.pop(name, None) is not None:
            known = self.followed.namespaces.store.get(name)
            assert known is not None
            self.tell(self.followed.namespaces, "DELETED", known)

    @rule(
        namespace=NAMESPACES,
        name=NAMES,
        cpu=st.integers(0, 3),
        phase=st.sampled_from(["Pending", "Running", "Running", "Succeeded", "Failed"]),
        deadline=st.sampled_from([None, None, 30]),
        grace=st.sampled_from([None, None, 10, 60]),
    )
    def pod_is(self, namespace: str, name: str, cpu: int, phase: str, deadline: int | None, grace: int | None) -> None:
        amounts = {"cpu": str(cpu)}
        spec: dict[str, Any] = {"containers": [{"name": "c", "resources": {"requests": amounts, "limits": amounts}}]}
        if deadline is not None:
            spec["activeDeadlineSeconds"] = deadline
        going = {}
        if grace is not None:
            moment = int(self.now) + grace
            going = {"deletionTimestamp": stamp(moment), "deletionGracePeriodSeconds": grace}
        self.put(PODS, namespace, name, {"spec": spec, "status": {"phase": phase}}, **going)

    @rule(namespace=NAMESPACES, name=NAMES, kind=st.sampled_from(["ClusterIP", "NodePort"]), ports=st.integers(1, 3))
    def service_is(self, namespace: str, name: str, kind: str, ports: int) -> None:
        self.put(SERVICES, namespace, name, {"spec": {"type": kind, "ports": [{}] * ports}})

    def put(self, kind: GroupResource, namespace: str, name: str, body: dict[str, Any], **metadata: Any) -> None:
        known = self.objects.get((kind, namespace, name))
        if known is not None:
            metadata["uid"] = known.metadata.uid
        made = msgspec.convert({**body, "metadata": self.metadata(name, namespace, **metadata)}, TYPES[kind])
        self.objects[kind, namespace, name] = made
        self.tell(self.reflector(kind), "MODIFIED", made)

    @rule(kind=st.sampled_from([PODS, SERVICES]), namespace=NAMESPACES, name=NAMES)
    def object_goes(self, kind: GroupResource, namespace: str, name: str) -> None:
        gone = self.objects.pop((kind, namespace, name), None)
        if gone is not None:
            self.tell(self.reflector(kind), "DELETED", gone)

    @rule(seconds=st.sampled_from([1, 15, 70, 200]))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds
        self.followed.releases.look()

    @rule(chosen=st.sampled_from(OTHER_SELECTORS))
    def the_selector_changes(self, chosen: LabelSelector) -> None:
        """As the source does: another sum takes the place of the one before."""
        _, limited, scopes = QUOTAS["ann"]

        async def replace() -> None:
            before = self.counting["ann"]
            self.counting["ann"] = self.counts(chosen, limited, scopes)
            self.followed.discard(before)

        self.loop.run_until_complete(replace())

    @precondition(lambda self: self.objects)
    @rule(data=st.data())
    def a_list_takes_the_place_of_the_watch(self, data: st.DataObject) -> None:
        """Some of what happened was missed."""
        key = data.draw(st.sampled_from(sorted(self.objects, key=str)))
        del self.objects[key]
        kind = key[0]
        items = [found for (of, _, _), found in self.objects.items() if of == kind]
        self.loop.run_until_complete(self.reflector(kind)._replace(Listing(items, str(self.version))))

    def reflector(self, kind: GroupResource) -> Reflector[Any]:
        reflector = next(each for each in self.followed.informers.values() if each.resource == kind)._reflector
        assert reflector is not None
        return reflector

    # What must hold ----------------------------------------------------------------------------------------------

    @invariant()
    def the_sum_is_that_of_everything(self) -> None:
        for counting in self.counting.values():
            by_namespace: dict[str, dict[str, int]] = {}
            generations = {}
            for (kind, namespace, _), subject in self.objects.items():
                labels = self.namespaces.get(namespace)
                if labels is None or not counting.selects(labels) or kind not in counting.kinds:
                    continue
                evaluator = evaluator_of(kind)
                assert evaluator is not None
                amounts = used(evaluator, counting.terms, subject, self.now)
                found = resources.add(by_namespace.get(namespace, {}), amounts)
                by_namespace[namespace] = {name: amount for name, amount in found.items() if amount}
                generations[subject.metadata.uid] = generation_of(subject.metadata)
            wanted = {namespace: found for namespace, found in by_namespace.items() if found}
            totals, entering = counting.totals, set(counting.entering)
            if None in entering:  # of no namespace it is known
                entering |= {*self.namespaces, *totals.by_namespace}
            assert without(totals.by_namespace, entering) == without(wanted, entering)
            for name in entering - {None}:
                there = wanted.get(name or "", {})
                assert all(amount <= there.get(of, 0) for of, amount in totals.by_namespace.get(name, {}).items())
            total = resources.total(totals.by_namespace.values())
            assert totals.used == {name: amount for name, amount in total.items() if amount}
            seen = totals.seen([subject.metadata.uid for subject in self.objects.values()])
            assert seen.items() <= generations.items()
            here = [each for each in self.objects.values() if each.metadata.namespace not in entering]
            assert totals.seen([each.metadata.uid for each in here]) == {
                each.metadata.uid: generations[each.metadata.uid] for each in here if each.metadata.uid in generations
            }


def without(found: dict[str, dict[str, int]], names: Collection[str | None]) -> dict[str, dict[str, int]]:
    return {name: amounts for name, amounts in found.items() if name not in names}


def stamp(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.fixture(autouse=True)
def without_api_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_objects, "KindInformer", Informer)
    monkeypatch.setattr(cluster_objects, "AT_ONCE", 1)
    monkeypatch.setattr(pieces, "PIECE_SECONDS", 0.0)


EXAMPLES = settings(max_examples=25, stateful_step_count=30, deadline=None)


def test_the_sum_is_that_of_everything_whatever_happens() -> None:
    run_state_machine_as_test(Totals, settings=EXAMPLES)


PODS_COME_IN = [f"pod-{number}" for number in range(10)]


def a_namespace_comes_in() -> Totals:
    machine = Totals()
    machine.begin()
    machine.namespace_is("a", {})
    for name in PODS_COME_IN:
        machine.pod_is("a", name, 2, "Running", None, None)
    lists = machine.followed.namespaces
    lists.listed_from = 7
    lists.synced.set()
    machine.namespace_is("a", {"owner": "ann"})
    machine.what_enters_comes_in_a_little(1)
    ann = machine.counting["ann"]
    assert ann.entering and 0 < len(ann.totals) < len(PODS_COME_IN)
    return machine


@pytest.mark.parametrize("meanwhile", ["changes", "goes", "leaves", "comes again"])
def test_what_happens_while_a_namespace_comes_in_counts(meanwhile: str) -> None:
    machine, last = a_namespace_comes_in(), PODS_COME_IN[-1]
    match meanwhile:
        case "changes":
            machine.pod_is("a", last, 1, "Running", None, None)
        case "goes":
            machine.object_goes(PODS, "a", last)
        case "leaves":
            machine.namespace_is("a", {})
        case "comes again":
            machine.namespace_is("a", {})
            machine.namespace_is("a", {"owner": "ann"})
    machine.the_sum_is_that_of_everything()
    machine.teardown()


def test_little_of_a_namespace_comes_in_with_the_change_of_its_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,900 pods took 38 ms of the event loop in one step, for three quotas."""
    monkeypatch.setattr(cluster_objects, "AT_ONCE", entering.AT_ONCE)
    machine = Totals()
    machine.begin()
    machine.namespace_is("a", {})
    for number in range(1_900):
        machine.pod_is("a", f"pod-{number}", 1, "Running", None, None)
    machine.namespace_is("a", {"owner": "ann"})
    ann = machine.counting["ann"]
    assert ann.entering and len(ann.totals) == 0
    machine.what_enters_comes_in_a_little(1)
    assert 0 < len(ann.totals) <= 100
    machine.what_enters_comes_in_a_little(20_000)
    assert not ann.entering and len(ann.totals) == 1_900
    machine.teardown()


def test_what_a_namespace_had_that_leaves_is_freed_in_pieces() -> None:
    machine = a_namespace_comes_in()
    machine.what_enters_comes_in_a_little(50)
    totals, pods = machine.counting["ann"].totals, len(PODS_COME_IN)
    assert len(totals) == pods
    machine.namespace_is("a", {})
    uids = [pod.metadata.uid for pod in machine.objects.values()]
    assert (totals.used, totals.seen(uids), totals.sizes(uids), len(totals)) == ({}, {}, {}, 0)
    assert totals.gone(uids) == set(uids)
    assert len(totals._objects) == pods, "in the step in which it leaves, nothing is done for each of them"
    machine.what_enters_comes_in_a_little(3)
    assert 0 < len(totals._objects) < pods
    machine.namespace_is("a", {"owner": "ann"})
    machine.the_sum_is_that_of_everything()
    machine.teardown()
    assert len(totals) == pods


def test_what_comes_in_again_is_not_gone_before_it_is_counted() -> None:
    """An update of it may have been admitted meanwhile: a count must not drop what that reserved."""
    machine = a_namespace_comes_in()
    machine.what_enters_comes_in_a_little(50)
    totals, uids = machine.counting["ann"].totals, [pod.metadata.uid for pod in machine.objects.values()]
    machine.namespace_is("a", {})
    machine.namespace_is("a", {"owner": "ann"})
    assert len(totals) == 0 and totals.gone(uids) == set()
    machine.teardown()


def test_while_a_namespace_comes_in_the_lists_are_those_before() -> None:
    """A count that needs later ones waits for it."""
    machine = a_namespace_comes_in()
    ann = machine.counting["ann"]
    machine.followed.namespaces.listed_from = 9
    assert ann.doubtful(7) is None
    assert ann.doubtful(6) is not None
    machine.what_enters_comes_in_a_little(50)
    assert ann.doubtful(7) is not None
    machine.teardown()


MANY = [f"namespace-{number}" for number in range(10)]


def very_many_namespaces_are_looked_at() -> Totals:
    machine = Totals()
    machine.begin()
    for name in MANY:
        machine.namespace_is(name, {"tier": "ann"})
        machine.pod_is(name, "x", 2, "Running", None, None)
    lists = machine.followed.namespaces
    lists.listed_from = 7
    lists.synced.set()
    machine.the_selector_changes(OTHER_SELECTORS[0])
    ann = machine.counting["ann"]
    assert len(ann.selected) <= 1, "in the turn of a change there is one piece at most"
    assert ann.doubtful(0) is None
    machine.what_enters_comes_in_a_little(3)
    assert MANY[0] in ann.selected and MANY[-1] not in ann.selected
    return machine


@pytest.mark.parametrize("labels", [{}, {"tier": "ann"}, None], ids=["leaves", "stays", "goes"])
@pytest.mark.parametrize("name", [MANY[0], MANY[-1], "new"], ids=["looked at", "not yet", "new"])
def test_namespaces_that_change_while_all_are_looked_at_count_once(name: str, labels: dict[str, str] | None) -> None:
    machine = very_many_namespaces_are_looked_at()
    ann, pods = machine.counting["ann"], len(MANY)
    machine.pod_is(name, "y", 1, "Running", None, None)
    if labels is None:
        machine.namespace_goes(name)
    else:
        machine.namespace_is(name, labels)
    assert ann.doubtful(0) is None and not ann.is_part_listed and ann.listed_from == 0
    machine.the_sum_is_that_of_everything()
    machine.teardown()
    changes = {"new": 1 if labels else 0}.get(name, 1 if labels else -1)
    assert len(ann.totals) == pods + changes
    assert ann.doubtful(0) is not None and ann.doubtful(7) is None


def test_what_is_not_counted_any_more_is_not_looked_at_further() -> None:
    machine = very_many_namespaces_are_looked_at()
    ann = machine.counting["ann"]
    machine.the_selector_changes(OTHER_SELECTORS[1])
    machine.teardown()
    assert len(ann.selected) == 0 and not any(ann in of for of in machine.followed._selecting.values())


def test_the_test_finds_labels_that_are_not_followed() -> None:
    class Forgetful(Totals):
        forgets_namespaces = True

    found = settings(
        EXAMPLES,
        max_examples=300,
        phases=(Phase.generate,),
        report_multiple_bugs=False,
        database=None,
        derandomize=True,
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Forgetful, settings=found)
