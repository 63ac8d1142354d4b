"""What is sent to seeds of a manifest, and what their answers say when they are compared with the quotas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
import yaml

from common.api.preview_pages import MachineTypesPage, NeedsPage, NeedsQuestion, read_machine_types, read_needs
from common.api.types import Seed
from master.apiserver import machine_types, manifests
from master.apiserver.manifests import ManifestAnswer, ManifestFitsRequest
from master.apiserver.previews import PreviewInput
from master.apiserver.problem import ProblemError
from master.cache.objects import MasterQuota
from tests.unit.master.apiserver.test_previews import counted
from tests.unit.quota_examples import NOW, SEEDS

POOL = "machines of machinedeployment/pool-a"


def known(*quotas: MasterQuota, seeds: Sequence[Seed] = ()) -> PreviewInput:
    return PreviewInput(quotas, seeds, NOW, sees_seeds=True)


def page(*items: dict[str, Any], problem: str = "") -> NeedsPage:
    found = read_needs(msgspec.json.encode({"items": items, "problem": problem}))
    assert found is not None
    return found


def need(count: int = 3, name: str = POOL, problem: str = "", quota: str = "q", **amounts: str) -> dict[str, Any]:
    return {"object": name, "count": count, "needs": {quota: amounts} if amounts else {}, "problem": problem}


def only(found: tuple[list[ManifestAnswer], bool]) -> ManifestAnswer:
    (answer,), more = found
    assert not more
    return answer


def test_objects_together_are_compared_with_what_is_free_and_each_says_how_many_fit() -> None:
    present = counted({"cpu": 10, "machines": 9}, {"cpu": 3, "machines": 0})
    asked = page(need(3, cpu="2", machines="1"), need(2, "pods of deployment/web", cpu="1"))
    answer = only(manifests.answers(known(present, seeds=SEEDS), {"eu-1": [asked]}))
    assert (answer.result, answer.message) == ("DoesNotFit", "q: cpu short by 1")
    (short,) = answer.shortages
    assert (short.requested, short.used, short.limit) == ("8", "3", "10")
    assert [(each.count, each.fitting) for each in answer.objects] == [(3, 3), (2, 2)]
    assert answer.objects[0].need == {"cpu": "2", "machines": "1"}
    assert answer.items and all(each.by_recall == 0 for each in answer.items)


def test_what_fits_says_on_which_seeds_and_how_often() -> None:
    present = counted({"cpu": 10}, {"cpu": 3})
    answer = only(manifests.answers(known(present, seeds=SEEDS), {"eu-1": [page(need(3, cpu="1"))]}))
    assert answer.result == "Fits"
    assert max(each.by_recall or 0 for each in answer.items) == 2


def test_each_quota_is_compared_with_what_it_counts() -> None:
    one = counted({"cpu": 10}, {"cpu": 3})
    other = msgspec.structs.replace(one, metadata=msgspec.structs.replace(one.metadata, name="other"))
    answer = only(manifests.answers(known(one, other), {"eu-1": [page(need(1, quota="other", cpu="8"))]}))
    assert [each.quota for each in answer.shortages] == ["other"]


def test_what_is_not_known_does_not_fit_and_is_not_refused() -> None:
    present = counted({"cpu": 10}, {"cpu": 3})
    asked = page(need(1, cpu="1"), need(1, "machine/m", problem="cannot size machine now: aws"))
    answer = only(manifests.answers(known(present), {"eu-1": [asked]}))
    assert (answer.result, answer.message) == ("Unknown", "machine/m: cannot size machine now: aws")
    assert [each.fitting for each in answer.objects] == [1, 0]
    assert answer.items == []
    short = only(manifests.answers(known(present), {"eu-1": [page(need(1, cpu="8"), need(problem="?"))]}))
    assert short.result == "DoesNotFit", "the rest does not make it less"
    assert only(manifests.answers(known(present), {"eu-1": [page(problem="more than 64")]})).result == "Unknown"


def test_nothing_that_is_counted_fits_and_says_so() -> None:
    answer = only(manifests.answers(known(counted({"cpu": 1}, {"cpu": 1})), {"eu-1": [page(need(1))]}))
    assert (answer.result, answer.message) == ("Fits", "no quota counts any of it")


def test_seeds_that_say_the_same_are_one_answer_and_who_cannot_tell_is_left_out_where_others_can() -> None:
    present = counted({"cpu": 10}, {"cpu": 3})
    small, large, unknown = page(need(1, cpu="2")), page(need(1, cpu="8")), page(need(1, problem="not told"))
    found, more = manifests.answers(
        known(present), {"a": [small], "b": [unknown, small], "c": [large], "d": [unknown], "e": []}
    )
    assert [(each.seeds, each.result) for each in found] == [(["a", "b"], "Fits"), (["c"], "DoesNotFit")]
    assert not more
    assert only(manifests.answers(known(present), {"d": [unknown]})).result == "Unknown"
    many = {str(number): [page(need(1, cpu=str(number + 1)))] for number in range(20)}
    assert manifests.answers(known(present), many)[1]


@pytest.mark.parametrize(
    "wrong",
    [
        b"[]",
        b"[" * 100_000,
        b"\xff",
        msgspec.json.encode({"items": [need(cpu="-1")]}),
        msgspec.json.encode({"items": [need(cpu="many")]}),
        msgspec.json.encode({"items": [need(-1, cpu="1")]}),
        msgspec.json.encode({"items": [need(10**9, cpu="1")]}),
        msgspec.json.encode({"items": [need(name="x" * 5000)]}),
        msgspec.json.encode({"items": [need()] * 65}),
    ],
)
def test_what_a_hostile_seed_answers_is_not_read(wrong: bytes) -> None:
    assert read_needs(wrong) is None
    assert read_machine_types(wrong) is None or b"items" in wrong


def _dumped(documents: Sequence[object]) -> str:
    """Without anchors and aliases."""
    return "---\n".join(msgspec.json.encode(each).decode() + "\n" for each in documents)


def asked(manifest: str, **more: Any) -> NeedsQuestion:
    body = msgspec.convert({"project": "alpha", "manifest": manifest, **more}, ManifestFitsRequest)
    content = manifests.question(body, known(counted({"cpu": 1}, {"cpu": 0})), "alpha")
    return msgspec.json.decode(content, type=NeedsQuestion)


def test_several_objects_and_lists_are_asked_about_by_the_quotas_of_the_project() -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"x": 3, "y": 0.5, "z": "3"}}
    text = _dumped([pod, {"kind": "PodList", "items": [pod, pod]}])
    found = asked(text, replicas=4)
    assert (found.project, found.quotas, found.replicas) == ("alpha", ["q"], 4)
    assert found.documents == [pod] * 3
    assert asked(msgspec.json.encode(pod).decode()).documents == [pod]


def test_no_seed_is_sent_what_may_be_a_secret() -> None:
    spec = {
        "cloudProviderSpec": {
            "secretAccessKey": "S",
            "accessKeyId": "S",
            "password": {"value": "S"},
            "applicationCredentialSecret": "S",
            "auth": {"kubeconfig": {"value": "S"}},
            "serviceAccount": "S",
            "instanceType": "m5.large",
            "cpus": {"secretKeyRef": {"name": "n"}},
        },
        "containers": [{"env": [{"value": "S"}], "args": ["S"], "command": ["S"], "resources": {"limits": {"cpu": 1}}}],
        "userDataSecretName": "n",
        "userData": "S",
    }
    (found,) = asked(
        yaml.safe_dump({"kind": "Machine", "data": {"a": "S"}, "stringData": {"a": "S"}, "spec": spec})
    ).documents
    assert "S" not in _texts(found)
    assert found["spec"]["cloudProviderSpec"]["instanceType"] == "m5.large"
    assert found["spec"]["cloudProviderSpec"]["cpus"] == {"secretKeyRef": {"name": "n"}}
    assert found["spec"]["containers"] == [{"resources": {"limits": {"cpu": 1}}}]


def _texts(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [text for each in value.values() for text in _texts(each)]
    return [text for each in value for text in _texts(each)] if isinstance(value, list) else [value]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "is not valid YAML"),
        ("a: &x [1]\nb: *x", "anchors and aliases are not read here"),
        ("a: !!python/object:os.system {}", "tags are not read here"),
        ("[" * 100 + "]" * 100, "nested too deep"),
        ("- " * 40 + "a", "nested too deep"),
        ("a: [" + "1," * 10_000 + "]", "too many values"),
        ("---\n---\n", "there is no object in it"),
        ("kind: List\nitems: 3", "there is no object in it"),
        ("- a", "something that is no object of Kubernetes"),
        ("---\na: 1\n" * 40, "40 objects in it: ask for 32 at a time"),
    ],
)
def test_a_manifest_that_cannot_be_asked_about_says_why(text: str, said: str) -> None:
    with pytest.raises(ProblemError, match=said) as caught:
        manifests.read(text)
    assert caught.value.status == 422


def test_machine_types_of_all_seeds_are_one_list_and_other_sizes_other_lines() -> None:
    def types(*items: tuple[str, str], more: bool = False) -> MachineTypesPage:
        found = [{"provider": "aws", "place": "aws eu", "name": name, "resources": {"cpu": cpu}} for name, cpu in items]
        page = read_machine_types(msgspec.json.encode({"items": found, "more": more}))
        assert page is not None
        return page

    pages = {
        "b": [types(("m", "2"), ("l", "1"))],
        "a": [types(("m", "2000m")), types(("m", "2"))],
        "c": [types(("m", "3"))],
    }
    items, more = machine_types.together(pages)
    assert [(each.name, each.resources["cpu"], each.seeds) for each in items] == [
        ("l", "1", ["b"]),
        ("m", "2", ["a", "b"]),
        ("m", "3", ["c"]),
    ]
    assert not more
    assert machine_types.together({"a": [types(more=True)]}) == ([], True)
