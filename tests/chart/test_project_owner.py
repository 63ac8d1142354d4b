"""What each role may do with core ResourceQuotas, and what it sees of quotas and allocations, on a real API server.

The rules of aggregated roles are filled in by the real kube-controller-manager.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from devcluster.controlplane import ControlPlane
from devcluster.manifests import apply, load
from devcluster.objects import API
from devcluster.patience import patient_timeout
from seed.projections import definition
from tests.chart.conftest import MERGE, Answer, Api

pytestmark = pytest.mark.integration

CHARTS = Path(__file__).parents[2] / "charts"
RBAC = "rbac.authorization.k8s.io"
QUOTAS = "/api/v1/namespaces/web/resourcequotas"
GROUP = "/apis/seedquota.io/v1alpha1"
LOCAL = f"{GROUP}/namespaces/web/localresourcequotas"
LOCAL_ALLOCATIONS = f"{GROUP}/namespaces/web/localresourcequotaallocations"
SHOWN = {"LocalResourceQuota": "project-alpha", "LocalResourceQuotaAllocation": "owner-ann"}
NAMES = ("terminating", "not-terminating", "best-effort", "not-best-effort", "default")
ROLES = ("view", "edit", "admin", "seedquota:project-owner", "cluster-admin")
ROBOT = "system:serviceaccount:web:robot"
_numbers = itertools.count(1)


def quota(name: str, **metadata: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": name, **metadata},
        "spec": {"hard": {"pods": "10"}},
    }


def binding(role: str, user: str, *, everywhere: bool = False, kind: str = "ClusterRole") -> dict[str, Any]:
    named = {"name": f"{role}-{user}".replace(":", "-")}
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "ClusterRoleBinding" if everywhere else "RoleBinding",
        "metadata": named if everywhere else {**named, "namespace": "web"},
        "roleRef": {"apiGroup": RBAC, "kind": kind, "name": role},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": user}],
    }


def role(name: str, *verbs: str, namespace: str = "") -> dict[str, Any]:
    rules = [{"apiGroups": [""], "resources": ["resourcequotas"], "verbs": list(verbs)}]
    metadata = {"name": name, "namespace": namespace} if namespace else {"name": name}
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "Role" if namespace else "ClusterRole",
        "metadata": metadata,
        "rules": rules,
    }


async def until(check: Callable[[], Awaitable[bool]]) -> None:
    async with patient_timeout(60):
        while not await check():
            await asyncio.sleep(0.1)


@pytest.fixture(scope="module")
async def web(plane: ControlPlane, api: Api) -> AsyncIterator[Api]:
    """A namespace in which each role has a user of its name; `locked` is a quota of a cluster administrator."""
    await plane.start([], controllers=["charts"])
    users = ("operator", "trusted")
    await apply(
        plane.cluster("charts"),
        [
            *({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in ("web", "other")),
            *load(CHARTS / "rbac" / "project-owner.yaml"),
            {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", **definition.ROLE},
            *(binding(name, name) for name in ROLES),
            *(role(name, "create", "update", "patch", "delete") for name in users),
            role("any-name", "use-any-name"),
            binding("operator", "operator", everywhere=True),
            binding("trusted", "trusted"),
            binding("any-name", "trusted"),
            {**quota("locked"), "metadata": {"name": "locked", "namespace": "web"}},
            *(
                {"apiVersion": API, "kind": kind, "metadata": {"name": name, "namespace": namespace}}
                for kind, name in SHOWN.items()
                for namespace in ("web", "other")
            ),
        ],
    )

    async def in_force() -> bool:
        """The roles are filled in, and the policy is known to the API server."""
        seen = await api.call("GET", LOCAL, user="view")
        other = await api.call("POST", f"{QUOTAS}?dryRun=All", quota("other"), user=ROLES[3])
        return seen.status == 200 and other.status == 403 and "owners of a namespace" in other.message

    await until(in_force)
    yield api
    await plane.manager_of("charts").kill()


async def write(api: Api, user: str, method: str, name: str) -> Answer:
    """A dry run: it is decided as always, and leaves nothing behind."""
    path = QUOTAS if method == "POST" else f"{QUOTAS}/{name}"
    body = {"POST": quota(name), "PATCH": {"spec": {"hard": {"pods": "9"}}}, "DELETE": None}[method]
    content_type = MERGE if method == "PATCH" else "application/json"
    return await api.call(method, f"{path}?dryRun=All", body, content_type=content_type, user=user)


async def local(api: Api, user: str, kind: str, name: str) -> dict[str, Answer]:
    """What is tried with what SeedQuota shows in the namespace."""
    path, dry = LOCAL if kind == "LocalResourceQuota" else LOCAL_ALLOCATIONS, "dryRun=All"
    body = {"apiVersion": API, "kind": kind, "metadata": {"name": "mine"}}
    lie = {"status": {"stale": "no"}}
    others = path.replace("/namespaces/web/", "/namespaces/other/")
    answers = {
        "get": await api.call("GET", f"{path}/{name}", user=user),
        "list": await api.call("GET", path, user=user),
        "watch": await api.call("GET", f"{path}?watch=1&timeoutSeconds=1", user=user),
        "create": await api.call("POST", f"{path}?{dry}", body, user=user),
        "change": await api.call("PATCH", f"{path}/{name}?{dry}", lie, content_type=MERGE, user=user),
        "delete": await api.call("DELETE", f"{path}/{name}?{dry}", user=user),
        "delete all": await api.call("DELETE", f"{path}?{dry}", user=user),
        "list others'": await api.call("GET", others, user=user),
    }
    return {f"{what} {kind}": answer for what, answer in answers.items()}


READS = {"read", *(f"{verb} {kind}" for kind in SHOWN for verb in ("get", "list", "watch"))}
OWNS = {"create default", "change default", "delete default"}
OTHERS = {"create mine", "change locked", "delete locked"}
ALL = {f"{what} {kind}" for kind in SHOWN for what in ("create", "change", "delete", "delete all")}
TABLE = {
    "view": READS,
    "edit": READS,
    "admin": READS,
    "seedquota:project-owner": READS | OWNS,
    "cluster-admin": READS | OWNS | OTHERS | ALL,
}


@pytest.mark.parametrize("user", ROLES)
async def test_what_each_role_may_do(web: Api, user: str) -> None:
    default = await web.call("POST", QUOTAS, quota("default"))
    assert default.status == 201
    answers = {
        "read": await web.call("GET", QUOTAS, user=user),
        "create default": await write(web, user, "POST", "terminating"),
        "change default": await write(web, user, "PATCH", "default"),
        "delete default": await write(web, user, "DELETE", "default"),
        "create mine": await write(web, user, "POST", "mine"),
        "change locked": await write(web, user, "PATCH", "locked"),
        "delete locked": await write(web, user, "DELETE", "locked"),
        "read allocations of the platform": await web.call("GET", f"{GROUP}/resourcequotaallocations", user=user),
    }
    for kind, name in SHOWN.items():
        answers |= await local(web, user, kind, name)
    assert (await web.call("DELETE", f"{QUOTAS}/default")).status == 200
    assert {what for what, answer in answers.items() if answer.status in (200, 201)} == TABLE[user]
    wrong = {what: answer.message for what, answer in answers.items() if answer.status not in (200, 201, 403)}
    assert wrong == {}


@pytest.mark.parametrize("name", NAMES)
async def test_an_owner_may_write_the_quotas_of_these_names(web: Api, name: str) -> None:
    assert (await write(web, ROLES[3], "POST", name)).status == 201


@pytest.mark.parametrize("name", ["defaults", "Default", "best-effort2", "mine", "default-x"])
async def test_an_owner_may_write_no_other(web: Api, name: str) -> None:
    answer = await write(web, ROLES[3], "POST", name)
    assert answer.status in (403, 422)
    generated = await web.call(
        "POST", f"{QUOTAS}?dryRun=All", {**quota(""), "metadata": {"generateName": "default"}}, user=ROLES[3]
    )
    assert generated.status == 403


async def test_an_owner_gives_no_further_right_to_others_or_himself(web: Api) -> None:
    """An owner may give a ServiceAccount what the owner has. The names hold for both."""
    owner = ROLES[3]
    roles, bindings = (f"/apis/{RBAC}/v1/namespaces/web/{kind}" for kind in ("roles", "rolebindings"))
    made = role("robot", "create", "update", "patch", "delete", namespace="web")
    assert (await web.call("POST", roles, made, user=owner)).status == 201
    assert (await web.call("POST", bindings, binding("robot", ROBOT, kind="Role"), user=owner)).status == 201

    async def robot_may() -> bool:
        return (await write(web, ROBOT, "POST", "default")).status == 201

    await until(robot_may)
    answer = await write(web, ROBOT, "POST", "mine")
    assert answer.status == 403
    assert "mine is for cluster administrators" in answer.message
    for verb in ("use-any-name", "*"):
        more = role(f"more-{next(_numbers)}", verb, namespace="web")
        assert (await web.call("POST", roles, more, user=owner)).status == 403


@pytest.mark.parametrize(
    "user",
    ["operator", "trusted", "system:serviceaccount:kube-system:generic-garbage-collector"],
)
async def test_who_was_given_more_is_not_held_to_the_names(web: Api, user: str) -> None:
    """Whoever may do the same in all namespaces, and who was given the verb use-any-name in this one."""
    assert (await write(web, user, "PATCH", "locked")).status == 200
    assert (await write(web, user, "DELETE", "locked")).status == 200


async def test_a_namespace_with_any_quota_can_be_deleted(web: Api) -> None:
    """By the namespace controller, which deletes all of a kind at once."""
    controller = "system:serviceaccount:kube-system:namespace-controller"
    answer = await web.call("DELETE", f"{QUOTAS}?dryRun=All", user=controller)
    assert answer.status == 200
    assert (await web.call("DELETE", f"{QUOTAS}?dryRun=All", user=ROLES[3])).status == 403
