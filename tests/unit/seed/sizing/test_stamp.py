"""A stamp can be read by anybody, written by nobody but us, and is good for one spec in one cluster."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.quota.quantity import UNIT
from seed.machines.machine_controller import FOOTPRINT_ANNOTATION as ANNOTATION
from seed.machines.machine_controller import Machine
from seed.providers.size import Footprint
from seed.registration.token import seal as sealed_with
from seed.registration.token import token
from seed.sizing import stamp
from seed.sizing.stamp import State

KEY = b"k" * 32
COST = Footprint("aws", {"cpu": 2 * UNIT, "memory": 8 * 2**30 * UNIT, "machines": UNIT}, {"storage": "who knows"})


def seal(text: bytes) -> str:
    return sealed_with(KEY, text)


def check(text: bytes, given: str) -> bool:
    return seal(text) == given


def machine(text: str | None = None, spec: object = "m5.large") -> Machine:
    body = {
        "metadata": {"name": "m", "annotations": {} if text is None else {ANNOTATION: text}},
        "spec": {"providerSpec": {"value": {"type": spec, "a": 1}}},
    }
    return msgspec.json.decode(msgspec.json.encode(body), type=Machine)


def stamped(cost: Footprint = COST, cluster: str = "c1", spec: object = "m5.large") -> str:
    return stamp.make(machine(spec=spec), cluster, cost, "m5.large", "2026-11-21T08:00:00Z", seal)


def read(text: str | None, cluster: str = "c1", spec: object = "m5.large") -> State:
    return stamp.read(machine(text, spec), cluster, check)[0]


def test_a_stamp_tells_the_cost_and_how_it_was_found() -> None:
    state, found = stamp.read(machine(stamped()), "c1", check)
    assert state is State.VALID
    assert found is not None
    assert found.cost() == COST.of_type("m5.large")
    assert (found.provider, found.flavour, found.as_of) == ("aws", "m5.large", "2026-11-21T08:00:00Z")
    assert found.footprint == {"cpu": "2", "memory": "8Gi", "machines": "1"}


@pytest.mark.parametrize(
    ("cost", "machines"),
    [(COST, 1), (COST.times(3), 3), (COST.of_type("m5.large"), 1), (Footprint("aws", {"cpu": UNIT}), 1)],
)
def test_the_type_is_counted_also_of_stamps_from_before_that_was(cost: Footprint, machines: int) -> None:
    found = stamp.read(machine(stamped(cost)), "c1", check)[1]
    assert found is not None and "instances.m5.large" not in found.footprint
    assert found.cost().resources["instances.m5.large"] == machines * UNIT


def test_it_is_good_for_its_own_spec_and_cluster_only() -> None:
    assert read(stamped(), spec="m5.24xlarge") is State.OTHER
    assert read(stamped(), cluster="c2") is State.OTHER
    assert read(None) is State.ABSENT


def test_how_an_api_server_writes_the_spec_does_not_matter() -> None:
    text = stamped()
    again = msgspec.json.decode(
        b'{"metadata": {"annotations": {"seedquota.io/footprint": %s}},'
        b' "spec": {"providerSpec": { "value" : {"a": 1, "type": "m5.\\u006carge"}}}}' % msgspec.json.encode(text),
        type=Machine,
    )
    assert stamp.read(again, "c1", check)[0] is State.VALID


@pytest.mark.parametrize("part", ["footprint", "unknown", "provider", "flavour", "asOf", "cluster", "spec", "seal"])
def test_every_part_is_sealed(part: str) -> None:
    fields = msgspec.json.decode(stamped())
    fields[part] = {"cpu": "1"} if isinstance(fields[part], dict) else "0" + fields[part][1:] + "0"
    assert read(msgspec.json.encode(fields).decode()) is State.FORGED


@pytest.mark.parametrize("text", ["", "{}", "null", "[]", "cpu=1", "x" * 10_000, '{"footprint":{"cpu":"many"}}'])
def test_what_is_no_stamp_is_forged(text: str) -> None:
    assert read(text) is State.FORGED


@given(st.text(max_size=200))
def test_no_text_is_read_as_a_stamp(text: str) -> None:
    assert read(text) is State.FORGED


def test_the_token_of_a_webhook_seals_nothing() -> None:
    """A tenant can read its own tokens. They are made with another key; it would not help if it were the same."""
    fields = msgspec.json.decode(stamped())
    unsealed = {name: value for name, value in fields.items() if name != "seal"}
    text = msgspec.json.encode(unsealed, order="sorted")
    for forged in (
        token(KEY, "machines", text.decode()),
        token(KEY, "footprint", text.decode()),
        token(KEY, "machines", "c1"),
    ):
        assert read(msgspec.json.encode({**unsealed, "seal": forged}).decode()) is State.FORGED


OTHER_COST = Footprint("aws", {"cpu": UNIT, "machines": UNIT})


@pytest.mark.parametrize(
    ("new", "old", "tampered"),
    [
        (None, None, False),
        (stamped(), None, False),
        ("forged", None, True),
        ("forged", "forged", False),  # it was there before: the key may be a new one
        ("forged", stamped(), True),
        (None, stamped(), False),
        (stamped(OTHER_COST), stamped(), True),  # one of ours, but another size of the same Machine
        (stamped(cluster="c2"), stamped(), False),  # not valid here: it is sized anew
        (stamped(), None, False),
    ],
)
def test_what_users_may_do_with_it(new: str | None, old: str | None, tampered: bool) -> None:
    assert stamp.tampered(machine(new), machine(old), "c1", check) is tampered


@pytest.mark.parametrize(("text", "tampered"), [(None, False), (stamped(), False), ("forged", True)])
def test_what_users_may_create(text: str | None, tampered: bool) -> None:
    assert stamp.tampered(machine(text), None, "c1", check) is tampered


def test_nothing_of_a_huge_spec_is_kept() -> None:
    before = stamp._shared_hash.cache_info()
    assert len(stamp.spec_hash(machine(spec="x" * 20_000))) == 32
    assert stamp._shared_hash.cache_info() == before
