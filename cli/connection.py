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
MASTER = "the master cluster"


def add_cluster(parser: argparse.ArgumentParser, what: str = MASTER) -> None:
    """The options for the cluster that a command talks to, the same in all commands."""
    parser.add_argument(
        "--kubeconfig", metavar="FILE", help=f"kubeconfig of {what}; not set: $KUBECONFIG or ~/.kube/config"
    )
    parser.add_argument(
        "--context", metavar="CONTEXT", help=f"context of {what} in the kubeconfig; not set: the current context"
    )
    parser.add_argument(
        "--as",
        dest="as_user",
        type=_name,
        metavar="USER",
        help="user to impersonate with your kubeconfigs, as kubectl does; not set: nobody",
    )
    parser.add_argument(
        "--as-group",
        dest="as_groups",
        type=_name,
        action="append",
        default=[],
        metavar="GROUP",
        help="group to impersonate, with --as; it can be repeated",
    )


def add_namespace(parser: argparse.ArgumentParser, what: str = "in which SeedQuota is installed") -> None:
    parser.add_argument("-n", "--namespace", default=NAMESPACE, help=f"namespace {what} [default {NAMESPACE}]")


def _name(raw: str) -> str:
    if not raw.strip() or not raw.isprintable():
        raise argparse.ArgumentTypeError(f"{raw!r} is no name")
    return raw


def kubeconfig_path(given: str | None, cure: str = "name one with --kubeconfig") -> str:
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
async def connected(options: argparse.Namespace, name: str) -> AsyncIterator[Cluster]:
    """To the cluster of `add_cluster`. `name` is what messages call it. Raises Failed."""
    async with connected_to(options.kubeconfig, options.context, name, options) as cluster:
        yield cluster


@asynccontextmanager
async def connected_to(
    kubeconfig: str | None, context: str | None, name: str, options: argparse.Namespace
) -> AsyncIterator[Cluster]:
    """As whom `options` say. In a pod without a kubeconfig it is the pod's own cluster. Raises Failed."""
    if options.as_groups and options.as_user is None:
        raise Failed("--as-group needs --as: a group alone cannot be impersonated")
    path = kubeconfig_path(kubeconfig)
    in_pod = kubeconfig is None and context is None and "KUBERNETES_SERVICE_HOST" in os.environ
    try:
        if in_pod and not await asyncio.to_thread(Path(path).exists):
            cluster = await Cluster.in_cluster(name=name, timeout=TIMEOUT)
        else:
            cluster = await Cluster.from_kubeconfig_file(path, name=name, context=context, timeout=TIMEOUT)
    except InvalidKubeconfig as error:
        raise Failed(f"{name}: {path}: {error}") from None
    if options.as_user is not None:
        cluster.impersonate(options.as_user, options.as_groups)
    try:
        yield cluster
    finally:
        await cluster.close()
