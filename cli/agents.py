"""How the command line reads the agents' pages: through the API server (common/server/agents.py), or at a URL each."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

import aiohttp

from cli.connection import TIMEOUT, connected
from cli.outcome import Failed
from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError
from common.server.agents import ACCOUNT, LABEL, AgentResponse, Agents, Pod, agents_token, running_pods

MAX_ANSWER = 16 * 2**20  # bytes
MAX_SAID = 200  # ... of an error


class Unreachable(Failed):
    """No agent can be asked. The message says why."""


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
        pods = await _pods(cluster, namespace)
        if not pods:
            raise Unreachable(
                f"no pod labelled {LABEL} runs in namespace {namespace} of {cluster.server}: is that a seed? "
                "--kubeconfig and --context name another one, -n its namespace, --url an agent outside of pods"
            )
        agents = Agents(cluster, namespace, pods, await _token(cluster, namespace))
        yield partial(agents.ask, timeout=TIMEOUT, max_answer=MAX_ANSWER)


async def _pods(cluster: Cluster, namespace: str) -> list[Pod]:
    try:
        return await running_pods(cluster, namespace)
    except ApiError as error:
        raise Unreachable(f"pods cannot be listed on {cluster.server}: {error.message}") from None


async def _token(cluster: Cluster, namespace: str) -> str:
    try:
        return await agents_token(cluster, namespace, TIMEOUT)
    except ApiError as error:
        raise Unreachable(
            f"no token of ServiceAccount {namespace}/{ACCOUNT} can be had: {error}; "
            "see charts/rbac/explain.yaml, or use kubectl port-forward and --url"
        ) from None
