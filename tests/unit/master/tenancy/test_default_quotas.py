"""What becomes of one subject's quotas, decided without an API server."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from common.api.labels import DEFAULT_LABEL
from common.api.types import Condition, DefaultQuota
from common.kube.client.meta import Object, ObjectMeta, OwnerReference
from master.cache.objects import MasterQuota, QuotaStatus
from master.tenancy.default_policy import WRITTEN_ANNOTATION, Decision, decide

ALPHA = Object(metadata=ObjectMeta(name="alpha", uid="11112222-alpha"))
SMALL = DefaultQuota(quota={"cpu": "16", "memory": "64Gi"})
LARGE = DefaultQuota(quota={"cpu": "32"})
NOTHING = Decision()


def decided(
    *quotas: MasterQuota,
    default: DefaultQuota | None = SMALL,
    subject: Object | None = ALPHA,
    namesake: MasterQuota | None = None,
) -> Decision:
    return decide("project", subject, default, quotas, namesake)


def stored(body: Mapping[str, object], name: str = "", **metadata: object) -> MasterQuota:
    """As the API server has it, with an identity."""
    quota = msgspec.convert(body, MasterQuota)
    known = {"uid": f"uid-{name or quota.metadata.name}", "generation": 1, **metadata}
    if name:
        known["name"] = name
    return changed(quota, **known)


def changed(quota: MasterQuota, *, spec: Mapping[str, object] | None = None, **metadata: object) -> MasterQuota:
    return msgspec.structs.replace(
        quota,
        metadata=msgspec.structs.replace(quota.metadata, **metadata),
        spec={**quota.spec, **(spec or {})},
    )


def made(default: DefaultQuota = SMALL, **metadata: object) -> MasterQuota:
    body = decided(default=default).create
    assert body is not None
    return stored(body, **metadata)


def own(name: str = "ours", **metadata: object) -> MasterQuota:
    spec = {"subject": {"kind": "project", "name": "alpha"}, "quota": {"cpu": "64"}}
    return stored({"metadata": {"name": name}, "spec": spec}, **metadata)


def enforced(quota: MasterQuota, status: str = "True", generation: int = 1) -> MasterQuota:
    condition = msgspec.convert({"type": "Enforced", "status": status, "observedGeneration": generation}, Condition)
    return msgspec.structs.replace(quota, status=QuotaStatus(conditions=[condition]))


def names(quotas: list[MasterQuota]) -> list[str]:
    return [quota.metadata.name for quota in quotas]


def test_a_project_without_a_quota_gets_one_that_goes_with_it() -> None:
    quota = made()
    assert quota.metadata.name == "project-alpha"
    assert quota.metadata.labels == {DEFAULT_LABEL: "true"}
    owner = OwnerReference(api_version="seedquota.io/v1alpha1", kind="Project", name="alpha", uid=ALPHA.metadata.uid)
    assert quota.metadata.owner_references == (owner,)
    assert quota.spec == {
        "subject": {"kind": "project", "name": "alpha"},
        "quota": {"cpu": "16", "memory": "64Gi"},
        "enforcement": "deny",
        "warnAtPercent": 90,
    }


def test_an_organizations_is_named_after_it() -> None:
    body = decide("organization", ALPHA, SMALL, [], None).create
    assert body is not None
    quota = stored(body)
    assert quota.metadata.name == "org-alpha"
    assert quota.metadata.owner_references[0].kind == "Organization"
    assert quota.spec["subject"] == {"kind": "organization", "name": "alpha"}


def test_what_is_as_it_should_be_is_left_alone() -> None:
    assert decided(made()) == NOTHING


def test_quantities_written_otherwise_are_no_edit() -> None:
    assert decided(changed(made(), spec={"quota": {"memory": "65536Mi", "cpu": 16}})) == NOTHING


def test_it_follows_edits_of_the_default() -> None:
    quota = made()
    (after,) = decided(quota, default=LARGE).replace
    assert after.spec["quota"] == {"cpu": "32"}
    assert after.metadata.uid == quota.metadata.uid
    assert decided(after, default=LARGE) == NOTHING


@pytest.mark.parametrize("default", [SMALL, None])
def test_it_goes_with_the_default_or_the_project(default: DefaultQuota | None) -> None:
    gone = decided(made(), default=default, subject=None if default else ALPHA)
    assert names(gone.delete) == ["project-alpha"]
    assert gone.create is None and gone.replace == []


def test_without_a_default_a_quota_of_its_own_stays() -> None:
    assert decided(own(), default=None) == NOTHING
    assert decided(own(), subject=None) == NOTHING


def test_a_project_with_a_quota_of_its_own_gets_no_default() -> None:
    assert decided(own()).create is None


@pytest.mark.parametrize(
    "custom",
    [own(), enforced(own(), "False"), enforced(own(generation=2), "True", generation=1)],
    ids=["not seen yet", "not on all seeds", "edited since"],
)
def test_it_stays_until_the_projects_own_quota_is_in_force(custom: MasterQuota) -> None:
    assert decided(made(), custom) == NOTHING


@pytest.mark.parametrize("status", ["True", "Unknown"])
def test_it_gives_way_once_the_projects_own_quota_is_on_all_seeds_that_can_be_reached(status: str) -> None:
    found = decided(made(), enforced(own(), status))
    assert names(found.delete) == ["project-alpha"]
    assert found.replace == []


def test_it_follows_the_default_also_while_it_waits_to_give_way() -> None:
    assert names(decided(made(), own(), default=LARGE).replace) == ["project-alpha"]


def test_when_the_own_quota_goes_the_default_comes_before_it_is_gone() -> None:
    found = decided(enforced(own(deletion_timestamp="2026-11-20T10:00:00Z")))
    assert found.create is not None


def test_a_quota_that_is_being_deleted_under_the_usual_name_limits_until_it_is_gone() -> None:
    going = own("project-alpha", deletion_timestamp="2026-11-20T10:00:00Z")
    assert decided(going, namesake=going) == NOTHING


def test_where_anothers_quota_bears_the_usual_name_it_gets_a_name_of_its_own() -> None:
    other = stored(
        {"metadata": {"name": "project-alpha"}, "spec": {"subject": {"kind": "project", "name": "beta"}, "quota": {}}}
    )
    body = decided(namesake=other).create
    assert body is not None
    quota = stored(body)
    assert quota.metadata.name == "project-alpha-11112222"
    assert decided(quota, namesake=other) == NOTHING


def test_a_project_that_is_being_deleted_gets_no_new_one() -> None:
    going = Object(metadata=ObjectMeta(name="alpha", uid="u", deletion_timestamp="2026-11-20T10:00:00Z"))
    assert decided(subject=going) == NOTHING


def test_without_its_label_it_is_the_projects_own_and_no_default_any_more() -> None:
    (after,) = decided(changed(made(), labels={"team": "a"})).replace
    assert after.metadata.labels == {"team": "a"}
    assert WRITTEN_ANNOTATION not in after.metadata.annotations
    assert after.metadata.owner_references == ()
    assert decided(after) == NOTHING


def test_whoever_edits_what_it_says_makes_it_the_projects_own() -> None:
    """As `kubectl edit` does, or `kubectl apply` of a manifest with its name."""
    edited = changed(made(), spec={"quota": {"cpu": "64"}})
    (after,) = decided(edited, default=LARGE).replace
    assert after.spec["quota"] == {"cpu": "64"}
    assert DEFAULT_LABEL not in after.metadata.labels
    assert decided(after, default=None) == NOTHING


def test_an_edit_of_the_enforcement_is_one_too() -> None:
    assert DEFAULT_LABEL not in decided(changed(made(), spec={"enforcement": "warn"})).replace[0].metadata.labels


def test_a_guarantee_is_one_too_since_no_default_could_go_below_it() -> None:
    (after,) = decided(changed(made(), spec={"guaranteed": {"cpu": "8"}})).replace
    assert DEFAULT_LABEL not in after.metadata.labels and after.spec["guaranteed"] == {"cpu": "8"}


def test_with_the_label_a_quota_of_its_own_follows_the_default_from_then_on() -> None:
    (after,) = decided(own(labels={DEFAULT_LABEL: "true"})).replace
    assert after.metadata.name == "ours"
    assert after.spec["quota"] == SMALL.quota
    assert decided(after) == NOTHING


def test_a_project_made_again_owns_the_quota_that_was_left() -> None:
    again = Object(metadata=ObjectMeta(name="alpha", uid="another"))
    (after,) = decided(made(), subject=again).replace
    assert [owner.uid for owner in after.metadata.owner_references] == ["another"]


def test_owners_that_somebody_else_added_stay() -> None:
    bundle = OwnerReference(api_version="example.com/v1", kind="Bundle", name="b", uid="b")
    quota = changed(made(), owner_references=(bundle,))
    (after,) = decided(quota).replace
    assert [owner.kind for owner in after.metadata.owner_references] == ["Bundle", "Project"]


def test_of_several_that_follow_the_default_one_is_kept_and_the_others_go_once_it_is_in_force() -> None:
    usual, other = made(), made(name="another", uid="other")
    assert decided(other, usual) == NOTHING
    assert names(decided(other, enforced(usual)).delete) == ["another"]


@pytest.mark.parametrize(
    "part",
    [{"subject": {"kind": "project", "name": "alpha", "clusters": {"names": ["c1"]}}}, {"scopes": ["BestEffort"]}],
)
def test_a_quota_of_a_part_leaves_the_default_for_the_rest(part: dict[str, object]) -> None:
    ours = changed(enforced(own()), spec=part)
    assert decided(ours).create is not None
    following = enforced(made())
    assert decided(ours, following) == NOTHING
