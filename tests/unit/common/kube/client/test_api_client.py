from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from dataclasses import replace

import pytest
from aiohttp import web

from common.kube.client import api_client, api_discovery, connection, kubeconfig, pages, watch
from common.kube.client.api_client import Cluster
from common.kube.client.errors import (
    LONGEST_MESSAGE,
    LONGEST_RETRY_AFTER,
    AlreadyExists,
    ApiError,
    Conflict,
    Gone,
    Invalid,
    Malformed,
    NotFound,
    TooManyRequests,
    Unauthorized,
    Unavailable,
)
from common.kube.client.kubeconfig import Access
from common.kube.client.meta import Object, ObjectMeta
from common.kube.client.resource import Resource
from common.kube.client.service_account import request_token
from common.kube.controller.leader_election import LEASES
from common.server.access_reviews import User, review_access, review_token
from tests.unit.fake_api_server import PATIENCE, fake_api_server, status


class ConfigMap(Object, frozen=True):
    data: dict[str, str] = {}


CONFIGMAPS = Resource("", "v1", "configmaps", "ConfigMap", namespaced=True, type=ConfigMap)
CRONS = Resource("batch", "v1", "cronjobs", "CronJob", namespaced=True, type=Object)


@pytest.fixture
async def fake():
    async with fake_api_server() as server:
        yield server


@pytest.fixture
async def cluster(fake):
    made = fake.cluster()
    yield made


def test_paths_of_core_and_grouped_resources():
    assert CONFIGMAPS.path() == "/api/v1/configmaps"
    assert CONFIGMAPS.path("ns", "a") == "/api/v1/namespaces/ns/configmaps/a"
    assert CRONS.path("ns", "a", "status") == "/apis/batch/v1/namespaces/ns/cronjobs/a/status"
    assert CONFIGMAPS.path(None, "system:x") == "/api/v1/configmaps/system%3Ax"


@pytest.mark.parametrize("name", ["..", ".", "a/b", "", "%2e%2e"])
def test_a_name_that_would_change_the_path_is_refused(name):
    with pytest.raises(ValueError):
        CONFIGMAPS.path("ns", name)


def test_encoding_adds_the_type_to_structs_and_mappings():
    made = ConfigMap(metadata=ObjectMeta(name="a", namespace="n"), data={"k": "v"})
    expected = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "a", "namespace": "n"},
        "data": {"k": "v"},
    }
    assert json.loads(CONFIGMAPS.encode(made)) == expected
    assert json.loads(CONFIGMAPS.encode({"metadata": expected["metadata"], "data": {"k": "v"}})) == expected


async def test_objects_are_created_read_replaced_and_deleted(fake, cluster):
    created = await cluster.create(CONFIGMAPS, {"metadata": {"name": "a", "namespace": "n"}, "data": {"k": "1"}})
    assert created.data == {"k": "1"} and created.metadata.key == "n/a"
    read = await cluster.get(CONFIGMAPS, "a", "n")
    assert read == created
    body = {"metadata": {"name": "a", "namespace": "n", "resourceVersion": read.metadata.resource_version}}
    replaced = await cluster.replace(CONFIGMAPS, {**body, "data": {"k": "2"}})
    assert replaced.data == {"k": "2"}
    with pytest.raises(Conflict):
        await cluster.replace(CONFIGMAPS, {**body, "data": {"k": "3"}})
    with pytest.raises(AlreadyExists):
        await cluster.create(CONFIGMAPS, {"metadata": {"name": "a", "namespace": "n"}})
    await cluster.delete(CONFIGMAPS, "a", "n")
    with pytest.raises(NotFound, match='cluster fake: get /api/v1/namespaces/n/configmaps/a: configmaps "a" not found'):
        await cluster.get(CONFIGMAPS, "a", "n")


async def test_lists_are_paged_and_never_from_the_cache(fake, cluster):
    for number in range(7):
        await fake.put("configmaps", "n", f"c{number}")
    listing = await cluster.list(CONFIGMAPS, limit=3)
    assert [item.metadata.name for item in listing.items] == [f"c{number}" for number in range(7)]
    assert listing.resource_version == str(fake.version)
    assert fake.count("GET", "limit=3") == 3 and fake.count("GET", "resourceVersion") == 0


async def test_only_a_list_proves_that_an_object_is_not_there(fake, cluster):
    made = await cluster.create(CONFIGMAPS, {"metadata": {"name": "a", "namespace": "ns"}})
    await cluster.create(CONFIGMAPS, {"metadata": {"name": "b", "namespace": "ns"}})
    assert await cluster.find(CONFIGMAPS, "a", "ns") == made
    assert await cluster.find(CONFIGMAPS, "c", "ns") is None
    with pytest.raises(NotFound):
        await cluster.find(CRONS, "a", "ns")  # it is not served
    await fake.put("configmaps", "ns", "d", data="no mapping")
    with pytest.raises(Malformed):
        await cluster.find(CONFIGMAPS, "d", "ns")


async def test_a_list_begins_again_when_its_continue_token_expired(fake, cluster):
    for number in range(4):
        await fake.put("configmaps", "n", f"c{number}")

    def expire():
        fake.page_hook = None
        fake.version += 1
        fake.compacted = fake.version

    fake.page_hook = expire
    listing = await cluster.list(CONFIGMAPS, limit=3)
    assert len(listing.items) == 4 and listing.resource_version == str(fake.version)
    assert fake.lists == 2


async def test_a_list_whose_token_expires_every_time_is_given_up(fake, cluster):
    for number in range(4):
        await fake.put("configmaps", "n", f"c{number}")

    def expire():
        fake.version += 1
        fake.compacted = fake.version

    fake.page_hook = expire
    with pytest.raises(Gone):
        await cluster.list(CONFIGMAPS, limit=3)
    assert fake.lists == api_client.LIST_RESTARTS


async def test_a_list_of_large_objects_comes_in_smaller_pages(fake, cluster, monkeypatch):
    for number in range(20):
        await fake.put("configmaps", "n", f"c{number:02}", data={"k": "x" * 1000})
    monkeypatch.setattr(api_client, "MAX_BODY", 8000)
    listing = await cluster.list(CONFIGMAPS)
    assert [found.metadata.name for found in listing.items] == [f"c{number:02}" for number in range(20)]
    monkeypatch.setattr(api_client, "MAX_BODY", 500)
    with pytest.raises(Malformed, match="larger than 500 bytes"):
        await cluster.list(CONFIGMAPS)


async def test_a_malformed_object_does_not_stop_the_list(fake, cluster):
    await fake.put("configmaps", "n", "good")
    bad = await fake.put("configmaps", "n", "bad", data={"k": 5})
    listing = await cluster.list(CONFIGMAPS)
    assert [item.metadata.name for item in listing.items] == ["good"]
    [broken] = listing.broken
    assert (broken.key, broken.uid) == ("n/bad", bad["metadata"]["uid"]) and "$.data" in broken.error
    with pytest.raises(Malformed, match="ConfigMap cannot be read"):
        await cluster.get(CONFIGMAPS, "bad", "n")


async def test_a_list_that_is_no_utf_8_is_malformed(fake, cluster):
    await answer_with(fake, web.Response(body=b'{"metadata": {"continue": "\xda"}, "items": []}'))
    with pytest.raises(Malformed, match="not a list"):
        await cluster.list(CONFIGMAPS)


NO_UTF_8 = b"""{"status": {"user": {"username": "\xda"}, "token": "\xda", "allowed": "\xda"},
    "versions": [{"version": "\xda"}], "resources": [{"name": "\xda"}]}"""


@pytest.mark.parametrize("content", [NO_UTF_8, b"[" * 100_000, b"7", b""])
async def test_whatever_is_wrong_with_an_answer_is_an_error_of_the_api(fake, cluster, content):
    for ask in (
        lambda: review_token(cluster, "t"),
        lambda: review_access(cluster, User(), {}),
        lambda: api_discovery.find_kind(cluster, "v1", "Pod"),
        lambda: api_discovery.find_namespaced(cluster, "apps", "deployments"),
        lambda: request_token(cluster, "n", "a", seconds=600),
    ):
        await answer_with(fake, web.Response(body=content))
        with pytest.raises(Malformed):
            await ask()


async def answer_with(fake, response):
    async def answer(_request):
        return response

    fake.answers.append(answer)


async def test_a_status_becomes_an_error_with_reason_causes_and_retry(fake, cluster):
    cause = {"reason": "FieldValueInvalid", "message": "too big", "field": "spec.x"}
    await answer_with(fake, status(422, "Invalid", "is invalid", causes=[cause]))
    with pytest.raises(Invalid, match="is invalid") as invalid:
        await cluster.get(CONFIGMAPS, "a", "n")
    assert invalid.value.causes[0].field == "spec.x" and invalid.value.status == 422
    await answer_with(fake, status(429, "TooManyRequests", retryAfterSeconds=7))
    with pytest.raises(TooManyRequests) as busy:
        await cluster.get(CONFIGMAPS, "a", "n")
    assert busy.value.retry_after == 7
    await answer_with(fake, web.Response(status=503, text="upstream", headers={"Retry-After": "3"}))
    with pytest.raises(Unavailable, match="upstream") as unavailable:
        await cluster.get(CONFIGMAPS, "a", "n")
    assert unavailable.value.retry_after == 3 and unavailable.value.status == 503
    for endless in (
        status(429, "TooManyRequests", retryAfterSeconds=1e300),
        web.Response(status=503, headers={"Retry-After": "9" * 400}),
    ):
        await answer_with(fake, endless)
        with pytest.raises(ApiError) as bounded:
            await cluster.get(CONFIGMAPS, "a", "n")
        assert bounded.value.retry_after == LONGEST_RETRY_AFTER
    await answer_with(fake, web.Response(status=302, headers={"Location": "http://127.0.0.1:1/"}))
    with pytest.raises(ApiError) as redirect:
        await cluster.get(CONFIGMAPS, "a", "n")
    assert redirect.value.status == 302


async def test_an_answer_that_is_too_large_is_refused(fake, cluster):
    await answer_with(fake, web.Response(body=b"x" * 2000))
    with pytest.raises(Malformed, match="larger than 1000 bytes"):
        await cluster.request("GET", "/x", max_body=1000)

    async def chunked(request):
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(20):
            await response.write(b"x" * 100)
        return response

    fake.answers.append(chunked)
    with pytest.raises(Malformed, match="larger than 1000 bytes"):
        await cluster.request("GET", "/x", max_body=1000)


async def test_a_slow_answer_is_unavailable_within_the_timeout(fake, cluster):
    async def slow(_request):
        await asyncio.sleep(5)

    fake.answers += [slow, slow]
    with pytest.raises(Unavailable, match=r"cluster fake: get /x: no answer within 0\.1 s"):
        await cluster.request("GET", "/x", timeout=0.1)
    cluster.timeout = 0.2
    with pytest.raises(Unavailable, match=r"cluster fake: list .* no answer within 0\.2 s"):
        await cluster.list(CONFIGMAPS)


async def test_a_cancellation_that_comes_with_the_end_of_the_time_is_not_lost(fake, cluster, monkeypatch):
    asked = asyncio.Event()

    async def silent(_request):
        asked.set()
        await asyncio.sleep(60)

    fake.answers.append(silent)
    request = asyncio.create_task(cluster.request("GET", "/x", timeout=PATIENCE))
    await asked.wait()
    loop = asyncio.get_running_loop()
    loop.call_later(PATIENCE, request.cancel)
    later = loop.time() + PATIENCE + 1.0
    monkeypatch.setattr(loop, "time", lambda: later)  # the event loop stalls: both are due in its next round
    await asyncio.wait({request})
    assert request.cancelled()


async def test_a_refused_connection_is_unavailable_and_names_the_cluster_without_credentials():
    cluster = Cluster(Access("http://127.0.0.1:1", authorization="Bearer secret-token"), name="lost")
    try:
        with pytest.raises(Unavailable, match="cluster lost: get /api/v1/namespaces/n/configmaps/a") as error:
            await cluster.get(CONFIGMAPS, "a", "n")
        assert "secret-token" not in str(error.value) and "secret-token" not in repr(cluster._access)
        with pytest.raises(Unavailable, match="cluster lost: watch configmaps"):
            async with cluster.open_watch(CONFIGMAPS, resource_version="1"):
                pass
    finally:
        await cluster.close()
    with pytest.raises(Unavailable, match="this client is closed"):
        await cluster.get(CONFIGMAPS, "a", "n")


async def test_a_name_that_does_not_resolve_is_unavailable():
    cluster = Cluster(Access("http://nowhere.invalid"), name="lost")
    try:
        with pytest.raises(Unavailable, match="cluster lost"):
            await cluster.get(CONFIGMAPS, "a", "n")
    finally:
        await cluster.close()


async def test_the_environments_proxy_is_ignored(fake, cluster, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert (await cluster.list(CONFIGMAPS)).items == []


async def test_requests_are_reported_with_verb_resource_and_status(fake):
    seen = []
    cluster = fake.cluster(on_request=lambda verb, plural, code, seconds: seen.append((verb, plural, code)))
    await cluster.create(CONFIGMAPS, {"metadata": {"name": "a", "namespace": "n"}})
    await cluster.list(CONFIGMAPS)
    with pytest.raises(NotFound):
        await cluster.get(CONFIGMAPS, "b", "n")
    async with cluster.open_watch(CONFIGMAPS, resource_version=str(fake.version)):
        pass
    resource = "configmaps"
    assert seen == [
        ("create", resource, 200),
        ("list", resource, 200),
        ("get", resource, 404),
        ("watch", resource, 200),
    ]


async def test_apply_and_merge_patch_say_what_they_are(fake, cluster):
    seen = []

    async def patch(request):
        seen.append((request.path_qs, request.content_type, await request.json(), request.headers["Authorization"]))
        return web.json_response({"metadata": {"name": "a", "namespace": "n"}})

    fake.answers += [patch, patch]
    await cluster.apply(CONFIGMAPS, {"metadata": {"name": "a", "namespace": "n"}}, "me", "status")
    merged = {"metadata": {"resourceVersion": "7"}, "data": None}
    await cluster.merge_patch(CONFIGMAPS, "a", merged, "n")
    path = "/api/v1/namespaces/n/configmaps/a"
    applied = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "n"}}
    assert seen == [
        (f"{path}/status?fieldManager=me&force=true", "application/apply-patch+yaml", applied, "Bearer secret-token"),
        (path, "application/merge-patch+json", merged, "Bearer secret-token"),
    ]


async def test_a_watch_yields_events_across_chunk_borders_and_of_several_megabytes(fake, cluster):
    since = str(fake.version)
    await fake.put("configmaps", "n", "big", data={"k": "x" * 3_000_000})
    await fake.put("configmaps", "n", "small", data={"k": "é"})
    await fake.remove("configmaps", "n", "small")
    seen = []
    async with aclosing(cluster.watch(CONFIGMAPS, resource_version=since)) as events:
        async for event in events:
            seen.append((event.type, event.object.metadata.name, event.resource_version))
            if len(seen) == 3:
                break
    assert seen == [("ADDED", "big", "101"), ("ADDED", "small", "102"), ("DELETED", "small", "103")]


async def test_a_line_that_comes_byte_by_byte_is_one_event(fake, cluster):
    async with cluster.open_watch(CONFIGMAPS, resource_version="100") as stream:
        line = '{"type":"ADDED","object":{"metadata":{"name":"é","resourceVersion":"7"}}}\n'.encode()
        for position in range(len(line)):
            fake.raw.put_nowait(line[position : position + 1])
        events = []
        while not events:
            events += await stream.read() or []
        assert [event.object.metadata.name for event in events] == ["é"]


async def test_an_event_that_is_too_large_is_refused(fake, cluster, monkeypatch):
    monkeypatch.setattr(watch, "MAX_BODY", 1000)
    async with cluster.open_watch(CONFIGMAPS, resource_version="100") as stream:
        fake.raw.put_nowait(b"x" * 2000)
        with pytest.raises(Malformed, match="larger than 1000 bytes"):
            while True:
                await stream.read()


async def test_a_malformed_event_is_described_and_garbage_ends_the_watch(fake, cluster):
    async with cluster.open_watch(CONFIGMAPS, resource_version="100") as stream:
        await fake.put("configmaps", "n", "bad", data={"k": 1})
        [event] = await stream.read()
        assert event.object is None and event.broken.key == "n/bad" and event.resource_version == "101"
        fake.raw.put_nowait(b"<html>gateway</html>\n")
        with pytest.raises(Malformed, match="stream is not a watch"):
            await stream.read()


@pytest.mark.parametrize("as_event", [False, True])
async def test_a_watch_from_a_compacted_version_is_gone(fake, cluster, as_event):
    fake.compacted, fake.compaction_as_event = 200, as_event
    with pytest.raises(Gone):
        async with cluster.open_watch(CONFIGMAPS, resource_version="100") as stream:
            await stream.read()


async def test_a_connection_cut_in_the_middle_of_a_line_is_unavailable(fake, cluster):
    async with cluster.open_watch(CONFIGMAPS, resource_version="100") as stream:
        fake.raw.put_nowait(b'{"type":"ADDED","object":{"meta')
        assert await stream.read() == []
        fake.raw.put_nowait(None)
        with pytest.raises(Unavailable, match="watch configmaps"):
            await stream.read()


async def test_a_watch_that_does_not_end_in_time_has_not_ended_in_good_order(fake, cluster, monkeypatch):
    monkeypatch.setattr(api_client, "SILENT", 0.1)
    async with cluster.open_watch(CONFIGMAPS, resource_version="100", timeout_seconds=1) as stream:
        with pytest.raises(Unavailable, match="cluster fake: watch configmaps: the watch did not end in time"):
            await stream.read()


async def test_a_watch_that_the_server_ends_has_ended(fake, cluster):
    fake.keeps_time = True
    async with cluster.open_watch(CONFIGMAPS, resource_version="100", timeout_seconds=1) as stream:
        assert await stream.read() is None


async def test_watches_do_not_take_connections_from_requests(fake):
    cluster = fake.cluster(connections=1)
    async with cluster.open_watch(CONFIGMAPS, resource_version="100"):
        assert (await cluster.list(CONFIGMAPS)).items == []
        cluster.timeout = 0.1
        with pytest.raises(Unavailable, match=r"no answer within 0\.1 s"):
            async with cluster.open_watch(CONFIGMAPS, resource_version="100"):
                pass


async def test_a_client_whose_closing_is_cancelled_is_closed_whole(fake):
    """It waits for each connection that is open. The pools that came after that one stayed open."""
    cluster = fake.cluster()
    async with cluster.open_watch(CONFIGMAPS, resource_version=str(fake.version)):
        await cluster.list(CONFIGMAPS)
        closing = asyncio.create_task(cluster.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
    assert all(pool.closed for pool in (cluster._requests, cluster._leases, cluster._watches))


async def test_whoever_waits_for_a_connection_is_not_passed_by_others(fake):
    cluster = fake.cluster(connections=1)
    asked = []

    async def greedy():
        for number in range(20):
            asked.append(number)
            await cluster.list(CONFIGMAPS)

    busy = asyncio.create_task(greedy())
    while not asked:
        await asyncio.sleep(0)
    await cluster.list(CONFIGMAPS)
    assert len(asked) < 5
    await busy


async def test_a_lease_is_renewed_while_other_requests_wait_for_a_connection(fake):
    cluster = fake.cluster(connections=1)
    ends = asyncio.Event()

    async def slow(request):
        if "configmaps" in request.path:
            await ends.wait()

    fake.answers = [slow] * 2
    waiting = asyncio.create_task(cluster.list(CONFIGMAPS))
    while not fake.requests:
        await asyncio.sleep(0.01)
    with pytest.raises(NotFound):
        await cluster.get(LEASES, "leader", "default")
    ends.set()
    await waiting


async def test_credentials_that_expire_are_refreshed_once_and_after_a_401(fake, monkeypatch):
    monkeypatch.setattr(connection, "REFRESH_CREDENTIALS", 1000.0)
    tokens = iter(["Bearer second"])
    seen = []

    async def refresh(rejected):
        await asyncio.sleep(0.01)
        assert rejected == "Bearer first"
        return next(tokens)

    async def check(request):
        seen.append(request.headers["Authorization"])
        if request.headers["Authorization"] == "Bearer first":
            return status(401, "Unauthorized")
        return web.json_response({})

    fake.answers += [check] * 4
    cluster = Cluster(Access(fake.url, authorization="Bearer first", refresh=refresh), name="c")
    try:
        with pytest.raises(Unauthorized):
            await cluster.request("GET", "/x")
        await asyncio.gather(*(cluster.request("GET", "/x") for _ in range(3)))
    finally:
        await cluster.close()
    assert seen == ["Bearer first"] + ["Bearer second"] * 3


async def test_a_failing_refresh_is_unavailable(fake):
    async def refresh(_rejected):
        raise kubeconfig.InvalidKubeconfig("file of tokenFile cannot be read: No such file or directory")

    cluster = Cluster(Access(fake.url, refresh=refresh), name="c")
    cluster._refresh_at = 0.0
    try:
        with pytest.raises(Unavailable, match="tokenFile cannot be read"):
            await cluster.request("GET", "/x")
    finally:
        await cluster.close()


async def test_a_list_of_more_than_its_bound_is_given_up_while_it_is_read(fake, cluster):
    for number in range(20):
        await fake.put("configmaps", "n", f"c{number:02}", data={"k": "x" * 1000})
    by_weight, by_bytes = replace(CONFIGMAPS, most=2020, weigh=lambda _found: 101), replace(CONFIGMAPS, most=12_000)
    assert len((await cluster.list(by_weight)).items) == 20
    for bounded in (replace(by_weight, most=1000), by_bytes):
        before = len(fake.requests)
        with pytest.raises(Malformed, match="its configmaps take more than"):
            await cluster.list(bounded, limit=1)
        assert 8 < len(fake.requests) - before < 12


@pytest.mark.parametrize(
    "server", ["https://" + "a" * 64 + ".example", "https://a..b", "https://[::1]x", "https://a\\b"]
)
async def test_a_host_that_is_none_is_out_of_reach(server):
    made = Cluster(Access(server), name="c", timeout=5)
    try:
        with pytest.raises(Unavailable, match="it cannot be asked for"):
            await made.request("GET", "/version")
        with pytest.raises(Unavailable, match="it cannot be asked for"):
            async with made.open_watch(CONFIGMAPS, resource_version="1"):
                pass
    finally:
        await made.close()


async def test_what_no_header_can_have_is_not_sent(cluster):
    """It may be what the API server itself answered, such as a token."""
    with pytest.raises(Unavailable, match="it cannot be asked for"):
        await cluster.request("GET", "/version", more_headers={"X-Token": "a\nHost: b"})


async def test_a_message_is_short_although_what_was_asked_for_is_long(fake, cluster):
    async def refuses(_request):
        return status(404, "NotFound", "m" * 5000)

    fake.answers.append(refuses)
    with pytest.raises(NotFound) as refused:
        await cluster.request("GET", f"/apis/{'g' * 7000}")
    assert len(refused.value.message) == len(str(refused.value)) == LONGEST_MESSAGE


async def test_a_page_with_very_many_values_is_asked_for_in_smaller_ones(fake, cluster, monkeypatch):
    """Each value costs many times its bytes, where it is read."""
    for number in range(20):
        await fake.put("configmaps", "n", f"m{number}", data={f"k{key}": "v" for key in range(100)})
    monkeypatch.setattr(pages, "MAX_PAGE_VALUES", 1000)
    listing = await cluster.list(CONFIGMAPS, limit=64)
    assert len(listing.items) == 20
    assert {path.partition("limit=")[2].partition("&")[0] for _, path in fake.requests} == {"64", "8"}
    monkeypatch.setattr(pages, "MAX_PAGE_VALUES", 10)
    assert len((await cluster.list(CONFIGMAPS)).items) == 20, "one is always read"


async def test_a_large_page_is_followed_by_smaller_ones(fake, cluster, monkeypatch):
    """A page is taken apart in one step, and nobody is answered meanwhile."""
    for number in range(20):
        await fake.put("configmaps", "n", f"m{number:02}", data={"k": "v" * 1000})
    monkeypatch.setattr(api_client, "LARGE_PAGE", 3000)
    listing = await cluster.list(CONFIGMAPS, limit=8)
    assert len(listing.items) == 20
    assert [path.partition("limit=")[2].partition("&")[0] for _, path in fake.requests if "limit=" in path] == [
        *("8", "4"),
        *["2"] * 4,
    ]
