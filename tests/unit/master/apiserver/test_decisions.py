"""What of a decision is said to whom, and what of an agent's answer is believed."""

from __future__ import annotations

import msgspec
import pytest

from master.apiserver import decisions
from master.apiserver.decisions import DecisionRecord
from seed.admission import record as of_seed

ID = "01JD3Y6K"
MESSAGE = "exceeded quota: project-alpha and org-acme"
RECORD = of_seed.Record(
    decision=ID,
    time="2026-11-20T10:00:03.000Z",
    result="refused",
    duration_ms=1.2,
    operation="CREATE",
    user="bob",
    consumer="machine",
    cluster="alpha/c1",
    object="kube-system/m",
    uid="u",
    project="alpha",
    need={"cpu": "8"},
    code=403,
    reason="QuotaExceeded",
    message=MESSAGE,
    quotas=[
        of_seed.QuotaRecord(
            name=name,
            enforcement="deny",
            admits=False,
            limits={"cpu": "64"},
            used={"cpu": "60"},
            code=403,
            reason="QuotaExceeded",
            message=f"exceeded quota: {name}",
            out_of_reach=[of_seed.Holder(seed="us-1", idle={"cpu": "4"})],
            account=of_seed.AccountRecord(sequence=7),
        )
        for name in ("project-alpha", "org-acme")
    ],
)


def found(content: object = RECORD) -> DecisionRecord:
    read = decisions.read(ID, msgspec.json.encode(content))
    assert read is not None
    return read


def seen(*quotas: str, everything: bool = False, of_project: bool = False, user: str = "ann") -> DecisionRecord | None:
    return decisions.visible(found(), quotas, everything=everything, of_project=of_project, username=user)


def test_who_may_see_everything_sees_all_facts_but_those_of_the_seeds_accounts() -> None:
    shown = seen("project-alpha", "org-acme", everything=True)
    assert shown is not None and shown.quotas == found().quotas
    assert (shown.user, shown.object, shown.message, shown.quotas[0].used) == (
        "bob",
        "kube-system/m",
        MESSAGE,
        {"cpu": "60"},
    )
    assert b"us-1" not in msgspec.json.encode(shown) and b"sequence" not in msgspec.json.encode(shown)


def test_a_tenant_sees_its_project_and_no_user_but_itself() -> None:
    shown = seen("project-alpha", "org-acme", of_project=True)
    assert shown is not None and (shown.user, shown.object, shown.message) == ("", "kube-system/m", MESSAGE)
    own = seen("project-alpha", "org-acme", of_project=True, user="bob")
    assert own is not None and own.user == "bob"


def test_of_a_quota_that_one_may_not_see_nothing_is_said() -> None:
    shown = seen("project-alpha", of_project=True)
    assert shown is not None and [each.name for each in shown.quotas] == ["project-alpha"]
    assert "org-acme" not in msgspec.json.encode(shown).decode()
    assert shown.message == "exceeded quota: project-alpha"


def test_who_sees_the_organization_alone_learns_no_name_of_the_project() -> None:
    shown = seen("org-acme")
    assert shown is not None and [each.name for each in shown.quotas] == ["org-acme"]
    for hidden in ("alpha", "bob", "kube-system"):
        assert hidden not in msgspec.json.encode(shown).decode()


def test_who_may_see_no_part_of_it_sees_nothing() -> None:
    assert seen() is None and seen(user="bob") is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[" * 100_000,
        b"\xff",
        msgspec.json.encode(RECORD).replace(ID.encode(), b"ANOTHER1"),
        msgspec.json.encode(RECORD).replace(b'"refused"', b'"maybe"'),
        msgspec.json.encode(RECORD).replace(b'"bob"', b'"' + b"x" * 5000 + b'"'),
        msgspec.json.encode(msgspec.structs.replace(RECORD, quotas=RECORD.quotas * 40)),
        msgspec.json.encode(msgspec.structs.replace(RECORD, need={f"r{number}": "1" for number in range(200)})),
    ],
    ids=range(9),
)
def test_what_a_seed_answers_is_read_within_bounds_or_not_at_all(content: bytes) -> None:
    assert decisions.read(ID, content) is None


def test_an_answer_without_a_record_names_the_command() -> None:
    assert msgspec.to_builtins(decisions.answer(ID, not_asked="eu-1: no")) == {
        "decision": ID,
        "keptOn": "seed",
        "command": f"seedquota explain {ID} --context SEED",
        "notAsked": "eu-1: no",
    }
