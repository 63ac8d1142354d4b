"""Signing in to OpenStack: Keystone's version 3, by password, application credential or token, and where Nova is.

https://docs.openstack.org/api-ref/identity/v3/#authentication-and-token-management
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec

from seed.providers.flavour import MAX_BODY_OF_ANY_HOST, CloudError, Query, Session, Settings
from seed.providers.size import NotSized

EARLY = 300.0  # seconds before its end at which a token is not used any more


_Time = Annotated[datetime, msgspec.Meta(tz=True)]


class _Endpoint(msgspec.Struct):
    interface: str
    url: str
    region: str | None = None
    region_id: str | None = None


class _Service(msgspec.Struct):
    type: str
    endpoints: list[_Endpoint] = []


class _Token(msgspec.Struct):
    issued_at: _Time
    expires_at: _Time
    catalog: list[_Service] = []


class _Signed(msgspec.Struct):
    token: _Token


async def sign_in(query: Query) -> Session:
    """`token`, and `compute`, Nova's URL. Raises CloudError; NotSized for credentials or a region that are missing."""
    answer = await query.http.request(
        "POST",
        f"{query.place.endpoint}/auth/tokens",
        headers={"Content-Type": "application/json"},
        body=msgspec.json.encode({"auth": _auth(query.credentials)}),
        ca=query.where.get("ca") or query.where.get("caFile"),
        max_body=MAX_BODY_OF_ANY_HOST,
    )
    if answer.status == 404:
        raise CloudError("has no Keystone of version 3 there (404)", refused=True)
    if answer.status >= 400:
        raise CloudError(f"refuses these credentials ({answer.status})", refused=True)
    token = answer.json(_Signed).token
    secret = answer.headers.get("x-subject-token", "")
    if not secret:
        raise CloudError("answers what cannot be read")
    # by the cloud's own clock
    lifetime = (token.expires_at - token.issued_at).total_seconds()
    return Session({"token": secret, "compute": _compute(query, token)}, lifetime - EARLY)


def _auth(credentials: Settings) -> dict[str, object]:
    """As machine-controller: beside an application credential no password is read, and a token goes before it."""
    by_application = credentials.meant("applicationCredentialID", "username", otherwise="username") != "username"
    if "tokenId" in credentials and (by_application or "password" not in credentials):
        return {
            "identity": {"methods": ["token"], "token": {"id": credentials["tokenId"]}},
            "scope": {"project": _project(credentials)},
        }
    if by_application:
        secret = {
            "id": credentials["applicationCredentialID"],
            "secret": credentials["applicationCredentialSecret"],
        }
        return {"identity": {"methods": ["application_credential"], "application_credential": secret}}
    user = {
        "name": credentials["username"],
        "password": credentials["password"],
        "domain": {"name": credentials["domainName"]},
    }
    return {
        "identity": {"methods": ["password"], "password": {"user": user}},
        "scope": {"project": _project(credentials)},
    }


def _project(credentials: Settings) -> dict[str, object]:
    how = credentials.meant("projectID", "tenantID", "projectName", "tenantName", otherwise="projectName")
    if how in ("projectID", "tenantID"):
        return {"id": credentials[how]}
    return {"name": credentials[how], "domain": {"name": credentials["domainName"]}}


def _compute(query: Query, token: _Token) -> str:
    found = {
        endpoint.region_id or endpoint.region or "": endpoint.url
        for service in token.catalog
        if service.type == "compute"
        for endpoint in service.endpoints
        if endpoint.interface == "public"
    }
    region = query.place.region
    if not region and len(found) > 1:
        raise query.where.missing("region")
    if not found or (region and region not in found):
        raise NotSized(query.place.provider, "region has no compute service that these credentials may use")
    return found[region] if region else next(iter(found.values()))
