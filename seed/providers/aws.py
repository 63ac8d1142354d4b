"""AWS: the instance type's size from EC2's DescribeInstanceTypes, the root volume (`diskSize`, GiB) from the spec.

Fields: k8c.io/machine-controller/sdk/cloudprovider/aws/types.go, RawConfig;
pkg/cloudprovider/provider/aws/provider.go, getConfig, has their names in the environment, and Create makes one EBS
volume of DiskSize GiB. Instance store (the local disks of m5d and others) comes with the type and is not counted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from urllib.parse import urlsplit
from xml.etree.ElementTree import Element

from common.quota.quantity import UNIT
from common.runtime.pieces import in_pieces
from seed.providers.aws_api import (
    EARLY,
    SESSION_SECONDS,
    Keys,
    RefusedCall,
    Service,
    assume_role,
    assume_role_with_web_identity,
    container_role,
    instance_role,
)
from seed.providers.entries import Entries
from seed.providers.flavour import (
    ALL,
    Catalogue,
    Cloud,
    CloudError,
    Flavour,
    Lookup,
    Origin,
    Place,
    Query,
    Session,
    Setting,
    Settings,
    Unreadable,
    is_nearby,
)
from seed.providers.size import GIB, MIB, CredentialsMissing, NotSized
from seed.providers.spec import Spec

NAME = "aws"

_REGION = re.compile(r"[a-z]{2}(-[a-z]+){1,3}-[0-9]{1,2}")
_TYPE = re.compile(r"[a-z0-9-]{1,32}\.[a-z0-9-]{1,32}")
_METADATA = "http://169.254.169.254"
_ITEMS = "./instanceTypeSet/item"
_CONTAINERS = "http://169.254.170.2"
_GPUS = {"NVIDIA": "nvidia.com/gpu", "AMD": "amd.com/gpu", "Habana": "habana.ai/gaudi"}
_NEURON = "aws.amazon.com/neuron"
_UNKNOWN_TYPE = frozenset({"InvalidInstanceType", "InvalidInstanceType.NotFound"})
MAX_PAGES = 40  # a region has about 1,000 types


def size(spec: Spec) -> Lookup:
    return Lookup(
        provider=NAME,
        flavour=_type(spec.text("instanceType")),
        where={
            "region": spec.setting("region"),
            "ec2": Setting(variable="AWS_ENDPOINT_URL_EC2"),
            "sts": Setting(variable="AWS_ENDPOINT_URL_STS"),
            "metadata": Setting(variable="AWS_EC2_METADATA_SERVICE_ENDPOINT"),
        },
        credentials={
            "accessKeyId": spec.setting("accessKeyId", "AWS_ACCESS_KEY_ID", identifier=True),
            "secretAccessKey": spec.setting("secretAccessKey", "AWS_SECRET_ACCESS_KEY"),
            "sessionToken": Setting(variable="AWS_SESSION_TOKEN"),
            "webIdentity": Setting(variable="AWS_WEB_IDENTITY_TOKEN_FILE", file=True),
            "webIdentityRole": Setting(variable="AWS_ROLE_ARN", platform=True),
            "containerPath": Setting(variable="AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", own=True),
            "containerURL": Setting(variable="AWS_CONTAINER_CREDENTIALS_FULL_URI", own=True),
            "containerToken": Setting(variable="AWS_CONTAINER_AUTHORIZATION_TOKEN", own=True),
            "containerTokenFile": Setting(variable="AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", file=True),
            "assumeRoleARN": spec.setting("assumeRoleARN", "AWS_ASSUME_ROLE_ARN", identifier=True),
            "assumeRoleExternalID": spec.setting("assumeRoleExternalID", "AWS_ASSUME_ROLE_EXTERNAL_ID"),
        },
        root=spec.integer("diskSize") * GIB * UNIT,
    )


def _type(text: str) -> str:
    if not _TYPE.fullmatch(text):
        raise NotSized(NAME, "instanceType is no name of an instance type")
    return text


def place(where: Settings) -> Place:
    region = where["region"]
    if not _REGION.fullmatch(region):
        raise NotSized(NAME, "region is no name of a region")
    return Place(NAME, where.get("ec2") or _host("ec2", region), region)


def _host(service: str, region: str) -> str:
    domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return f"https://{service}.{region}.{domain}/"


async def fetch(query: Query) -> Catalogue:
    values = await query.sign_in(lambda: _sign_in(query))
    keys = Keys(values["access"], values["secret"], values.get("token", ""))
    ec2 = Service("ec2", "2016-11-15", query.place.region, query.place.endpoint)
    if query.flavour == ALL:
        return await _described(query, ec2, keys)
    try:
        root = await ec2.call(query.http, keys, {"Action": "DescribeInstanceTypes", "InstanceType.1": query.flavour})
    except RefusedCall as error:
        if error.code in _UNKNOWN_TYPE:
            return Catalogue({}, await _offered(query, ec2, keys))
        raise
    return await _read(root.findall(_ITEMS))


async def _described(query: Query, ec2: Service, keys: Keys) -> Catalogue:
    items: list[Element] = []
    parameters = {"Action": "DescribeInstanceTypes", "MaxResults": "100"}
    for _ in range(MAX_PAGES):
        root = await ec2.call(query.http, keys, parameters)
        items += root.findall(_ITEMS)
        following = root.findtext("./nextToken")
        if not following:
            return await _read(items)
        parameters["NextToken"] = following
    raise CloudError(f"answers more than {MAX_PAGES} pages")


async def _offered(query: Query, ec2: Service, keys: Keys) -> tuple[str, ...]:
    """All types of the region, for a suggestion: not worth an error."""
    names: list[str] = []
    parameters = {"Action": "DescribeInstanceTypeOfferings", "MaxResults": "1000"}
    try:
        for _ in range(MAX_PAGES):
            root = await ec2.call(query.http, keys, parameters)
            names += (item.text or "" for item in root.findall("./instanceTypeOfferingSet/item/instanceType"))
            following = root.findtext("./nextToken")
            if not following:
                break
            parameters["NextToken"] = following
    except CloudError:
        return tuple(names)
    return tuple(names)


async def _read(items: list[Element]) -> Catalogue:
    entries = Entries()
    async for item in in_pieces(items):
        entries.add([item.findtext("instanceType") or ""], partial(_flavour, item))
    return entries.catalogue()


def _flavour(item: Element) -> Flavour:
    devices: dict[str, int] = {}
    for gpu in item.findall("./gpuInfo/gpus/item"):
        maker = gpu.findtext("manufacturer") or ""
        device = _GPUS.get(maker)
        if device:
            # A g6f has the eighth of a GPU: count 0, and 1 logical one, which is what its node shows.
            counted = "logicalGpuCount" if gpu.find("logicalGpuCount") is not None else "count"
            devices[device] = devices.get(device, 0) + _number(gpu, counted) * UNIT
    for accelerator in item.findall("./neuronInfo/neuronDevices/item"):
        devices[_NEURON] = devices.get(_NEURON, 0) + _number(accelerator, "count") * UNIT
    return Flavour(
        cpu=_number(item, "vCpuInfo/defaultVCpus") * UNIT,
        memory=_number(item, "memoryInfo/sizeInMiB") * MIB * UNIT,
        devices=devices,
    )


def _number(item: Element, path: str) -> int:
    text = item.findtext(path) or ""
    if not (text.isascii() and text.isdecimal() and 0 < len(text) <= 15 and int(text)):
        raise Unreadable(f"its {path} is not a number above 0")
    return int(text)


async def _sign_in(query: Query) -> Session:
    """As AWS's own tools look for keys: given, of a web identity, of the pod or task, of the instance.

    And then the role to assume.
    """
    credentials, http = query.credentials, query.http
    region = query.place.region
    sts = Service("sts", "2011-06-15", region, query.where.get("sts") or _host("sts", region))
    lifetime = SESSION_SECONDS
    if "accessKeyId" in credentials or "secretAccessKey" in credentials:
        keys = Keys(credentials["accessKeyId"], credentials["secretAccessKey"], credentials.get("sessionToken"))
    elif credentials.origin is Origin.TENANT:
        raise credentials.missing("accessKeyId")  # a tenant's role is not assumed with the platform's own keys
    elif "webIdentity" in credentials:
        keys = await assume_role_with_web_identity(
            http, sts, credentials["webIdentityRole"], credentials["webIdentity"]
        )
    elif "containerPath" in credentials or "containerURL" in credentials:
        token = credentials.get("containerTokenFile") or credentials.get("containerToken")
        keys, lifetime = await container_role(http, _container_url(credentials), token)
    else:
        keys, lifetime = await _instance_keys(query)
    role = credentials.get("assumeRoleARN")
    if role:
        keys = await assume_role(http, sts, keys, role, credentials.get("assumeRoleExternalID"))
    return Session(_texts(keys), lifetime - EARLY)


def _container_url(credentials: Settings) -> str:
    path = credentials.get("containerPath")
    url = f"{_CONTAINERS}/{path.lstrip('/')}" if path else credentials["containerURL"]
    try:
        parts = urlsplit(url)
        usable = parts.scheme == "https" or (parts.scheme == "http" and is_nearby(parts.hostname or ""))
    except ValueError:
        usable = False
    if not usable:
        raise CredentialsMissing(NAME, "AWS_CONTAINER_CREDENTIALS_FULL_URI is neither https nor on this machine")
    return url


async def _instance_keys(query: Query) -> tuple[Keys, float]:
    try:
        return await instance_role(query.http, query.where.get("metadata") or _METADATA)
    except CloudError as error:
        raise query.credentials.missing("accessKeyId") from error


def _texts(keys: Keys) -> Mapping[str, str]:
    return {"access": keys.access, "secret": keys.secret, "token": keys.token}


CLOUD = Cloud(
    place=place,
    fetch=fetch,
    lists=False,
    least_spec=lambda region: {"instanceType": "x.x", "region": region, "diskSize": 1},
)
