"""What objects use by numbers in their fields. tests/integration/test_namespaces_webhook.py asks a real API server."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from common.kube.client.meta import Object, ObjectMeta
from common.quota import resources
from common.quota.object_names import GroupResource
from seed.kinds.namespaces.evaluators import fields
from seed.kinds.namespaces.evaluators.fields import FieldEvaluator
from seed.kinds.namespaces.evaluators.namespaced import AsSent, Refused, Terms, Write, added
from seed.kinds.namespaces.evaluators.registry import evaluators_of

DATABASES = GroupResource("databases", "example.com")
COUNT = "count/databases.example.com"
SUM = "sum.databases.v1.example.com/"
REPLICAS, DISK, DASHED = (f"{SUM}spec.{path}" for path in ("replicas", "disk.size", "max-connections"))
META = {"name": "db", "namespace": "web", "uid": "u", "resourceVersion": "1"}


def evaluator(*names: str) -> FieldEvaluator:
    found = fields.evaluator_of(DATABASES, names)
    assert found is not None
    return found


def usage(spec: Any, *names: str) -> dict[str, str]:
    counting = evaluator(*names)
    subject = msgspec.json.decode(msgspec.json.encode({"metadata": META, "spec": spec}), type=counting.type)
    found = counting.usage(subject, 0.0)
    assert found.pop(COUNT) == 10**9
    return {name.removeprefix(SUM): text for name, text in resources.render(found).items()}


def write(new: Any, old: Any = None, *, version: str = "v1", subresource: str = "") -> Write[Object]:
    def raw(spec: Any) -> msgspec.Raw:
        return msgspec.Raw(msgspec.json.encode({"metadata": META, "spec": spec} if spec is not None else None))

    known = Object(metadata=ObjectMeta(name="db", namespace="web", uid="u", resource_version="1"))
    return Write(
        operation="CREATE" if old is None else "UPDATE",
        subresource=subresource,
        new=known,
        old=None if old is None else known,
        now=0.0,
        sent=AsSent(version, raw(new), raw(old)),
    )


def adds(asked: Write[Object], *names: str, **replicas: tuple[str, ...]) -> dict[str, str]:
    counting = evaluator(*names)
    found = added(counting, Terms(limited=frozenset(names)), counting.read(asked, replicas))
    return {name.removeprefix(SUM): text for name, text in resources.render(found).items()}


@pytest.mark.parametrize(
    ("value", "amount"),
    [
        (3, "3"),
        (0, "0"),
        (2.5, "2500m"),
        ("500m", "500m"),
        ("10Gi", "10737418240"),
        ("0.0001", "1m"),
        (1e22, "10Z"),
        (10**30, "1000000000000000000000000"),
    ],
)
def test_a_number_and_a_quantity_are_rounded_up_to_thousandths(value: Any, amount: str) -> None:
    found = usage({"replicas": value}, REPLICAS)
    assert resources.parse(found) == resources.parse({"spec.replicas": amount if amount != "10Z" else str(10**22)})


@pytest.mark.parametrize("value", [-1, -0.5, "-1", "many", "1.5.", "1\n", "9" * 65, True, [1], [], {"a": 1}, ""])
def test_what_is_no_amount_is_refused_and_is_an_object_that_cannot_be_read(value: Any) -> None:
    with pytest.raises(Refused, match=r"must specify spec\.replicas as a number or quantity .* for: db"):
        adds(write({"replicas": value}), REPLICAS)
    body = msgspec.json.encode({"metadata": META, "spec": {"replicas": value}})
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(body, type=evaluator(REPLICAS).type)


@pytest.mark.parametrize("spec", [{}, {"replicas": None}, {"disk": {}}])
def test_what_leaves_the_field_out_uses_nothing_and_is_refused(spec: Any) -> None:
    assert usage(spec, REPLICAS) == {}
    with pytest.raises(Refused, match=r"must specify spec\.replicas for: db"):
        adds(write(spec), REPLICAS)


def test_several_fields_are_counted_beside_each_other() -> None:
    spec = {"replicas": 3, "disk": {"size": "2Gi", "class": "fast"}, "max-connections": 7, "more": [1, {"a": "b"}]}
    expected = resources.parse({"spec.replicas": "3", "spec.disk.size": "2Gi", "spec.max-connections": "7"})
    assert resources.parse(usage(spec, REPLICAS, DISK, DASHED)) == expected


def test_a_field_may_be_inside_of_what_is_a_number_elsewhere() -> None:
    names = (f"{SUM}spec.disk", f"{SUM}spec.disk.size")
    assert usage({"disk": 4}, *names) == {"spec.disk": "4"}
    assert usage({"disk": {"size": 4}}, *names) == {"spec.disk.size": "4"}


@pytest.mark.parametrize(("old", "new", "more"), [(2, 5, {"spec.replicas": "3"}), (5, 2, {}), (5, 5, {})])
def test_an_update_costs_what_it_adds(old: int, new: int, more: dict[str, str]) -> None:
    assert adds(write({"replicas": new}, {"replicas": old}), REPLICAS) == more


def test_an_update_of_what_could_not_be_read_or_had_no_field_adds_all_of_it() -> None:
    for old in ({"replicas": "many"}, {}):
        assert adds(write({"replicas": 5}, old), REPLICAS) == {"spec.replicas": "5"}


def test_an_update_that_leaves_the_field_as_it_is_needs_none() -> None:
    assert adds(write({"a": 1}, {"a": 2}), REPLICAS) == {}


def test_an_object_in_another_version_is_refused_and_says_which_one() -> None:
    with pytest.raises(Refused, match=r"must be written as example\.com/v1, .* for: db"):
        adds(write({"replicas": 1}, version="v1beta1"), REPLICAS)


def test_a_scale_adds_to_the_field_that_the_definition_names() -> None:
    asked = write({"replicas": 5}, {"replicas": 2}, version="v1beta1", subresource="scale")
    assert adds(asked, REPLICAS, DISK, v1=("spec", "replicas")) == {"spec.replicas": "3"}
    assert adds(asked, REPLICAS, DISK, v1=("spec", "disk", "size")) == {"spec.disk.size": "3"}
    assert adds(asked, REPLICAS, DISK, v1=("spec", "other")) == {}


def test_a_scale_is_refused_where_it_is_not_known_what_it_sets_in_the_version_that_is_counted() -> None:
    asked = write({"replicas": 5}, {"replicas": 2}, version="v2", subresource="scale")
    with pytest.raises(Refused, match=r"must be edited, not scaled: example\.com/v1, .* has no scale, for: db"):
        adds(asked, REPLICAS, v2=("spec", "replicas"))


def test_a_quota_that_also_counts_the_number_asks_one_evaluator() -> None:
    (found,) = evaluators_of(Terms(limited=frozenset({COUNT, REPLICAS, "pods"}) - {"pods"})).values()
    assert found == evaluator(REPLICAS) and found.version == "v1"
    terms = Terms(limited=frozenset({COUNT, REPLICAS}))
    need = added(found, terms, evaluator(REPLICAS).read(write({"replicas": 2}), {}))
    assert resources.render(need) == {COUNT: "1", REPLICAS: "2"}


def test_of_two_versions_of_a_kind_one_is_counted() -> None:
    found = evaluator(REPLICAS, "sum.databases.v2.example.com/spec.replicas")
    assert (found.version, list(found.fields)) == ("v1", [REPLICAS])


def test_a_pod_that_requests_a_device_of_that_name_uses_nothing_of_the_fields() -> None:
    (pods,) = evaluators_of(Terms(limited=frozenset({"pods"}))).values()
    container = {"name": "c", "resources": {"requests": {REPLICAS: "5"}, "limits": {REPLICAS: "5"}}}
    body = {"metadata": META, "spec": {"containers": [container]}}
    subject = msgspec.json.decode(msgspec.json.encode(body), type=pods.type)
    assert REPLICAS not in pods.usage(subject, 0.0)
