from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta

import pytest

from common.api.core import ConfigMap
from common.kube.client.meta import ObjectMeta
from common.kube.controller.store import Change
from common.server.access_reviews import User
from master.apiserver import client_certificates
from master.apiserver.client_certificates import KEY, ClientAuthority
from tests.client_certificates import Authority
from tests.unit.master.apiserver.test_auth import reviewer

NOW = datetime.now(UTC)


def user_of(certificate: bytes) -> User | None:
    return client_certificates.user_of(certificate)


def test_the_name_is_the_user_and_each_organization_is_a_group_of_those_who_are_authenticated() -> None:
    found = user_of(Authority().issue("ann", "dev", "ops").der)
    assert found is not None
    assert (found.username, found.groups) == ("ann", ["dev", "ops", "system:authenticated"])
    assert found.extra["authentication.kubernetes.io/credential-id"][0].startswith("X509SHA256=")


@pytest.mark.parametrize("days", [(-2, -1), (1, 2)])
def test_a_certificate_names_nobody_before_and_after_its_time(days: tuple[int, int]) -> None:
    """Also on a connection that was opened while it was valid."""
    begins, ends = (NOW + timedelta(days=day) for day in days)
    assert user_of(Authority().issue("ann", begins=begins, ends=ends).der) is None


def test_what_names_nobody_is_nobodys() -> None:
    assert user_of(b"") is None
    assert user_of(b"no certificate") is None
    assert user_of(Authority().issue("", "system:masters").der) is None


def changed(**data: str) -> Change[ConfigMap]:
    return Change(old=None, new=ConfigMap(metadata=ObjectMeta(name="n"), data=data))


async def test_another_authority_is_trusted_at_once_and_what_is_none_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    trusted: list[str] = []

    def trust(authority: str) -> None:
        if authority:
            ssl.create_default_context(cadata=authority)
        trusted.append(authority)

    first, second = Authority().pem, Authority().pem
    async with reviewer() as cluster:
        authority = ClientAuthority(cluster, trust)
        for data in ({}, {KEY: first}, {KEY: first}, {KEY: "no CA"}, {KEY: second}, {"other": first}):
            authority._changed(changed(**data))
    assert trusted == [first, second, ""]
    assert "the CA of client certificates cannot be read" in caplog.messages
