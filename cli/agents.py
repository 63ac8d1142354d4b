"""The agents of a seed, and how their pages of JSON are read: through the API server, or at a URL each.

Through the API server, a page is asked for with a token of the ServiceAccount seedquota-explain, made for agents alone.
So RBAC says who may read decisions: charts/rbac/explain.yaml.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import aiohttp
import msgspec

from cli.connection import TIMEOUT, connected
from cli.outcome import Failed
from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError, NotFound
from common.kube.client.meta import Object
from common.kube.client.resource import Resource
from common.kube.client.service_account import request_token
from common.server.page_access import AUDIENCE, TOKEN_HEADER

LABEL = "app.kubernetes.io/name=seedquota-seed"
PORT_NAME = "health"
PORT = 8081  # of --health-address
ACCOUNT = "seedquota-explain"
TOKEN_SECONDS = 600  # the shortest life that an API server gives
MAX_ANSWER = 16 * 2**20  # bytes
MAX_SAID = 200  # ... of an error


class _Port(msgspec.Struct, rename="camel"):
    container_port: int
    name: str = ""


class _Container(msgspec.Struct):
    ports: list[_Port] = []


class _PodSpec(msgspec.Struct):
    containers: list[_Container] = []


class _PodStatus(msgspec.Struct):
    phase: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")


class Pod(Object, frozen=True, kw_only=True):
    spec: _PodSpec = msgspec.field(default_factory=_PodSpec)
    status: _PodStatus = msgspec.field(default_factory=_PodStatus)

    @property
    def port(self) -> int:
        ports = [port for container in self.spec.containers for port in container.ports]
        return next((port.container_port for port in ports if port.name == PORT_NAME), PORT)


PODS = Resource("", "v1", "pods", "Pod", True, Pod)


class Unreachable(Failed):
    """No agent can be asked. The message says why."""


class AgentResponse(msgspec.Struct, frozen=True):
    """`content` is None where the agent has nothing there."""

    agent: str
    content: bytes | None = None
    problem: str = ""


Ask = Callable[[str], Awaitable[Sequence[AgentResponse]]]
"""What every agent has at this path."""


@asynccontextmanager
async def at_urls(urls: Sequence[str]) -> AsyncIterator[Ask]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT)) as session:

        async def one(url: str, path: str) -> AgentResponse:
            try:
                async with session.get(f"{url.rstrip('/')}/{path}") as answer:
                    if answer.status == 404:
                        return AgentResponse(url)
                    content = await answer.content.read(MAX_ANSWER)
                    if answer.status != 200:
                        said = content[:MAX_SAID].decode("utf-8", "replace").strip()
                        return AgentResponse(url, problem=f"answered {answer.status} {said}".strip())
                    return AgentResponse(url, content=content)
            except (aiohttp.ClientError, OSError, ValueError) as error:
                return AgentResponse(url, problem=str(error) or type(error).__name__)

        async def ask(path: str) -> Sequence[AgentResponse]:
            return await asyncio.gather(*(one(url, path) for url in urls))

        yield ask


@asynccontextmanager
async def in_pods(options: argparse.Namespace) -> AsyncIterator[Ask]:
    """Of the seed of `add_cluster`. Raises Failed."""
    namespace: str = options.namespace
    async with connected(options, "seed") as cluster:
        pods = [pod for pod in await _pods(cluster, namespace) if pod.status.phase == "Running"]
        if not pods:
            raise Unreachable(
                f"no pod labelled {LABEL} runs in namespace {namespace} of {cluster.server}: is that a seed? "
                "--kubeconfig and --context name another one, -n its namespace, --url an agent outside of pods"
            )
        headers = {TOKEN_HEADER: await _token(cluster, namespace)}

        async def one(pod: Pod, path: str) -> AgentResponse:
            proxy = f"/api/v1/namespaces/{namespace}/pods/{pod.metadata.name}:{pod.port}/proxy/{path}"
            try:
                content = await cluster.request(
                    "GET", proxy, timeout=TIMEOUT, max_body=MAX_ANSWER, more_headers=headers
                )
            except NotFound:
                return AgentResponse(pod.metadata.name)
            except ApiError as error:
                return AgentResponse(pod.metadata.name, problem=error.message)
            return AgentResponse(pod.metadata.name, content=content)

        async def ask(path: str) -> Sequence[AgentResponse]:
            return await asyncio.gather(*(one(pod, path) for pod in pods))

        yield ask


async def _pods(cluster: Cluster, namespace: str) -> list[Pod]:
    try:
        return (await cluster.list(PODS, namespace, label_selector=LABEL)).items
    except ApiError as error:
        raise Unreachable(f"pods cannot be listed on {cluster.server}: {error.message}") from None


async def _token(cluster: Cluster, namespace: str) -> str:
    try:
        return await request_token(
            cluster, namespace, ACCOUNT, seconds=TOKEN_SECONDS, audiences=[AUDIENCE], timeout=TIMEOUT
        )
    except ApiError as error:
        raise Unreachable(
            f"no token of ServiceAccount {namespace}/{ACCOUNT} can be had: {error}; "
            "see charts/rbac/explain.yaml, or use kubectl port-forward and --url"
        ) from None
