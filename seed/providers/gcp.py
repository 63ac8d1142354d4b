"""Google Cloud: the size of the machine type in its zone, of custom types from their name; disk, GPUs of the spec.

Fields: k8c.io/machine-controller/sdk/cloudprovider/gce/types.go, CloudProviderSpec;
pkg/cloudprovider/provider/gce/config.go: the service account is a key file in JSON, in base64, in the environment
GOOGLE_SERVICE_ACCOUNT; a diskSize that is not set is 25 GB, which are GiB. Create makes that one disk.
machine-controller knows no guestAccelerators; they are read as the Compute API spells them. Local SSDs that come with
a type are not counted.

https://cloud.google.com/compute/docs/reference/rest/v1/machineTypes,
https://cloud.google.com/compute/docs/instances/creating-instance-with-custom-machine-type
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from common.quota.quantity import UNIT
from common.runtime.pieces import in_pieces
from seed.providers.entries import Entries
from seed.providers.flavour import (
    ALL,
    Catalogue,
    Cloud,
    CloudError,
    Flavour,
    Lookup,
    Place,
    Query,
    Settings,
    Unreadable,
)
from seed.providers.gcp_auth import project_of, sign_in
from seed.providers.size import GIB, MIB, Footprint, NotSized, footprint
from seed.providers.spec import LARGEST, Spec

NAME = "gce"

_HOST = "compute.googleapis.com"
_TYPE = re.compile(r"[a-z][a-z0-9-]{0,62}")
_ZONE = re.compile(r"[a-z]{2,20}(-[a-z0-9]{1,20}){2,3}")
# Not G2 and those after it: their GPUs depend on the number of CPUs, which only the API knows.
_CUSTOM = re.compile(r"(?:(?P<family>n1|n2|n2d|n4|n4a|n4d|e2)-)?custom-(?P<cpus>[0-9]{1,4})-(?P<mib>[0-9]{1,9})(-ext)?")
_CUSTOM_SHARED = re.compile(r"e2-custom-(micro|small|medium)-(?P<mib>[0-9]{1,9})")
_SHARED_CPUS = 2  # that the guest sees, whatever part of them it is guaranteed
_DEFAULT_DISK = 25
MAX_PAGES = 20
PAGE = 500


def size(spec: Spec) -> Footprint | Lookup:
    machine_type = spec.text("machineType")
    if not _TYPE.fullmatch(machine_type):
        raise NotSized(NAME, "machineType is no name of a machine type")
    disk = (spec.optional_integer("diskSize", minimum=0) or _DEFAULT_DISK) * GIB * UNIT
    devices = _accelerators_of(spec)
    custom = _custom(machine_type)
    if custom is not None:
        return footprint(NAME, cpu=custom.cpu, memory=custom.memory, storage=disk, devices=devices)
    return Lookup(
        provider=NAME,
        flavour=machine_type,
        where={"zone": spec.setting("zone")},
        credentials={
            "serviceAccount": spec.setting("serviceAccount", "GOOGLE_SERVICE_ACCOUNT"),
            "projectID": spec.setting("projectID", scope=True),
        },
        root=disk,
        devices=devices,
    )


def _custom(machine_type: str) -> Flavour | None:
    """A type that is made by its name, `n2-custom-4-8192`: CPUs and MiB."""
    found = _CUSTOM.fullmatch(machine_type)
    cpus = int(found["cpus"]) if found else _SHARED_CPUS
    found = found or _CUSTOM_SHARED.fullmatch(machine_type)
    if found is None:
        return None
    mib = int(found["mib"])
    if cpus == 0 or mib == 0:
        raise NotSized(NAME, "machineType is a custom type without cpus or memory")
    return Flavour(cpu=cpus * UNIT, memory=mib * MIB * UNIT)


def _accelerators_of(spec: Spec) -> dict[str, int]:
    devices: dict[str, int] = {}
    for accelerator in spec.items("guestAccelerators"):
        kind = accelerator.text("acceleratorType").rpartition("/")[2]  # it may be a URL
        device = _device(kind)
        if device is None:
            raise NotSized(NAME, "guestAccelerators names a type of accelerator that is not known")
        devices[device] = devices.get(device, 0) + accelerator.integer("acceleratorCount") * UNIT
    return devices


def _device(kind: str) -> str | None:
    if kind.startswith("nvidia-"):
        return "nvidia.com/gpu"
    if kind.startswith("amd-"):
        return "amd.com/gpu"
    return "google.com/tpu" if kind.startswith(("ct", "tpu")) else None


def place(where: Settings) -> Place:
    zone = where["zone"]
    if not _ZONE.fullmatch(zone):
        raise NotSized(NAME, "zone is no name of a zone")
    return Place(NAME, _HOST, zone)


class _Accelerator(msgspec.Struct, rename="camel"):
    guest_accelerator_type: str
    guest_accelerator_count: int


class _Named(msgspec.Struct):
    name: str


class _MachineType(msgspec.Struct, rename="camel"):
    guest_cpus: int
    memory_mb: int
    accelerators: list[_Accelerator] = []


class _Page(msgspec.Struct, rename="camel"):
    items: list[msgspec.Raw] = []
    next_page_token: str = ""


async def fetch(query: Query) -> Catalogue:
    token = (await query.sign_in(lambda: sign_in(query.http, query.credentials)))["token"]
    headers = {"Authorization": f"Bearer {token}"}
    project = project_of(query.credentials)
    url = f"https://{_HOST}/compute/v1/projects/{project}/zones/{query.place.region}/machineTypes"
    if query.flavour == ALL:
        return await _listed(query, url, headers)
    answer = await query.http.request("GET", f"{url}/{query.flavour}", headers=headers)
    if answer.status == 200:
        answer.json(_Named)
        return await _read([msgspec.Raw(answer.body)])
    if answer.status in (400, 404):
        return await _listed(query, url, headers)
    raise CloudError(f"answered {answer.status}", refused=True)


async def _listed(query: Query, url: str, headers: Mapping[str, str]) -> Catalogue:
    """All types of the zone: a 404 may also mean that there is no such zone or project."""
    items: list[msgspec.Raw] = []
    wanted = {"maxResults": str(PAGE), "fields": "items(name,guestCpus,memoryMb,accelerators),nextPageToken"}
    for _ in range(MAX_PAGES):
        answer = await query.http.request("GET", url, headers=headers, query=wanted)
        if answer.status != 200:
            raise CloudError(f"does not know the zone or the project ({answer.status})", refused=True)
        page = answer.json(_Page)
        items += page.items
        if not page.next_page_token:
            return await _read(items)
        wanted["pageToken"] = page.next_page_token
    raise CloudError("lists machine types without end")


async def _read(items: list[msgspec.Raw]) -> Catalogue:
    entries = Entries()
    async for item in in_pieces(items):
        entries.add_json(item, ("name",), _MachineType, _flavour)
    return entries.catalogue()


def _flavour(machine_type: _MachineType) -> Flavour:
    devices: dict[str, int] = {}
    for accelerator in machine_type.accelerators:
        device = _device(accelerator.guest_accelerator_type)
        if device is not None:
            devices[device] = devices.get(device, 0) + _counted(accelerator.guest_accelerator_count) * UNIT
    return Flavour(
        cpu=_counted(machine_type.guest_cpus) * UNIT,
        memory=_counted(machine_type.memory_mb) * MIB * UNIT,
        devices=devices,
    )


def _counted(number: int) -> int:
    if not 0 < number <= LARGEST:
        raise Unreadable("its CPUs, memory or accelerators are not a number above 0")
    return number


CLOUD = Cloud(
    place=place,
    fetch=fetch,
    lists=False,
    least_spec=lambda zone: {"machineType": "x", "zone": zone},
)
