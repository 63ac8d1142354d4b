from __future__ import annotations

import json

import msgspec
import pytest

from common.quota import shares
from common.quota.account import MAX_RESERVATIONS, Account, AccountKey, Ask, Reservation
from common.quota.names import MAX_COUNTERS
from common.quota.quantity import UNIT
from seed.ledger.encoding import (
    MAX_BYTES,
    MAX_SOURCES,
    SUMMED,
    Encoder,
    MalformedLedgerError,
    TooLargeError,
    decode,
    parse_reservation,
    reservation_text,
)

KEY = AccountKey(uid="6d2b4f0e-55a3-4f3e-9a42-9b1f3a2c7d10", name="project-alpha")
GIB = 2**30 * UNIT
WELL_UNDER_ETCDS_LIMIT = 2**20  # which is 1.5 MiB

ACCOUNT = Account(
    incarnation="life",
    master="m1",
    sequence=7,
    epoch=3,
    granted={"cpu": 64 * UNIT, "memory": 256 * GIB},
    returned={"cpu": 2 * UNIT},
    used={"alpha/c1": {"cpu": 24 * UNIT, "memory": 96 * GIB, "machines": 12 * UNIT}, "alpha/c2": {}},
    reserved={"cpu": 3 * UNIT + UNIT // 2},
    reservations={
        ("alpha/c1", "u1"): Reservation(source="alpha/c1", object="kube-system/m-1", amount={"cpu": 3 * UNIT}),
        ("alpha/c2", "u2"): Reservation(
            source="alpha/c2", object="ns/m-2", amount={"cpu": UNIT // 2}, generation=4, claims=3, request="01JD3Y6K"
        ),
        ("alpha/c2", "u3"): Reservation(source="alpha/c2", object="web/p", amount={"cpu": UNIT}, tenant="project/x"),
    },
    ask=Ask(number=5, first={"cpu": 8 * UNIT}, wanted={"cpu": 16 * UNIT}),
    held_back=("alpha/c2",),
)


def encoded(account: Account, version: str | None = "41") -> dict[str, dict]:
    return json.loads(Encoder(KEY, "seedquota").encode(account, version))


def test_an_account_survives_being_written() -> None:
    assert decode(json.dumps(encoded(ACCOUNT)["account"]).encode()) == ACCOUNT


def test_a_ledger_of_the_release_before_holds_nothing_back() -> None:
    found = encoded(ACCOUNT)["account"]
    assert found.pop("heldBack") == ["alpha/c2"]
    assert decode(json.dumps(found).encode()).held_back == ()


def test_the_object_is_named_by_the_quotas_uid_and_kept_out_of_backups() -> None:
    found = encoded(ACCOUNT)
    assert (found["apiVersion"], found["kind"]) == ("seedquota.io/v1alpha1", "QuotaLedger")
    assert found["metadata"]["name"] == KEY.uid
    assert found["metadata"]["namespace"] == "seedquota"
    assert found["metadata"]["resourceVersion"] == "41"
    assert found["metadata"]["labels"]["velero.io/exclude-from-backup"] == "true"
    assert found["quota"] == {"name": "project-alpha", "uid": KEY.uid}
    assert "resourceVersion" not in encoded(ACCOUNT, None)["metadata"]


def test_people_read_a_summary_of_what_the_quota_limits() -> None:
    assert encoded(ACCOUNT)["summary"] == {
        "held": "cpu=62,memory=256Gi",
        "used": "cpu=24,memory=96Gi",
        "reserved": "cpu=3500m",
        "state": "Open",
        "epoch": 3,
    }


def test_a_fenced_account_says_so() -> None:
    found = encoded(Account(incarnation="life", nonce="n"))
    assert found["summary"]["state"] == found["account"]["state"] == "Fenced"


def test_a_reservation_is_one_line() -> None:
    assert [reservation_text(kept) for kept in ACCOUNT.reservations.values()] == [
        "0 alpha/c1 kube-system/m-1 cpu=3",
        "4.3 alpha/c2 ns/m-2 cpu=500m;;;01JD3Y6K",
        "0 alpha/c2 web/p cpu=1;;;;;;project/x",
    ]


@pytest.mark.parametrize("name", ["a b", "a,b=1", "a=b", "a\nb", "%20", "a.b", "ä/€", ""])
def test_names_that_would_break_the_line_do_not(name: str) -> None:
    kept = Reservation(source=name, object=f"{name}/m", amount={name: UNIT, f"{name}/gpu": 2 * UNIT})
    assert parse_reservation(reservation_text(kept)) == kept


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("0 s n/m cpu=1", Reservation(source="s", object="n/m", amount={"cpu": UNIT})),
        (
            "2.3 s n/m cpu=1;cpu=1",
            Reservation(source="s", object="n/m", amount={"cpu": UNIT}, generation=2, claims=3, earlier={"cpu": UNIT}),
        ),
        ("0 s n/m cpu=1;;old", Reservation(source="s", object="n/m", amount={"cpu": UNIT}, replaces="old")),
    ],
)
def test_a_line_of_the_release_before_which_names_no_request_is_read(line: str, kept: Reservation) -> None:
    assert parse_reservation(line) == kept


def test_the_release_before_reads_the_parts_that_it_knows() -> None:
    kept = Reservation(source="s", object="n/m", amount={"cpu": UNIT}, replaces="old", request="01JD3Y6K")
    *words, amounts = reservation_text(kept).split(" ")
    assert (words, amounts.split(";")[:3]) == (["0", "s", "n/m"], ["cpu=1", "", "old"])


def test_an_encoder_follows_reservations_that_change_under_the_same_uid() -> None:
    encoder = Encoder(KEY, "seedquota")
    kept = Reservation(source="s", object="n/m", amount={"cpu": UNIT}, request="r1")
    first = Account(incarnation="l", reservations={("s", "u"): kept})
    more = Account(
        incarnation="l", reservations={("s", "u"): Reservation(source="s", object="n/m", amount={"cpu": 2 * UNIT})}
    )
    twin = Account(
        incarnation="l", reservations={("s", "u"): kept, ("t", "u"): msgspec.structs.replace(kept, source="t")}
    )
    for account in (first, first, more, Account(incarnation="l"), twin, first):
        assert decode(json.dumps(json.loads(encoder.encode(account, "1"))["account"]).encode()) == account


def test_a_full_account_of_long_names_fits_into_etcd() -> None:
    amount = {"cpu": 8 * UNIT, "machines": UNIT, "memory": 16 * GIB, "storage": 100 * GIB, "nvidia.com/gpu": UNIT}
    source = f"{'n' * 40}/{'c' * 20}"
    reservations = {
        (source, f"6d2b4f0e-55a3-4f3e-9a42-{number:012}"): Reservation(
            source=source, object=f"kube-system/{'m' * 63}", amount=amount, request=f"{number:08}"
        )
        for number in range(MAX_RESERVATIONS)
    }
    full = Encoder(KEY, "seedquota").encode(Account(incarnation="l", reservations=reservations), "1")
    assert len(full) < WELL_UNDER_ETCDS_LIMIT


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"null", "no account"),
        (b"{}", "incarnation"),
        (b'{"incarnation": "l", "granted": {"cpu": "lots"}}', "lots"),
        (b'{"incarnation": "l", "reservations": "u 0 s o"}', "reservation '0 s o'"),
        (b'{"incarnation": "l", "reservations": "u x s o cpu=1"}', "reservation 'x s o cpu=1'"),
        (b'{"incarnation": "l", "reservations": "u 0 s o cpu"}', "reservation '0 s o cpu'"),
        (b'{"incarnation": "l", "reservations": "u 0 s o cpu=many"}', "many"),
        (b'{"incarnation": "l", "sequence": "7"}', "int"),
        (b"[1,", "array"),
        (b'{"incarnation": "\xff"}', "utf-8"),
    ],
)
def test_a_ledger_edited_by_hand_is_an_error_that_says_what_is_wrong(raw: bytes, why: str) -> None:
    with pytest.raises(MalformedLedgerError, match=why):
        decode(raw)


@pytest.mark.parametrize("sources", [MAX_BYTES // 300, MAX_SOURCES + 1])
def test_an_account_that_does_not_fit_into_one_object_is_not_even_sent(sources: int) -> None:
    long = "c" * 253 if sources <= MAX_SOURCES else "c"
    used = {f"{number:063}/{long}": {"cpu": UNIT} for number in range(sources)}
    with pytest.raises(TooLargeError, match=f"at most ({MAX_BYTES}|{MAX_SOURCES}) can be stored"):
        Encoder(KEY, "seedquota").encode(Account(incarnation="l", used=used), "1")


def test_the_summary_names_a_few_resources() -> None:
    many = {f"example.com/device-{number}": UNIT for number in range(MAX_COUNTERS)}
    summary = encoded(Account(incarnation="l", granted=many, used={"s": many}, reserved=many))["summary"]
    assert {len(summary[column].split(",")) for column in ("held", "used", "reserved")} == {SUMMED}


def test_the_length_of_an_account_is_what_its_text_takes() -> None:
    names = {"cpu": 12_500_000_000, "memory": 3 * GIB, "nvidia.com/gpu": UNIT}
    reservations = {
        ("alpha/c1", f"u{number}"): Reservation(
            source="alpha/c1",
            object=f"kube-system/machine-{number}",
            amount=names,
            earlier=names if number % 2 else {},
            generation=number,
            replaces="6d2b4f0e-55a3-4f3e-9a42-000000000007" if number % 3 else "",
            request="01JD3Y6K",
        )
        for number in range(100)
    }
    account = Account(incarnation="l", reservations=reservations)
    written = len(encoded(account)["account"]["reservations"])
    assert written <= shares.measure(account).text <= written * 1.1
