"""Alibaba Cloud against a server that checks Signature Version 3 and answers as ECS documents DescribeInstanceTypes.

Sizes are those of Alibaba's pages of instance families. Which GPUAmount ECS tells of a part of a GPU is not documented.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from urllib.parse import quote

import pytest
from aiohttp import web

from common.quota import resources
from seed.providers import alibaba
from seed.providers.alibaba_api import Keys, signed
from seed.providers.flavour import ALL, CloudError, Lookup, Settings
from seed.providers.size import NotSized
from tests.unit.fake_cloud import FakeCloud, Handler, answering, cost, fake_cloud, lookup

ID, SECRET = "LTAI5tEXAMPLE", "alibaba-s3cret"
REGIONS = ("eu-central-1", "cn-hangzhou")
LARGEST_PAGE = 3
TYPES: list[tuple[str, int, str, int, str]] = [
    ("ecs.t5-lc2m1.nano", 1, "0.5", 0, ""),
    ("ecs.g7.large", 2, "8.0", 0, ""),
    ("ecs.g7.xlarge", 4, "16.0", 0, ""),
    ("ecs.g7.2xlarge", 8, "32.0", 0, ""),
    ("ecs.g7.4xlarge", 16, "64.0", 0, ""),
    ("ecs.gn6v-c8g1.16xlarge", 64, "256.0", 8, "NVIDIA V100"),
    ("ecs.ga1.4xlarge", 16, "40.0", 1, "AMD S7150"),
    ("ecs.hidden.large", 2, "8.0", 1, "GPU H"),  # no real type: a GPU whose model is not told
]


def documented(name: str, cores: int, memory: str, gpus: int, gpu: str) -> str:
    """By hand, because memory's own digits matter."""
    family = name.rpartition(".")[0]
    return (
        f'{{"InstanceTypeId": "{name}", "InstanceTypeFamily": "{family}", "CpuCoreCount": {cores}, '
        f'"MemorySize": {memory}, "GPUAmount": {gpus}, "GPUSpec": "{gpu}", "GPUMemorySize": 0.0, '
        f'"CpuArchitecture": "X86", "InstanceFamilyLevel": "EnterpriseLevel", "EniQuantity": 3, '
        f'"InstanceBandwidthRx": 2048000, "LocalStorageCategory": "", "NvmeSupport": "required"}}'
    )


class Ecs:
    """Refuses what is not signed right, not of now, or signed with a nonce that it saw before."""

    def __init__(self) -> None:
        self.nonces: set[str] = set()

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        region = request.host.split(".")[1]
        assert request.host == f"ecs.{region}.aliyuncs.com"
        wrong = self._wrong(request)
        if wrong:
            return _failure(*wrong)
        assert request.headers["x-acs-action"] == "DescribeInstanceTypes"
        assert request.headers["x-acs-version"] == "2014-05-26"
        wanted, family = request.query.get("InstanceTypes.1"), request.query.get("InstanceTypeFamily")
        matching = [kind for kind in TYPES if wanted in (None, kind[0])]
        matching = [kind for kind in matching if family in (None, kind[0].rpartition(".")[0])]
        first = int(request.query.get("NextToken", "0").removeprefix("token-"))
        most = min(int(request.query.get("MaxResults", "100")), LARGEST_PAGE)
        following = f"token-{first + most}" if first + most < len(matching) else ""
        shown = ", ".join(documented(*kind) for kind in matching[first : first + most])
        return web.Response(
            text=f'{{"RequestId": "473469C7-AA6F-4DC5-B3DB-A3DC0DE3C83E", "NextToken": "{following}", '
            f'"InstanceTypes": {{"InstanceType": [{shown}]}}}}',
            content_type="application/json",
        )

    def _wrong(self, request: web.Request) -> tuple[int, str] | None:
        given = re.fullmatch(
            r"ACS3-HMAC-SHA256 Credential=([^,]+),SignedHeaders=([a-z0-9;-]+),Signature=([0-9a-f]{64})",
            request.headers.get("Authorization", ""),
        )
        if given is None:
            return 400, "MissingParameter.Authorization"
        if given[1] != ID:
            return 404, "InvalidAccessKeyId.NotFound"
        headers = request.headers
        assert set(given[2].split(";")) >= {"host", *(name.lower() for name in headers if name.startswith("x-acs-"))}
        canonical = "\n".join(
            [
                request.method,
                request.path,
                "&".join(f"{quote(k, safe='-_.~')}={quote(v, safe='-_.~')}" for k, v in sorted(request.query.items())),
                *(f"{name}:{headers[name].strip()}" for name in given[2].split(";")),
                "",
                given[2],
                headers["x-acs-content-sha256"],
            ]
        )
        text = "ACS3-HMAC-SHA256\n" + hashlib.sha256(canonical.encode()).hexdigest()
        if hmac.new(SECRET.encode(), text.encode(), hashlib.sha256).hexdigest() != given[3]:
            return 400, "SignatureDoesNotMatch"
        sent = datetime.strptime(headers["x-acs-date"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        if abs((datetime.now(UTC) - sent).total_seconds()) > 900:
            return 400, "InvalidTimeStamp.Expired"
        if headers["x-acs-signature-nonce"] in self.nonces:
            return 400, "SignatureNonceUsed"
        self.nonces.add(headers["x-acs-signature-nonce"])
        return None


def _failure(status: int, code: str) -> web.Response:
    body = {
        "RequestId": "473469C7-AA6F-4DC5-B3DB-A3DC0DE3C83E",
        "HostId": "ecs.eu-central-1.aliyuncs.com",
        "Code": code,
        "Message": f"about {ID} and its {SECRET}",
        "Recommend": "https://api.alibabacloud.com/troubleshoot",
    }
    return web.json_response(body, status=status)


def failure(status: int, code: str) -> Handler:
    async def answer(_request: web.Request) -> web.StreamResponse:
        return _failure(status, code)

    return answer


@pytest.fixture(scope="module")
async def served() -> AsyncIterator[FakeCloud]:
    async with fake_cloud(Ecs(), *(f"ecs.{region}.aliyuncs.com" for region in REGIONS)) as cloud:
        yield cloud


@pytest.fixture
def cloud(served: FakeCloud) -> FakeCloud:
    served.disturb = None
    served.requests.clear()
    return served


def asked(instanceType: object = "ecs.g7.large", **more: object) -> Lookup:
    spec = {
        "instanceType": instanceType,
        "regionID": REGIONS[0],
        "diskSize": "40",
        "accessKeyID": ID,
        "accessKeySecret": SECRET,
        **more,
    }
    return lookup(alibaba.size, "alibaba", spec)


@pytest.mark.parametrize(
    ("instance_type", "costs"),
    [
        ("ecs.t5-lc2m1.nano", "cpu=1,machines=1,memory=512Mi,storage=80Gi"),
        ("ecs.g7.large", "cpu=2,machines=1,memory=8Gi,storage=80Gi"),
        ("ecs.gn6v-c8g1.16xlarge", "cpu=64,machines=1,memory=256Gi,nvidia.com/gpu=8,storage=80Gi"),
        ("ecs.ga1.4xlarge", "amd.com/gpu=1,cpu=16,machines=1,memory=40Gi,storage=80Gi"),
        ("ecs.hidden.large", "cpu=2,machines=1,memory=8Gi,nvidia.com/gpu=1,storage=80Gi"),
    ],
)
async def test_what_real_types_cost(cloud: FakeCloud, instance_type: str, costs: str) -> None:
    wanted = asked(instance_type)
    assert resources.text(cost(wanted, await cloud.ask(alibaba.CLOUD, wanted)).resources) == costs


async def test_a_type_costs_one_call_to_its_own_region(cloud: FakeCloud) -> None:
    await cloud.ask(alibaba.CLOUD, asked())
    await cloud.ask(alibaba.CLOUD, asked(regionID=REGIONS[1]))
    assert [line.partition("/")[0] for line in cloud.requests] == [
        f"GET ecs.{region}.aliyuncs.com" for region in REGIONS
    ]


async def test_a_type_that_does_not_exist_is_answered_with_its_family_page_by_page(cloud: FakeCloud) -> None:
    found = await cloud.ask(alibaba.CLOUD, asked("ecs.g7.larg"))
    assert set(found.flavours) == {"ecs.g7.large", "ecs.g7.xlarge", "ecs.g7.2xlarge", "ecs.g7.4xlarge"}
    assert len(cloud.requests) == 3


async def test_all_types_of_a_region_are_listed_page_by_page(cloud: FakeCloud) -> None:
    found = await cloud.ask(alibaba.CLOUD, dataclasses.replace(asked(), flavour=ALL))
    assert set(found.flavours) == {kind[0] for kind in TYPES}


@pytest.mark.parametrize("code", ["InvalidInstanceType.NotFound", "InvalidInstanceTypes.ValueNotSupported"])
async def test_a_type_that_is_refused_as_unknown_does_not_exist(cloud: FakeCloud, code: str) -> None:
    cloud.disturb = failure(404, code)
    assert (await cloud.ask(alibaba.CLOUD, asked())).flavours == {}


async def test_pages_without_end_are_given_up(cloud: FakeCloud) -> None:
    cloud.disturb = answering(200, '{"InstanceTypes": {"InstanceType": []}, "NextToken": "again"}')
    with pytest.raises(CloudError, match="more than 20 pages"):
        await cloud.ask(alibaba.CLOUD, asked())


@pytest.mark.parametrize(
    ("bad_day", "message", "refused"),
    [
        (failure(404, "InvalidAccessKeyId.NotFound"), "refuses the request (InvalidAccessKeyId.NotFound)", True),
        (failure(400, "InvalidTimeStamp.Expired"), "refuses the request (InvalidTimeStamp.Expired)", True),
        (failure(403, "Forbidden.RAM"), "refuses these credentials (403)", True),
        (failure(400, "Throttling.User"), "answers too many requests (Throttling.User)", False),
        (failure(503, "ServiceUnavailable"), "answered 503", False),
        (failure(500, "InternalError"), "answered 500", False),
        (failure(400, f"<{SECRET}>"), "answered 400", False),
        (answering(404, "<html>"), "answered 404", False),
        (answering(200, "{}"), "answers what cannot be read", False),
    ],
)
async def test_bad_days_are_told_without_secrets(
    cloud: FakeCloud, bad_day: Handler, message: str, refused: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    cloud.disturb = bad_day
    with pytest.raises(CloudError) as caught:
        await cloud.ask(alibaba.CLOUD, asked())
    assert (str(caught.value), caught.value.refused) == (message, refused)
    assert SECRET not in f"{caught.value!r} {caplog.text}"


@pytest.mark.parametrize("problem", [web.Response(status=502), _failure(400, "Throttling.User")])
async def test_a_question_asked_again_is_signed_anew(cloud: FakeCloud, problem: web.Response) -> None:
    ecs = cloud.handler

    async def lost(request: web.Request) -> web.StreamResponse:
        cloud.disturb = None
        assert (await ecs(request)).status == 200  # ECS took it, and remembers its nonce
        return problem

    cloud.disturb = lost
    assert (await cloud.ask(alibaba.CLOUD, asked())).flavours
    assert len(cloud.requests) == 2


async def test_wrong_keys_are_refused_and_missing_ones_named(cloud: FakeCloud) -> None:
    with pytest.raises(CloudError, match=r"refuses the request \(SignatureDoesNotMatch\)") as caught:
        await cloud.ask(alibaba.CLOUD, asked(accessKeySecret="wrong"))
    assert caught.value.refused
    with pytest.raises(CloudError, match=r"refuses the request \(InvalidAccessKeyId.NotFound\)"):
        await cloud.ask(alibaba.CLOUD, asked(accessKeyID="wrong"))
    with pytest.raises(NotSized, match="alibaba accessKeyID is missing"):
        await cloud.ask(alibaba.CLOUD, asked(accessKeyID=None))
    with pytest.raises(NotSized, match="alibaba accessKeySecret is missing"):
        await cloud.ask(alibaba.CLOUD, asked(accessKeySecret=None))


def test_the_signature_is_that_of_the_documented_example() -> None:
    parameters = {"RegionId": "cn-shanghai", "ImageId": "win2019_1809_x64_dtc_zh-cn_40G_alibase_20230811.vhd"}
    headers = signed(
        "ecs.cn-shanghai.aliyuncs.com",
        Keys("YourAccessKeyId", "YourAccessKeySecret"),
        "RunInstances",
        parameters,
        datetime(2023, 10, 26, 10, 22, 32, tzinfo=UTC),
        "3156853299f313e23d1673dc12e1703d",
        method="POST",
    )
    assert headers["Authorization"] == (
        "ACS3-HMAC-SHA256 Credential=YourAccessKeyId,SignedHeaders=host;x-acs-action;x-acs-content-sha256;x-acs-date;"
        "x-acs-signature-nonce;x-acs-version,"
        "Signature=06563a9e1b43f5dfe96b81484da74bceab24a1d853912eee15083a6f0f3283c0"
    )


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"instanceType": None}, "alibaba instanceType is missing"),
        ({"instanceType": "ecs.g7.large&x=y"}, "alibaba instanceType is no name of an instance type"),
        ({"instanceType": {"secretKeyRef": {"namespace": "a", "name": "b", "key": "c"}}}, "is a secretKeyRef"),
        ({"diskSize": None}, "alibaba diskSize is missing"),
        ({"diskSize": "0"}, "alibaba diskSize must be a whole number of GiB from 1"),
        ({"diskSize": "40Gi"}, "alibaba diskSize must be a whole number of GiB from 1"),
        ({"diskSize": "٤٠"}, "alibaba diskSize must be a whole number of GiB from 1"),
    ],
)
def test_what_the_spec_must_say(spec: dict[str, object], message: str) -> None:
    with pytest.raises(NotSized, match=message):
        asked(**spec)


@pytest.mark.parametrize("region", ["", "eu-central-1.example.com/", "eu", "EU-CENTRAL-1", "eu-central-1\n"])
def test_a_region_that_is_none_names_no_host(region: str) -> None:
    with pytest.raises(NotSized, match="alibaba regionID is"):
        alibaba.place(Settings("alibaba", {"regionID": region}))
