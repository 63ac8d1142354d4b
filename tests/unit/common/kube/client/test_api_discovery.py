"""How an API server serves a kind, and what proves that it does not."""

from __future__ import annotations

from typing import Any

import pytest

from common.kube.client.api_discovery import MAX_VERSIONS, ServedKind, find_namespaced
from common.kube.client.errors import ApiError, Malformed
from tests.unit.fake_api_server import fake_api_server, status

ALL = ["create", "list", "watch"]


def resources(name: str, kind: str = "Widget", verbs: list[str] = ALL, *, namespaced: bool = True) -> dict[str, Any]:
    return {"resources": [{"name": name, "kind": kind, "namespaced": namespaced, "verbs": verbs}]}


GROUP = {"preferredVersion": {"version": "v2"}, "versions": [{"version": "v2"}, {"version": "v1"}]}


@pytest.mark.parametrize(
    ("served", "known", "expected"),
    [
        ({"v1": resources("widgets"), "v2": resources("widgets")}, (), ServedKind("v2", "Widget")),
        ({"v1": resources("widgets"), "v2": resources("widgets")}, ("v1",), ServedKind("v1", "Widget")),
        ({"v1": resources("widgets"), "v2": resources("others")}, (), ServedKind("v1", "Widget")),
        ({"v1": resources("widgets")}, ("v3",), ServedKind("v1", "Widget")),
        ({"v1": resources("widgets/status"), "v2": resources("others")}, (), None),
        ({"v2": resources("widgets", namespaced=False)}, (), None),
        ({"v2": resources("widgets", verbs=["create"])}, (), None),
    ],
)
async def test_the_preferred_version_is_read_unless_others_are_known(
    served: dict[str, Any], known: tuple[str, ...], expected: ServedKind | None
) -> None:
    async with fake_api_server() as api:
        api.discovery["/apis/example.com"] = GROUP
        for version, found in served.items():
            api.discovery[f"/apis/example.com/{version}"] = found
        cluster = api.cluster()
        assert await find_namespaced(cluster, "example.com", "widgets", known) == expected


async def test_only_an_answer_proves_that_a_kind_is_not_served() -> None:
    """404 is one; an API server that is starting answers 503."""

    async def starting(_request: object) -> Any:
        return status(503, "ServiceUnavailable")

    async with fake_api_server() as api:
        cluster = api.cluster()
        assert await find_namespaced(cluster, "example.com", "widgets") is None
        api.answers.append(starting)
        with pytest.raises(ApiError):
            await find_namespaced(cluster, "example.com", "widgets")
        api.discovery["/apis/example.com"] = GROUP
        api.discovery["/apis/example.com/v2"] = {"resources": "no list"}
        with pytest.raises(ApiError):
            await find_namespaced(cluster, "example.com", "widgets")


@pytest.mark.parametrize(
    "versions", [[{"version": f"v{number}"} for number in range(MAX_VERSIONS + 1)], [{"version": "v" * 600}]]
)
async def test_no_more_is_asked_for_than_a_group_has(versions: list[dict[str, str]]) -> None:
    """Each version is another request, and its name is in the path and in messages."""
    async with fake_api_server() as api:
        api.discovery["/apis/example.com"] = {"versions": versions}
        with pytest.raises(Malformed):
            await find_namespaced(api.cluster(), "example.com", "widgets")
        assert len(api.requests) == 1
