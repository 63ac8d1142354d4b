"""The keys of callers' tokens: how one follows another, and what is accepted meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest

from seed.registration import token as webhook_token
from seed.registration import token_rotation
from seed.registration.token import WebhookKey
from seed.registration.token_rotation import LEARNING, OVERLAP, OVERLAP_AT_ONCE, PERIOD, TokenKeys, decide, read, write
from tests.unit.fake_api_server import fake_api_server

NOW = datetime(2026, 11, 20, 10, tzinfo=UTC)
SECOND = timedelta(seconds=1)
FIRST = TokenKeys(current=b"1" * 32, since=NOW)


def after(now: datetime, keys: TokenKeys | None, known: TokenKeys | None = None) -> TokenKeys:
    decided = decide(now, keys, known)
    assert decided is not None
    return decided[0]


def test_every_replica_can_read_the_next_key_before_it_is_used_and_the_former_is_accepted_for_a_bounded_time() -> None:
    assert decide(NOW + PERIOD - SECOND, FIRST, None) is None
    made = NOW + PERIOD
    staged = after(made, FIRST)
    assert staged.current == FIRST.current and staged.next is not None
    assert list(staged.accepted(made)) == [FIRST.current, staged.next[0]]
    assert decide(made + LEARNING - SECOND, staged, None) is None

    used = made + LEARNING
    switched = after(used, staged)
    assert switched == TokenKeys(current=staged.next[0], since=used, previous=(FIRST.current, used + OVERLAP))
    assert list(switched.accepted(used)) == [switched.current, FIRST.current]
    assert decide(used + OVERLAP - SECOND, switched, None) is None

    end = used + OVERLAP
    assert list(switched.accepted(end)) == [switched.current], "also where nobody can write the Secret"
    assert after(end, switched) == TokenKeys(current=switched.current, since=used)


def test_a_key_that_was_removed_is_replaced_at_once_and_accepted_for_a_minute_at_most() -> None:
    staged = after(NOW + PERIOD, FIRST)
    fresh = after(NOW, None, staged)
    assert fresh.current not in (FIRST.current, staged.next[0] if staged.next else b"")
    assert fresh.previous == (FIRST.current, NOW + OVERLAP_AT_ONCE)
    assert fresh.next is None
    assert after(NOW, None, None).previous is None


def test_what_is_written_is_read_again() -> None:
    for keys in (FIRST, after(NOW + PERIOD, FIRST), after(NOW, None, FIRST)):
        data = {name: value for name, value in write(keys).items() if value is not None}
        assert read(data) == keys
    assert all(value is None for name, value in write(FIRST).items() if "next" in name or "previous" in name)


@pytest.mark.parametrize(
    "wrong",
    [
        {"token-key": b"short"},
        {"token-key-since": b""},
        {"token-key-since": b"yesterday"},
        {"token-key-since": b"2026-11-20T10:00:00"},
        {"token-key-since": b"\xff"},
    ],
)
def test_a_key_that_cannot_be_read_is_none(wrong: Mapping[str, bytes]) -> None:
    good = {name: value for name, value in write(FIRST).items() if value is not None}
    assert read({**good, **wrong}) is None


async def test_a_token_is_good_for_its_own_webhook_and_caller_and_only_while_its_key_is_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changes: list[str] = []
    async with fake_api_server() as api:
        cluster = api.cluster()
        key = WebhookKey(cluster, "seedquota", on_change=lambda: changes.append(key.token("machines", "c1")))
        monkeypatch.setattr(webhook_token, "_now", lambda: now)

        def take(keys: TokenKeys) -> None:
            data = {name: value for name, value in token_rotation.write(keys).items() if value is not None}
            key._take({webhook_token.SEAL_KEY: b"s" * 32, **data})

        now = NOW
        assert not key.verify("machines", "c1", "")
        take(FIRST)
        first = key.token("machines", "c1")
        for kind, caller, right in (
            ("machines", "c1", True),
            ("machines", "c2", False),
            ("stamp", "c1", False),
            ("scale", "c1", False),
            ("clusters", "clusters", False),
        ):
            assert key.verify(kind, caller, first) is right
        assert not key.verify("machines", "c1", first.upper())
        assert not key.verify("machines", "c1", "\N{SNOWMAN}")

        staged = after(NOW + PERIOD, FIRST)
        take(staged)
        assert changes == [first], "tokens of the next key are accepted and not made"
        assert staged.next is not None
        assert key.verify("machines", "c1", webhook_token.token(staged.next[0], "machines", "c1"))

        now = NOW + PERIOD + LEARNING
        take(after(now, staged))
        assert changes == [first, webhook_token.token(staged.next[0], "machines", "c1")]
        assert key.verify("machines", "c1", first)
        now += OVERLAP
        assert not key.verify("machines", "c1", first), "nothing was read since"
        assert key.check_seal(b"stamp", webhook_token.seal(b"s" * 32, b"stamp")), "stamps outlive tokens"
