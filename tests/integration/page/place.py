"""Who looks at the page, what there is to see, and how it is looked at."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

import aiohttp
from playwright.async_api import Browser, BrowserContext, Page

from devcluster import manifests
from devcluster.install import GROUP_PATH, Installation
from devcluster.load import Outcome, Size, Tenant
from devcluster.objects import CHARTS, named, project
from tests.integration.installed.site import until

Json = Any
OPERATOR, TENANT, NOBODY = "operator", "tenant", "nobody"
EVIL = '<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>\'"&'
"""What a hostile user writes wherever a name or a text can be written."""

CATALOGUE = [{"name": "servers", "displayName": EVIL, "countFrom": "Allocations"}]


def binding(actor: str, role: str, namespace: str = "") -> Json:
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1",
        "kind": "RoleBinding" if namespace else "ClusterRoleBinding",
        "metadata": {"name": f"{actor}-{role}"} | ({"namespace": namespace} if namespace else {}),
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": f"seedquota:{role}"},
        "subjects": [{"kind": "ServiceAccount", "name": actor, "namespace": "default"}],
    }


def may_change_the_platform() -> list[Json]:
    """Of the operator: settings and seeds."""
    group = "rbac.authorization.k8s.io"
    rule = {"apiGroups": ["seedquota.io"], "resources": ["quotasettings", "seeds"], "verbs": ["update"]}
    metadata = {"name": "page-operator"}
    role = {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": metadata, "rules": [rule]}
    bound = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": metadata,
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "page-operator"},
        "subjects": [{"kind": "ServiceAccount", "name": OPERATOR, "namespace": "default"}],
    }
    return [role, bound]


def quota(object_name: str, kind: str, name: str, **limits: str) -> Json:
    return named("ResourceQuota", object_name, subject={"kind": kind, "name": name}, quota=limits)


class Place:
    def __init__(self, installed: Installation) -> None:
        self.installed = installed
        self.url = installed.api_url
        self.tokens: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        self.admin = self.installed.master.session()
        self.http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=False), cookie_jar=aiohttp.DummyCookieJar()
        )
        self.tenant = Tenant(self.installed.cluster(next(iter(self.installed.user_clusters.values()))))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.tenant.__aexit__(kind, error, trace)
        await self.http.close()
        await self.admin.close()

    async def kube(self, method: str, path: str, body: object = None) -> Json:
        headers = {"Content-Type": "application/merge-patch+json"} if method == "PATCH" else {}
        async with self.admin.request(method, path, json=body, headers=headers) as answer:
            found = await answer.json()
            assert answer.status < 300, found
            return found

    async def prepare(self) -> None:
        async def namespaced() -> None:
            assert (await self.kube("GET", "/api/v1/namespaces/org-acme"))["status"]["phase"] == "Active"

        await until(namespaced, 30)
        accounts = [
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": "default"}}
            for name in (OPERATOR, TENANT, NOBODY)
        ]
        await manifests.apply(
            self.installed.master,
            [
                *manifests.load(CHARTS / "rbac" / "api-actors.yaml"),
                *manifests.load(CHARTS / "rbac" / "viewer.yaml"),
                *accounts,
                binding(OPERATOR, "viewer"),
                *may_change_the_platform(),
                binding(OPERATOR, "platform-administrator"),
                binding(TENANT, "user", "org-acme"),
                named("Organization", "globex", displayName=EVIL),
                project("secret", "globex"),
                quota("project-alpha", "project", "alpha", cpu="8", memory="20Gi", storage="1Ti", machines="5"),
                quota("org-acme", "organization", "acme", cpu="64", memory="128Gi"),
                quota("project-secret", "project", "secret", cpu="7"),
                named("QuotaSettings", "default", resources=CATALOGUE),
            ],
        )
        await self.kube("PATCH", f"{GROUP_PATH}/projects/alpha", {"spec": {"displayName": EVIL}})
        for name in (OPERATOR, TENANT, NOBODY):
            path = f"/api/v1/namespaces/default/serviceaccounts/{name}/token"
            request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
            self.tokens[name] = (await self.kube("POST", path, request))["status"]["token"]
        for name in ("project-alpha", "org-acme", "project-secret"):
            await self.installed.enforced(name)
        for size in (Size("3", "6Gi", "100Gi"), Size("2", "4Gi", "100Gi"), Size("2", "4Gi", "50Gi")):
            assert (await self.tenant.create(size)).outcome is Outcome.ADMITTED

    async def get(self, path: str, actor: str = "", **headers: str) -> tuple[int, str, Mapping[str, str]]:
        """Without a browser, and without following where it is sent."""
        if actor:
            headers["Authorization"] = f"Bearer {self.tokens[actor]}"
        async with self.http.get(f"{self.url}{path}", headers=headers, allow_redirects=False) as answer:
            return answer.status, await answer.text(), answer.headers

    async def post(self, path: str, form: Mapping[str, str], **headers: str) -> tuple[int, str, Json]:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.http.post(f"{self.url}{path}", data=dict(form), headers=sent, allow_redirects=False) as answer:
            return answer.status, await answer.text(), answer.headers

    async def cookie(self, actor: str) -> str:
        """Of a new session, as a browser would send it."""
        status, text, headers = await self.post("/sign-in", {"token": self.tokens[actor], "next": "/"})
        assert status == 303, text
        return "; ".join(each.partition(";")[0] for each in headers.getall("Set-Cookie"))

    @asynccontextmanager
    async def looking(self, browser: Browser, actor: str, *, url: str = "", **options: Any) -> AsyncIterator[Window]:
        """`url`: where the page is for this browser; empty: at the first replica."""
        context = await browser.new_context(ignore_https_errors=True, **options)
        try:
            window = Window(self, context, await context.new_page(), url)
            await window.sign_in(actor)
            yield window
            assert not window.complaints, window.complaints
        finally:
            await context.close()


class Window:
    """A page of a browser, and everything that it complained of: also each breach of the content's policy."""

    def __init__(self, place: Place, context: BrowserContext, page: Page, url: str = "") -> None:
        self.place = place
        self.url = url or place.url
        self.context = context
        self.page = page
        self.complaints: list[str] = []
        page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(dialog.message))

    async def sign_in(self, actor: str) -> None:
        await self.open("/")
        assert "/sign-in?next=" in self.page.url
        await self.page.fill("#token", self.place.tokens[actor])
        await self.page.get_by_role("button", name="Sign in").click()
        await self.page.wait_for_url(f"{self.url}/")

    async def open(self, path: str) -> None:
        await self.page.goto(f"{self.url}{path}")

    async def text(self) -> str:
        return " ".join((await self.page.inner_text("body")).split())
