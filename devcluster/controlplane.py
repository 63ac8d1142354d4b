"""Kubernetes control planes on this machine: one etcd and any number of API servers on it, each with its own keys.

There are no nodes: objects can be created, watched and admitted, but no pod ever runs, and APIs of workloads are off.
Only a cluster that is started for nodes has these, and all controllers: see devcluster/node.py.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import secrets
import shutil
import socket
import ssl
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp
import yaml

from devcluster import binaries, certificates
from devcluster.isolation import Machine
from devcluster.processes import ProcessGroup
from devcluster.servers import Etcd, Server

log = logging.getLogger(__name__)

ADMIN = "admin"

# Groups by user name. Only the admin may do anything by itself: rights of the others are given by RBAC objects.
USERS: Mapping[str, tuple[str, ...]] = {ADMIN: ("system:masters",), "seedquota-master": (), "seedquota-seed": ()}

# What the master is on a seed that `seedquota seed add` has added, and what Jobs of the charts are.
_ACCOUNTS = tuple(
    f"system:serviceaccount:seedquota:seedquota-{name}"
    for name in ("master-on-seed", "master-start-check", "master-values", "seed-start-check")
)

AUDIT_LOG = "audit.log"
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "omitManagedFields": True,
    "rules": [
        {"level": "Metadata", "users": [*(name for name in USERS if name != ADMIN), *_ACCOUNTS]},
        {"level": "None"},
    ],
}

REQUEST_TIMEOUT_SECONDS = 10  # for all requests but watches; Kubernetes' own default is 60

_SERVICE = "10.0.0.1"  # the first address of _SERVICES is that of the API server's own Service
_SERVICES = "10.0.0.0/24"
_PROBE_TIMEOUT = aiohttp.ClientTimeout(total=5)
_CONTROLLERS = (
    "namespace-controller",
    "garbage-collector-controller",
    "clusterrole-aggregation-controller",
    "resourcequota-controller",
)

_FAIRNESS = "flowcontrol.apiserver.k8s.io/v1"

# What is about pods and nodes is not served: a quarter of what a start costs, and of what an idle server does.
_NOT_SERVED = (
    "apps/v1",
    "autoscaling/v1",
    "autoscaling/v2",
    "batch/v1",
    "certificates.k8s.io/v1",
    _FAIRNESS,
    "node.k8s.io/v1",
    "policy/v1",
    "resource.k8s.io/v1",
    "scheduling.k8s.io/v1",
    "storage.k8s.io/v1",
)
_NOT_ADMITTING = (  # they watch what is not served
    "CertificateApproval",
    "CertificateSigning",
    "CertificateSubjectRestriction",
    "ClusterTrustBundleAttest",
    "DefaultIngressClass",
    "DefaultStorageClass",
    "DefaultTolerationSeconds",
    "MutatingAdmissionPolicy",
    "PersistentVolumeClaimResize",
    "PodSecurity",
    "PodTopologyLabels",
    "Priority",
    "RuntimeClass",
    "StorageObjectInUseProtection",
    "TaintNodesByCondition",
)


class ApiServer(Server):
    """A kube-apiserver with its own objects, certificate authority, users and tokens."""

    poll_seconds = 0.15  # each answer costs it something, while it has much to do
    # It ends so if a step of its start took longer than a request may. A kubelet starts it again, too.
    starts_again_after = (255,)

    def __init__(
        self,
        name: str,
        executable: Path,
        directory: Path,
        group: ProcessGroup,
        *,
        etcd: str,
        users: Mapping[str, Collection[str]],
        audited: bool = False,
        also_served: Collection[str] = (),
        flags: Sequence[str] = (),
        machine: Machine | None = None,
    ) -> None:
        # A port stays ours while this socket is bound to it: nobody else can take it while the server is down.
        self._reserved = socket.socket()
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._reserved.bind(("127.0.0.1", 0))
        self.port: int = self._reserved.getsockname()[1]
        address = machine.address if machine else "127.0.0.1"
        self.url = f"https://{address}:{self.port}"
        self.tokens = {user: secrets.token_urlsafe(32) for user in users}
        serving = certificates.serving(name, *((machine.address, _SERVICE) if machine else ()))
        self.ca = serving.ca
        self.ssl = ssl.create_default_context(cadata=self.ca)
        keys = directory / name
        keys.mkdir(mode=0o700, exist_ok=True)
        self.service_account_key = keys / "service-account.key"
        self.service_account_key.write_text(certificates.serving("service-account").key)  # it needs no certificate
        (keys / "tls.crt").write_text(serving.certificate)
        (keys / "tls.key").write_text(serving.key)
        (keys / "ca.crt").write_text(serving.ca)
        self.client_ca = keys / "client-ca.crt"  # of callers with certificates; it is read again when it changes
        clients = certificates.serving(f"{name}-clients")
        self.client_ca.write_text(clients.ca)
        (keys / "client.crt").write_text(clients.certificate)  # its own, for kubelets
        (keys / "client.key").write_text(clients.key)
        (keys / "tokens.csv").write_text(
            "".join(f'{self.tokens[user]},{user},{user},"{",".join(groups)}"\n' for user, groups in users.items())
        )
        command = [
            str(executable),
            f"--etcd-servers={etcd}",
            f"--etcd-prefix=/{name}",
            f"--secure-port={self.port}",
            "--permit-port-sharing",
            f"--external-hostname={address}",
            f"--tls-cert-file={keys / 'tls.crt'}",
            f"--tls-private-key-file={keys / 'tls.key'}",
            f"--token-auth-file={keys / 'tokens.csv'}",
            f"--client-ca-file={self.client_ca}",
            "--authorization-mode=RBAC",
            f"--service-account-issuer={self.url}",
            f"--service-account-key-file={self.service_account_key}",
            f"--service-account-signing-key-file={self.service_account_key}",
            f"--service-cluster-ip-range={_SERVICES}",
            f"--request-timeout={REQUEST_TIMEOUT_SECONDS}s",
            # It needs a dozen objects and their status.
            f"--enable-priority-and-fairness={'true' if machine or _FAIRNESS in also_served else 'false'}",
            *(_with_nodes(machine, keys) if machine else _without_nodes(also_served)),
            *flags,
        ]
        if audited:
            (keys / "audit-policy.yaml").write_text(yaml.safe_dump(AUDIT_POLICY))
            command += [
                f"--audit-policy-file={keys / 'audit-policy.yaml'}",
                f"--audit-log-path={keys / AUDIT_LOG}",
                "--audit-log-mode=blocking",
            ]
        super().__init__(name, machine.inside(*command) if machine else command, directory, group)

    def kubeconfig(self, user: str = "admin", *, port: int | None = None) -> str:
        """A kubeconfig file's text for one of the users; it holds the token. KeyError for an unknown user.

        `port` is where it is reached, if not at its own.
        """
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": self.name,
                    "cluster": {
                        "server": self.url if port is None else f"https://127.0.0.1:{port}",
                        "certificate-authority-data": base64.b64encode(self.ca.encode()).decode(),
                    },
                }
            ],
            "users": [{"name": user, "user": {"token": self.tokens[user]}}],
            "contexts": [{"name": self.name, "context": {"cluster": self.name, "user": user}}],
            "current-context": self.name,
        }
        return yaml.safe_dump(config, sort_keys=False)

    def session(self, user: str = "admin") -> aiohttp.ClientSession:
        """An HTTP session with the user's token: `await session.get("/api/v1/namespaces")`."""
        return aiohttp.ClientSession(
            self.url,
            connector=aiohttp.TCPConnector(ssl=self.ssl),
            headers={"Authorization": f"Bearer {self.tokens[user]}"},
            timeout=aiohttp.ClientTimeout(total=60),
        )

    def close(self) -> None:
        """Give the port back."""
        self._reserved.close()

    async def start(self) -> None:
        async with self.session() as self._asking:  # on one connection: each costs a handshake
            await super().start()

    async def _ready(self) -> bool:
        # The default namespace appears a moment after the server calls itself ready.
        for path in ("/readyz", "/api/v1/namespaces/default"):
            try:
                async with self._asking.get(path, timeout=_PROBE_TIMEOUT) as answer:
                    if answer.status != 200:
                        return False
            except (aiohttp.ClientError, TimeoutError):
                return False
        return True


def _without_nodes(also_served: Collection[str]) -> list[str]:
    served = dict.fromkeys(_NOT_SERVED, "false") | dict.fromkeys(also_served, "true")  # betas are off by default
    return [
        "--bind-address=127.0.0.1",
        f"--runtime-config={','.join(f'{version}={whether}' for version, whether in served.items())}",
        f"--disable-admission-plugins={','.join(_NOT_ADMITTING)}",
        "--endpoint-reconciler-type=none",  # nobody reaches it through a Service, and stopping is quicker
    ]


def _with_nodes(machine: Machine, keys: Path) -> list[str]:
    """Everything as a cluster has it by default; pods reach the server at the address, and by its Service."""
    return [
        "--bind-address=0.0.0.0",
        f"--advertise-address={machine.address}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--kubelet-client-certificate={keys / 'client.crt'}",
        f"--kubelet-client-key={keys / 'client.key'}",
    ]


class ControlPlane:
    """Any number of API servers: `async with ControlPlane() as plane: await plane.start(["master", "seed-1"])`.

    All of it is gone when the block ends, however it ends; so are the files, unless a `directory` is named for them.
    Clusters that are started in a directory used before find their objects again, with new ports and tokens.
    With `audited`, AUDIT_LOG beside each API server's keys has every request of the programs' users.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        users: Mapping[str, Collection[str]] = USERS,
        audited: bool = False,
    ) -> None:
        self._named_directory = directory
        self._audited = audited
        self._users = users
        self._servers: dict[str, ApiServer] = {}
        self._etcds: dict[str, Etcd] = {}
        self._managers: dict[str, Server] = {}

    async def __aenter__(self) -> Self:
        self._binaries = await binaries.ensure(["etcd", "kube-apiserver"])
        if self._named_directory is None:
            self.directory = Path(tempfile.mkdtemp(prefix="seedquota-devcluster-"))
        else:
            self.directory = self._named_directory.absolute()
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._group = ProcessGroup(remove=self.directory if self._named_directory is None else None)
        try:
            self.etcd = Etcd(self._binaries["etcd"], self.directory, self._group)
            await self.etcd.start()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def start(
        self,
        names: Iterable[str],
        *,
        controllers: Collection[str] = (),
        own_etcd: Collection[str] = (),
        also_served: Collection[str] = (),
        flags: Sequence[str] = (),
        machine: Machine | None = None,
    ) -> None:
        """Start an API server for each name, all at once, and wait until all are ready. May be called again for more.

        Those named in `own_etcd` get an etcd each, named etcd-NAME, which can be restored alone; the others share one.
        The clusters named in `controllers` also get a kube-controller-manager with the few controllers that
        matter without nodes: deletion of namespaces, garbage, aggregated roles (such as view) and core quotas.
        These may also be clusters that were started before. `also_served`: versions, such as resource.k8s.io/v1, that
        the new API servers serve beside the usual ones. `flags`: more of theirs. `machine`: where the new API servers
        run, for a node there. They serve all APIs, and those named in `controllers` get all controllers.
        Raises StartError.
        """
        await asyncio.gather(*(self._add_etcd(name) for name in own_etcd))
        added = [self._add(name, also_served, flags, machine) for name in names]
        managers = await binaries.ensure(["kube-controller-manager"]) if controllers else {}
        starting = [asyncio.create_task(server.start()) for server in added]
        try:
            await asyncio.gather(*starting)
        finally:
            for task in starting:
                task.cancel()
            await asyncio.gather(*starting, return_exceptions=True)
        for name in controllers:
            executable = managers["kube-controller-manager"]
            of = ["*"] if machine is not None else _CONTROLLERS
            self._managers[name] = self._controller_manager(self.cluster(name), executable, of)
            await self._managers[name].start()

    async def controllers(self, name: str, *controllers: str) -> Server:
        """Starts a kube-controller-manager with these controllers alone for the cluster. The caller stops it. Raises
        StartError."""
        managers = await binaries.ensure(["kube-controller-manager"])
        server = self._controller_manager(self.cluster(name), managers["kube-controller-manager"], controllers)
        await server.start()
        return server

    def cluster(self, name: str) -> ApiServer:
        """The API server that was started under this name. KeyError if none was."""
        return self._servers[name]

    def manager_of(self, name: str) -> Server:
        """The kube-controller-manager of a cluster that was named in `controllers`."""
        return self._managers[name]

    def etcd_of(self, name: str) -> Etcd:
        """Where the cluster's objects are stored."""
        return self._etcds.get(name, self.etcd)

    async def _add_etcd(self, name: str) -> None:
        assert name not in self._servers, f"{name} was started already"
        etcd = self._etcds[name] = Etcd(self._binaries["etcd"], self.directory, self._group, f"etcd-{name}")
        await etcd.start()

    def _add(self, name: str, also_served: Collection[str], flags: Sequence[str], machine: Machine | None) -> ApiServer:
        assert name not in self._servers, f"{name} was started already"
        server = self._servers[name] = ApiServer(
            name,
            self._binaries["kube-apiserver"],
            self.directory,
            self._group,
            etcd=self.etcd_of(name).url,
            users=self._users,
            audited=self._audited,
            also_served=also_served,
            flags=flags,
            machine=machine,
        )
        return server

    def _controller_manager(self, server: ApiServer, executable: Path, controllers: Collection[str]) -> Server:
        keys = self.directory / server.name
        kubeconfig = keys / "controllers.kubeconfig"
        kubeconfig.write_text(server.kubeconfig())
        command = [
            str(executable),
            f"--kubeconfig={kubeconfig}",
            f"--controllers={','.join(controllers)}",
            f"--root-ca-file={keys / 'ca.crt'}",
            "--leader-elect=false",
            "--secure-port=0",
        ]
        return Server(f"{server.name}-controllers", command, self.directory, self._group)

    async def _close(self) -> None:
        await asyncio.to_thread(self._group.close)
        for server in self._servers.values():
            server.close()
        if self._named_directory is None:
            shutil.rmtree(self.directory, ignore_errors=True)
