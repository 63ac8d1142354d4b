"""AWS against moto's server, over TLS under AWS's own host names; what moto cannot say, as AWS documents it.

moto's instance types are answers of EC2 itself, which its maintainers collect.
"""

from __future__ import annotations

import dataclasses
import json
import re
import secrets
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import aiohttp
import boto3
import pytest
from aiohttp import web
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from moto.server import ThreadedMotoServer

from common.quota import resources
from seed.providers import aws
from seed.providers.aws_api import Keys, Service, signature
from seed.providers.flavour import ALL, CloudError, Lookup, Origin, Setting, Settings
from seed.providers.size import CredentialsMissing, NotSized
from tests.unit.fake_cloud import FakeCloud, Handler, answering, cost, fake_cloud, lookup

PAGE = (Path(__file__).parents[4] / "docs" / "reference" / "providers.md").read_text()
REGION = "eu-central-1"
HOSTS = (f"ec2.{REGION}.amazonaws.com", f"sts.{REGION}.amazonaws.com", "ec2.us-east-1.amazonaws.com")
SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
KEYS = {"accessKeyId": "AKIDEXAMPLE", "secretAccessKey": SECRET}


def asked(instance_type: object = "m5.large", **more: object) -> Lookup:
    spec = {"instanceType": instance_type, "region": REGION, "diskSize": 25, **KEYS, **more}
    return lookup(aws.size, "aws", spec)


def client(url: str, service: str) -> Any:
    return boto3.client(service, endpoint_url=url, region_name=REGION, aws_access_key_id="x", aws_secret_access_key="y")


@pytest.fixture(scope="module")
def emulator() -> Iterator[str]:
    """Its URL."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    try:
        client(url, "ec2").describe_instance_types(InstanceTypes=["t2.nano"])  # the first time it reads its types
        yield url
    finally:
        server.stop()


@pytest.fixture(scope="module")
async def moto(emulator: str) -> AsyncIterator[FakeCloud]:
    async with aiohttp.ClientSession() as session:

        async def forward(request: web.Request) -> web.StreamResponse:
            headers = {name: value for name, value in request.headers.items() if name != "Content-Length"}
            url = f"{emulator}{request.path_qs}"
            async with session.request(request.method, url, headers=headers, data=await request.read()) as answer:
                return web.Response(status=answer.status, body=await answer.read())

        async with fake_cloud(forward, *HOSTS) as cloud:
            yield cloud


@pytest.mark.parametrize(
    ("instance_type", "costs"),
    [
        ("t2.nano", "cpu=1,machines=1,memory=512Mi,storage=25Gi"),
        ("t3.micro", "cpu=2,machines=1,memory=1Gi,storage=25Gi"),
        ("t4g.small", "cpu=2,machines=1,memory=2Gi,storage=25Gi"),
        ("m1.small", "cpu=1,machines=1,memory=1740Mi,storage=25Gi"),
        ("m3.medium", "cpu=1,machines=1,memory=3840Mi,storage=25Gi"),
        ("c4.large", "cpu=2,machines=1,memory=3840Mi,storage=25Gi"),
        ("r4.large", "cpu=2,machines=1,memory=15616Mi,storage=25Gi"),
        ("m5.large", "cpu=2,machines=1,memory=8Gi,storage=25Gi"),
        ("m5d.24xlarge", "cpu=96,machines=1,memory=384Gi,storage=25Gi"),
        ("m6g.metal", "cpu=64,machines=1,memory=256Gi,storage=25Gi"),
        ("c7g.medium", "cpu=1,machines=1,memory=2Gi,storage=25Gi"),
        ("m5.metal", "cpu=96,machines=1,memory=384Gi,storage=25Gi"),
        ("r6i.32xlarge", "cpu=128,machines=1,memory=1Ti,storage=25Gi"),
        ("u-6tb1.56xlarge", "cpu=224,machines=1,memory=6Ti,storage=25Gi"),
        ("g4dn.xlarge", "cpu=4,machines=1,memory=16Gi,nvidia.com/gpu=1,storage=25Gi"),
        ("g6f.large", "cpu=2,machines=1,memory=8Gi,nvidia.com/gpu=1,storage=25Gi"),
        ("p5.48xlarge", "cpu=192,machines=1,memory=2Ti,nvidia.com/gpu=8,storage=25Gi"),
        ("p4d.24xlarge", "cpu=96,machines=1,memory=1152Gi,nvidia.com/gpu=8,storage=25Gi"),
        ("g5g.xlarge", "cpu=4,machines=1,memory=8Gi,nvidia.com/gpu=1,storage=25Gi"),
        ("inf2.xlarge", "aws.amazon.com/neuron=1,cpu=4,machines=1,memory=16Gi,storage=25Gi"),
        ("trn1.32xlarge", "aws.amazon.com/neuron=16,cpu=128,machines=1,memory=512Gi,storage=25Gi"),
    ],
)
async def test_what_real_types_cost(moto: FakeCloud, instance_type: str, costs: str) -> None:
    wanted = asked(instance_type, region="us-east-1")
    assert resources.text(cost(wanted, await moto.ask(aws.CLOUD, wanted)).resources) == costs


@pytest.mark.parametrize(
    ("maker", "costs"),
    [
        ("AMD", "amd.com/gpu=1,cpu=4,machines=1,memory=16Gi,storage=25Gi"),
        ("Habana", "cpu=4,habana.ai/gaudi=1,machines=1,memory=16Gi,storage=25Gi"),
    ],
)
async def test_devices_of_types_that_moto_does_not_list(moto: FakeCloud, maker: str, costs: str) -> None:
    moto.disturb = answering(
        200,
        '<DescribeInstanceTypesResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><instanceTypeSet><item>'
        "<instanceType>m5.large</instanceType><vCpuInfo><defaultVCpus>4</defaultVCpus></vCpuInfo>"
        "<memoryInfo><sizeInMiB>16384</sizeInMiB></memoryInfo><gpuInfo><gpus><item><name>x</name>"
        f"<manufacturer>{maker}</manufacturer><count>1</count></item></gpus></gpuInfo>"
        "</item></instanceTypeSet></DescribeInstanceTypesResponse>",
    )
    wanted = asked()
    assert resources.text(cost(wanted, await moto.ask(aws.CLOUD, wanted)).resources) == costs


async def test_a_type_costs_one_call_to_its_own_region(moto: FakeCloud) -> None:
    moto.requests.clear()
    await moto.ask(aws.CLOUD, asked("m5.large"))
    await moto.ask(aws.CLOUD, asked("m5.large", region="us-east-1"))
    assert moto.requests == [f"POST {HOSTS[0]}/", f"POST {HOSTS[2]}/"]


async def test_a_type_that_does_not_exist_is_answered_with_those_that_do(moto: FakeCloud) -> None:
    found = await moto.ask(aws.CLOUD, asked("m5.larg"))
    assert found.flavours == {}
    assert {"m5.large", "m5.xlarge"} <= set(found.names)


async def test_a_role_is_assumed_with_its_external_id_before_asking(moto: FakeCloud) -> None:
    seen = Recorder(moto)
    role = "arn:aws:iam::123456789012:role/sizes"
    found = await moto.ask(aws.CLOUD, asked("m5.large", assumeRoleARN=role, assumeRoleExternalID="ext"))
    assert set(found.flavours) == {"m5.large"}
    assume, describe = seen.calls
    assert (assume["Action"], assume["RoleArn"], assume["ExternalId"]) == ("AssumeRole", role, "ext")
    assert assume["key"] == KEYS["accessKeyId"]
    assert describe["Action"] == "DescribeInstanceTypes"
    assert describe["key"].startswith("ASIA")  # moto's temporary keys
    assert describe["token"]


async def test_without_keys_the_web_identity_signs_in(moto: FakeCloud) -> None:
    seen = Recorder(moto)
    settings = {"webIdentity": "jwt", "webIdentityRole": "arn:aws:iam::123456789012:role/seed"}
    found = await moto.ask(aws.CLOUD, asked("m5.large", accessKeyId=None, secretAccessKey=None), settings)
    assert set(found.flavours) == {"m5.large"}
    assert seen.calls[0]["Action"] == "AssumeRoleWithWebIdentity"
    assert (seen.calls[0]["WebIdentityToken"], seen.calls[0]["key"]) == ("jwt", "")


@pytest.fixture
def iam(emulator: str) -> Iterator[Iam]:
    made = Iam(emulator)
    try:
        yield made
    finally:
        made.check("inf")


class Iam:
    """moto as it checks signatures and policies. One user may do what providers.md calls the least, the other may
    become a role that may.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._client = client(url, "iam")
        (least,) = re.findall(r"^### aws\n.*?^```json\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
        assume: dict[str, object] = {"Effect": "Allow", "Action": "sts:AssumeRole"}
        _, self.least = self._user(least)
        arn, self.assumer = self._user(_policy({**assume, "Resource": "*"}))
        name, trust = secrets.token_hex(4), _policy({**assume, "Principal": {"AWS": arn}})
        self.role = self._client.create_role(RoleName=name, AssumeRolePolicyDocument=trust)["Role"]["Arn"]
        self._client.put_role_policy(RoleName=name, PolicyName="p", PolicyDocument=least)
        self.check("0")

    def check(self, after: str) -> None:
        """From so many requests on."""
        plain = {"Content-Type": "text/plain"}
        request = urllib.request.Request(f"{self._url}/moto-api/reset-auth", after.encode(), plain)
        urllib.request.urlopen(request, timeout=30).close()

    def _user(self, policy: str) -> tuple[str, dict[str, str]]:
        """The ARN and keys of a new one."""
        name = secrets.token_hex(4)
        arn = self._client.create_user(UserName=name)["User"]["Arn"]
        self._client.put_user_policy(UserName=name, PolicyName="p", PolicyDocument=policy)
        made = self._client.create_access_key(UserName=name)["AccessKey"]
        return arn, {"accessKeyId": made["AccessKeyId"], "secretAccessKey": made["SecretAccessKey"]}


def _policy(statement: Mapping[str, object]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


async def test_the_least_permissions_of_the_page_are_enough_and_signatures_are_true(moto: FakeCloud, iam: Iam) -> None:
    assert set((await moto.ask(aws.CLOUD, asked(**iam.least))).flavours) == {"m5.large"}
    assert "m5.large" in (await moto.ask(aws.CLOUD, asked("m5.larg", **iam.least))).names


async def test_a_role_that_may_is_enough_for_a_user_who_may_not(moto: FakeCloud, iam: Iam) -> None:
    with pytest.raises(CloudError, match=r"refuses these credentials \(403\)"):
        await moto.ask(aws.CLOUD, asked(**iam.assumer))
    assert set((await moto.ask(aws.CLOUD, asked(**iam.assumer, assumeRoleARN=iam.role))).flavours) == {"m5.large"}


@pytest.mark.parametrize("wrong", [{"secretAccessKey": "wr0ng"}, {"accessKeyId": "AKIAOTHER"}])
async def test_wrong_keys_are_refused(moto: FakeCloud, iam: Iam, wrong: dict[str, str]) -> None:
    with pytest.raises(CloudError, match="refuses these credentials") as caught:
        await moto.ask(aws.CLOUD, asked(**{**iam.least, **wrong}))
    assert caught.value.refused


async def test_a_session_token_goes_with_the_keys_of_the_environment(moto: FakeCloud) -> None:
    """It has no field in a Machine, and credentials are one set, so it never goes with keys of a Machine."""
    seen = Recorder(moto)
    await moto.ask(aws.CLOUD, asked("m5.large"), {"sessionToken": "t"})
    assert [call["token"] for call in seen.calls] == ["t"]
    assert asked("m5.large").credentials["sessionToken"] == Setting(variable="AWS_SESSION_TOKEN")


async def test_a_role_of_a_tenant_is_not_assumed_with_the_identity_of_this_program(moto: FakeCloud) -> None:
    role = {**asked("m5.large").credentials, "accessKeyId": Setting(), "secretAccessKey": Setting()}
    wanted = dataclasses.replace(
        asked("m5.large"), credentials={**role, "assumeRoleARN": Setting("arn:aws:iam::1:role/theirs")}
    )
    before = len(moto.requests)
    with pytest.raises(CredentialsMissing, match="accessKeyId is missing"):
        own = {"webIdentity": "jwt", "webIdentityRole": "arn:aws:iam::1:role/ours"}
        await moto.ask(aws.CLOUD, wanted, own, origin=Origin.TENANT)
    assert len(moto.requests) == before


class Recorder:
    """What was asked: the form's fields, whose key signed it and with which session token."""

    def __init__(self, cloud: FakeCloud) -> None:
        self.calls: list[dict[str, str]] = []
        self._next = cloud.handler
        cloud.disturb = self._record
        self._cloud = cloud

    async def _record(self, request: web.Request) -> web.StreamResponse:
        form = {name: values[0] for name, values in parse_qs(await request.text()).items()}
        form["key"] = request.headers.get("Authorization", "").partition("Credential=")[2].partition("/")[0]
        form["token"] = request.headers.get("X-Amz-Security-Token", "")
        self.calls.append(form)
        return await self._next(request)


@pytest.fixture(autouse=True)
def undisturbed(request: pytest.FixtureRequest) -> None:
    if "moto" in request.fixturenames:
        request.getfixturevalue("moto").disturb = None


def failure(status: int, code: str) -> Handler:
    """As EC2 documents its errors."""
    return answering(
        status,
        f"<Response><Errors><Error><Code>{code}</Code><Message>AKIDEXAMPLE said something</Message></Error></Errors>"
        "<RequestID>ea966190-f9aa-478e-9ede-example</RequestID></Response>",
    )


@pytest.mark.parametrize(
    ("bad_day", "message", "refused"),
    [
        (failure(401, "AuthFailure"), "refuses these credentials (401)", True),
        (failure(403, "UnauthorizedOperation"), "refuses these credentials (403)", True),
        (failure(400, "RequestExpired"), "refuses the request (RequestExpired)", True),
        (failure(400, "Throttling"), "answers too many requests (Throttling)", False),
        (failure(503, "RequestLimitExceeded"), "answers too many requests (RequestLimitExceeded)", False),
        (failure(503, "Unavailable"), "answered 503", False),
        (failure(500, "InternalError"), "answered 500", False),
        (answering(400, "<html>"), "answered 400", False),
    ],
)
async def test_bad_days_are_told_without_secrets(
    moto: FakeCloud, bad_day: Handler, message: str, refused: bool
) -> None:
    moto.disturb = bad_day
    with pytest.raises(CloudError) as caught:
        await moto.ask(aws.CLOUD, asked("m5.large"))
    assert (str(caught.value), caught.value.refused) == (message, refused)


@pytest.mark.parametrize(("status", "code"), [(503, "RequestLimitExceeded"), (400, "Throttling")])
async def test_a_throttled_call_is_tried_again(moto: FakeCloud, status: int, code: str) -> None:
    moto.requests.clear()

    async def once(request: web.Request) -> web.StreamResponse:
        moto.disturb = None
        return await failure(status, code)(request)

    moto.disturb = once
    assert (await moto.ask(aws.CLOUD, asked("m5.large"))).flavours
    assert len(moto.requests) == 2


async def test_the_role_of_the_instance_is_the_last_resort(moto: FakeCloud) -> None:
    async def metadata(request: web.Request) -> web.StreamResponse:
        if request.method == "PUT":
            assert request.headers["X-aws-ec2-metadata-token-ttl-seconds"]
            return web.Response(text="imds-token")
        assert request.headers["X-aws-ec2-metadata-token"] == "imds-token"
        if request.path.endswith("/"):
            return web.Response(text="node-role")
        assert request.path == "/latest/meta-data/iam/security-credentials/node-role"
        keys = {
            "Code": "Success",
            "AccessKeyId": "ASIAINSTANCE",
            "SecretAccessKey": "s",
            "Token": "t",
            "Expiration": "2999-01-01T00:00:00Z",
        }
        return web.json_response(keys)

    seen = Recorder(moto)
    recorded = moto.disturb
    assert recorded is not None

    async def both(request: web.Request) -> web.StreamResponse:
        return await (metadata if request.path.startswith("/latest/") else recorded)(request)

    moto.disturb = both
    wanted = asked("m5.large", accessKeyId=None, secretAccessKey=None)
    found = await moto.ask(aws.CLOUD, wanted, {"metadata": f"https://{HOSTS[0]}"})
    assert found.flavours
    assert (seen.calls[0]["key"], seen.calls[0]["token"]) == ("ASIAINSTANCE", "t")


POD_KEYS = {
    "AccessKeyId": "ASIAPOD",
    "SecretAccessKey": "pod-s3cret",
    "Token": "t",
    "AccountId": "123456789012",
    "Expiration": "2999-01-01T00:00:00Z",
}


@asynccontextmanager
async def pod_identity(status: int = 200) -> AsyncIterator[tuple[str, list[str]]]:
    """As EKS Pod Identity's agent, on this machine and without TLS: its URL, and which tokens were shown to it."""
    shown: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        shown.append(request.headers.get("Authorization", ""))
        assert request.path == "/v1/credentials"
        return web.json_response(POD_KEYS, status=status)

    application = web.Application()
    application.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1/credentials", shown
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("given", ["containerToken", "containerTokenFile"])
async def test_a_pod_is_given_keys_by_its_identity(
    moto: FakeCloud, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")  # keys go through no proxy
    seen = Recorder(moto)
    async with pod_identity() as (url, shown):
        wanted = asked("m5.large", accessKeyId=None, secretAccessKey=None)
        found = await moto.ask(aws.CLOUD, wanted, {"containerURL": url, given: "jwt-of-the-pod"})
    assert found.flavours
    assert shown == ["jwt-of-the-pod"]
    assert (seen.calls[0]["key"], seen.calls[0]["token"]) == ("ASIAPOD", "t")


async def test_a_pod_whose_identity_is_refused_is_told(moto: FakeCloud) -> None:
    wanted = asked("m5.large", accessKeyId=None, secretAccessKey=None)
    for status, message in ((403, "refuses these credentials"), (404, "has no keys for this pod"), (500, "answered")):
        async with pod_identity(status) as (url, _):
            with pytest.raises(CloudError, match=message):
                await moto.ask(aws.CLOUD, wanted, {"containerURL": url})


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.170.23/v1/credentials",
        "http://[fd00:ec2::23]/v1/credentials",
        "http://169.254.170.2/role",
        "http://localhost:8080/",
        "http://127.0.0.9/",
        "http://[::1]/",
        "https://keys.example.com/",
    ],
)
def test_keys_of_a_pod_come_from_this_machine_or_over_tls(url: str) -> None:
    assert aws._container_url(Settings("aws", {"containerURL": url})) == url


@pytest.mark.parametrize(
    "url",
    [
        "http://evil.example/",
        "http://169.254.169.253/",
        "http://10.0.0.1/",
        "http://localhost.evil.example/",
        "http://[::1",
        "file:///etc/passwd",
        "ftp://127.0.0.1/",
        "//127.0.0.1/",
    ],
)
async def test_and_from_nowhere_else(moto: FakeCloud, url: str) -> None:
    wanted = asked("m5.large", accessKeyId=None, secretAccessKey=None)
    with pytest.raises(CredentialsMissing, match="FULL_URI is neither https nor on this machine"):
        await moto.ask(aws.CLOUD, wanted, {"containerURL": url})


def test_a_task_of_ecs_finds_its_keys_by_a_path_of_one_host() -> None:
    for path in ("/v2/credentials/x", "v2/credentials/x", "@evil.example/v2"):
        url = aws._container_url(Settings("aws", {"containerPath": path, "containerURL": "http://127.0.0.1/"}))
        assert url.startswith("http://169.254.170.2/")


async def test_a_list_is_read_page_by_page_and_without_end_given_up(
    moto: FakeCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aws, "MAX_PAGES", 4)
    last = 3

    async def page(request: web.Request) -> web.StreamResponse:  # moto gives all at once
        form = await request.post()
        assert (form["Action"], form["MaxResults"]) == ("DescribeInstanceTypes", "100")
        number = int(str(form.get("NextToken", "0")))
        following = f"<nextToken>{number + 1}</nextToken>" if number < last else ""
        item = (
            f"<instanceType>m{number}.large</instanceType><vCpuInfo><defaultVCpus>2</defaultVCpus></vCpuInfo>"
            "<memoryInfo><sizeInMiB>8192</sizeInMiB></memoryInfo>"
        )
        return web.Response(text=f"<r><instanceTypeSet><item>{item}</item></instanceTypeSet>{following}</r>")

    moto.disturb = page
    wanted = dataclasses.replace(asked("x.x"), flavour=ALL)
    assert set((await moto.ask(aws.CLOUD, wanted)).flavours) == {"m0.large", "m1.large", "m2.large", "m3.large"}
    last = 10**6
    with pytest.raises(CloudError, match="answers more than 4 pages"):
        await moto.ask(aws.CLOUD, wanted)


async def test_no_credentials_at_all_are_named_by_their_field(moto: FakeCloud) -> None:
    moto.disturb = answering(404)
    wanted = asked("m5.large", accessKeyId=None, secretAccessKey=None)
    with pytest.raises(NotSized, match="aws accessKeyId is missing"):
        await moto.ask(aws.CLOUD, wanted, {"metadata": f"https://{HOSTS[0]}"})
    with pytest.raises(NotSized, match="aws secretAccessKey is missing"):
        await moto.ask(aws.CLOUD, asked("m5.large", secretAccessKey=None))


@pytest.mark.parametrize("token", ["", "session-token"])
def test_requests_are_signed_as_botocore_signs_them(token: str) -> None:
    ec2 = Service("ec2", "2016-11-15", REGION, f"https://{HOSTS[0]}/")
    body = b"Action=DescribeInstanceTypes&InstanceType.1=m5.large&Version=2016-11-15"
    now = datetime.now(UTC)
    ours = signature(ec2, Keys("AKIDEXAMPLE", SECRET, token), body, now)
    request = AWSRequest("POST", ec2.url, data=body, headers={"Content-Type": CONTENT_TYPE, "Host": HOSTS[0]})
    request.context["timestamp"] = ours["X-Amz-Date"]
    signer = SigV4Auth(Credentials("AKIDEXAMPLE", SECRET, token or None), "ec2", REGION)
    request.headers["X-Amz-Date"] = ours["X-Amz-Date"]
    if token:
        request.headers["X-Amz-Security-Token"] = token
    canonical = signer.canonical_request(request)
    theirs = signer.signature(signer.string_to_sign(request, canonical), request)
    assert ours["Authorization"].endswith(f"Signature={theirs}")


CONTENT_TYPE = "application/x-www-form-urlencoded; charset=utf-8"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"instanceType": None}, "aws instanceType is missing"),
        (
            {"instanceType": {"secretKeyRef": {"namespace": "a", "name": "b", "key": "c"}}},
            "instanceType is a secretKey",
        ),
        ({"instanceType": "m5.large&Action=TerminateInstances"}, "aws instanceType is no name of an instance type"),
        ({"diskSize": None}, "aws diskSize is missing"),
        ({"diskSize": 0}, "aws diskSize must be from 1"),
    ],
)
def test_what_the_spec_must_say(spec: dict[str, object], message: str) -> None:
    with pytest.raises(NotSized, match=message):
        asked(**spec)


@pytest.mark.parametrize("region", ["evil.example.com/#", "eu-central-1.evil.example", "EU", "eu-central-1@x"])
def test_a_region_leads_nowhere_but_to_aws(region: str) -> None:
    with pytest.raises(NotSized, match="aws region is no name of a region"):
        aws.place(Settings("aws", {"region": region}))


def test_china_has_its_own_domain() -> None:
    assert aws.place(Settings("aws", {"region": "cn-north-1"})).endpoint == "https://ec2.cn-north-1.amazonaws.com.cn/"
