from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from devcluster import binaries
from devcluster.controlplane import ControlPlane
from devcluster.patience import patient_timeout
from tests.chart.helm import Helm

CHARTS = Path(__file__).parents[2] / "charts"
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


@dataclass(frozen=True)
class Answer:
    status: int
    body: dict
    warnings: list[str]

    @property
    def message(self) -> str:
        return self.body["message"]

    @property
    def causes(self) -> dict[str, str]:
        return {cause["field"]: cause["message"] for cause in self.body["details"]["causes"]}


class Api:
    """A real API server with our custom resource definitions."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        content_type: str = "application/json",
        accept: str = "",
        user: str = "",
    ) -> Answer:
        headers = {"Content-Type": content_type, "Accept": accept or "application/json"}
        if user:
            headers["Impersonate-User"] = user
        while True:
            async with self._session.request(method, path, json=body, headers=headers) as answer:
                found = Answer(answer.status, await answer.json(), answer.headers.getall("Warning", []))
            if found.status != 429:  # what an API server says while the store of a new resource type warms up
                return found
            await asyncio.sleep(0.1)

    @staticmethod
    def path(body: Mapping[str, Any], *, named: bool = True) -> str:
        metadata = body["metadata"]
        namespace = f"/namespaces/{metadata['namespace']}" if "namespace" in metadata else ""
        name = f"/{metadata['name']}" if named else ""
        plural = body["kind"].lower().removesuffix("s") + "s"
        return f"/apis/{body['apiVersion']}{namespace}/{plural}{name}"

    async def create(self, body: Mapping[str, object]) -> Answer:
        """A dry run: it is decided as always, and leaves nothing behind."""
        return await self.call("POST", f"{self.path(body, named=False)}?dryRun=All&fieldValidation=Warn", body)

    async def store(self, body: Mapping[str, object]) -> Answer:
        answer = await self.call("POST", self.path(body, named=False), body)
        assert answer.status == 201, answer.body
        if "status" not in body:
            return answer
        published = await self.call(
            "PATCH", f"{self.path(body)}/status", {"status": body["status"]}, content_type=MERGE
        )
        assert published.status == 200, published.body
        return published

    async def patch(self, body: Mapping[str, object], patch: object) -> Answer:
        return await self.call("PATCH", f"{self.path(body)}?dryRun=All", patch, content_type=MERGE)


async def install(api: Api, definition: Mapping[str, object]) -> list[str]:
    """Apply a definition and wait until it is established; the warnings it gave."""
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{definition['metadata']['name']}"
    answer = await api.call("PATCH", f"{path}?fieldManager=test&fieldValidation=Strict", definition, content_type=APPLY)
    assert answer.status in (200, 201), answer.body
    async with patient_timeout(120):
        while True:
            read = await api.call("GET", path)
            conditions = {c["type"]: c["status"] for c in read.body["status"]["conditions"] or []}
            if conditions.get("Established") == "True":
                assert conditions.get("NonStructuralSchema", "False") == "False"
                assert conditions["NamesAccepted"] == "True"
                return answer.warnings
            await asyncio.sleep(0.05)


@pytest.fixture(scope="session")
async def helm_executable() -> Path:
    return (await binaries.ensure(["helm"]))["helm"]


@pytest.fixture(scope="session")
def helm(helm_executable: Path, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Asks no cluster."""
    return Helm(helm_executable, tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="session")
def definitions() -> dict[str, dict]:
    """Our custom resource definitions by kind."""
    loaded = [yaml.safe_load(path.read_text()) for path in sorted((CHARTS / "crds").glob("*.yaml"))]
    return {definition["spec"]["names"]["kind"]: definition for definition in loaded}


@pytest.fixture(scope="session")
async def plane() -> AsyncIterator[ControlPlane]:
    async with ControlPlane() as plane:
        await plane.start(["charts"])
        yield plane


@pytest.fixture(scope="session")
async def api(plane: ControlPlane, definitions: dict[str, dict]) -> AsyncIterator[Api]:
    async with plane.cluster("charts").session() as session:
        api = Api(session)
        warnings = await asyncio.gather(*(install(api, definition) for definition in definitions.values()))
        assert warnings == [[]] * len(definitions)
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "alpha"}}
        assert (await api.call("POST", "/api/v1/namespaces", namespace)).status == 201
        yield api
