"""The keys of the callers' tokens, and when one follows another. Pure.

A new key is written as `next`, and every replica accepts its tokens. Once each replica must have read it, it becomes
`current`: the webhook configurations get its tokens. The key before it, `previous`, is accepted for
a while.

Without a current key, as after somebody deleted the Secret, one is made and used at once, and the key before it is
accepted for a short time only: for tokens that leaked. A replica that has not read the new key yet refuses its tokens
for that moment.

The clock is the wall clock, since times are in the Secret. Clocks that differ make a key's life shorter or longer.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta

import msgspec

KEY_BYTES = 32
PERIOD = timedelta(days=7)  # a key makes tokens
LEARNING = timedelta(minutes=5)  # ... after every replica has had so long to read it
OVERLAP = timedelta(days=1)  # ... and is accepted for so much longer: a user cluster may be out of reach
OVERLAP_AT_ONCE = timedelta(minutes=1)

CURRENT, SINCE = "token-key", "token-key-since"
NEXT, NEXT_FROM = "next-token-key", "next-token-key-from"
PREVIOUS, PREVIOUS_UNTIL = "previous-token-key", "previous-token-key-until"


class TokenKeys(msgspec.Struct, frozen=True, kw_only=True):
    """`next` and `previous` are each with their time, or None."""

    current: bytes
    since: datetime
    next: tuple[bytes, datetime] | None = None
    previous: tuple[bytes, datetime] | None = None

    def accepted(self, now: datetime) -> Iterator[bytes]:
        yield self.current
        if self.next is not None:
            yield self.next[0]
        if self.previous is not None and now < self.previous[1]:
            yield self.previous[0]


def read(data: Mapping[str, bytes]) -> TokenKeys | None:
    """None where there is no usable current key."""
    current = _dated(data, CURRENT, SINCE)
    if current is None:
        return None
    return TokenKeys(
        current=current[0],
        since=current[1],
        next=_dated(data, NEXT, NEXT_FROM),
        previous=_dated(data, PREVIOUS, PREVIOUS_UNTIL),
    )


def write(keys: TokenKeys) -> dict[str, bytes | None]:
    """Every field; None where there must be none."""
    following, previous = keys.next, keys.previous
    return {
        CURRENT: keys.current,
        SINCE: _text(keys.since),
        NEXT: following[0] if following is not None else None,
        NEXT_FROM: _text(following[1]) if following is not None else None,
        PREVIOUS: previous[0] if previous is not None else None,
        PREVIOUS_UNTIL: _text(previous[1]) if previous is not None else None,
    }


def decide(now: datetime, keys: TokenKeys | None, known: TokenKeys | None) -> tuple[TokenKeys, str] | None:
    """What must be there and why; None if it is. `keys`: what is there; `known`: what this replica read before."""
    fresh = secrets.token_bytes(KEY_BYTES)
    if keys is None:
        if known is None:
            return TokenKeys(current=fresh, since=now), "there was no key for tokens"
        previous = (known.current, now + OVERLAP_AT_ONCE)
        return TokenKeys(current=fresh, since=now, previous=previous), "the key for tokens was removed"
    if keys.next is not None and now >= keys.next[1]:
        previous = (keys.current, now + OVERLAP)
        return TokenKeys(current=keys.next[0], since=now, previous=previous), "the next key for tokens is in use"
    if keys.previous is not None and now >= keys.previous[1]:
        return msgspec.structs.replace(keys, previous=None), "the former key for tokens is not accepted any more"
    if keys.next is None and now >= keys.since + PERIOD:
        return msgspec.structs.replace(keys, next=(fresh, now + LEARNING)), "the next key for tokens was made"
    return None


def _dated(data: Mapping[str, bytes], key: str, time: str) -> tuple[bytes, datetime] | None:
    value = data.get(key, b"")
    try:
        when = datetime.fromisoformat(data.get(time, b"").decode())
    except (ValueError, UnicodeDecodeError):
        return None
    if len(value) < KEY_BYTES or when.tzinfo is None:
        return None
    return value, when


def _text(time: datetime) -> bytes:
    return time.isoformat(timespec="seconds").encode()
