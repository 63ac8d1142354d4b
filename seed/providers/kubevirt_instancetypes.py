"""KubeVirt's instancetypes, namespaced and cluster-wide, read from the infra cluster by its kubeconfig.

A flavour is called by its name alone where machine-controller chooses among the types of that name (`_CHOICE`), and by
kind and name, `VirtualMachineInstancetype/u1.medium`, where the Machine itself does.

https://kubevirt.io/user-guide/user_workloads/instancetypes/
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from functools import lru_cache, partial
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from common.kube.client import bounded_yaml
from common.kube.client.meta import Object
from common.kube.client.resource import Resource
from common.quota import quantity
from common.quota.quantity import UNIT
from seed.providers.entries import Entries
from seed.providers.flavour import Catalogue, Flavour, Place, Query, Settings, Unreadable
from seed.providers.nvswitch import is_called_nvswitch
from seed.providers.size import CredentialsMissing, NotSized
from seed.providers.spec import LARGEST

NAME = "kubevirt"
# Never from the Machine or its kubeconfig: a tenant must not choose among types of one name. Not
# POD_NAMESPACE, as machine-controller has it, because that of this program is another.
ENVIRONMENT_NAMESPACE = "KUBEVIRT_NAMESPACE"

_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_DEVICE = re.compile(r"[a-z0-9][a-z0-9.-]{0,252}/[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_GPUS = {"nvidia.com": "nvidia.com/gpu", "amd.com": "amd.com/gpu"}
_LONGEST_KUBECONFIG = 32 * 1024  # characters, and ...
_MOST_VALUES = 1000  # ... in it: it is read on the event loop


class _Cpu(Struct):
    guest: int


class _Memory(Struct):
    guest: str | int


class _Device(Struct, rename="camel"):
    device_name: str


class _Spec(Struct, rename="camel"):
    cpu: _Cpu
    memory: _Memory
    gpus: list[_Device] = []
    host_devices: list[_Device] = []


class Instancetype(Object, frozen=True, kw_only=True):
    spec: msgspec.Raw


def _namespaced(version: str) -> Resource[Instancetype]:
    return Resource(_GROUP, version, "virtualmachineinstancetypes", "VirtualMachineInstancetype", True, Instancetype)


def _cluster_wide(version: str) -> Resource[Instancetype]:
    plural, kind = "virtualmachineclusterinstancetypes", "VirtualMachineClusterInstancetype"
    return Resource(_GROUP, version, plural, kind, False, Instancetype)


_GROUP = "instancetype.kubevirt.io"
_NAMESPACED, _CLUSTER_WIDE = _namespaced("v1beta1"), _cluster_wide("v1beta1")
_CHOICE = (_NAMESPACED, _CLUSTER_WIDE, _namespaced("v1alpha1"), _cluster_wide("v1alpha1"))
"""What machine-controller looks for, in this order: pkg/cloudprovider/provider/kubevirt/provider.go,
defaultVMInstanceType. The first that exists is the type of the VM, whatever kind or revision the Machine names."""


def flavour_of(kind: str, name: str) -> str | None:
    """The flavour's name of the type of this kind; None if there is no such kind. KubeVirt takes the plural as well."""
    for resource in (_NAMESPACED, _CLUSTER_WIDE):
        if kind.lower() in (resource.kind.lower(), resource.plural):
            return f"{resource.kind}/{name}"
    return None if kind else f"{_CLUSTER_WIDE.kind}/{name}"


def place(where: Settings) -> Place:
    if "kubeconfig" not in where:
        raise CredentialsMissing(NAME, where.missing("kubeconfig").reason)
    server = server_of(where["kubeconfig"])
    if not server:
        raise CredentialsMissing(NAME, "auth.kubeconfig is no kubeconfig with the https URL of a server")
    namespace = where.get("namespace")
    if namespace and not _NAMESPACE.fullmatch(namespace):
        raise NotSized(NAME, f"{ENVIRONMENT_NAMESPACE} is no name of a namespace")
    return Place(NAME, server, account=namespace)


def server_of(kubeconfig: str) -> str:
    """The URL of its server, empty if it has none."""
    return _server(_text(kubeconfig))


def _text(kubeconfig: str) -> str:
    """machine-controller wants base64 in the Machine, and takes either elsewhere."""
    if len(kubeconfig) > 2 * _LONGEST_KUBECONFIG:
        return ""
    try:
        return base64.b64decode("".join(kubeconfig.split()), validate=True).decode()
    except ValueError:
        return kubeconfig


@lru_cache(maxsize=256)
def _server(kubeconfig: str) -> str:
    """The server of the current context, as common/kube/client/kubeconfig.py finds it: empty if there is none.

    It keys the cache, so it must be the server that is asked in the end.
    """
    if len(kubeconfig) > _LONGEST_KUBECONFIG:
        return ""
    try:
        config = bounded_yaml.load(kubeconfig, _MOST_VALUES)
    except bounded_yaml.InvalidYaml:
        return ""
    chosen = config.get("current-context") if isinstance(config, Mapping) else None
    cluster = _entry(config, "contexts", chosen, "context").get("cluster")
    server = _entry(config, "clusters", cluster, "cluster").get("server")
    try:
        parts = urlsplit(server) if isinstance(server, str) else urlsplit("")
        plain = parts.scheme == "https" and bool(parts.hostname) and "@" not in parts.netloc
    except ValueError:
        return ""
    return str(server).rstrip("/") if plain and len(str(server)) <= 512 else ""


def _entry(config: object, section: str, name: object, what: str) -> Mapping[object, object]:
    entries = config.get(section) if isinstance(config, Mapping) else None
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, Mapping) and isinstance(name, str) and entry.get("name") == name:
            found = entry.get(what)
            return found if isinstance(found, Mapping) else {}
    return {}


async def fetch(query: Query) -> Catalogue:
    kind, _, name = query.flavour.rpartition("/")
    kubeconfig = _text(query.where["kubeconfig"])
    for resource in _CHOICE if not kind else (_NAMESPACED if kind == _NAMESPACED.kind else _CLUSTER_WIDE,):
        namespace = query.where["namespace"] if resource.namespaced else None
        found = await query.http.kubernetes(kubeconfig, resource, name, namespace)
        if found is not None:
            entries = Entries()
            entries.add([query.flavour], partial(_flavour, found.spec))
            return entries.catalogue()
    return Catalogue({})


def _flavour(raw: msgspec.Raw) -> Flavour:
    spec = msgspec.json.decode(raw, type=_Spec)
    try:
        memory = quantity.parse(spec.memory.guest)
    except quantity.QuantityError:
        raise Unreadable("its memory is not a quantity") from None
    if not (0 < spec.cpu.guest <= LARGEST and 0 < memory <= LARGEST * UNIT):
        raise Unreadable("its CPUs or memory are not a number above 0")
    devices: dict[str, int] = {}
    for device in (*spec.gpus, *spec.host_devices):
        if not _DEVICE.fullmatch(device.device_name):
            raise Unreadable("a device of it has no valid name")
        for name in counted_as(device.device_name):
            devices[name] = devices.get(name, 0) + UNIT
    return Flavour(cpu=spec.cpu.guest * UNIT, memory=memory, devices=devices)


def counted_as(device: str) -> tuple[str, ...]:
    """A device of a vendor of GPUs counts as one of its model and as one of the vendor's `gpu`, in `gpus` and in
    `hostDevices`: the guest gets it either way."""
    if is_called_nvswitch(device):
        return (device,)
    gpu = _GPUS.get(device.partition("/")[0], device)
    return (device,) if gpu == device else (device, gpu)
