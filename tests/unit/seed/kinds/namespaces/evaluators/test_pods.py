"""What Pods use. tests/integration/test_core_quotas.py compares it with real API servers."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from common.quota import names, resources
from common.quota.quantity import UNIT
from common.quota.scopes import ScopeRequirement
from seed.kinds.namespaces.evaluators import pods
from seed.kinds.namespaces.evaluators.amounts import MOST
from seed.kinds.namespaces.evaluators.namespaced import Refused, Terms, Write, added, is_asked, used
from seed.kinds.namespaces.evaluators.pods import EVALUATOR, Pod

NOW = datetime(2026, 1, 1, tzinfo=UTC).timestamp()


def requirements(requests: dict[str, str] | None = None, limits: dict[str, str] | None = None) -> dict[str, Any]:
    return {"requests": requests or {}, "limits": limits or {}}


def container(name: str = "web", **requests: str) -> dict[str, Any]:
    return {"name": name, "resources": requirements(requests)}


def pod(*containers: dict[str, Any], metadata: dict[str, Any] | None = None, status: Any = None, **spec: Any) -> Pod:
    body = {
        "metadata": {"name": "web", "namespace": "web", "resourceVersion": "1", **(metadata or {})},
        "spec": {"containers": containers or [container()], **spec},
        "status": status or {},
    }
    return msgspec.json.decode(msgspec.json.encode(body), type=Pod)


def usage(found: Pod, now: float = NOW) -> dict[str, str]:
    return resources.render(EVALUATOR.usage(found, now))


def write(new: Pod, old: Pod | None = None, subresource: str = "") -> Write[Pod]:
    operation = "CREATE" if old is None else "UPDATE"
    return Write(operation=operation, subresource=subresource, new=new, old=old, now=NOW)


def terms(*limited: str, scopes: tuple[ScopeRequirement, ...] = ()) -> Terms:
    return Terms(limited=frozenset(limited), scopes=scopes)


def test_requests_and_limits_of_all_containers_count_under_each_of_their_names() -> None:
    both = {"name": "a", "resources": requirements({"cpu": "500m", "memory": "1Gi"}, {"cpu": "1"})}
    assert usage(pod(both, container("b", cpu="250m", **{"ephemeral-storage": "1Gi"}))) == {
        "count/pods": "1",
        "pods": "1",
        "cpu": "750m",
        "requests.cpu": "750m",
        "memory": "1Gi",
        "requests.memory": "1Gi",
        "ephemeral-storage": "1Gi",
        "requests.ephemeral-storage": "1Gi",
        "limits.cpu": "1",
    }


def test_huge_pages_and_extended_resources_count_as_requests() -> None:
    found = usage(pod(container("a", **{"hugepages-2Mi": "4Mi", "example.com/gpu": "2", "kubernetes.io/x": "1"})))
    assert found == {
        "count/pods": "1",
        "pods": "1",
        "hugepages-2Mi": "4Mi",
        "requests.hugepages-2Mi": "4Mi",
        "requests.example.com/gpu": "2",
        "example.com/gpu": "2",
    }


def test_an_extended_resource_cannot_pass_for_a_count_or_for_storage() -> None:
    names = ("count/pods", "gold.storageclass.storage.k8s.io/requests.storage")
    found = usage(pod(container("a", **dict.fromkeys(names, "5"))))
    assert found["count/pods"] == "1"
    assert names[1] not in found


@pytest.mark.parametrize(
    ("inits", "cpu"),
    [
        ([container("i", cpu="3")], "3"),
        ([container("i", cpu="500m")], "1"),
        ([container("i", cpu="3"), container("j", cpu="2")], "3"),
        ([container("s", cpu="2") | {"restartPolicy": "Always"}], "3"),
        ([container("s", cpu="2") | {"restartPolicy": "Always"}, container("i", cpu="2")], "4"),
        ([container("i", cpu="4"), container("s", cpu="2") | {"restartPolicy": "Always"}], "4"),
    ],
)
def test_init_containers_run_one_by_one_beside_the_sidecars_before_them(inits: list[Any], cpu: str) -> None:
    assert usage(pod(container(cpu="1"), initContainers=inits))["cpu"] == cpu


def test_overhead_adds_to_requests_and_to_limits_that_are_there() -> None:
    limited = {"name": "web", "resources": requirements({"cpu": "1"}, {"cpu": "2", "memory": "0"})}
    found = usage(pod(limited, overhead={"cpu": "100m", "memory": "16Mi"}))
    assert (found["cpu"], found["memory"], found["limits.cpu"]) == ("1100m", "16Mi", "2100m")
    assert found["limits.memory"] == "0"


def test_resources_of_the_pod_replace_those_of_its_containers() -> None:
    found = pod(container(cpu="1", memory="1Gi"), resources=requirements({"cpu": "4"}, {"memory": "8Gi"}))
    assert usage(found)["cpu"] == "4"
    assert usage(found)["memory"] == "1Gi"
    assert usage(found)["limits.memory"] == "8Gi"
    assert added(EVALUATOR, terms("limits.cpu"), write(found)) == {}, "and nothing is required of the containers"


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_a_pod_that_has_ended_counts_only_as_an_object(phase: str) -> None:
    assert usage(pod(container(cpu="1"), status={"phase": phase})) == {"count/pods": "1"}


def test_a_pod_that_a_lost_node_never_ends_counts_until_its_grace_is_over_twice() -> None:
    leaving = pod(metadata={"deletionTimestamp": "2026-01-01T00:00:30Z", "deletionGracePeriodSeconds": 30})
    assert EVALUATOR.released_at(leaving) == NOW + 60
    assert "pods" in usage(leaving, NOW + 60)
    assert usage(leaving, NOW + 61) == {"count/pods": "1"}
    assert EVALUATOR.released_at(pod()) is None


def running(spec: str, given: str, allocated: str = "0", **status: Any) -> Pod:
    one = {"name": "web", "resources": requirements({"cpu": given}), "allocatedResources": {"cpu": allocated}}
    return pod(container(cpu=spec), metadata={"generation": 3}, status={"containerStatuses": [one], **status})


def infeasible(generation: int | None) -> list[dict[str, Any]]:
    seen = {} if generation is None else {"observedGeneration": generation}
    return [{"type": "PodResizePending", "reason": "Infeasible", **seen}]


@pytest.mark.parametrize(("spec", "given", "allocated"), [("3", "1", "2"), ("1", "3", "2"), ("1", "2", "3")])
def test_while_a_pod_is_resized_the_most_of_what_is_wanted_given_and_allocated_counts(
    spec: str, given: str, allocated: str
) -> None:
    assert usage(running(spec, given, allocated))["cpu"] == "3"


@pytest.mark.parametrize(
    ("spec", "given", "allocated", "seen", "counts", "limits"),
    [
        ("3", "1", "2", None, "3", "4"),
        ("1", "3", "2", None, "3", "4"),
        ("1", "2", "3", None, "3", "3"),
        ("9", "1", "2", 3, "2", "2"),
        ("9", "1", "2", 2, "9", "10"),
    ],
)
def test_a_pod_whose_own_resources_are_resized_counts_as_its_containers_would(
    spec: str, given: str, allocated: str, seen: int | None, counts: str, limits: str
) -> None:
    """Kubernetes 1.36: component-helpers/resource/helpers.go, PodRequests and PodLimits. What was counted of the spec
    alone was free at once where a pod is made smaller, before its node has taken anything from it."""

    def with_limit(cpu: str) -> dict[str, Any]:
        return requirements({"cpu": cpu}, {"cpu": str(int(cpu) + 1)})

    status = {"resources": with_limit(given), "allocatedResources": {"cpu": allocated}}
    conditions = {"conditions": infeasible(seen)} if seen is not None else {}
    found = pod(container(), resources=with_limit(spec), metadata={"generation": 3}, status=status | conditions)
    assert (usage(found)["cpu"], usage(found)["limits.cpu"]) == (counts, limits)


def test_a_resize_that_the_node_refused_does_not_count() -> None:
    assert usage(running("9", "1", "2", conditions=infeasible(3)))["cpu"] == "2"


@pytest.mark.parametrize("seen", [2, None])
def test_what_the_node_said_of_an_earlier_spec_is_not_believed(seen: int | None) -> None:
    """Otherwise the resize after one that was infeasible costs nothing, whatever it asks for."""
    before, after = running("1", "1"), running("9", "1", conditions=infeasible(seen))
    assert usage(after)["cpu"] == "9"
    assert added(EVALUATOR, terms("cpu"), write(after, before, "resize")) == {"cpu": 8 * UNIT}


def test_init_containers_that_end_are_not_resized() -> None:
    statuses = [{"name": name, "resources": requirements({"cpu": "9"})} for name in ("i", "s")]
    inits = [container("i", cpu="1"), container("s", cpu="1") | {"restartPolicy": "Always"}]
    found = pod(container(cpu="1"), initContainers=inits, status={"initContainerStatuses": statuses})
    assert usage(found)["cpu"] == "10"


def test_updates_are_asked_where_they_can_add() -> None:
    plain, limited = pod(), pod(activeDeadlineSeconds=60)
    assert is_asked(EVALUATOR, write(plain))
    assert not is_asked(EVALUATOR, write(plain, plain))
    assert is_asked(EVALUATOR, write(limited, plain))
    assert is_asked(EVALUATOR, write(plain, plain, "resize"))
    assert not is_asked(EVALUATOR, write(plain, plain, "status"))
    assert not is_asked(EVALUATOR, write(plain, plain, "ephemeralcontainers"))
    assert not is_asked(EVALUATOR, write(plain, None, "binding"))


def test_an_update_costs_what_it_adds_and_gives_nothing_back() -> None:
    small, large = pod(container(cpu="1", memory="2Gi")), pod(container(cpu="3", memory="1Gi"))
    assert added(EVALUATOR, terms("cpu", "memory"), write(large, small, "resize")) == {"cpu": 2 * UNIT}
    assert added(EVALUATOR, terms("cpu", "memory"), write(small, small, "resize")) == {}


def test_an_update_into_a_scope_costs_all_and_out_of_it_nothing() -> None:
    plain, limited = pod(container(cpu="1")), pod(container(cpu="1"), activeDeadlineSeconds=60)
    terminating = terms("cpu", "pods", scopes=(ScopeRequirement("Terminating"),))
    assert added(EVALUATOR, terminating, write(limited, plain)) == {"cpu": UNIT, "pods": UNIT}
    assert added(EVALUATOR, terminating, write(plain, limited)) == {}
    assert added(EVALUATOR, terminating, write(plain)) == {}


def test_an_update_that_creates_costs_all() -> None:
    old = pod(container(cpu="1"), metadata={"resourceVersion": ""})
    assert added(EVALUATOR, terms("cpu"), write(pod(container(cpu="1")), old, "resize")) == {"cpu": UNIT}


def test_without_the_object_that_it_changes_an_update_costs_all() -> None:
    found = Write(operation="UPDATE", new=pod(container(cpu="1")), now=NOW)
    assert added(EVALUATOR, terms("cpu"), found) == {"cpu": UNIT}


def test_each_container_must_say_what_is_limited_in_cores_words() -> None:
    found = pod(container("web"), container("db", cpu="1"), initContainers=[container("a")])
    with pytest.raises(Refused) as refused:
        added(EVALUATOR, terms("requests.cpu", "limits.memory", "pods"), write(found))
    assert str(refused.value) == "must specify limits.memory for: a,db,web; requests.cpu for: a,web"


def test_a_refusal_does_not_grow_with_the_names_of_containers() -> None:
    """It is logged, and thousands are kept. Who knows a token may send anything."""
    found = pod(*(container(f"{number:02}" + "x" * 10_000) for number in range(40)))
    with pytest.raises(Refused) as refused:
        added(EVALUATOR, terms("requests.cpu"), write(found))
    assert len(str(refused.value)) < 2_200
    assert str(refused.value).endswith(" and 8 more")


def test_only_what_is_limited_must_be_said_and_only_of_cpu_and_memory() -> None:
    assert added(EVALUATOR, terms("pods", "ephemeral-storage", "limits.ephemeral-storage"), write(pod())) == {
        "pods": UNIT
    }
    assert added(EVALUATOR, terms("cpu"), write(pod(container(cpu="0")))) == {}


def test_a_pod_outside_the_scopes_need_not_say_anything() -> None:
    assert added(EVALUATOR, terms("cpu", scopes=(ScopeRequirement("Terminating"),)), write(pod())) == {}


@pytest.mark.parametrize(
    ("scope", "found", "met"),
    [
        ("BestEffort", pod(), True),
        ("BestEffort", pod(container(cpu="1")), False),
        ("BestEffort", pod(container(cpu="0", **{"ephemeral-storage": "1"})), True),
        ("BestEffort", pod(initContainers=[container("i", memory="1")]), False),
        ("BestEffort", pod(container(cpu="1"), resources=requirements()), True),
        ("BestEffort", pod(container(cpu="1"), status={"qosClass": "BestEffort"}), True),
        ("NotBestEffort", pod(), False),
        ("Terminating", pod(activeDeadlineSeconds=0), True),
        ("NotTerminating", pod(), True),
        ("PriorityClass", pod(priorityClassName="high"), True),
        ("PriorityClass", pod(), False),
        ("CrossNamespacePodAffinity", pod(), False),
        ("VolumeAttributesClass", pod(), False),
    ],
)
def test_scopes_pick_pods(scope: str, found: Pod, met: bool) -> None:
    assert EVALUATOR.meets(ScopeRequirement(scope), found) is met


@pytest.mark.parametrize("side", ["podAffinity", "podAntiAffinity"])
@pytest.mark.parametrize(
    ("term", "met"),
    [({"topologyKey": "zone"}, False), ({"namespaces": ["x"]}, True), ({"namespaceSelector": {}}, True)],
)
def test_affinity_across_namespaces_is_found_wherever_it_is(side: str, term: dict[str, Any], met: bool) -> None:
    crossing = ScopeRequirement("CrossNamespacePodAffinity")
    required = {side: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    preferred = {side: {"preferredDuringSchedulingIgnoredDuringExecution": [{"podAffinityTerm": term}]}}
    assert EVALUATOR.meets(crossing, pod(affinity=required)) is met
    assert EVALUATOR.meets(crossing, pod(affinity=preferred)) is met


def test_amounts_are_rounded_up_to_thousandths_as_api_servers_do() -> None:
    assert usage(pod(container(cpu="1n", memory="1500u")))["cpu"] == "1m"
    assert usage(pod(container(memory="1500u")))["memory"] == "2m"


@pytest.mark.parametrize("text", ["1e40", "1e200", "what?"])
def test_an_amount_that_cannot_be_read_counts_as_the_most(text: str) -> None:
    assert EVALUATOR.usage(pod(container(cpu=text)), NOW)["cpu"] == MOST


def test_a_grace_period_that_an_api_server_adds_wrongly_ends_nothing() -> None:
    """It adds nanoseconds in 64 bits: with one of 293 years the pod seems to have been deleted 292 years ago."""
    grace = 9_223_372_037
    deleted = {"deletionTimestamp": "1733-09-22T00:12:43Z", "deletionGracePeriodSeconds": grace}
    assert usage(pod(metadata=deleted))["pods"] == "1"
    assert usage(pod(metadata={**deleted, "deletionGracePeriodSeconds": 2**63 - 1}))["pods"] == "1"
    assert usage(pod(metadata={**deleted, "deletionGracePeriodSeconds": 10**400}))["pods"] == "1"


def test_a_time_that_no_api_server_writes_ends_nothing() -> None:
    """Whoever has another server serve pods must not end the counting of others by it."""
    for deleted in ("soon", "292277026596-12-04T15:30:07Z", ""):
        metadata = {"deletionTimestamp": deleted, "deletionGracePeriodSeconds": 30}
        assert usage(pod(metadata=metadata))["pods"] == "1"


def test_very_long_names_are_not_kept() -> None:
    """With the token of its own webhook, a tenant can send what no API server admits."""
    kept = pods._names_of_short.cache_info().currsize, names._is_valid.cache_info().currsize
    found = pod(container(**{f"example.com/{number}{'x' * 1000}": "1" for number in range(10)}))
    assert usage(found) == {"count/pods": "1", "pods": "1"}
    assert (pods._names_of_short.cache_info().currsize, names._is_valid.cache_info().currsize) == kept
    assert not names.is_valid("x" * (names.MAX_NAME + 1))


def test_what_is_below_zero_frees_nothing() -> None:
    assert EVALUATOR.usage(pod(container(cpu="-5")), NOW)["cpu"] == 0


def test_a_pod_as_large_as_api_servers_take_is_summed_in_no_time() -> None:
    """Ten thousand names in one container, and ten thousand containers."""
    many = container("many", **{f"example.com/d{number}": "1" for number in range(10_000)})
    sidecar = many | {"name": "side", "restartPolicy": "Always"}
    found = pod(many, initContainers=[sidecar, *(container(f"c{number}", cpu="1") for number in range(10_000))])
    began = time.process_time()
    assert used(EVALUATOR, terms("cpu"), found, NOW) == {"cpu": UNIT}
    assert time.process_time() - began < 10, "minutes, if lists were copied for each container"
    with pytest.raises(Refused) as refused:
        added(EVALUATOR, terms("limits.cpu"), write(found))
    assert str(refused.value).endswith(" and 9970 more")
    assert len(str(refused.value)) < 400


def test_what_is_outside_a_quotas_names_is_not_there() -> None:
    assert used(EVALUATOR, terms("pods", "services", "limits.cpu"), pod(container(cpu="1")), NOW) == {"pods": UNIT}
