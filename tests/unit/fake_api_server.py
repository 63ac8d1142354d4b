"""A small API server that speaks the wire format of ConfigMaps and Leases, and misbehaves on demand."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from common.kube.client.api_client import Cluster
from common.kube.client.kubeconfig import Access
from tests.running import running

PATIENCE = 30.0  # seconds, where a test waits for something and does not measure how long that takes
TICK = 0.01

PLURALS = {"configmaps": ("v1", "ConfigMap"), "leases": ("coordination.k8s.io/v1", "Lease")}


def status(code: int, reason: str, message: str = "", **details: Any) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    body |= {"message": message or reason, "reason": reason, "code": code, "details": details}
    return web.json_response(body, status=code)


class FakeApiServer:
    def __init__(self) -> None:
        self.version = 100
        self.objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.events: list[tuple[int, str, str, dict[str, Any]]] = []  # version, plural, type, object
        self.compacted = 0  # a watch from before this version gets 410
        self.compaction_as_event = False
        self.changed = asyncio.Condition()
        self.requests: list[tuple[str, str]] = []
        self.answers: list[Callable[[web.Request], Any]] = []  # taken one by one before anything else
        self.raw: asyncio.Queue[bytes | None] = (
            asyncio.Queue()
        )  # sent on the watch as it is; None breaks the connection
        self.end_watches = asyncio.Event()
        self.keeps_time = False  # ends watches when their timeoutSeconds are over
        self.page_hook: Callable[[], Any] | None = None
        self.release = asyncio.Event()  # for hooks that wait
        self.discovery: dict[str, Any] = {}  # what is served, by path
        self.unlistable: dict[str, str] = {}  # plurals, and why a list of them fails
        self.url = ""
        self.clusters: list[Cluster] = []

    def cluster(self, **options: Any) -> Cluster:
        """It is closed with the server."""
        options = {"timeout": PATIENCE, **options}
        self.clusters.append(Cluster(Access(self.url, authorization="Bearer secret-token"), name="fake", **options))
        return self.clusters[-1]

    def count(self, method: str, containing: str) -> int:
        return sum(1 for m, path in self.requests if m == method and containing in path)

    @property
    def watches(self) -> int:
        return self.count("GET", "watch=1")

    @property
    def lists(self) -> int:
        return self.count("GET", "limit=") - self.count("GET", "continue=")

    async def put(self, plural: str, namespace: str, name: str, **fields: Any) -> dict[str, Any]:
        key = (plural, namespace, name)
        known = self.objects.get(key)
        self.version += 1
        uid = known["metadata"]["uid"] if known else f"uid-{self.version}"
        metadata = {"name": name, "namespace": namespace, "uid": uid, "resourceVersion": str(self.version)}
        metadata |= fields.pop("metadata", {})
        api_version, kind = PLURALS[plural]
        made = {"apiVersion": api_version, "kind": kind, "metadata": metadata, **fields}
        self.objects[key] = made
        await self.record(plural, "MODIFIED" if known else "ADDED", made)
        return made

    async def remove(self, plural: str, namespace: str, name: str) -> None:
        gone = self.objects.pop((plural, namespace, name))
        self.version += 1
        gone = {**gone, "metadata": {**gone["metadata"], "resourceVersion": str(self.version)}}
        await self.record(plural, "DELETED", gone)

    async def record(self, plural: str, event: str, obj: dict[str, Any]) -> None:
        self.events.append((self.version, plural, event, obj))
        async with self.changed:
            self.changed.notify_all()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.method, request.path_qs))
        if self.answers:
            answer = await self.answers.pop(0)(request)
            if answer is not None:
                return answer
        if request.path in self.discovery:
            return web.json_response(self.discovery[request.path])
        parts = request.path.split("/")
        plural = next((part for part in reversed(parts) if part in PLURALS), "")
        if not plural:
            return web.Response(status=404, text="404 page not found")
        namespace = parts[parts.index("namespaces") + 1] if "namespaces" in parts and plural != "namespaces" else ""
        name = parts[-1] if parts[-1] != plural else ""
        if request.method == "GET" and name:
            found = self.objects.get((plural, namespace, name))
            return web.json_response(found) if found else status(404, "NotFound", f'{plural} "{name}" not found')
        if request.method == "GET":
            if request.query.get("watch"):
                return await self.watch(request, plural, namespace)
            if plural in self.unlistable:
                return status(500, "InternalError", self.unlistable[plural])
            return await self.list(request, plural, namespace)
        body = await request.json() if request.can_read_body else {}
        if request.method == "DELETE":
            await self.remove(plural, namespace, name)
            return web.json_response({"kind": "Status", "status": "Success"})
        meta = body["metadata"]
        known = self.objects.get((plural, namespace, meta["name"]))
        if request.method == "POST" and known:
            return status(409, "AlreadyExists")
        if request.method == "PUT":
            if known is None:
                return status(404, "NotFound")
            if meta.get("resourceVersion") != known["metadata"]["resourceVersion"]:
                return status(409, "Conflict", "the object has been modified")
        fields = {k: v for k, v in body.items() if k not in ("metadata", "apiVersion", "kind")}
        kept = {field: meta[field] for field in ("labels", "annotations") if field in meta}
        return web.json_response(await self.put(plural, namespace, meta["name"], metadata=kept, **fields))

    async def list(self, request: web.Request, plural: str, namespace: str) -> web.Response:
        assert "resourceVersion" not in request.query
        offset, version = 0, self.version
        if token := request.query.get("continue"):
            offset, version = (int(part) for part in token.split("."))
            if version < self.compacted:
                return status(410, "Expired", "The provided continue parameter is too old")
        selected = re.fullmatch(r"(?:metadata\.name=((?:[^\\,=]|\\[\\,=])*))?", request.query.get("fieldSelector", ""))
        if selected is None:
            return web.json_response({"code": 400, "reason": "BadRequest", "message": "field selector"}, status=400)
        only = re.sub(r"\\(.)", r"\1", selected[1] or "")
        items = [
            o
            for (p, ns, name), o in self.objects.items()
            if p == plural and namespace in ("", ns) and only in ("", name)
        ]
        end = offset + int(request.query["limit"])
        meta = {"resourceVersion": str(version)} | ({"continue": f"{end}.{version}"} if end < len(items) else {})
        if self.page_hook is not None:
            self.page_hook()
        return web.json_response({"kind": "List", "metadata": meta, "items": items[offset:end]})

    async def watch(self, request: web.Request, plural: str, namespace: str) -> web.StreamResponse:
        assert request.query["allowWatchBookmarks"] == "true"
        since = int(request.query["resourceVersion"])
        if since < self.compacted and not self.compaction_as_event:
            return status(410, "Expired", "too old resource version")
        response = web.StreamResponse()
        await response.prepare(request)
        if since < self.compacted:
            error = {"kind": "Status", "status": "Failure", "message": "too old", "reason": "Expired", "code": 410}
            await response.write(json.dumps({"type": "ERROR", "object": error}).encode() + b"\n")
            return response
        sending = asyncio.create_task(self.send_events(response, plural, namespace, since))
        raw = asyncio.create_task(self.send_raw(request, response))
        ending = asyncio.create_task(self.end_watches.wait())
        try:
            seconds = float(request.query["timeoutSeconds"]) if self.keeps_time else None
            await asyncio.wait({sending, raw, ending}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, raw, ending):
                task.cancel()
            await asyncio.gather(sending, raw, ending, return_exceptions=True)
        return response

    async def send_events(self, response: web.StreamResponse, plural: str, namespace: str, since: int) -> None:
        while True:
            for version, event_plural, event, obj in list(self.events):
                if version > since and event_plural == plural and namespace in ("", obj["metadata"]["namespace"]):
                    await response.write(json.dumps({"type": event, "object": obj}).encode() + b"\n")
            since = self.version
            async with self.changed:
                await self.changed.wait_for(lambda seen=since: self.version > seen)

    async def send_raw(self, request: web.Request, response: web.StreamResponse) -> None:
        while (part := await self.raw.get()) is not None:
            await response.write(part)
        assert request.transport is not None
        request.transport.abort()

    def bookmark(self, version: int) -> None:
        obj = {"kind": "ConfigMap", "metadata": {"resourceVersion": str(version), "creationTimestamp": None}}
        self.raw.put_nowait(json.dumps({"type": "BOOKMARK", "object": obj}).encode() + b"\n")


@asynccontextmanager
async def fake_api_server() -> AsyncIterator[FakeApiServer]:
    fake = FakeApiServer()
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_route("*", "/{path:.*}", fake.handle)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    fake.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield fake
    finally:
        for cluster in fake.clusters:
            await cluster.close()
        fake.end_watches.set()
        await runner.cleanup()


async def eventually(condition: Callable[[], object], timeout: float = PATIENCE) -> None:
    """Waits until the condition holds."""
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def within(seconds: float) -> AsyncIterator[None]:
    """What is inside ends before that. A stop of this process does not count: nothing here could run, nor be late."""
    passed = 0.0

    async def count() -> None:
        nonlocal passed
        while True:
            await asyncio.sleep(TICK)
            passed += TICK

    async with running(count()):
        async with asyncio.timeout(seconds + PATIENCE):
            yield
    assert passed < seconds
