"""The clusters that a command connects to, by the user's own kubeconfig files."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from cli.outcome import Failed
from common.kube.client import bounded_yaml
from common.kube.client.api_client import Cluster
from common.kube.client.kubeconfig import InvalidKubeconfig

NAMESPACE = "seedquota"
TIMEOUT = 10.0  # seconds for one answer


def add_master_context(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--context", help="context of the master cluster in your kubeconfig; not set: the current context"
    )


def add_namespace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-n", "--namespace", default=NAMESPACE, help=f"namespace in which SeedQuota is installed [default {NAMESPACE}]"
    )


def kubeconfig_path(given: str | None, cure: str = "set it to one") -> str:
    """The file named, or the one that kubectl takes. Raises Failed."""
    if given is not None:
        return given
    home = os.environ.get("HOME", "/")  # a user without a name, as in a pod, has no other one
    path = (os.environ.get("KUBECONFIG") or str(Path(home, ".kube", "config"))).strip(os.pathsep)
    if os.pathsep in path:
        raise Failed(f"KUBECONFIG names several files, which is not supported: {cure}")
    return path


def context_namespace(kubeconfig: str | None, context: str | None) -> str:
    """That the context names, as kubectl takes it; else `default`. Raises Failed."""
    try:
        config: Any = bounded_yaml.load(Path(kubeconfig_path(kubeconfig)).read_text(), aliases=True)
        chosen = context or config["current-context"]
        found = next(each["context"] for each in config["contexts"] if each["name"] == chosen)
        return str(found.get("namespace") or "default")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, StopIteration):
        return "default"  # whoever connects says what is wrong with it


@asynccontextmanager
async def connected(kubeconfig: str | None, context: str | None, name: str) -> AsyncIterator[Cluster]:
    """`name` is what messages call it. In a pod without a kubeconfig it is the pod's own cluster. Raises Failed."""
    path = kubeconfig_path(kubeconfig)
    in_pod = kubeconfig is None and context is None and "KUBERNETES_SERVICE_HOST" in os.environ
    try:
        if in_pod and not await asyncio.to_thread(Path(path).exists):
            cluster = await Cluster.in_cluster(name=name, timeout=TIMEOUT)
        else:
            cluster = await Cluster.from_kubeconfig_file(path, name=name, context=context, timeout=TIMEOUT)
    except InvalidKubeconfig as error:
        raise Failed(f"{name}: {path}: {error}") from None
    try:
        yield cluster
    finally:
        await cluster.close()
