from __future__ import annotations

import os
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from common.server import pki, rotation
from common.server.pki import Policy
from common.server.rotation import Action, Contents, carry_out, decide

NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
NAMES = ("seed.example.com", "10.0.0.1", "::1")
POLICY = Policy()
DAY = timedelta(days=1)
NOTHING = Contents(problems=("it did not exist",))


def after(contents: Contents, now: datetime, names: tuple[str, ...] = NAMES) -> tuple[Action, Contents]:
    """One step, by way of the Secret: what is written is what the next step reads."""
    action = decide(now, contents, names, POLICY).action
    changed = carry_out(action, now, contents, names, POLICY)
    data = {key: value for key, value in rotation.write(changed).items() if value is not None}
    return action, rotation.read(data)


def fresh() -> Contents:
    return after(NOTHING, NOW)[1]


def data_of(contents: Contents) -> dict[str, bytes]:
    return {key: value for key, value in rotation.write(contents).items() if value is not None}


def test_a_new_secret_has_all_that_is_needed_and_is_kept() -> None:
    action, contents = after(NOTHING, NOW)
    assert action is Action.REPLACE
    assert contents.problems == ()
    assert contents.ca is not None
    assert contents.serving is not None
    assert pki.alternative_names(contents.serving.certificate) == set(NAMES)
    assert contents.ca.expires == NOW + timedelta(days=3650)
    assert contents.serving.expires == NOW + timedelta(days=365)
    assert decide(NOW, contents, NAMES, POLICY).action is Action.KEEP


def test_serving_is_renewed_at_two_thirds_of_its_life_with_the_same_ca() -> None:
    contents = fresh()
    assert decide(NOW + timedelta(days=243), contents, NAMES, POLICY).action is Action.KEEP
    action, renewed = after(contents, NOW + timedelta(days=244))
    assert action is Action.RENEW_SERVING
    assert renewed.bundle() == contents.bundle()
    assert renewed.serving is not None
    assert renewed.serving.expires == NOW + timedelta(days=244 + 365)


def test_serving_that_expired_while_nobody_ran_is_renewed() -> None:
    assert decide(NOW + timedelta(days=400), fresh(), NAMES, POLICY).action is Action.RENEW_SERVING


def test_a_ca_changes_in_three_steps_and_every_certificate_served_is_in_the_bundle_before_and_after() -> None:
    contents = fresh()
    now = NOW + timedelta(days=2400)
    contents = after(contents, now)[1]  # serving is renewed first
    first_ca, bundles = contents.ca, [contents.bundle()]
    now += timedelta(days=34)
    action, contents = after(contents, now)
    assert action is Action.INTRODUCE_CA
    assert contents.ca == first_ca
    assert contents.next_ca is not None
    bundles.append(contents.bundle())
    assert after(contents, now + DAY - timedelta(seconds=1))[0] is Action.KEEP

    now += DAY
    second_ca = contents.next_ca
    action, contents = after(contents, now)
    assert action is Action.SWITCH_CA
    assert contents.ca == second_ca
    assert contents.serving is not None
    contents.serving.certificate.verify_directly_issued_by(second_ca.certificate)
    bundles.append(contents.bundle())
    assert bundles[2] == bundles[1], "a switch alone changes no configuration"
    assert after(contents, now + DAY - timedelta(seconds=1))[0] is Action.KEEP

    action, contents = after(contents, now + DAY)
    assert action is Action.DROP_CA
    assert contents.previous_ca is None
    assert contents.bundle() == second_ca.certificate_pem()
    assert after(contents, now + DAY)[0] is Action.KEEP


def test_serving_never_outlives_its_ca() -> None:
    contents = fresh()
    assert contents.ca is not None
    late = pki.make_serving(contents.ca.expires - DAY, contents.ca, NAMES, POLICY)
    assert late.expires == contents.ca.expires


def test_an_expired_ca_gives_way_to_the_next_one_if_that_was_introduced() -> None:
    contents = fresh()
    introduced = carry_out(Action.INTRODUCE_CA, NOW + timedelta(days=3649), contents, NAMES, POLICY)
    assert decide(NOW + timedelta(days=3650), introduced, NAMES, POLICY).action is Action.SWITCH_CA
    assert decide(NOW + timedelta(days=3650), contents, NAMES, POLICY).action is Action.REPLACE


def test_a_clock_that_is_behind_changes_nothing() -> None:
    assert decide(NOW - timedelta(days=30), fresh(), NAMES, POLICY).action is Action.KEEP


def test_a_name_that_is_missing_renews_and_keeps_the_others_so_that_two_versions_do_not_fight() -> None:
    contents = fresh()
    decision = decide(NOW, contents, ["other.example.com"], POLICY)
    assert decision.action is Action.RENEW_SERVING
    assert decision.reason == "it is not for other.example.com"
    _, both = after(contents, NOW, ("other.example.com",))
    assert decide(NOW, both, NAMES, POLICY).action is Action.KEEP
    assert decide(NOW, both, ["other.example.com"], POLICY).action is Action.KEEP
    _, renewed = after(both, NOW + timedelta(days=300), ("other.example.com",))
    assert renewed.serving is not None
    assert pki.alternative_names(renewed.serving.certificate) == {"other.example.com"}


def pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


@pytest.mark.parametrize(
    ("change", "action", "reason"),
    [
        ({"ca.crt": b"garbage"}, Action.REPLACE, "ca.crt is not a certificate in PEM"),
        ({"ca.crt": b""}, Action.REPLACE, "ca.crt is not a certificate in PEM"),
        ({"ca.key": b"\xff\x00"}, Action.REPLACE, "ca.key is not a private key in PEM"),
        ({"ca.key": pem(ec.generate_private_key(ec.SECP256R1()))}, Action.REPLACE, "does not belong to ca.crt"),
        ({"ca.key": pem(rsa.generate_private_key(65537, 2048))}, Action.REPLACE, "not an elliptic curve key"),
        ({"tls.crt": b"garbage"}, Action.RENEW_SERVING, "tls.crt is not a certificate in PEM"),
        ({"tls.key": b"garbage"}, Action.RENEW_SERVING, "tls.key is not a private key in PEM"),
        ({"tls.key": pem(ec.generate_private_key(ec.SECP256R1()))}, Action.RENEW_SERVING, "does not belong to tls.crt"),
    ],
)
def test_what_is_unusable_is_replaced_and_says_why(change: dict[str, bytes], action: Action, reason: str) -> None:
    contents = rotation.read({**data_of(fresh()), **change})
    decision = decide(NOW, contents, NAMES, POLICY)
    assert decision.action is action
    assert reason in decision.reason
    assert after(contents, NOW)[1].problems == ()


def test_serving_of_another_ca_is_renewed() -> None:
    mixed = {**data_of(fresh()), **{key: value for key, value in data_of(fresh()).items() if key.startswith("tls")}}
    decision = decide(NOW, rotation.read(mixed), NAMES, POLICY)
    assert decision == rotation.Decision(Action.RENEW_SERVING, "tls.crt is not signed by ca.crt")


def test_a_serving_certificate_in_the_place_of_the_ca_is_refused() -> None:
    data = data_of(fresh())
    swapped = {**data, "ca.crt": data["tls.crt"], "ca.key": data["tls.key"]}
    assert "ca.crt is not a CA" in decide(NOW, rotation.read(swapped), NAMES, POLICY).reason


def test_problems_hold_no_key() -> None:
    data = data_of(fresh())
    contents = rotation.read({**data, "ca.crt": data["ca.key"], "tls.crt": data["tls.key"]})
    assert contents.problems
    assert "PRIVATE" not in str(contents.problems)


def test_garbage_beside_what_is_needed_does_no_harm() -> None:
    contents = rotation.read({**data_of(fresh()), "previous-ca.crt": b"x", "next-ca.crt": b"x", "other": b"x"})
    assert decide(NOW, contents, NAMES, POLICY).action is Action.KEEP


def test_times_that_would_break_the_order_of_the_steps_are_refused() -> None:
    for ca, serving, overlap in ((30, 300, 10), (300, 15, 10), (300, 300, 0)):
        with pytest.raises(ValueError, match="overlap"):
            Policy(timedelta(days=ca), timedelta(days=serving), timedelta(days=overlap))


def test_a_key_is_loaded_without_a_file_staying_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    contents = fresh()
    assert contents.serving is not None
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    pki.load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), contents.serving)
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    pki.load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), contents.serving)
    assert list(tmp_path.iterdir()) == []
