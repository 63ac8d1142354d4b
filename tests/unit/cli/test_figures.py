"""Which figures are called out of date, and what is wrong beside conditions."""

from __future__ import annotations

import base64
import json
import re
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from cli import completion, figures, top
from cli.__main__ import parser
from cli.doctor import cures, findings, signs
from cli.quotas import nearest
from cli.seeds.on_master import Held
from common.api.core import Secret
from common.api.labels import API_VERSION
from common.api.types import UserCluster
from common.kube.client.meta import ObjectMeta, OwnerReference
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


def test_a_quota_that_is_made_of_an_allocation_is_shown_by_its_name_and_only_if_it_is() -> None:
    owner = OwnerReference(
        api_version=API_VERSION, kind="ResourceQuotaAllocation", name="ann", uid="u", controller=True
    )
    made = [
        msgspec.structs.replace(ANN, metadata=ObjectMeta(name="allocation.ann", owner_references=owners))
        for owners in ((owner,), ())
    ]
    lines = top.table([figures.of_quota(each) for each in made], NOW, None, wide=False).splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["sqa/ann", "allocation.ann"]


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
    assert told(lease(NEW_RENEWAL)) == []
    assert told(lease(OLD_RENEWAL)) == [
        ("NoLeader", "no replica has led for 60m, in namespace a: what it reports is not current")
    ]
    assert told(lease(NEW_RENEWAL, holder="")) == [
        ("NoLeader", "no replica leads in namespace a: what it reports is not current")
    ]
    assert told() == [("NoLeader", "no replica leads in any namespace")]


NEW_RENEWAL, OLD_RENEWAL = "2026-11-20T09:59:50.000000Z", "2026-11-20T09:00:00.000000Z"


def lease(renewed: str, namespace: str = "a", holder: str = "me") -> LeaseObject:
    spec = LeaseSpec(holder_identity=holder, renew_time=renewed)
    return LeaseObject(metadata=ObjectMeta(name="x", namespace=namespace), spec=spec)


def told(*leases: LeaseObject, everywhere: bool = True) -> list[tuple[str, str]]:
    return [(each.reason, each.message) for each in signs.leader("x", leases, NOW, everywhere=everywhere)]


def test_of_leases_in_several_namespaces_one_leads_and_what_earlier_releases_left_is_no_sign() -> None:
    assert told(lease(OLD_RENEWAL, "a"), lease(NEW_RENEWAL, "b"), lease(NEW_RENEWAL, "c", holder="")) == []
    ((reason, message),) = told(lease(OLD_RENEWAL, "a"), lease("2026-11-20T09:30:00.000000Z", "b"))
    assert (reason, message.partition(":")[0]) == ("NoLeader", "no replica has led for 30m, in namespace b")
    ((reason, message),) = told(lease(NEW_RENEWAL, "b"), lease(NEW_RENEWAL, "a"))
    assert (reason, message.partition(",")[0]) == ("SeveralLead", "it leads in each of the namespaces a")
    cures_of = [signs.leader("x", [lease(OLD_RENEWAL)], NOW, everywhere=each)[0].cure for each in (True, False)]
    assert ["name that with -n" in each for each in cures_of] == [False, True]


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
    found = signs.tokens(texts, {"soon": "added", "over": "by a kubeconfig of its own"}, NOW)
    assert [(each.names, each.message.split(" at ")[0]) for each in found] == [
        (["seed over"], "the master's token ended"),
        (["seed soon"], "the master's token ends"),
    ]
    assert not any("a." in each.message for each in found)
    assert ["`seedquota seed add` with the name" in each.cure for each in found] == [False, True]


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
    assert findings.of_seeds([lost], {}, {}, ["us-1"]) == []
    held = {"us-1": {"a": Held({"cpu": 10**9}, known=True)}}
    assert [each.reason for each in findings.of_seeds([lost], held, {}, ["us-1"])] == ["Lost"]
    assert findings.of_seeds([], held, {}, ["us-1"]) == [], "it was not chosen, and is there"
    assert [each.reason for each in findings.of_seeds([], held, {}, [])] == ["Gone"]


def test_a_cure_fits_how_the_master_reaches_a_seed_and_whose_machines_a_cluster_has() -> None:
    def of_seed(place: findings.Place, reason: str) -> str:
        bad = {"type": "Connected", "status": "False", "reason": reason, "message": ""}
        (found,) = findings.of_seeds([seed("us-1", "", bad)], {}, {"us-1": place}, ["us-1"])
        assert found.seed == "us-1"
        return found.cure

    assert "`seedquota seed add`" in of_seed("added", "Unauthorized")
    for reason in cures.CURES[cures.SEED]:
        assert "`seedquota seed add`" not in of_seed("by a kubeconfig of its own", reason)
        assert "Secret that the message names" not in of_seed("in the master's cluster", reason)
        assert "`seedquota seed add`" not in of_seed("in the master's cluster", reason)

    def of_cluster(reason: str, **spec: object) -> str:
        body = {"metadata": {"name": "c1", "namespace": "alpha"}, "spec": {"project": "alpha", **spec}}
        bad = {"type": "Enforced", "status": "False", "reason": reason, "message": ""}
        (found,) = findings.of_user_clusters([msgspec.convert({**body, "status": {"conditions": [bad]}}, UserCluster)])
        return found.cure

    assert "user-cluster.yaml" in of_cluster("WebhookMissing", kubeconfigSecretRef={"name": "c1"})
    assert "seed-own-webhooks.yaml" in of_cluster("WebhookMissing")


def test_cures_that_are_other_ones_somewhere_are_of_reasons_that_there_are() -> None:
    for place in cures.OF_SEED.values():
        assert place.keys() <= cures.CURES[cures.SEED].keys()
    assert cures.OF_OWN_MACHINES.keys() <= cures.CURES[cures.USER_CLUSTER].keys()


def test_a_cure_names_files_and_commands_that_there_are() -> None:
    said = " ".join(
        [
            *(each for of_kind in cures.CURES.values() for each in of_kind.values()),
            *(each for of_place in cures.OF_SEED.values() for each in of_place.values()),
            *cures.OF_OWN_MACHINES.values(),
            *cures.BY_CONDITION.values(),
            *(each for name, each in vars(cures).items() if name.isupper() and isinstance(each, str)),
        ]
    )
    files = set(re.findall(r"(?:charts|docs)/[\w/.-]*\w", said)) | {
        f"charts/rbac/{name}" for name in re.findall(r"(?<![\w/.-])[\w-]+\.yaml", said)
    }
    assert len(files) > 8 and [each for each in files if not (ROOT / each).exists()] == []
    commands = set(re.findall(r"`seedquota ([^`]+)`", said))
    assert len(commands) > 3
    for command in commands:
        words = [word for word in command.split() if word != "NAME"]
        known = completion.suggestions(parser(), [*words[: 2 if words[0] in ("seed", "uninstall") else 1], "--"])
        assert known and {word for word in words if word.startswith("--")} <= set(known), command


def rows_of_conditions() -> set[tuple[str, str]]:
    """Kind and reason, as docs/how-to/conditions.md has them."""
    kinds = {"quota": cures.QUOTA, "Seed": cures.SEED, "UserCluster": cures.USER_CLUSTER}
    page = (ROOT / "docs/how-to/conditions.md").read_text()
    found, kind = set(), ""
    for row in re.findall(r"^\|(.*?)\|(.*?)\|(.*?)\|", page, re.MULTILINE):
        on, _, reasons = (cell.strip() for cell in row)
        kind = kinds.get(on, kind)
        if not reasons.startswith("the message"):  # one cure for all of them
            found |= {(kind, each) for each in re.findall(r"\b[A-Z]\w+\b", reasons)}
    return found


def test_every_reason_of_the_runbook_has_a_cure_and_no_cure_is_for_another() -> None:
    assert rows_of_conditions() == {(kind, reason) for kind, of_kind in cures.CURES.items() for reason in of_kind}
