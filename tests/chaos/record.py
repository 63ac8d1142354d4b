"""A diary of what the programs wrote, to explain a violation by: the versions of ledgers, leases and statuses."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from devcluster.controlplane import ApiServer
from devcluster.install import GROUP_PATH, MASTER, NAMESPACE
from tests.chaos.place import Place

_PATHS = {
    "ledger": f"{GROUP_PATH}/namespaces/{NAMESPACE}/quotaledgers",
    "quota": f"{GROUP_PATH}/resourcequotas",
    "lease": f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases",
}
_PAUSE = 0.2
_SILENCE_SECONDS = 30.0
_LARGEST = 1 << 22

Json = dict[str, Any]


async def record(place: Place) -> None:
    """Writes CLUSTER.diary for the master and each seed, until cancelled."""
    servers = {server.name: server for server in map(place.installed.cluster, (MASTER, *place.seeds))}
    async with asyncio.TaskGroup() as group:
        for server in servers.values():
            for what, path in _PATHS.items():
                group.create_task(_follow(server, what, path, place.directory / f"{server.name}.diary"))


async def save_metrics(place: Place, moment: str) -> None:
    """What each program counts of itself, into PROGRAM.MOMENT.metrics."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
        for name, program in place.installed.programs.items():
            with suppress(aiohttp.ClientError, TimeoutError):
                async with session.get(f"{program.health}/metrics") as answer:
                    (place.directory / f"{name}.{moment}.metrics").write_bytes(await answer.read())


async def _follow(server: ApiServer, what: str, path: str, file: Path) -> None:
    async with server.session() as session:
        while True:
            with suppress(aiohttp.ClientError, TimeoutError, msgspec.MsgspecError, ValueError):
                timeout = aiohttp.ClientTimeout(total=None, sock_read=_SILENCE_SECONDS)
                parameters = {"watch": "1", "timeoutSeconds": "25"}
                async with session.get(
                    path, params=parameters, timeout=timeout, read_bufsize=_LARGEST, raise_for_status=True
                ) as answer:
                    with file.open("a") as diary:
                        async for line in answer.content:
                            diary.write(_entry(what, msgspec.json.decode(line)))
            await asyncio.sleep(_PAUSE)


def _entry(what: str, event: Json) -> str:
    if event.get("type") not in ("ADDED", "MODIFIED", "DELETED"):  # an error, in place of an object
        return f"{time.time():.3f} {what} {event}\n"
    found: Json = event["object"]
    metadata = found.get("metadata", {})
    told: Json = {"version": metadata.get("resourceVersion"), "name": metadata.get("name")}
    match what:
        case "ledger":
            told |= {"quota": found.get("quota", {}).get("name"), "grants": found.get("grants")}
            told["account"] = found.get("account")
        case "quota":
            status = {key: value for key, value in found.get("status", {}).items() if key != "seeds"}
            told["status"] = {
                **status,
                "conditions": [
                    f"{condition['type']}={condition['status']} {condition['reason']}"
                    for condition in status.get("conditions", ())
                ],
            }
        case "lease":
            told["spec"] = found.get("spec")
            told["annotations"] = metadata.get("annotations")
    text = msgspec.json.encode({key: value for key, value in told.items() if value}).decode()
    return f"{time.time():.3f} {what} {event['type']} {text}\n"
