"""Servers of the devcluster that run in containers instead of processes, on the machine's network."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import docker
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer

from devcluster.install import NETWORKS, Program
from devcluster.processes import ProcessGroup
from devcluster.redis import RedisServer
from devcluster.servers import Server, StartError

PRODUCT = "seedquota.test/seedquota:containers"
REDIS = "seedquota.test/redis:containers"

_START_SECONDS = 120.0
_END_SECONDS = 60

testcontainers_config.ryuk_disabled = True  # its image would come from a registry


def load(archive: Path) -> None:
    client = docker.from_env()
    try:
        with archive.open("rb") as file:
            client.images.load(file)
    finally:
        client.close()


class InContainer(Server):
    """`contained` says which container it is."""

    _container: DockerContainer | None = None

    def contained(self) -> DockerContainer:
        raise NotImplementedError

    async def start(self) -> None:
        assert self._container is None, f"{self.name} runs already"
        self._container = await asyncio.to_thread(self.contained().start)
        deadline = time.monotonic() + _START_SECONDS
        while not await self._ready():
            state = await asyncio.to_thread(self._state)
            if not state["Running"] or time.monotonic() > deadline:
                said = b"\n".join(self._container.get_logs()).decode(errors="replace")
                await self.kill()
                raise StartError(f"{self.name} is not ready: {state}; {said[-2000:]}")
            await asyncio.sleep(self.poll_seconds)

    def pause(self) -> None:
        self._running().pause()

    def resume(self) -> None:
        if self._state()["Paused"]:
            self._running().unpause()

    async def _end(self, number: signal.Signals) -> None:
        if self._container is not None:
            await asyncio.to_thread(self._ends, number)
            self._container = None

    def _ends(self, number: signal.Signals) -> None:
        assert self._container is not None
        self.resume()
        if self._state()["Running"]:
            self._running().kill(number.name)
            ended = self._running().wait(timeout=_END_SECONDS)
            self.exit_status = int(ended["StatusCode"])
        self._container.stop()

    def _running(self) -> Any:
        assert self._container is not None
        return self._container.get_wrapped_container()

    def _state(self) -> dict[str, Any]:
        running = self._running()
        running.reload()
        return dict(running.attrs["State"])


class RedisContainer(InContainer, RedisServer):
    def contained(self) -> DockerContainer:
        directory = str(self.data.parent)
        config = self._command[-1]
        container = DockerContainer(REDIS).with_command([config]).with_volume_mapping(directory, directory, "rw")
        return container.with_kwargs(network_mode="host", user=f"{os.getuid()}:{os.getgid()}")


class ProgramContainer(InContainer, Program):
    """One of the product's programs, as the charts run it: it may write nothing and has no rights."""

    def __init__(self, name: str, arguments: Sequence[str], directory: Path, group: ProcessGroup) -> None:
        super().__init__(name, arguments, directory, group)
        program, kubeconfig, *flags = self._started[2:]
        self._kubeconfig = kubeconfig.partition("=")[2]
        self._arguments = [f"seedquota-{program}", kubeconfig, *flags]

    def contained(self) -> DockerContainer:
        container = DockerContainer(PRODUCT).with_command(self._arguments).with_env(*NETWORKS)
        container.with_volume_mapping(self._kubeconfig, self._kubeconfig, "ro")
        return container.with_kwargs(
            network_mode="host", read_only=True, cap_drop=["ALL"], security_opt=["no-new-privileges"]
        )
