"""What a MachineDeployment or MachineSet is told, by what it asks for and how full its quotas are."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from common.quota.guarantees import Guarantee
from seed.accounts.snapshot import QuotaSnapshot
from seed.machines import deployments
from seed.machines.deployments import Deployment
from seed.webhooks import fits, scale_advice
from seed.webhooks.scale_advice import Advice, Asked, Room
from tests.unit.seed_world import nanos, quota_copy

SIZE = nanos("cpu=8,memory=16Gi,machines=1")


def deployment(
    replicas: int | None = 3,
    *,
    existing: int | None = None,
    template: object = "small",
    owner: bool | None = None,
    **spec: object,
) -> Deployment:
    owners = [{"apiVersion": "v1", "kind": "MachineDeployment", "name": "d", "uid": "u", "controller": owner}]
    body = {
        "metadata": {"name": "d", "namespace": "n", "ownerReferences": owners if owner is not None else []},
        "spec": {"template": {"spec": {"providerSpec": template}}, **spec},
        "status": {} if existing is None else {"replicas": existing},
    }
    if replicas is not None:
        body["spec"]["replicas"] = replicas  # type: ignore[index]
    return msgspec.json.decode(json.dumps(body), type=Deployment)


def room(limits: str, used: str = "", quota: str = "project-alpha", **known: Any) -> Room:
    return Room(quota=quota, limits=nanos(limits), used=nanos(used), **known)


def told(asked: Asked, *rooms: Room, deny: bool = False, size: dict[str, int] = SIZE) -> Advice:
    return scale_advice.advise(asked, size, rooms, deny=deny)


def more(count: int, replicas: int | None = None, *, grows: bool = True, surge: int = 0) -> Asked:
    return Asked(count if replicas is None else replicas, count, grows, surge)


# What is asked ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("new", "old", "expected"),
    [
        (deployment(10), None, Asked(10, 10, True)),
        (deployment(None), None, Asked(1, 1, True)),
        (deployment(0), None, None),
        (deployment(10), deployment(4, existing=4), Asked(10, 6, True)),
        (deployment(10), deployment(4, existing=1), Asked(10, 9, True)),
        (deployment(10), deployment(4, existing=12), None),
        (deployment(2), deployment(4, existing=4), None),
        (deployment(8), deployment(10, existing=4), None),
        (deployment(10), deployment(10, existing=4), None),
        (deployment(4, existing=4), deployment(4, existing=3), None),
        (deployment(None), deployment(0), Asked(1, 1, True)),
    ],
)
def test_only_what_is_beyond_what_exists_is_asked_for(
    new: Deployment, old: Deployment | None, expected: Asked | None
) -> None:
    assert scale_advice.asked(new, old, is_deployment=True) == expected
    assert scale_advice.asked(new, old, is_deployment=False) == expected


def test_a_machine_set_of_a_deployment_is_not_asked() -> None:
    assert scale_advice.asked(deployment(10, owner=True), None, is_deployment=False) is None
    assert scale_advice.asked(deployment(10, owner=True), deployment(1), is_deployment=False) is None
    assert scale_advice.asked(deployment(10, owner=False), None, is_deployment=False) == Asked(10, 10, True)
    assert scale_advice.asked(deployment(10, owner=True), None, is_deployment=True) == Asked(10, 10, True)


def rolling(surge: object = None, unavailable: object = None, kind: str = "RollingUpdate") -> dict[str, object]:
    bounds = {"maxSurge": surge, "maxUnavailable": unavailable}
    return {"type": kind, "rollingUpdate": {name: bound for name, bound in bounds.items() if bound is not None}}


@pytest.mark.parametrize(
    ("spec", "surge"),
    [
        ({}, 1),
        ({"strategy": rolling()}, 1),
        ({"strategy": rolling(3)}, 3),
        ({"strategy": rolling("25%")}, 3),
        ({"strategy": rolling("25%", "9%")}, 3),
        ({"strategy": rolling("25%", "10%")}, 0),
        ({"strategy": rolling(0, 1)}, 0),
        ({"strategy": rolling(1, 1)}, 0),
        ({"strategy": rolling("nonsense")}, 0),
        ({"strategy": {"type": "OnDelete"}}, 0),
        ({"rollout": {"strategy": rolling(2)}}, 2),
        ({"rollout": {"after": "2026-11-20T10:00:03Z"}}, 1),
        ({"rollout": {"strategy": {"type": "OnDelete"}}}, 0),
    ],
)
def test_a_rollout_needs_its_surge_unless_some_machines_may_be_unavailable(spec: dict[str, object], surge: int) -> None:
    assert deployments.surge(deployment(10, **spec)) == surge


def test_another_template_of_a_deployment_is_a_rollout_and_of_a_machine_set_it_is_not() -> None:
    old, new = deployment(4, existing=4), deployment(4, template="large")
    assert scale_advice.asked(new, old, is_deployment=True) == Asked(4, 0, False, surge=1)
    assert scale_advice.asked(new, old, is_deployment=False) is None
    missing = deployment(4, existing=1)
    assert scale_advice.asked(new, missing, is_deployment=True) == Asked(4, 3, False, surge=1)
    assert scale_advice.asked(new, missing, is_deployment=False) == Asked(4, 3, False)
    assert scale_advice.asked(deployment(0, template="large"), old, is_deployment=True) is None
    unborn = deployment(2, existing=0)
    assert scale_advice.asked(deployment(2, template="large"), unborn, is_deployment=True) == Asked(2, 2, False)


def capi(version: str, **template: object) -> Deployment:
    spec = {"clusterName": "c1", "version": version, "bootstrap": {"dataSecretName": "b"}}
    body = {"metadata": {"labels": {}}, "spec": spec, **template}
    return msgspec.json.decode(
        json.dumps({"metadata": {"name": "d"}, "spec": {"clusterName": "c1", "replicas": 2, "template": body}}),
        type=Deployment,
    )


def test_cluster_api_changes_in_place_what_machine_controller_replaces() -> None:
    labelled = {"labels": {"a": "b"}}
    assert deployments.replaces(capi("v1.34.1"), capi("v1.34.0"))
    assert not deployments.replaces(capi("v1.34.0", metadata=labelled), capi("v1.34.0"))
    old, new = ({"metadata": meta, "spec": {"providerSpec": 1}} for meta in ({}, labelled))
    assert deployments.replaces(deployment(1, **{"template": new}), deployment(1, **{"template": old}))
    respelled = msgspec.structs.replace(
        deployment(1), spec=msgspec.structs.replace(deployment(1).spec, template=msgspec.Raw(b'{"spec":{}}'))
    )
    spaced = msgspec.structs.replace(
        respelled, spec=msgspec.structs.replace(respelled.spec, template=msgspec.Raw(b'{ "spec": {} }'))
    )
    assert not deployments.replaces(respelled, spaced)


# What is answered ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "limited", "warning"),
    [
        (more(10), room("cpu=64", "cpu=40"), "10 replicas need cpu=80, 24 free: 3 can start"),
        (more(6, 10), room("cpu=64", "cpu=40"), "6 more replicas need cpu=48, 24 free: 3 can start"),
        (more(1), room("cpu=64", "cpu=60"), "1 replica needs cpu=8, 4 free: none can start"),
        (more(1, 5), room("cpu=64", "cpu=80"), "1 more replica needs cpu=8, 0 free: none can start"),
        (more(4), room("cpu=64,memory=48Gi"), "4 replicas need memory=64Gi, 48Gi free: 3 can start"),
        (more(4), room("cpu=16,memory=16Gi"), "4 replicas need memory=64Gi, 16Gi free: 1 can start"),
        (more(4), room("machines=3"), "4 replicas need machines=4, 3 free: 3 can start"),
    ],
)
def test_a_warning_says_how_many_replicas_fit(asked: Asked, limited: Room, warning: str) -> None:
    advice = told(asked, limited)
    assert advice == Advice(reason="ReplicasShort", warning=f"seedquota/project-alpha: {warning}")
    assert len(advice.warning) < 120


@pytest.mark.parametrize(
    "limited", [room("cpu=80"), room("cpu=104", "cpu=24"), room("clusters=0"), room("nvidia.com/gpu=0")]
)
def test_what_fits_or_is_not_limited_is_not_spoken_of(limited: Room) -> None:
    assert told(more(10), limited) == told(more(10), limited, deny=True) == Advice()


def test_devices_are_counted_like_all_else() -> None:
    size = {**SIZE, **nanos("nvidia.com/gpu=4")}
    advice = told(more(3), room("cpu=64,nvidia.com/gpu=8"), size=size)
    assert advice.warning == "seedquota/project-alpha: 3 replicas need nvidia.com/gpu=12, 8 free: 2 can start"


def test_of_several_quotas_the_one_speaks_that_lets_the_fewest_start() -> None:
    own, organization = room("cpu=48"), room("cpu=128", "cpu=96", quota="org-acme")
    assert told(more(10), own, organization).warning.startswith(
        "seedquota/org-acme: 10 replicas need cpu=80, 32 free: 4"
    )
    assert told(more(5), own, organization).warning.startswith("seedquota/org-acme")
    refusals = told(more(10), own, organization, deny=True).refusals
    assert [refusal.quota for refusal in refusals] == ["org-acme", "project-alpha"]
    assert refusals[0].text.startswith("exceeded quota: org-acme,")


def test_what_is_guaranteed_to_others_is_not_free_and_is_named() -> None:
    quota = quota_copy("org-acme", limits="cpu=64", usage="cpu=24")
    given = (Guarantee(project="alpha", hard=nanos("cpu=16"), used=nanos("cpu=8")),)
    seen = QuotaSnapshot(quota=msgspec.structs.replace(quota, guarantees=given))
    assert told(more(5), scale_advice.room_of(seen, "alpha")) == Advice()
    of_beta = scale_advice.room_of(seen, "beta")
    advice = told(more(5), of_beta)
    assert advice.warning == (
        "seedquota/org-acme: 5 replicas need cpu=40, 32 free, 8 kept for other projects: 4 can start"
    )
    (refusal,) = told(more(5), of_beta, deny=True).refusals
    assert "requested: cpu=40, used: cpu=32, limited: cpu=64" in refusal.text
    assert "cpu=8 of used is guaranteed to other projects" in refusal.text
    asked = fits.of_scale(more(5), SIZE, [seen], "beta", "d")
    (part,) = asked.quotas
    assert (asked.project, part.fitting, part.free, part.kept) == ("beta", 4, {"cpu": "32"}, {"cpu": "8"})
    assert fits.of_scale(more(5), SIZE, [seen], "alpha", "d").quotas[0].fitting == 5


def test_a_refusal_has_the_numbers_of_a_machines_and_says_how_many_can_start() -> None:
    advice = told(more(10), room("cpu=64,memory=1Ti", "cpu=40", being_created=nanos("cpu=8")), deny=True)
    assert advice.warning == ""
    assert advice.reason == "QuotaExceeded"
    (refusal,) = advice.refusals
    assert (refusal.code, refusal.reason) == (403, "Forbidden")
    assert refusal.text == (
        "exceeded quota: project-alpha, requested: cpu=80, used: cpu=40, limited: cpu=64; short by cpu=56; "
        "3 of 10 replicas can start; cpu=8 of used is machines being created; "
        "it can never fit: the request is larger than the limit"
    )
    (added,) = told(more(6, 10), room("cpu=64", "cpu=40"), deny=True).refusals
    assert "; 3 of 6 more replicas can start; " in added.text


def test_a_quota_that_only_warns_refuses_nothing_and_leaves_the_word_to_one_that_does() -> None:
    soft, hard = room("cpu=16", enforced=False), room("cpu=64", quota="org-acme")
    allowed = "seedquota/project-alpha: 10 replicas need cpu=80, 16 free; allowed because enforcement is warn"
    assert told(more(10), soft) == Advice(reason="ReplicasShort", warning=allowed)
    assert told(more(10), soft, deny=True) == told(more(10), soft)
    assert told(more(10), soft, hard).warning.startswith("seedquota/org-acme")
    assert told(more(8), soft, hard).warning.startswith("seedquota/project-alpha: 8 replicas need cpu=64, 16 free; all")


def test_who_only_changes_the_template_is_never_refused() -> None:
    advice = told(more(6, 10, grows=False), room("cpu=64", "cpu=40"), deny=True)
    assert not advice.refusals
    assert advice.warning == "seedquota/project-alpha: 6 more replicas need cpu=48, 24 free: 3 can start"


def test_a_rollout_without_room_for_its_surge_is_told_how_to_go_on() -> None:
    rollout = more(0, 4, grows=False, surge=1)
    advice = told(rollout, room("cpu=34", "cpu=32"), deny=True)
    assert advice == Advice(
        reason="SurgeShort",
        warning=(
            "seedquota/project-alpha: rollout cannot begin: maxSurge 1 needs cpu=8, 2 free; "
            "set maxSurge 0, maxUnavailable 1"
        ),
    )
    assert len(advice.warning) < 120
    assert told(rollout, room("cpu=40", "cpu=32")) == Advice()
    assert told(rollout, room("cpu=34", "cpu=32", surge=True)) == Advice()
    assert told(rollout, room("cpu=34", "cpu=32", enforced=False)) == Advice()
    slow = told(more(0, 4, grows=False, surge=3), room("cpu=48", "cpu=32")).warning
    assert slow == "seedquota/project-alpha: maxSurge 3 needs cpu=24, 16 free: the rollout replaces 2 at a time"


def test_a_rollout_that_grows_needs_room_for_both() -> None:
    both = more(1, 5, surge=1)
    assert told(both, room("cpu=48", "cpu=32")) == Advice()
    assert "rollout cannot begin: maxSurge 1 needs cpu=8, 0 free" in told(both, room("cpu=40", "cpu=32")).warning
    assert "1 more replica needs cpu=8, 0 free" in told(both, room("cpu=32", "cpu=32")).warning


def test_what_cannot_be_told_is_allowed_on_one_line() -> None:
    advice = scale_advice.undecided("cannot size machine: vsphere memoryMB is\nmissing")
    assert not advice.refusals
    assert advice.warning == (
        "seedquota: cannot tell how many replicas fit: cannot size machine: vsphere memoryMB is missing"
    )


def test_a_warning_has_all_amounts_of_a_resource_in_one_unit() -> None:
    warned = told(more(250), room("cpu=2003", "cpu=1000"))
    assert warned.warning == "seedquota/project-alpha: 250 replicas need cpu=2000, 1003 free: 125 can start"
    slow = told(more(0, surge=250), room("cpu=2003", "cpu=1000"))
    assert "maxSurge 250 needs cpu=2000, 1003 free" in slow.warning
