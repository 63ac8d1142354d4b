"""Azure: the VM size from the list of resource SKUs of the location, OS disk and data disk (GiB) from the spec.

Fields: k8c.io/machine-controller/sdk/cloudprovider/azure/types.go, RawConfig;
pkg/cloudprovider/provider/azure/provider.go, getConfig, has their names in the environment, and getStorageProfile makes
one OS disk of osDiskSize (the image's own size when 0) and, unless it is 0, one data disk of dataDiskSize. The local
temporary disk comes with the size and is not counted.

https://learn.microsoft.com/en-us/rest/api/compute/resource-skus/list,
https://learn.microsoft.com/en-us/rest/api/compute/usage/list,
https://learn.microsoft.com/en-us/entra/identity-platform/v2-oauth2-client-creds-grant-flow
"""

from __future__ import annotations

import re
from urllib.parse import urlencode, urlsplit

import msgspec

from common.quota import quantity
from common.quota.quantity import UNIT
from common.runtime.pieces import in_pieces
from seed.providers.entries import Entries
from seed.providers.flavour import (
    AccountQuota,
    Catalogue,
    Cloud,
    CloudError,
    Flavour,
    Lookup,
    Place,
    Query,
    Session,
    Settings,
    Unreadable,
)
from seed.providers.size import GIB, CredentialsMissing, NotSized, template_disk
from seed.providers.spec import LARGEST, Spec

NAME = "azure"

_LOGIN = "login.microsoftonline.com"
_MANAGEMENT = "management.azure.com"
_VERSION = "2021-07-01"
_TOTALS = {"cpu": "cores", "machines": "virtualMachines"}  # over all families of sizes
_LOCATION = re.compile(r"[a-z0-9]{2,40}")
_SIZE = re.compile(r"[A-Za-z0-9_-]{1,80}")
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,253}")
_SUBSCRIPTION = re.compile(r"[0-9A-Fa-f-]{36}")
_DECIMAL = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?")
_WITH_GPU = re.compile(r"Standard_N[CDGV]")  # also those whose capabilities do not say so: they have a part of one
_WITH_AMD_GPU = re.compile(r"Standard_(N.*_(MI[0-9]|V620)|NV[0-9]+as_v4)")
LIST_SECONDS = 30.0  # for each attempt: the list takes seconds on good days
MAX_LIST = 32 * 2**20  # bytes: the list of all SKUs takes some 10 MiB
MAX_LISTED = 1_000_000  # values in it: some 200 for each SKU
EARLY = 300.0  # seconds before its end at which a token is not used any more
MAX_PAGES = 20


def size(spec: Spec) -> Lookup:
    os_disk = spec.optional_integer("osDiskSize", minimum=0)
    data_disk = spec.optional_integer("dataDiskSize", minimum=0)
    return Lookup(
        provider=NAME,
        flavour=_vm_size(spec.text("vmSize")),
        where={"location": spec.setting("location")},
        credentials={
            "subscriptionID": spec.setting("subscriptionID", "AZURE_SUBSCRIPTION_ID", scope=True),
            "tenantID": spec.setting("tenantID", "AZURE_TENANT_ID", identifier=True),
            "clientID": spec.setting("clientID", "AZURE_CLIENT_ID", identifier=True),
            "clientSecret": spec.setting("clientSecret", "AZURE_CLIENT_SECRET"),
        },
        root=os_disk * GIB * UNIT if os_disk else template_disk("osDiskSize"),
        disks=(data_disk or 0) * GIB * UNIT,
    )


def _vm_size(text: str) -> str:
    if not _SIZE.fullmatch(text):
        raise NotSized(NAME, "vmSize is no name of a VM size")
    return text


def place(where: Settings) -> Place:
    location = where["location"].replace(" ", "").lower()  # "West Europe" is westeurope
    if not _LOCATION.fullmatch(location):
        raise NotSized(NAME, "location is no name of a location")
    return Place(NAME, _MANAGEMENT, location)


class _Capability(msgspec.Struct):
    name: str
    value: str


class _Kind(msgspec.Struct, rename="camel"):
    resource_type: str = ""


_kind_of = msgspec.json.Decoder(_Kind).decode


class _Sku(msgspec.Struct, rename="camel"):
    name: str
    capabilities: list[_Capability] | None = None


class _Page(msgspec.Struct, rename="camel"):
    value: list[msgspec.Raw]
    next_link: str | None = None


class _Token(msgspec.Struct):
    access_token: str
    expires_in: int


async def fetch(query: Query) -> Catalogue:
    token = (await query.sign_in(lambda: _sign_in(query)))["token"]
    headers = {"Authorization": f"Bearer {token}"}
    subscription = _checked(query.credentials, "subscriptionID", _SUBSCRIPTION)
    path = f"/subscriptions/{subscription}/providers/Microsoft.Compute/skus"
    only = urlencode({"api-version": _VERSION, "$filter": f"location eq '{query.place.region}'"})
    url = f"https://{_MANAGEMENT}{path}?{only}"
    entries = Entries()
    for _ in range(MAX_PAGES):
        answer = await query.http.request("GET", url, headers=headers, timeout=LIST_SECONDS, max_body=MAX_LIST)
        if answer.status != 200:
            raise CloudError(f"answered {answer.status} to the list of sizes", refused=True)
        page = answer.json(_Page, MAX_LISTED)
        async for sku in in_pieces(page.value):
            if _is_machine(sku):
                entries.add_json(sku, ("name",), _Sku, _flavour)
        if not page.next_link:
            return entries.catalogue()
        url = _following(page.next_link)
    raise CloudError("lists sizes without end")


class _UsageName(msgspec.Struct):
    value: str


class _Usage(msgspec.Struct, rename="camel"):
    name: _UsageName
    limit: int
    current_value: int


class _Usages(msgspec.Struct):
    value: list[_Usage]


async def quota(query: Query) -> AccountQuota:
    """Of the subscription in the location. Families of sizes have limits of their own beside the total of vCPUs."""
    token = (await query.sign_in(lambda: _sign_in(query)))["token"]
    subscription = _checked(query.credentials, "subscriptionID", _SUBSCRIPTION)
    path = f"/subscriptions/{subscription}/providers/Microsoft.Compute/locations/{query.place.region}/usages"
    answer = await query.http.request(
        "GET",
        f"https://{_MANAGEMENT}{path}",
        headers={"Authorization": f"Bearer {token}"},
        query={"api-version": _VERSION},
    )
    if answer.status != 200:
        raise CloudError(f"answered {answer.status} to the usages of the subscription")
    told = {usage.name.value: usage for usage in answer.json(_Usages).value}
    found = {name: told[its] for name, its in _TOTALS.items() if its in told and told[its].limit >= 0}
    if not all(0 <= usage.current_value <= LARGEST and usage.limit <= LARGEST for usage in found.values()):
        raise CloudError("answers usages that no subscription has")
    return AccountQuota(
        limits={name: usage.limit * UNIT for name, usage in found.items()},
        used={name: usage.current_value * UNIT for name, usage in found.items()},
    )


def _following(link: str) -> str:
    """Only where the token belongs."""
    try:
        parts = urlsplit(link)
    except ValueError as error:
        raise CloudError("answers what cannot be read") from error
    if parts.scheme != "https" or parts.netloc not in (_MANAGEMENT, f"{_MANAGEMENT}:443"):
        raise CloudError("continues its list elsewhere")
    return link


def _is_machine(sku: msgspec.Raw) -> bool:
    """The list has disks and others, too. An entry without a type is not a machine: no Machine can name it."""
    try:
        return _kind_of(sku).resource_type == "virtualMachines"
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False


def _flavour(sku: _Sku) -> Flavour:
    capabilities = {capability.name: capability.value for capability in sku.capabilities or ()}
    # constrained sizes, such as Standard_M8-2ms, switch off some of their vCPUs
    cpu = _positive(capabilities.get("vCPUsAvailable") or capabilities.get("vCPUs", ""))
    gpus = -(-_amount(capabilities.get("GPUs", "0")) // UNIT) * UNIT  # a part of a GPU is a device in the guest
    if _WITH_GPU.match(sku.name):
        gpus = max(gpus, UNIT)
    device = "amd.com/gpu" if _WITH_AMD_GPU.match(sku.name) else "nvidia.com/gpu"
    return Flavour(
        cpu=cpu,
        memory=_positive(capabilities.get("MemoryGB", "")) * GIB,
        storage=None,
        devices={device: gpus} if gpus else {},
    )


def _amount(text: str) -> int:
    if not _DECIMAL.fullmatch(text):
        raise Unreadable("its vCPUs, memory or GPUs are not a number")
    return quantity.parse(text)


def _positive(text: str) -> int:
    amount = _amount(text)
    if amount == 0:
        raise Unreadable("its vCPUs or memory are 0")
    return amount


def _checked(credentials: Settings, name: str, shape: re.Pattern[str]) -> str:
    """It becomes part of a URL."""
    text = credentials[name]
    if not shape.fullmatch(text):
        raise CredentialsMissing(NAME, f"{name} is malformed")
    return text


async def _sign_in(query: Query) -> Session:
    tenant = _checked(query.credentials, "tenantID", _TENANT)
    form = {
        "grant_type": "client_credentials",
        "client_id": query.credentials["clientID"],
        "client_secret": query.credentials["clientSecret"],
        "scope": f"https://{_MANAGEMENT}/.default",
    }
    answer = await query.http.request(
        "POST",
        f"https://{_LOGIN}/{tenant}/oauth2/v2.0/token",
        headers={"Content-Type": "application/x-www-form-urlencoded"},
        body=urlencode(form).encode(),
    )
    if answer.status != 200:
        raise CloudError(f"refuses these credentials ({answer.status})", refused=True)
    token = answer.json(_Token)
    return Session({"token": token.access_token}, token.expires_in - EARLY)


CLOUD = Cloud(
    place=place,
    fetch=fetch,
    lists=True,
    least_spec=lambda region: {"vmSize": "-", "location": region},
    quota=quota,
)
