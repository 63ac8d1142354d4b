"""`seedquota apply`: creates and changes the Seeds and the QuotaSettings in a file, as the chart of the master does."""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path
from typing import Any

import yaml

from cli.connection import add_cluster, connected
from cli.outcome import Failed
from common.api.types import QUOTA_SETTINGS, SEEDS
from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError, NotFound
from common.kube.client.resource import Resource

MANAGER = "seedquota-values"
SERVED_WITHIN = 60.0  # seconds: an API server serves a definition a moment after it was created
PAUSE = 1.0
# An API server knows the kind of a policy's parameters up to 30 s after its definition. Until then the policy refuses.
_POLICY_NOT_READY = "failed to configure policy"

_KINDS: dict[str, Resource[Any]] = {each.kind: each for each in (QUOTA_SETTINGS, SEEDS)}
HELP = "create or change Seeds and QuotaSettings from a file"
EXAMPLES = """\
examples:
  seedquota apply -f objects.yaml

It is a server-side apply with the field manager seedquota-values: fields that the file does not name stay as they are.
Objects that the file does not name stay, too. charts/rbac/master-values.yaml has the role.
"""


def declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-f", "--filename", required=True, metavar="FILE", help="YAML with the objects")
    add_cluster(parser)
    parser.set_defaults(run=run)


async def run(options: argparse.Namespace) -> str:
    found = objects(options.filename)
    async with connected(options, "master") as master:
        until = time.monotonic() + SERVED_WITHIN
        return "\n".join([await _apply(master, each, until) for each in found])


def objects(filename: str) -> list[dict[str, Any]]:
    """Raises Failed."""
    try:
        found = [each for each in yaml.safe_load_all(Path(filename).read_text()) if each is not None]
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise Failed(f"{filename}: {error}") from None
    for each in found:
        resource = _KINDS.get(str(each.get("kind"))) if isinstance(each, dict) else None
        if resource is None or each.get("apiVersion") != resource.api_version or "name" not in each.get("metadata", {}):
            raise Failed(f"{filename} has something else than named {' and '.join(_KINDS)} of {SEEDS.api_version}")
    return found


async def _apply(master: Cluster, body: dict[str, Any], until: float) -> str:
    resource, name = _KINDS[body["kind"]], body["metadata"]["name"]
    while True:
        try:
            await master.apply(resource, body, MANAGER)
            return f"{resource.kind} {name} is applied"
        except NotFound:
            if time.monotonic() > until:
                raise Failed(
                    f"{master.server} does not serve {resource.plural}.{resource.group}: set crds.install, or apply "
                    "charts/crds"
                ) from None
        except ApiError as error:
            if _POLICY_NOT_READY not in error.message or time.monotonic() > until:
                raise Failed(f"{resource.kind} {name}: {error.message}") from None
        await asyncio.sleep(PAUSE)
