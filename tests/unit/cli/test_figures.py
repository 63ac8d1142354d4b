"""Which figures are called out of date, and what is wrong beside conditions."""

from __future__ import annotations

import base64
import json
import re
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from cli import figures, top
from cli.doctor import cures, findings, signs
from cli.quotas import nearest
from common.api.core import Secret
from common.kube.client.meta import ObjectMeta
from common.kube.controller.leader_election import LeaseObject, LeaseSpec
from common.server.pki import Policy, make_ca, make_serving
from master.quotas import staleness
from master.quotas.staleness import Stale
from tests.unit.quota_examples import ALPHA, ANN, AWAY, CONNECTED, GPUS, NEW, NONE, NOW, QUOTAS, seed

ROOT = Path(__file__).parents[3]


def test_the_fullest_is_first_and_use_of_a_limit_of_0_is_fuller_than_any() -> None:
    found = [figures.of_quota(each) for each in QUOTAS]
    order = [each.name for each in top.picked(found, "peak", None)]
    assert order == ["project-none", "owner-ann", "project-alpha", "org-acme", "project-new"]
    assert [each.name for each in top.picked(found, "name", 93)] == ["owner-ann", "project-alpha", "project-none"]
    assert [each.name for each in top.picked(found, "name", 94)] == ["owner-ann", "project-none"]


def test_a_quota_that_nobody_reported_on_or_of_a_seed_that_is_away_is_out_of_date() -> None:
    assert figures.of_quota(ALPHA).stale == [Stale("us-1", "2026-11-20T09:53:00Z")]
    assert figures.of_quota(NEW).stale == [Stale(why="no report")]
    assert [figures.of_quota(each).stale for each in (ANN, NONE, GPUS)] == [[], [], []]
    unreached = msgspec.structs.replace(ALPHA, status=msgspec.structs.replace(ALPHA.status, seeds=[]))
    assert figures.of_quota(unreached).stale == [Stale(why="SeedUnreachable")]


def test_every_figure_is_out_of_date_while_no_master_writes() -> None:
    silence = staleness.silence_of_master([seed("a", "2026-11-20T09:00:00Z", CONNECTED)], NOW)
    assert silence == "60m"
    assert figures.of_quota(ANN, silence).stale == [Stale(why="master silent for 60m")]
    alive = seed("b", "2026-11-20T09:59:30Z", CONNECTED)
    assert staleness.silence_of_master([seed("a", "2026-11-20T09:00:00Z", CONNECTED), alive], NOW) == ""
    assert staleness.silence_of_master([seed("a", "2026-11-20T09:00:00Z", AWAY)], NOW) == ""


def test_what_is_not_counted_is_not_called_0() -> None:
    assert figures.of_quota(GPUS).resources["gpus"] == figures.Amounts("", "4", "", "")


@pytest.mark.parametrize(
    ("written", "meant"),
    [("project-alhpa", "project-alpha"), ("alpha", "project-alpha"), ("project/alpha", "project-alpha"), ("zzz", "")],
)
def test_a_mistyped_name_is_that_of_the_nearest_quota(written: str, meant: str) -> None:
    assert nearest(written, ["org-acme", "project-alpha", "owner-ann"]) == meant


@pytest.mark.parametrize(
    ("seconds", "said"), [(-5, "0s"), (119, "119s"), (120, "2m"), (7199, "119m"), (7200, "2h"), (172800, "2d")]
)
def test_ages_are_those_of_kubectl(seconds: int, said: str) -> None:
    assert staleness.age((NOW - timedelta(seconds=seconds)).isoformat(), NOW) == said
    assert staleness.age("", NOW) == ""


def test_a_lease_that_nobody_renews_is_nobody_who_leads() -> None:
    def lease(renewed: str, holder: str = "me") -> LeaseObject:
        return LeaseObject(metadata=ObjectMeta(name="x"), spec=LeaseSpec(holder_identity=holder, renew_time=renewed))

    assert signs.leader("x", lease("2026-11-20T09:59:50.000000Z"), NOW) == []
    assert [each.message for each in signs.leader("x", lease("2026-11-20T09:00:00.000000Z"), NOW)] == [
        "no replica has led for 60m: statuses are as old"
    ]
    assert signs.leader("x", lease("2026-11-20T09:59:50.000000Z", ""), NOW) != []
    assert signs.leader("x", None, NOW) != []


def kubeconfig(ends: datetime) -> str:
    claims = {"sub": "system:serviceaccount:seedquota:m", "iat": ends.timestamp() - 100, "exp": ends.timestamp()}
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return json.dumps({"users": [{"name": "m", "user": {"token": f"a.{body}.c"}}]})


def test_a_token_is_named_a_week_before_it_ends() -> None:
    texts = {
        "soon": kubeconfig(NOW + timedelta(days=6)),
        "later": kubeconfig(NOW + timedelta(days=8)),
        "over": kubeconfig(NOW - timedelta(days=1)),
        "broken": "users: [{user: }]",
        "no yaml": "{",
    }
    found = signs.tokens(texts, NOW)
    assert [(each.names, each.message.split(" at ")[0]) for each in found] == [
        (["seed over"], "the master's token ended"),
        (["seed soon"], "the master's token ends"),
    ]
    assert not any("a." in each.message for each in found)


def test_a_certificate_is_named_two_weeks_before_it_ends() -> None:
    ca = make_ca(NOW, Policy())
    pair = make_serving(NOW, ca, ["x"], Policy())
    data = {"ca.crt": ca.certificate_pem(), "tls.crt": pair.certificate_pem()}
    secret = Secret(metadata=ObjectMeta(name="seedquota-webhook-tls", namespace="seedquota"), data=data)
    assert signs.certificates(secret, pair.expires - timedelta(days=15)) == []
    (found,) = signs.certificates(secret, pair.expires - timedelta(days=13))
    assert found.message.startswith("tls.crt ends at ")
    broken = Secret(metadata=secret.metadata, data={**data, "tls.crt": b""})
    assert [each.reason for each in signs.certificates(broken, NOW)] == ["CertificateUnreadable"]
    assert signs.certificates(None, NOW) == []


def test_a_seed_that_is_lost_is_named_only_while_it_holds_something() -> None:
    lost = seed("us-1", "", AWAY, state="Lost")
    assert findings.of_seeds([lost], {}) == []
    held = {"us-1": {"a": findings.Held({"cpu": 10**9}, known=True)}}
    assert [each.reason for each in findings.of_seeds([lost], held)] == ["Lost"]


def rows_of_conditions() -> set[tuple[str, str]]:
    """Kind and reason, as docs/operations.md has them."""
    kinds = {"quota": cures.QUOTA, "Seed": cures.SEED, "UserCluster": cures.USER_CLUSTER}
    section = (ROOT / "docs/operations.md").read_text().partition("## Conditions that are bad")[2].partition("\n## ")[0]
    found, kind = set(), ""
    for row in re.findall(r"^\|(.*?)\|(.*?)\|(.*?)\|", section, re.MULTILINE):
        on, _, reasons = (cell.strip() for cell in row)
        kind = kinds.get(on, kind)
        if not reasons.startswith("the message"):  # one cure for all of them
            found |= {(kind, each) for each in re.findall(r"\b[A-Z]\w+\b", reasons)}
    return found


def test_every_reason_of_the_runbook_has_a_cure_and_no_cure_is_for_another() -> None:
    assert rows_of_conditions() == {(kind, reason) for kind, of_kind in cures.CURES.items() for reason in of_kind}
