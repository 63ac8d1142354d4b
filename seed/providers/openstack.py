"""OpenStack: Nova's flavor by name or id; the root disk of the flavor, or rootDiskSizeGB (GiB) of the spec.

Fields: k8c.io/machine-controller/sdk/cloudprovider/openstack/types.go, RawConfig;
pkg/cloudprovider/provider/openstack/provider.go, getConfig, has their names in the environment. Create boots from a new
volume of rootDiskSizeGB when that is set, and otherwise on the flavor's own disk. Ephemeral and swap disks of a flavor
are not counted.

https://docs.openstack.org/api-ref/compute/#flavors, #limits-limits,
https://docs.openstack.org/nova/latest/configuration/extra-specs.html
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from functools import partial
from urllib.parse import quote, urlsplit

import msgspec

from common.quota.quantity import UNIT
from common.runtime.pieces import in_pieces
from seed.providers.entries import Entries
from seed.providers.flavour import (
    MAX_BODY_OF_ANY_HOST,
    AccountQuota,
    Catalogue,
    Cloud,
    CloudError,
    Flavour,
    Lookup,
    Place,
    Query,
    Setting,
    Settings,
    Unreadable,
)
from seed.providers.keystone import sign_in
from seed.providers.nvswitch import is_called_nvswitch
from seed.providers.size import GIB, MIB, NotSized, template_disk
from seed.providers.spec import LARGEST, Spec

NAME = "openstack"

_NAMED = re.compile(r"[^\x00-\x1f\x7f]{1,255}")  # what Nova takes: any printable text
_REGION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}|")
_HOST = re.compile(r"[A-Za-z0-9.-]{1,253}(:[0-9]{1,5})?")
_PATH = re.compile(r"(/[A-Za-z0-9._~-]{1,64}){0,8}")
# extra_specs come with a flavor since this version (Rocky, 2018); before, each flavor is asked for its own
_MICROVERSION = {"OpenStack-API-Version": "compute 2.61", "X-OpenStack-Nova-API-Version": "2.61"}
_RESOURCE = re.compile(r"resources[A-Za-z0-9_-]*:(?P<class>[A-Z0-9_]+)")
_GPU_SPECS = re.compile(r"(?P<model>[^:]+):[^:]+:(?P<count>[0-9]+)")  # Huawei's clouds: `m60_1q:virt:1`
_NVIDIA = re.compile(
    r"gpu|nvidia|tesla|quadro|rtx|pci_10de|"
    r"(?<![a-z])(a10|a16|a30|a40|a100|a800|b[123]00|h20|h100|h200|k80|l4|l40s?|m10|m60|p4|p40|p100|t4|v100)(?![a-z0-9])",
    re.IGNORECASE,
)
_AMD = re.compile(r"radeon|instinct|(?<![a-z])mi[0-9]{2,3}|pci_1002", re.IGNORECASE)
MAX_PAGES = 100
MAX_FLAVORS = 8192
PAGE = 500


def size(spec: Spec) -> Lookup:
    root = spec.optional_integer("rootDiskSizeGB")
    flavor = spec.text("flavor")
    if not _NAMED.fullmatch(flavor):
        raise NotSized(NAME, "flavor is no name of a flavor")
    whose = {  # both what is asked for and what it is asked with: two projects see different flavors
        "applicationCredentialID": spec.setting(
            "applicationCredentialID", "OS_APPLICATION_CREDENTIAL_ID", identifier=True
        ),
        "domainName": spec.setting("domainName", "OS_DOMAIN_NAME", identifier=True),
        "projectID": spec.setting("projectID", "OS_PROJECT_ID", scope=True),
        "projectName": spec.setting("projectName", "OS_PROJECT_NAME", scope=True),
        "tenantID": spec.setting("tenantID", "OS_TENANT_ID", scope=True),
        "tenantName": spec.setting("tenantName", "OS_TENANT_NAME", scope=True),
    }
    return Lookup(
        provider=NAME,
        flavour=flavor,
        where={
            "identityEndpoint": spec.setting("identityEndpoint", "OS_AUTH_URL"),
            "region": spec.setting("region", "OS_REGION_NAME"),
            "caFile": Setting(variable="OS_CACERT", file=True),
            "ca": Setting(variable="OS_CACERT_DATA"),
            **whose,
        },
        credentials={
            "applicationCredentialSecret": spec.setting(
                "applicationCredentialSecret", "OS_APPLICATION_CREDENTIAL_SECRET"
            ),
            "username": spec.setting("username", "OS_USER_NAME", identifier=True),
            "password": spec.setting("password", "OS_PASSWORD"),
            "tokenId": spec.setting("tokenId"),
            **whose,
        },
        endpoint="identityEndpoint",
        identity=_identity,
        root=root * GIB * UNIT if root is not None else None,
    )


def place(where: Settings) -> Place:
    region = where.get("region")
    if not _REGION.fullmatch(region):
        raise NotSized(NAME, "region is no name of a region")
    return Place(NAME, _identity(where["identityEndpoint"]), region, _account(where))


def _identity(endpoint: str) -> str:
    """The URL of Keystone's version 3, whatever version or none it was written with."""
    try:
        parts = urlsplit(endpoint.strip())
    except ValueError:
        raise NotSized(NAME, "identityEndpoint is no https URL") from None
    path = parts.path.rstrip("/")
    plain = _HOST.fullmatch(parts.netloc) and _PATH.fullmatch(path) and not parts.query and not parts.fragment
    if parts.scheme != "https" or not plain or ".." in path.split("/"):
        raise NotSized(NAME, "identityEndpoint is no https URL")
    return f"https://{parts.netloc.lower().removesuffix(':443')}{re.sub(r'/v[0-9.]+$', '', path)}/v3"


def _account(where: Settings) -> str:
    """A short name of the account. A hash, because names of projects are not for everybody who can see it."""
    names = ["applicationCredentialID"]
    if names[0] not in where:
        names = ["domainName", "projectID", "tenantID", "projectName", "tenantName"]
    text = msgspec.json.encode([where.get(name) for name in names])
    return hashlib.sha256(text).hexdigest()[:16]


_LIMITS = {
    "cpu": "maxTotalCores",
    "cpu_used": "totalCoresUsed",
    "memory": "maxTotalRAMSize",
    "memory_used": "totalRAMUsed",
    "machines": "maxTotalInstances",
    "machines_used": "totalInstancesUsed",
}


class _Flavor(msgspec.Struct):
    id: str
    name: str
    vcpus: int
    ram: int  # MiB
    disk: int  # GiB
    extra_specs: dict[str, str] | None = None


class _Link(msgspec.Struct):
    rel: str


class _Listed(msgspec.Struct):
    id: str


class _Page(msgspec.Struct):
    flavors: list[msgspec.Raw]
    flavors_links: list[_Link] = []


class _ExtraSpecs(msgspec.Struct):
    extra_specs: dict[str, str]


async def fetch(query: Query) -> Catalogue:
    values = await query.sign_in(lambda: sign_in(query))
    nova = _Nova(query, values["compute"], values["token"])
    entries = Entries()
    flavors = await nova.flavors()
    for field in ("id", "name"):  # the later counts: one flavor's name may be another's id
        async for flavor, extra_specs in in_pieces(flavors):
            entries.add_json(flavor, (field,), _Flavor, partial(_flavour, extra_specs))
    return entries.catalogue()


class _Absolute(msgspec.Struct, rename=_LIMITS):
    """Of a project. A limit of -1 is none; here also what is not told."""

    cpu: int = -1
    cpu_used: int = -1
    memory: int = -1  # MiB
    memory_used: int = -1
    machines: int = -1
    machines_used: int = -1


class _Limits(msgspec.Struct):
    absolute: _Absolute


class _AllLimits(msgspec.Struct):
    limits: _Limits


async def quota(query: Query) -> AccountQuota:
    """Of compute; volumes have limits of their own, in another service."""
    values = await query.sign_in(lambda: sign_in(query))
    told = await _Nova(query, values["compute"], values["token"]).limits()
    amounts = {
        "cpu": (told.cpu, told.cpu_used, UNIT),
        "memory": (told.memory, told.memory_used, MIB * UNIT),
        "machines": (told.machines, told.machines_used, UNIT),
    }
    if max(max(limit, used) for limit, used, _ in amounts.values()) > LARGEST:
        raise CloudError("answers limits that no project has")
    limited = {name: found for name, found in amounts.items() if found[0] >= 0 and found[1] >= 0}
    return AccountQuota(
        limits={name: limit * unit for name, (limit, _, unit) in limited.items()},
        used={name: used * unit for name, (_, used, unit) in limited.items()},
    )


class _Nova:
    def __init__(self, query: Query, url: str, token: str) -> None:
        self._http = query.http
        self._ca = query.where.get("ca") or query.where.get("caFile")
        self._url = url.rstrip("/")
        self._headers = {"X-Auth-Token": token, "Accept": "application/json"}

    async def flavors(self) -> list[tuple[msgspec.Raw, bytes]]:
        """Each with the answer that has its extra specs, which is empty where the flavor itself has them."""
        flavors = await self._pages(self._headers | _MICROVERSION)
        if flavors is not None:
            return [(flavor, b"") for flavor in flavors]
        flavors = await self._pages(self._headers)
        if flavors is None:
            raise CloudError("does not list its flavors")
        return [(flavor, await self._extra_specs(flavor)) for flavor in flavors]

    async def limits(self) -> _Absolute:
        answer = await self._http.request(
            "GET", f"{self._url}/limits", headers=self._headers, ca=self._ca, max_body=MAX_BODY_OF_ANY_HOST
        )
        if answer.status != 200:
            raise CloudError(f"answered {answer.status} to the limits of the project")
        return answer.json(_AllLimits).limits.absolute

    async def _pages(self, headers: Mapping[str, str]) -> list[msgspec.Raw] | None:
        """None where the API is older than what the headers ask for."""
        flavors: list[msgspec.Raw] = []
        wanted = {"limit": str(PAGE)}
        for _ in range(MAX_PAGES):
            answer = await self._http.request(
                "GET",
                f"{self._url}/flavors/detail",
                headers=headers,
                query=wanted,
                ca=self._ca,
                max_body=MAX_BODY_OF_ANY_HOST,
            )
            if answer.status == 406:
                return None
            if answer.status != 200:
                raise CloudError(f"answered {answer.status} to the list of flavors")
            page = answer.json(_Page)
            flavors += page.flavors
            if len(flavors) > MAX_FLAVORS:
                raise CloudError(f"lists more than {MAX_FLAVORS} flavors")
            if not page.flavors or not any(link.rel == "next" for link in page.flavors_links):
                return flavors
            last = _id(page.flavors[-1])
            if last is None:
                raise CloudError("answers what cannot be read")
            wanted["marker"] = last  # not the link itself: behind proxies it often is http
        raise CloudError("lists flavors without end")

    async def _extra_specs(self, flavor: msgspec.Raw) -> bytes:
        named = _id(flavor)
        if named is None:
            return b""
        url = f"{self._url}/flavors/{quote(named, safe='')}/os-extra_specs"
        answer = await self._http.request("GET", url, headers=self._headers, ca=self._ca, max_body=MAX_BODY_OF_ANY_HOST)
        if answer.status == 404:  # deleted since it was listed
            return b""
        if answer.status != 200:
            raise CloudError(f"answered {answer.status} to a flavor's extra specs")
        return answer.body


def _id(flavor: msgspec.Raw) -> str | None:
    try:
        return msgspec.json.decode(flavor, type=_Listed).id
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _flavour(more: bytes, flavor: _Flavor) -> Flavour:
    if not (0 < flavor.vcpus <= LARGEST and 0 < flavor.ram <= LARGEST and 0 <= flavor.disk <= LARGEST):
        raise Unreadable("its vcpus, ram or disk are not a number above 0")
    extra_specs = msgspec.json.decode(more, type=_ExtraSpecs).extra_specs if more else flavor.extra_specs
    devices: dict[str, int] = {}
    for device, count in _gpus(extra_specs or {}):
        devices[device] = devices.get(device, 0) + count * UNIT
    disk = flavor.disk * GIB * UNIT
    return Flavour(
        cpu=flavor.vcpus * UNIT,
        memory=flavor.ram * MIB * UNIT,
        storage=disk or template_disk("rootDiskSizeGB"),
        devices=devices,
        name=flavor.name,
    )


def _gpus(extra_specs: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    """What PCI aliases and resource classes are called is the operator's choice: their usual names are known."""
    for alias in extra_specs.get("pci_passthrough:alias", "").split(","):
        name, _, count = alias.partition(":")
        device = _device(name.strip())
        if device:
            yield device, _count(count or "1")
    special = _GPU_SPECS.fullmatch(extra_specs.get("pci_passthrough:gpu_specs", ""))
    if special and not extra_specs.get("pci_passthrough:alias"):
        yield _device(special["model"]) or "nvidia.com/gpu", _count(special["count"])
    for key, count in extra_specs.items():
        resource = _RESOURCE.fullmatch(key)
        device = _device(resource["class"].removeprefix("CUSTOM_")) if resource else ""
        if device and count != "0":
            yield device, _count(count)


def _device(name: str) -> str:
    folded = name.lower()
    if is_called_nvswitch(name):
        return ""
    if _AMD.search(name) or ("amd" in folded and "gpu" in folded):
        return "amd.com/gpu"
    return "nvidia.com/gpu" if _NVIDIA.search(name) else ""


def _count(text: str) -> int:
    text = text.strip()  # `a100: 1` is one for Nova, too
    if not (text.isascii() and text.isdecimal() and len(text) <= 6):
        raise Unreadable("its extra specs have a number of GPUs that is not a number")
    return int(text)


CLOUD = Cloud(
    place=place,
    fetch=fetch,
    lists=True,
    least_spec=lambda region: {"flavor": "-", "region": region},
    quota=quota,
)
