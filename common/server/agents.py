"""The agents of a seed, and how their pages of JSON are read through the seed's API server.

A page is asked for with a token of the ServiceAccount seedquota-explain, made for agents alone. So RBAC says who may
read decisions: charts/rbac/explain.yaml.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

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


class AgentResponse(msgspec.Struct, frozen=True):
    """`content` is None where the agent has nothing there."""

    agent: str
    content: bytes | None = None
    problem: str = ""


@dataclass(frozen=True)
class Agents:
    """Those that run in one namespace."""

    cluster: Cluster
    namespace: str
    pods: Sequence[Pod]
    token: str

    async def ask(
        self, path: str, *, timeout: float, max_answer: int, question: bytes | None = None
    ) -> Sequence[AgentResponse]:
        """What every agent has at this path; or what it answers to this question."""
        return await asyncio.gather(*(self._one(pod, path, timeout, max_answer, question) for pod in self.pods))

    async def _one(self, pod: Pod, path: str, timeout: float, max_answer: int, question: bytes | None) -> AgentResponse:
        name = pod.metadata.name
        proxy = f"/api/v1/namespaces/{self.namespace}/pods/{name}:{pod.port}/proxy/{path}"
        headers = {TOKEN_HEADER: self.token}
        try:
            content = await self.cluster.request(
                "GET" if question is None else "POST",
                proxy,
                question,
                timeout=timeout,
                max_body=max_answer,
                more_headers=headers,
            )
        except NotFound:
            return AgentResponse(name)
        except ApiError as error:
            return AgentResponse(name, problem=error.message)
        return AgentResponse(name, content=content)


async def running_pods(cluster: Cluster, namespace: str) -> list[Pod]:
    """Raises ApiError."""
    listing = await cluster.list(PODS, namespace, label_selector=LABEL)
    return [pod for pod in listing.items if pod.status.phase == "Running"]


async def agents_token(cluster: Cluster, namespace: str, timeout: float) -> str:
    """Raises ApiError."""
    return await request_token(
        cluster, namespace, ACCOUNT, seconds=TOKEN_SECONDS, audiences=[AUDIENCE], timeout=timeout
    )
