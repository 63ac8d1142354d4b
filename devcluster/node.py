"""A real node for a control plane: containerd, kubelet, kube-proxy and kube-scheduler. Pods run, Services are reached.

It runs on what `devcluster.isolation` makes look like a machine of its own, and leaves nothing on the real one.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import yaml

from devcluster import binaries, debian, images, isolation
from devcluster.binaries import BuildError, cache_directory
from devcluster.controlplane import ApiServer
from devcluster.isolation import Machine
from devcluster.processes import ProcessGroup
from devcluster.servers import Server, StartError

PROGRAMS = ("kubelet", "kube-proxy", "kube-scheduler", "kube-controller-manager", "pause")

_PACKAGES = ("containerd", "runc", "containernetworking-plugins", "nftables")
_LIBRARIES = (
    "libseccomp2", "libnftables1", "libnftnl11", "libmnl0", "libjansson4", "libedit2", "libbsd0", "libmd0",
    "libgmp10", "libxtables12",
)  # fmt: skip
SANDBOX_IMAGE = "seedquota.io/devcluster/pause:v0"
_READY_SECONDS = 120.0
_POLL_SECONDS = 0.2


async def ensure(progress: binaries.Progress = binaries.print_progress) -> None:
    """Builds and fetches what a node needs, which needs the network. Raises BuildError."""
    if not _is_fetched():
        if absent := debian.missing_tools():
            raise BuildError(f"a node needs containerd from Debian's packages; not on PATH: {', '.join(absent)}")
        progress(f"fetching {', '.join(_PACKAGES)}")
        await asyncio.to_thread(debian.unpack, [*_PACKAGES, *_LIBRARIES], _fetched(), _is_fetched)
    await binaries.ensure(["etcd", "kube-apiserver", *PROGRAMS], progress)


def missing() -> str:
    """Why no node runs here, in one line; empty if one does."""
    if not isolation.is_inside():
        return isolation.missing() or "a node runs below `python -m devcluster.isolation` only"
    return "" if _is_fetched() else "containerd was not fetched: run `python -m devcluster build --node`"


def _fetched() -> Path:
    return cache_directory() / f"node-{platform.system()}-{platform.machine()}".lower()


def _is_fetched() -> bool:
    return all((_fetched() / path).exists() for path in ("usr/bin/containerd", "usr/sbin/runc", "usr/sbin/nft"))


class Containerd(Server):
    poll_seconds = 0.1

    def __init__(self, machine: Machine, directory: Path, group: ProcessGroup) -> None:
        self.socket = directory / "containerd.sock"
        self.environment = _environment()
        networks = directory / "networks"
        networks.mkdir()
        (networks / "10-pods.conflist").write_text(json.dumps(_network(machine, directory)))
        config = directory / "containerd.toml"
        config.write_text(_containerd_config(directory, self.socket, networks))
        executable = str(_fetched() / "usr/bin/containerd")
        command = machine.inside(*_with(self.environment), executable, f"--config={config}")
        super().__init__("containerd", command, directory, group)

    async def load(self, archive: Path) -> None:
        """Makes the archive's image known. Raises StartError."""
        command = [str(_fetched() / "usr/bin/ctr"), f"--address={self.socket}", "--namespace=k8s.io"]
        command += ["image", "import", str(archive)]
        loading = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        said, _ = await loading.communicate()
        if loading.returncode:
            raise StartError(f"{archive} is not imported: {said.decode(errors='replace')}")

    async def _ready(self) -> bool:
        try:
            _, writer = await asyncio.open_unix_connection(self.socket)
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        writer.close()
        return True


class Node:
    """`await Node(machine, server, directory, group).start()`: the API server's only node, Ready when this returns.

    The API server was started on the same machine. `directory` is empty; its path must be short.
    What runs ends with the group; what it leaves, mounts and network interfaces, with the isolation. `kill` ends it as
    a power cut does, and `boot` starts it again with the disk that it had.
    """

    def __init__(self, machine: Machine, server: ApiServer, directory: Path, group: ProcessGroup) -> None:
        self._machine = machine
        self._server = server
        self._directory = directory
        self._group = group
        self.logs = directory / "pods"

    async def start(self) -> None:
        directory, machine = self._directory, self._machine
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        programs = await binaries.ensure(PROGRAMS)
        self._cgroup = isolation.make_cgroup(machine.name)
        self.containerd = Containerd(machine, directory, self._group)
        await self.containerd.start()
        sandbox = directory / "pause.tar"
        images.sandbox(sandbox, SANDBOX_IMAGE, programs["pause"])
        await self.containerd.load(sandbox)
        kubeconfig = directory / "kubeconfig"
        kubeconfig.write_text(self._server.kubeconfig())
        (directory / "resolv.conf").write_text("")
        kubelet = _write(
            directory / "kubelet.yaml",
            _kubelet_config(machine, directory, self.containerd.socket, self._cgroup, self._server.client_ca),
        )
        proxy = _write(directory / "kube-proxy.yaml", _proxy_config(machine, kubeconfig))
        environment = self.containerd.environment
        commands = {
            "kubelet": [
                f"--kubeconfig={kubeconfig}",
                f"--config={kubelet}",
                f"--hostname-override={machine.name}",
                f"--node-ip={machine.address}",
                f"--root-dir={directory / 'kubelet'}",
            ],
            "kube-proxy": [f"--config={proxy}"],
            "kube-scheduler": [f"--kubeconfig={kubeconfig}", "--leader-elect=false", "--secure-port=0"],
        }
        self._servers = [
            Server(name, machine.inside(*_with(environment), str(programs[name]), *arguments), directory, self._group)
            for name, arguments in commands.items()
        ]
        for server in self._servers:
            await server.start()
        await self._is_ready()

    async def kill(self) -> None:
        """Everything that runs here ends at once, pods too. What a machine has in memory is gone: mounts, networks."""
        await asyncio.gather(*(server.kill() for server in (self.containerd, *self._servers)))
        while running := self._running():
            for process in running:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            await asyncio.sleep(_POLL_SECONDS)
        for mount in reversed(_mounts_below(self._directory)):
            subprocess.run(["umount", "--lazy", mount], check=True)
        shutil.rmtree(self._directory / "containerd-state")
        for network in Path("/run/netns").glob("cni-*"):
            if not subprocess.run(["ip", "netns", "pids", network.name], capture_output=True, check=True).stdout:
                subprocess.run(["ip", "netns", "delete", network.name], check=True)

    async def boot(self) -> None:
        """After `kill`, once the API server runs again. Pods may still start when this returns."""
        began = datetime.now(UTC)
        for server in (self.containerd, *self._servers):
            await server.start()
        await self._is_ready(began)

    async def load(self, archive: Path) -> None:
        await self.containerd.load(archive)

    def _running(self) -> list[int]:
        """Containers, and the processes that keep them."""
        found = {int(line) for file in isolation.processes_files(self._cgroup) for line in file.read_text().split()}
        for status in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(FileNotFoundError, ProcessLookupError):
                command = status.read_bytes().split(b"\0")
                if b"containerd-shim" in command[0] and str(self.containerd.socket).encode() in command:
                    found.add(int(status.parent.name))
        return sorted(found)

    async def _is_ready(self, since: datetime | None = None) -> None:
        """`since`: what the kubelet said before does not count, and what ended is started again, as systemd does: the
        kubelet ends if containerd listens and does not serve yet."""
        deadline = time.monotonic() + _READY_SECONDS
        async with self._server.session() as session:
            while (why := await _not_ready(session, self._machine.name, since)) and time.monotonic() < deadline:
                for server in self._servers:
                    if (status := server.ended_by_itself()) is not None:
                        if since is None:
                            raise StartError(f"{server.name} ended with status {status}; see {server.log}")
                        await server.start()
                await asyncio.sleep(_POLL_SECONDS)
        if why:
            waited = f"{self._machine.name} is not Ready after {_READY_SECONDS:.0f} s"
            raise StartError(f"{waited}: {why}; {self._servers[0].end_of_log()}")


async def _not_ready(session: aiohttp.ClientSession, name: str, since: datetime | None) -> str:
    async with session.get(f"/api/v1/nodes/{name}") as answer:
        node = await answer.json()
        if answer.status != 200:
            return str(node["message"])
    if node.get("spec", {}).get("taints"):
        return "it has taints still"
    for condition in node.get("status", {}).get("conditions", ()):
        if condition["type"] == "Ready":
            if since is not None and datetime.fromisoformat(condition["lastHeartbeatTime"]) < since:
                return "the kubelet has said nothing since"
            return "" if condition["status"] == "True" else str(condition["message"])
    return "no condition yet"


def _mounts_below(directory: Path) -> list[str]:
    """In the order in which they were mounted."""
    mounted = (line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return [point for point in mounted if point.startswith(f"{directory}/")]


def _write(path: Path, content: Mapping[str, object]) -> Path:
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def _environment() -> dict[str, str]:
    """What lets the unpacked programs find each other and their libraries."""
    root = _fetched()
    environment = {"PATH": f"{root / 'usr/bin'}:{root / 'usr/sbin'}:{os.environ.get('PATH', '')}"}
    if libraries := debian.library_path(root):
        environment["LD_LIBRARY_PATH"] = str(libraries)
    return environment


def _with(environment: Mapping[str, str]) -> Sequence[str]:
    return ["env", *(f"{name}={value}" for name, value in environment.items())]


def _network(machine: Machine, directory: Path) -> Mapping[str, object]:
    bridge = {
        "type": "bridge",
        "bridge": "pods0",
        "isGateway": True,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": machine.pods}]],
            "routes": [{"dst": "0.0.0.0/0"}],
            "dataDir": str(directory / "addresses"),
        },
    }
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]}


def _containerd_config(directory: Path, socket: Path, networks: Path) -> str:
    # The native snapshotter copies each layer; overlayfs needs a directory that is not on overlayfs itself.
    snapshotter = "native" if _file_system(directory) in ("overlay", "overlayfs") else "overlayfs"
    return f"""\
version = 2
root = "{directory / "containerd"}"
state = "{directory / "containerd-state"}"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs",
  "io.containerd.tracing.processor.v1.otlp"]

[grpc]
address = "{socket}"

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{SANDBOX_IMAGE}"
restrict_oom_score_adj = true
disable_apparmor = true
enable_selinux = false

[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "{snapshotter}"

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{_fetched() / "usr/lib/cni"}"
conf_dir = "{networks}"

[plugins."io.containerd.internal.v1.opt"]
path = "{directory / "opt"}"
"""


def _file_system(directory: Path) -> str:
    stat = shutil.which("stat") or "stat"
    return subprocess.run([stat, "-fc", "%T", directory], capture_output=True, text=True, check=True).stdout.strip()


def _kubelet_config(
    machine: Machine, directory: Path, socket: Path, cgroup: str, client_ca: Path
) -> Mapping[str, object]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": machine.address,
        "containerRuntimeEndpoint": f"unix://{socket}",
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": True,
        "cgroupRoot": cgroup,
        "enforceNodeAllocatable": [],
        "failCgroupV1": False,
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": False},
            "x509": {"clientCAFile": str(client_ca)},
        },
        "authorization": {"mode": "AlwaysAllow"},
        "readOnlyPort": 0,
        "healthzPort": 0,
        "podLogsDir": str(directory / "pods"),
        "resolvConf": str(directory / "resolv.conf"),
        "evictionHard": {"memory.available": "1Mi", "nodefs.available": "0%", "imagefs.available": "0%"},
        "imageGCHighThresholdPercent": 100,
        "serializeImagePulls": False,
        "nodeStatusUpdateFrequency": "5s",
        "volumePluginDir": str(directory / "volume-plugins"),
    }


def _proxy_config(machine: Machine, kubeconfig: Path) -> Mapping[str, object]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "hostnameOverride": machine.name,
        "mode": "nftables",
        "clusterCIDR": machine.pods,
        "bindAddress": machine.address,
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "oomScoreAdj": 0,
        # These are for the whole machine.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }
