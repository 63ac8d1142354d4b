from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from common.quota.account import Account, AccountKey, Ask, Reservation
from seed.ledger.encoding import Encoder, decode, parse_reservation, reservation_text

names = st.text(max_size=20)
resource_names = st.sampled_from(["cpu", "memory", "storage", "nvidia.com/gpu"]) | names
amounts = st.integers(0, 10**27)
lists = st.dictionaries(resource_names, amounts, max_size=4)
reservations = st.builds(
    Reservation,
    source=names,
    object=names,
    amount=lists,
    generation=st.integers(0, 2**53),
    earlier=lists,
    claims=st.integers(1, 10**6),
    replaces=names,
    request=names,
    base=lists,
    late=st.booleans(),
    tenant=names,
)
small = st.integers(0, 2**53)
accounts = st.builds(
    Account,
    incarnation=names,
    master=names,
    sequence=small,
    epoch=small,
    nonce=names,
    granted=lists,
    returned=lists,
    used=st.dictionaries(names, lists, max_size=3),
    reserved=lists,
    reservations=st.dictionaries(names, reservations, max_size=5).map(
        lambda by_uid: {(kept.source, uid): kept for uid, kept in by_uid.items()}
    ),
    ask=st.builds(Ask, number=small, first=lists, wanted=lists),
    held_back=st.lists(names, max_size=3).map(tuple),
    owners=st.dictionaries(names, names, max_size=3),
)


class Body(msgspec.Struct):
    account: msgspec.Raw


@given(st.lists(accounts, min_size=1, max_size=3))
def test_what_an_encoder_writes_decodes_to_the_same_account(written: list[Account]) -> None:
    encoder = Encoder(AccountKey(uid="u", name="q"), "seedquota")
    for account in written:
        body = msgspec.json.decode(encoder.encode(account, "1"), type=Body)
        assert decode(body.account) == account


@given(reservations)
def test_a_reservations_line_has_four_words_whatever_its_names(reservation: Reservation) -> None:
    line = reservation_text(reservation)
    assert len(line.split(" ")) == 4
    assert line.isascii()
    assert parse_reservation(line) == reservation
