"""Docker: the machine's own, or Debian's dockerd on what `devcluster.isolation` makes look like a machine of its own.

Containers have the machine's network, and images are made here: neither a bridge nor a registry is needed.
"""

from __future__ import annotations

import asyncio
import os
import platform
from pathlib import Path

from devcluster import debian, isolation
from devcluster.binaries import BuildError, Progress, cache_directory, print_progress
from devcluster.processes import ProcessGroup
from devcluster.servers import Server

SOCKET = Path("/var/run/docker.sock")  # where Docker is looked for without DOCKER_HOST

_PACKAGES = ("docker.io", "containerd", "runc")
_LIBRARIES = ("libdevmapper1.02.1", "libsystemd0", "libudev1", "libselinux1", "libseccomp2")


async def ensure(progress: Progress = print_progress) -> None:
    """Fetches Debian's dockerd. Raises BuildError."""
    if not _is_fetched():
        if absent := debian.missing_tools():
            raise BuildError(f"Docker comes from Debian's packages; not on PATH: {', '.join(absent)}")
        progress(f"fetching {', '.join(_PACKAGES)}")
        await asyncio.to_thread(debian.unpack, [*_PACKAGES, *_LIBRARIES], _fetched(), _is_fetched)


def is_there() -> bool:
    """Whether some Docker runs already."""
    return "DOCKER_HOST" in os.environ or SOCKET.is_socket()


def missing() -> str:
    """Why there is no Docker and none can be started, in one line; empty otherwise."""
    if is_there() or (isolation.is_inside() and _is_fetched()):
        return ""
    return f"no Docker: DOCKER_HOST is not set and {SOCKET} is not there; `make e2e` runs these on Debian's"


def _fetched() -> Path:
    return cache_directory() / f"docker-{platform.system()}-{platform.machine()}".lower()


def _is_fetched() -> bool:
    return (_fetched() / "usr/sbin/dockerd").exists()


class Dockerd(Server):
    """It listens at SOCKET, on a machine of its own only. What it runs ends with the machine."""

    poll_seconds = 0.1

    def __init__(self, directory: Path, group: ProcessGroup) -> None:
        assert isolation.is_inside()
        root = _fetched()
        command = [
            "env",
            f"PATH={root / 'usr/sbin'}:{root / 'usr/bin'}:{os.environ.get('PATH', '')}",
            f"LD_LIBRARY_PATH={':'.join(map(str, [*root.glob('usr/lib/*-linux-*'), *root.glob('lib/*-linux-*')]))}",
            "dockerd",
            f"--host=unix://{SOCKET}",
            "--group=root",
            f"--data-root={directory / 'docker'}",
            "--exec-root=/run/docker",
            "--iptables=false",
            "--ip6tables=false",
            "--bridge=none",
            "--storage-driver=vfs",
            "--exec-opt=native.cgroupdriver=cgroupfs",
            f"--cgroup-parent={isolation.make_cgroup('docker')}",
        ]
        super().__init__("dockerd", command, directory, group)

    async def _ready(self) -> bool:
        try:
            reader, writer = await asyncio.open_unix_connection(SOCKET)
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        try:
            writer.write(b"GET /_ping HTTP/1.0\r\n\r\n")
            return b" 200 " in await reader.readline()
        except ConnectionError:
            return False
        finally:
            writer.close()
