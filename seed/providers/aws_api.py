"""AWS's Query APIs as far as sizes take: signing (Signature Version 4), EC2, STS, and an instance's metadata.

https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv.html,
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeInstanceTypes.html
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated
from urllib.parse import urlencode, urlsplit
from xml.etree import ElementTree

import msgspec

from seed.providers.flavour import Answer, CloudError, Http

_FORM = "application/x-www-form-urlencoded; charset=utf-8"
_CODE = re.compile(r"[A-Za-z][A-Za-z.]{0,63}")
_THROTTLED = frozenset({"RequestLimitExceeded", "Throttling", "ThrottlingException", "RequestThrottled"})
SESSION_SECONDS = 3600.0
EARLY = 300.0  # seconds before its end at which a session is not used any more


@dataclass(frozen=True, slots=True)
class Keys:
    access: str
    secret: str = field(repr=False)
    token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Service:
    """One of AWS's APIs in one region: `name` is `ec2` or `sts`."""

    name: str
    version: str
    region: str
    url: str

    async def call(self, http: Http, keys: Keys | None, parameters: Mapping[str, str]) -> ElementTree.Element:
        """The answer without namespaces. `keys` None: not signed. Raises RefusedCall and CloudError."""
        body = urlencode({**parameters, "Version": self.version}).encode()
        headers = {"Content-Type": _FORM}
        if keys is not None:
            headers |= signature(self, keys, body, datetime.now(UTC))
        answer = await http.request("POST", self.url, headers=headers, body=body, throttled=_throttled)
        if answer.status == 200:
            return _xml(answer)
        code = _code(answer)
        if not code:
            raise CloudError(f"answered {answer.status}")
        raise RefusedCall(code)


class RefusedCall(CloudError):
    """The API takes the request for wrong; `code` is its own word for why."""

    def __init__(self, code: str) -> None:
        super().__init__(f"refuses the request ({code})", refused=True)
        self.code = code


def signature(service: Service, keys: Keys, body: bytes, now: datetime) -> dict[str, str]:
    """The headers that sign a POST of a form to the service's URL, beside Content-Type."""
    url = urlsplit(service.url)
    stamp = now.strftime("%Y%m%dT%H%M%SZ")
    scope = f"{stamp[:8]}/{service.region}/{service.name}/aws4_request"
    signed = {"content-type": _FORM, "host": url.netloc, "x-amz-date": stamp}
    if keys.token:
        signed["x-amz-security-token"] = keys.token
    names = ";".join(sorted(signed))
    canonical = "\n".join(
        [
            "POST",
            url.path or "/",
            "",
            *(f"{name}:{signed[name]}" for name in sorted(signed)),
            "",
            names,
            hashlib.sha256(body).hexdigest(),
        ]
    )
    text = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = f"AWS4{keys.secret}".encode()
    for part in (*scope.split("/"), text):
        digest = hmac.new(key, part.encode(), hashlib.sha256)
        key = digest.digest()
    headers = {
        "X-Amz-Date": stamp,
        "Authorization": (
            f"AWS4-HMAC-SHA256 Credential={keys.access}/{scope}, SignedHeaders={names}, Signature={digest.hexdigest()}"
        ),
    }
    return headers | ({"X-Amz-Security-Token": keys.token} if keys.token else {})


async def assume_role(http: Http, sts: Service, keys: Keys, role: str, external_id: str) -> Keys:
    parameters = {"Action": "AssumeRole", "RoleArn": role, "RoleSessionName": "seedquota"}
    if external_id:
        parameters["ExternalId"] = external_id
    return _keys(await sts.call(http, keys, parameters))


async def assume_role_with_web_identity(http: Http, sts: Service, role: str, identity: str) -> Keys:
    return _keys(
        await sts.call(
            http,
            None,
            {
                "Action": "AssumeRoleWithWebIdentity",
                "RoleArn": role,
                "RoleSessionName": "seedquota",
                "WebIdentityToken": identity,
            },
        )
    )


class _RoleKeys(msgspec.Struct, rename="pascal"):
    access_key_id: str
    secret_access_key: str
    token: str
    expiration: Annotated[datetime, msgspec.Meta(tz=True)]

    def session(self) -> tuple[Keys, float]:
        left = (self.expiration - datetime.now(UTC)).total_seconds()
        return Keys(self.access_key_id, self.secret_access_key, self.token), left


async def container_role(http: Http, url: str, authorization: str) -> tuple[Keys, float]:
    """The keys of the role of the pod (EKS Pod Identity) or task (ECS) that this is, and for how many seconds.

    https://docs.aws.amazon.com/sdkref/latest/guide/feature-container-credentials.html
    """
    headers = {"Accept": "application/json"} | ({"Authorization": authorization} if authorization else {})
    answer = await http.request("GET", url, headers=headers, timeout=2, attempts=2)
    if answer.status != 200:
        raise CloudError(f"has no keys for this pod ({answer.status})", refused=True)
    return answer.json(_RoleKeys).session()


async def instance_role(http: Http, url: str) -> tuple[Keys, float]:
    """The keys of the role of the instance that this program runs on, and for how many seconds. IMDSv2 only."""
    lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": "300"}
    token = _text(await http.request("PUT", f"{url}/latest/api/token", headers=lifetime, timeout=1, attempts=1))
    headers = {"X-aws-ec2-metadata-token": token}
    path = f"{url}/latest/meta-data/iam/security-credentials/"
    role = _text(await http.request("GET", path, headers=headers, timeout=1, attempts=1)).split("\n")[0].strip()
    found = await http.request("GET", path + role, headers=headers, timeout=1, attempts=1)
    return found.json(_RoleKeys).session()


def _text(answer: Answer) -> str:
    if answer.status != 200:
        raise CloudError("has no credentials, and this program's instance has no role", refused=True)
    return answer.body.decode("ascii", "replace")


def _keys(root: ElementTree.Element) -> Keys:
    found = root.find(".//Credentials")
    if found is None:
        raise CloudError("answers what cannot be read")
    texts = [found.findtext(name) or "" for name in ("AccessKeyId", "SecretAccessKey", "SessionToken")]
    if not all(texts):
        raise CloudError("answers what cannot be read")
    return Keys(*texts)


def _throttled(answer: Answer) -> str:
    code = _code(answer)
    return code if code in _THROTTLED else ""


def _code(answer: Answer) -> str:
    """AWS's word for what is wrong; empty where the answer has none."""
    try:
        code = _xml(answer).findtext(".//Error/Code") or ""
    except CloudError:
        return ""
    return code if _CODE.fullmatch(code) else ""


def _xml(answer: Answer) -> ElementTree.Element:
    """Without namespaces."""
    try:
        root = ElementTree.fromstring(answer.body)  # noqa: S314 (expat bounds what entities grow to, we the body)
    except (ElementTree.ParseError, LookupError, ValueError) as error:
        raise CloudError("answers what cannot be read") from error
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    return root
