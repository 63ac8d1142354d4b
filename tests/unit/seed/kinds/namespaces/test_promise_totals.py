"""What core ResourceQuotas promise in the namespaces that a quota selects."""

from __future__ import annotations

import sys
from collections.abc import Callable

import msgspec

from common.kube.client.meta import ObjectMeta
from common.quota.account import Reservation
from common.quota.quantity import UNIT
from common.quota.scopes import ScopeRequirement
from seed.kinds.namespaces.evaluators.namespaced import Terms
from seed.kinds.namespaces.evaluators.resource_quotas import (
    EVALUATOR,
    CoreQuota,
    CoreQuotaSpec,
    CoreQuotaStatus,
    ScopeSelector,
)
from seed.kinds.namespaces.promise_totals import PromiseTotals
from seed.ledger.encoding import parse_reservation, reservation_text
from tests.unit.seed_world import nanos

LIMITED = frozenset({"pods", "requests.cpu"})


def quota(name: str, namespace: str = "web", **hard: str) -> CoreQuota:
    metadata = ObjectMeta(name=name, namespace=namespace, uid=f"{namespace}-{name}", resource_version="7")
    amounts = {key.replace("__", "."): amount for key, amount in hard.items()}
    return CoreQuota(metadata=metadata, spec=CoreQuotaSpec(hard=amounts))


def totals(*quotas: CoreQuota) -> PromiseTotals:
    made = PromiseTotals(Terms(limited=LIMITED, promises=True))
    for each in quotas:
        made.put(EVALUATOR, each, 0.0)
    return made


def test_of_each_namespace_the_largest_amount_of_each_resource_counts() -> None:
    found = totals(
        quota("default", pods="20", requests__cpu="1"),
        quota("terminating", pods="10", requests__cpu="5", secrets="3"),
        quota("default", "db", pods="7"),
    )
    assert found.used == nanos("pods=27,requests.cpu=5")
    assert found.by_namespace == {"web": nanos("pods=20,requests.cpu=5"), "db": nanos("pods=7")}


def test_lowered_and_deleted_quotas_leave_what_the_others_promise() -> None:
    found = totals(quota("default", pods="20"), quota("terminating", pods="10"))
    assert found.put(EVALUATOR, quota("default", pods="5"), 0.0) == (True, True)
    assert found.used == nanos("pods=10")
    assert found.remove("web-terminating")
    assert found.used == nanos("pods=5")
    found.leave("web")
    assert (found.used, found.by_namespace) == ({}, {})


def test_an_api_server_that_shows_one_uid_in_two_namespaces_takes_nothing_from_the_sum() -> None:
    found = totals(quota("default", pods="20"), quota("other", pods="10"))
    moved = quota("default", "db", pods="2")
    moved = msgspec.structs.replace(moved, metadata=msgspec.structs.replace(moved.metadata, uid="web-default"))
    found.put(EVALUATOR, moved, 0.0)
    assert found.by_namespace == {"web": nanos("pods=10"), "db": nanos("pods=2")}
    found.leave("web")
    assert found.used == nanos("pods=2")
    found.leave("db")
    assert (found.used, found.by_namespace) == ({}, {})
    assert found.lacking("web", LIMITED) == sorted(LIMITED)


def used_up(found: CoreQuota, **used: str) -> CoreQuota:
    return msgspec.structs.replace(found, status=CoreQuotaStatus(used=used))


def test_what_is_used_stays_promised_when_a_quota_is_lowered_below_it() -> None:
    """Else whoever has used all could lower it and use the same in another namespace, again and again."""
    found = totals(used_up(quota("default", pods="20"), pods="15"), quota("default", "db", pods="5"))
    assert found.used == nanos("pods=25")
    found.put(EVALUATOR, used_up(quota("default", pods="1"), pods="15"), 0.0)
    assert found.used == nanos("pods=20")
    assert found.put(EVALUATOR, used_up(quota("default", pods="1"), pods="7"), 0.0) == (True, True), "pods have gone"
    assert found.used == nanos("pods=12")
    found.put(EVALUATOR, used_up(quota("default", requests__cpu="1"), pods="7"), 0.0)
    assert found.used == nanos("pods=5,requests.cpu=1"), "NamespacesLimited names it"
    assert found.lacking("web", LIMITED) == ["pods"]


def test_what_core_still_admits_by_stays_promised_until_the_status_follows() -> None:
    """Else what is lowered while kube-controller-manager does not run is used there, and promised elsewhere, too."""

    def lagging(found: CoreQuota, **hard: str) -> CoreQuota:
        return msgspec.structs.replace(found, status=CoreQuotaStatus(hard=hard))

    found = totals(lagging(quota("default", pods="10"), pods="10"))
    assert found.put(EVALUATOR, lagging(quota("default", pods="2"), pods="10"), 0.0) == (False, False)
    assert found.used == nanos("pods=10")
    assert not found.lacking("web", frozenset({"pods"}))
    found.put(EVALUATOR, lagging(quota("default", secrets="2"), pods="10"), 0.0)
    assert found.used == nanos("pods=10"), "the spec does not name it any more"
    assert found.put(EVALUATOR, lagging(quota("default", pods="2"), pods="2"), 0.0) == (True, True)
    assert found.used == nanos("pods=2")
    found.put(EVALUATOR, lagging(quota("default", pods="20"), pods="2"), 0.0)
    assert found.used == nanos("pods=20"), "it will be admitted by without a question"


def test_a_namespace_counts_with_the_base_of_what_is_on_its_way() -> None:
    base = nanos("pods=20")
    waiting = {"new": Reservation(source="s", object="resourcequotas:web/new", amount=nanos("pods=2"), base=base)}
    found = totals(quota("default", pods="20"), quota("default", "db", pods="7"))
    assert found.used_beside(waiting) == nanos("pods=27")
    found.remove("web-default")
    assert found.used_beside(waiting) == nanos("pods=27")
    assert found.used_beside({}) == nanos("pods=7")


def test_a_namespace_without_a_quota_for_a_resource_is_told() -> None:
    found = totals(quota("default", pods="0", cpu="4"))
    assert found.lacking("web", LIMITED) == ["requests.cpu"], "no pods are allowed, and of cpu alone nothing is said"
    assert found.lacking("empty", LIMITED) == ["pods", "requests.cpu"]


def test_a_base_is_kept_in_the_ledger() -> None:
    kept = Reservation(source="s", object="o", amount={}, base=nanos("pods=20"), request="r", generation=3)
    assert parse_reservation(reservation_text(kept)) == kept
    updated = msgspec.structs.replace(kept, amount=nanos("pods=1"), earlier=nanos("pods=1"))
    assert parse_reservation(reservation_text(updated)) == updated


def scoped(name: str, *scopes: str, selector: tuple[ScopeRequirement, ...] = (), **hard: str) -> CoreQuota:
    found = quota(name, **hard)
    spec = msgspec.structs.replace(
        found.spec, scopes=list(scopes), scope_selector=msgspec.convert({"matchExpressions": selector}, ScopeSelector)
    )
    return msgspec.structs.replace(found, spec=spec)


def test_a_quota_for_some_pods_alone_does_not_limit_a_namespace() -> None:
    """Else whoever replaced a quota by one with a scope would be unlimited, and NamespacesLimited true."""
    named = (ScopeRequirement("PriorityClass", "In", ("high",)),)
    not_named = (ScopeRequirement("PriorityClass", "Exists"),)
    pods = frozenset({"pods"})
    assert totals(scoped("terminating", "Terminating", pods="1")).lacking("web", pods) == ["pods"]
    assert totals(scoped("default", selector=named, pods="1")).lacking("web", pods) == ["pods"]
    assert totals(scoped("default", selector=not_named, pods="1")).lacking("web", pods) == ["pods"]
    both = scoped("a", "Terminating", "BestEffort", pods="1"), scoped("b", "NotTerminating", "NotBestEffort", pods="1")
    assert totals(*both).lacking("web", pods) == ["pods"]


def test_quotas_of_opposite_scopes_limit_a_namespace_together() -> None:
    pods = frozenset({"pods"})
    assert not totals(scoped("default", pods="1"), scoped("x", "Terminating", pods="1")).lacking("web", pods)
    halves = scoped("a", "Terminating", pods="1"), scoped("b", "NotTerminating", pods="1")
    found = totals(*halves)
    assert not found.lacking("web", pods)
    found.remove("web-b")
    assert found.lacking("web", pods) == ["pods"]
    exists = (ScopeRequirement("NotBestEffort"),)
    assert not totals(scoped("a", "BestEffort", pods="1"), scoped("b", selector=exists, pods="1")).lacking("web", pods)


def test_a_scope_that_comes_later_is_a_change() -> None:
    """An API server allows it: only `scopes` cannot be changed, `scopeSelector` can."""
    found = totals(quota("default", pods="20"))
    later = scoped("default", selector=(ScopeRequirement("PriorityClass", "In", ("high",)),), pods="20")
    assert found.put(EVALUATOR, later, 0.0) == (True, False)
    assert found.lacking("web", frozenset({"pods"})) == ["pods"]
    assert found.put(EVALUATOR, quota("default", pods="20"), 0.0) == (True, False)
    assert not found.lacking("web", frozenset({"pods"}))


def test_what_a_namespace_lacks_is_told_without_a_look_at_all_its_quotas() -> None:
    """It is asked for each time that the account changes. Of 20,000 it took the leader 90 ms."""

    def events(count: int) -> int:
        found, seen = totals(*(quota(f"q{number}", pods="1") for number in range(count))), 0

        def trace(_frame: object, _event: str, _argument: object) -> Callable[..., object]:
            nonlocal seen
            seen += 1
            return trace

        sys.settrace(trace)
        try:
            assert found.lacking("web", LIMITED) == ["requests.cpu"]
        finally:
            sys.settrace(None)
        return seen

    assert events(200) == events(10)


def test_very_many_quotas_of_one_namespace_cost_no_look_at_all_the_others() -> None:
    """The leader counts for all tenants. 4,000 of them took it two minutes."""

    def calls(count: int) -> int:
        found, seen = totals(), 0

        def profile(_frame: object, event: str, _argument: object) -> None:
            nonlocal seen
            seen += event in ("call", "c_call")

        sys.setprofile(profile)
        try:
            for number in range(count):
                found.put(EVALUATOR, quota(f"q{number}", pods=str(number + 1)), 0.0)
            assert found.used == {"pods": count * UNIT}
            found.leave("web")
        finally:
            sys.setprofile(None)
        assert (found.used, found._amounts, found._limiting) == ({}, {}, {})
        return seen

    calls(10)  # caches are filled
    assert calls(400) < 3 * calls(200)


def test_with_scopes_only_what_has_all_of_them_counts_and_limits_a_namespace() -> None:
    pods = frozenset({"pods"})
    within = (ScopeRequirement("Terminating"), ScopeRequirement("PriorityClass", "In", ("low", "high")))
    found = PromiseTotals(Terms(limited=LIMITED, scopes=within, promises=True))
    classes = (ScopeRequirement("PriorityClass", "In", ("high", "low")),)
    for each in (
        quota("default", pods="50"),
        scoped("terminating", "Terminating", pods="40"),
        scoped("classes", selector=classes, pods="30"),
        scoped("best", "Terminating", "BestEffort", selector=classes, pods="3"),
    ):
        found.put(EVALUATOR, each, 0.0)
    assert found.used == nanos("pods=3")
    assert found.lacking("web", pods) == ["pods"], "it limits the pods of best effort alone"
    found.put(EVALUATOR, scoped("not-best", "Terminating", "NotBestEffort", selector=classes, pods="5"), 0.0)
    assert (found.used, found.lacking("web", pods)) == (nanos("pods=5"), [])
    assert found.put(EVALUATOR, scoped("not-best", "Terminating", "NotBestEffort", pods="5"), 0.0) == (True, True)
    assert (found.used, found.lacking("web", pods)) == (nanos("pods=3"), ["pods"])
