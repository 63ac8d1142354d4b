from __future__ import annotations

import asyncio
import time

import msgspec
import pytest

from common.kube.client.errors import NotFound
from common.kube.controller import leader_election as module
from common.kube.controller.leader_election import LEASES, SINCE_ANNOTATION, WRITES_ANNOTATION, Lease, LeaseLost, Term
from common.runtime.own_loop import OwnLoop
from tests.clock import Clock
from tests.running import running
from tests.unit.fake_api_server import eventually, fake_api_server, status, within

LOOPS = {}  # on which a cluster was made


@pytest.fixture
async def fake():
    async with fake_api_server() as server:
        yield server


@pytest.fixture(params=["the program's loop", "a loop of its own"])
async def own_loop(request):
    loop = OwnLoop("lease") if request.param == "a loop of its own" else None
    yield loop
    if loop is not None:
        await loop.close()


@pytest.fixture
async def cluster(fake, own_loop):
    async def make():
        return fake.cluster()

    made = await (make() if own_loop is None else own_loop.run(make()))
    LOOPS[made] = own_loop
    yield made
    del LOOPS[made]
    await (made.close() if own_loop is None else own_loop.run(made.close()))


@pytest.fixture
def clock():
    return Clock()


def candidate(cluster, identity, clock):
    return Lease(cluster, "ns", "leader", identity, retry=0.01, clock=clock, loop=LOOPS[cluster])


def record(fake):
    return fake.objects["leases", "ns", "leader"]["spec"]


def writes(fake):
    return int(fake.objects["leases", "ns", "leader"]["metadata"]["annotations"][WRITES_ANNOTATION])


async def test_the_first_holder_creates_the_lease_and_renews_it(fake, cluster, clock):
    lease = candidate(cluster, "a", clock)
    assert not lease.held
    async with lease.hold() as term:
        assert term == Term(1, previous_holder="", was_expired=False, created=True, continuous=False, since=1)
        assert lease.held and not lease.lost.is_set()
        first = dict(record(fake))
        assert first["holderIdentity"] == "a" and first["leaseDurationSeconds"] == 15
        await eventually(lambda: record(fake)["renewTime"] != first["renewTime"])
        assert record(fake)["acquireTime"] == first["acquireTime"] and record(fake)["leaseTransitions"] == 1
        assert len(first["renewTime"]) == len("2024-01-01T00:00:00.000000Z") and first["renewTime"].endswith("Z")
    assert not lease.held and lease.lost.is_set()
    assert record(fake)["holderIdentity"] == "" and record(fake)["leaseTransitions"] == 1


async def test_a_released_lease_is_taken_at_once_and_every_acquisition_has_a_greater_term(fake, cluster, clock):
    a, b = candidate(cluster, "a", clock), candidate(cluster, "b", clock)
    terms = []
    for lease in (a, b, a, a):
        async with lease.hold() as term:
            terms.append((term.number, term.previous_holder, term.was_expired, term.created))
    assert terms == [(1, "", False, True), (2, "", False, False), (3, "", False, False), (4, "", False, False)]


async def test_another_waits_for_the_whole_duration_by_its_own_clock(fake, cluster, clock):
    await fake.put("leases", "ns", "leader", spec={"holderIdentity": "dead", "leaseDurationSeconds": 20})
    lease = candidate(cluster, "b", clock)
    taking = asyncio.create_task(lease.acquire())
    await eventually(lambda: fake.count("GET", "leases") > 2)
    clock.now += 19.9
    seen = fake.count("GET", "leases")
    await eventually(lambda: fake.count("GET", "leases") > seen + 2)
    assert not taking.done()
    clock.now += 0.2
    term = await asyncio.wait_for(taking, 30)
    assert term == Term(1, previous_holder="dead", was_expired=True, created=False, continuous=False, since=1)
    await lease.release()


async def test_a_record_that_changes_is_never_taken_however_old_its_times_are(fake, cluster, clock):
    lease = candidate(cluster, "b", clock)
    async with running(lease.acquire()) as (taking,):
        for number in range(5):
            old = f"1999-01-01T00:00:0{number}.000000Z"
            await fake.put("leases", "ns", "leader", spec={"holderIdentity": "alive", "renewTime": old})
            seen = fake.count("GET", "leases")
            await eventually(lambda seen=seen: fake.count("GET", "leases") > seen + 1)
            clock.now += 14
        assert not taking.done()


async def test_a_holder_that_cannot_renew_loses_it_before_another_may_take_it(fake, cluster, clock):
    lease = candidate(cluster, "a", clock)
    await lease.acquire()

    async def broken(_request):
        return status(500, "InternalError", "etcd is away")

    fake.answers += [broken] * 1000
    await eventually(lambda: lease.error)
    clock.now += 9.9
    assert lease.held
    clock.now += 0.2
    assert not lease.held, "the clock alone decides, even before the renewal notices"
    await asyncio.wait_for(lease.lost.wait(), 30)
    fake.answers.clear()
    writes = fake.count("PUT", "leases")
    await lease.release()
    assert fake.count("PUT", "leases") == writes, "what may belong to another is not touched"


async def test_who_lost_it_to_nobody_goes_on_with_the_same_term(fake, cluster, clock):
    lease = candidate(cluster, "a", clock)
    assert (await lease.acquire()).number == 1
    clock.now += 10.1  # it was not renewed
    await asyncio.wait_for(lease.lost.wait(), 30)
    await lease.release()
    term = await lease.acquire()
    assert (term.number, term.continuous, lease.held) == (1, True, True)
    await lease.release()


async def test_who_lost_sight_of_it_or_lost_it_to_another_begins_another_term(fake, cluster, clock):
    lease = candidate(cluster, "a", clock)
    await lease.acquire()
    clock.now += 15.1
    await asyncio.wait_for(lease.lost.wait(), 30)
    await lease.release()
    term = await lease.acquire()
    assert (term.number, term.continuous) == (2, False)
    clock.now += 10.1
    await asyncio.wait_for(lease.lost.wait(), 30)
    await lease.release()
    await renewed(fake, {"holderIdentity": "a", "leaseTransitions": 3}, writes=99)  # under the same name
    term = await lease.acquire()
    assert (term.number, term.continuous) == (4, True)
    await lease.release()


async def test_a_renewal_that_hangs_does_not_outlive_the_deadline(fake, cluster):
    lease = Lease(cluster, "ns", "leader", "a", duration=1, renew_deadline=0.3, retry=0.05, loop=LOOPS[cluster])
    await lease.acquire()

    async def hang(_request):
        await asyncio.sleep(60)

    fake.answers += [hang] * 10
    async with within(0.6):
        await lease.lost.wait()
    assert not lease.held
    await lease.release()


async def test_a_lease_taken_or_deleted_by_others_is_lost_at_once(fake, cluster, clock, caplog):
    for number, change in enumerate(("taken", "released", "own identity", "deleted"), start=1):
        lease = candidate(cluster, "a", clock)
        term = await lease.acquire()
        if change == "deleted":
            await fake.remove("leases", "ns", "leader")
        else:
            holder = {"taken": "b", "released": "", "own identity": "a"}[change]
            spec = {"holderIdentity": holder, "leaseTransitions": term.number + 10}
            await fake.put("leases", "ns", "leader", spec=spec)
        await asyncio.wait_for(lease.lost.wait(), 30)
        await lease.release()
        assert len(caplog.records) == number
        clock.now += 1
        if change != "deleted":
            await fake.remove("leases", "ns", "leader")
    assert [r.error for r in caplog.records] == [
        "held by b",
        "held by nobody",
        "another process took it under our identity",
        "the Lease object is gone",
    ]


async def test_a_touched_object_or_an_unheard_answer_costs_nothing(fake, cluster, clock):
    lease = candidate(cluster, "a", clock)
    await lease.acquire()
    for _ in range(3):
        found = fake.objects["leases", "ns", "leader"]
        kept = {"annotations": dict(found["metadata"]["annotations"])}
        await fake.put("leases", "ns", "leader", spec=dict(found["spec"]), metadata=kept)  # only the version changes
        version = fake.objects["leases", "ns", "leader"]["metadata"]["resourceVersion"]
        await eventually(lambda v=version: fake.objects["leases", "ns", "leader"]["metadata"]["resourceVersion"] != v)
    assert lease.held
    await lease.release()
    assert record(fake)["holderIdentity"] == ""


async def test_a_predecessor_with_our_identity_is_not_waited_for(fake, cluster, clock):
    await fake.put("leases", "ns", "leader", spec={"holderIdentity": "a", "leaseTransitions": 7})
    lease = candidate(cluster, "a", clock)
    term = await asyncio.wait_for(lease.acquire(), 30)
    assert term == Term(8, previous_holder="a", was_expired=False, created=False, continuous=False, since=8)
    await lease.release()


async def test_the_term_can_be_raised_above_one_seen_elsewhere(fake, cluster, clock):
    lease = candidate(cluster, "a", clock)
    with pytest.raises(LeaseLost):
        await lease.raise_term(5)
    await lease.acquire()
    assert await lease.raise_term(41) == 42 and record(fake)["leaseTransitions"] == 42
    assert await lease.raise_term(10) == 42
    renewed = record(fake)["renewTime"]
    await eventually(lambda: record(fake)["renewTime"] != renewed)
    assert record(fake)["leaseTransitions"] == 42 and lease.held
    await lease.release()


async def test_two_that_start_together_are_never_both_leader(fake, cluster, clock):
    leaders, most, turns = 0, 0, 0

    async def compete(identity):
        nonlocal leaders, most, turns
        lease = candidate(cluster, identity, clock)
        while turns < 12:
            async with lease.hold():
                leaders += 1
                most = max(most, leaders)
                await asyncio.sleep(0.005)
                leaders -= 1
                turns += 1

    await asyncio.wait_for(asyncio.gather(*(compete(identity) for identity in "abc")), 60)
    assert most == 1 and record(fake)["leaseTransitions"] == turns


async def test_an_unreachable_server_is_waited_for_and_explained(fake, cluster, clock, caplog):
    async def broken(_request):
        return status(503, "ServiceUnavailable", "starting")

    fake.answers += [broken] * 5
    lease = candidate(cluster, "a", clock)
    taking = asyncio.create_task(lease.acquire())
    await eventually(lambda: lease.error and "starting" in lease.error)
    await asyncio.wait_for(taking, 30)
    assert lease.error is None and len(caplog.records) == 1
    with pytest.raises(RuntimeError, match="held already"):
        await lease.acquire()
    await lease.release()


@pytest.mark.parametrize("times", [{"retry": 11}, {"renew_deadline": 15.0}, {"retry": 0.0}])
async def test_times_that_cannot_be_safe_are_refused(cluster, times):
    with pytest.raises(ValueError, match="0 < retry < renew_deadline < duration"):
        Lease(cluster, "ns", "leader", "a", **times)


async def test_a_release_that_fails_is_left_to_expire(fake, cluster, clock, monkeypatch):
    monkeypatch.setattr(module, "RELEASE_TIMEOUT", 0.05)
    lease = Lease(cluster, "ns", "leader", "a", clock=clock, loop=LOOPS[cluster])
    await lease.acquire()

    async def hang(_request):
        await asyncio.sleep(60)

    fake.answers += [hang] * 3
    async with within(1):
        await lease.release()
    assert record(fake)["holderIdentity"] == "a" and lease.lost.is_set()


@pytest.mark.parametrize("own_loop", ["the program's loop"], indirect=True)
async def test_the_lease_is_read_as_client_go_writes_it(fake, cluster):
    spec = {
        "holderIdentity": "pod_9f",
        "leaseDurationSeconds": 15,
        "acquireTime": "2024-05-01T10:00:00.123456Z",
        "renewTime": "2024-05-01T10:00:02.000000Z",
        "leaseTransitions": 3,
    }
    await fake.put("leases", "ns", "leader", spec=spec)
    read = await cluster.get(LEASES, "leader", "ns")
    assert (read.spec.holder_identity, read.spec.lease_transitions) == ("pod_9f", 3)
    with pytest.raises(NotFound):
        await cluster.get(LEASES, "other", "ns")


async def renewed(fake, spec, writes):
    found = fake.objects["leases", "ns", "leader"]
    await fake.put(
        "leases",
        "ns",
        "leader",
        spec={**found["spec"], **spec},
        metadata={"annotations": {**found["metadata"].get("annotations", {}), WRITES_ANNOTATION: str(writes)}},
    )


async def test_who_watched_a_live_holder_takes_over_without_a_cold_start(fake, cluster, clock):
    async with candidate(cluster, "a", clock).hold():
        follower = candidate(cluster, "b", clock)
        taking = asyncio.create_task(follower.acquire())
        await eventually(lambda: follower.trusted == 1)
    assert (await asyncio.wait_for(taking, 30)).continuous
    await follower.release()


async def test_a_run_of_terms_keeps_its_beginning_and_whether_its_doubts_are_settled(fake, cluster, clock):
    first, second = candidate(cluster, "a", clock), candidate(cluster, "b", clock)
    await fake.put("leases", "ns", "leader", spec={"leaseTransitions": 6})
    terms = []
    for leader, follower, settles in ((first, second, False), (second, first, True), (first, second, False)):
        async with leader.hold() as term:
            terms.append((term.number, term.since, term.settled, term.continuous))
            if settles:
                leader.settle()
                seen = writes(fake)
                await eventually(lambda: writes(fake) > seen + 1)  # noqa: B023 (awaited here)
            async with running(follower.acquire()):
                await eventually(lambda: follower.trusted is not None)  # noqa: B023
    assert terms == [(7, 7, False, False), (8, 7, False, True), (9, 7, True, True)]
    clock.now += 15.1  # nobody looked for that long: another run
    async with second.hold() as term:
        assert (term.number, term.since, term.settled) == (10, 10, False)


async def test_a_term_that_was_raised_begins_another_run_for_those_who_come_after(fake, cluster, clock):
    lease = candidate(cluster, "a", clock)
    await lease.acquire()
    lease.settle()
    await lease.raise_term(41)
    await lease.release()
    async with lease.hold() as term:
        assert (term.number, term.since, term.settled, term.continuous) == (43, 42, False, True)


async def test_a_record_without_the_beginning_of_its_run_means_a_cold_start(fake, cluster, clock):
    lease = candidate(cluster, "a", clock)
    async with lease.hold():
        pass
    del fake.objects["leases", "ns", "leader"]["metadata"]["annotations"][SINCE_ANNOTATION]
    async with lease.hold() as term:
        assert (term.since, term.continuous, lease.trusted) == (2, False, 2)


async def test_a_record_that_nobody_was_seen_to_renew_means_a_cold_start(fake, cluster, clock):
    async with candidate(cluster, "a", clock).hold():
        pass
    lease = candidate(cluster, "b", clock)
    term = await lease.acquire()
    assert not term.continuous and lease.trusted == term.number == 2
    await lease.release()
    assert (await lease.acquire()).continuous  # it was here all the time
    await lease.release()
    clock.now += 15.1
    assert not (await lease.acquire()).continuous  # not so now
    await lease.release()


async def test_a_record_that_goes_back_to_an_older_state_ends_the_term_and_all_trust(fake, cluster, clock):
    lease = candidate(cluster, "a", clock)
    await lease.acquire()
    early = dict(record(fake))
    await eventually(lambda: writes(fake) > 4)
    await renewed(fake, early, writes=2)
    await asyncio.wait_for(lease.lost.wait(), 30)
    assert lease.trusted is None
    await lease.release()
    assert not (await lease.acquire()).continuous
    await lease.release()


async def test_a_follower_trusts_nothing_after_the_record_went_back_until_it_grows_again(fake, cluster, clock):
    await fake.put("leases", "ns", "leader", spec={"holderIdentity": "a", "leaseTransitions": 7})
    follower = candidate(cluster, "b", clock)
    async with running(follower.acquire()):
        await eventually(lambda: fake.count("GET", "leases") > 1)
        for writes, trusted in ((5, 7), (6, 7), (3, None), (4, 7)):
            await renewed(fake, {"renewTime": f"1999-01-01T00:00:0{writes}.000000Z"}, writes)
            await eventually(lambda trusted=trusted: follower.trusted == trusted)


async def test_a_lease_that_is_released_is_taken_within_a_second_however_seldom_it_is_renewed(fake, cluster):
    first, second = (Lease(cluster, "ns", "leader", identity, retry=4.0, loop=LOOPS[cluster]) for identity in "ab")
    await first.acquire()
    waiting = asyncio.create_task(second.acquire())
    reads = len(fake.requests)
    await eventually(lambda: len(fake.requests) > reads)  # it has looked, and waits
    await first.release()
    async with within(1.6):  # at the pace of renewals it would look again after 3.2 s or more
        term = await waiting
    assert term.number == 2
    await second.release()


async def test_notes_are_written_with_the_next_renewal_and_what_others_wrote_is_read_with_it(fake, cluster, clock):
    lease = candidate(cluster, "a", clock)
    assert lease.annotations == {}
    await lease.acquire()
    found = fake.objects["leases", "ns", "leader"]
    annotations = {**found["metadata"]["annotations"], "example.com/asked": "x"}
    await fake.put("leases", "ns", "leader", spec=dict(found["spec"]), metadata={"annotations": annotations})
    await eventually(lambda: lease.annotations.get("example.com/asked") == "x")
    lease.notes["example.com/answered"] = "y"
    stored = fake.objects
    await eventually(
        lambda: stored["leases", "ns", "leader"]["metadata"]["annotations"].get("example.com/answered") == "y"
    )
    assert stored["leases", "ns", "leader"]["metadata"]["annotations"]["example.com/asked"] == "x" and lease.held
    other = candidate(cluster, "b", clock)
    async with running(other.acquire()):
        await eventually(lambda: other.seen.get("example.com/answered") == "y")
        assert other.annotations == {}, "it holds nothing, and sees the record all the same"
    await lease.release()
    assert lease.annotations == {}


class InMemory:
    """An API server that answers at once, to whichever loop asks."""

    def __init__(self) -> None:
        self.stored = {}
        self.renewed = 0

    name = "memory"

    async def get(self, _resource, name, _namespace):
        if name not in self.stored:
            raise NotFound(404, "NotFound", "")
        return self.stored[name]

    async def create(self, _resource, body):
        return self._keep(body, "uid")

    async def replace(self, _resource, body):
        self.renewed += 1
        return self._keep(body, body.metadata.uid)

    def _keep(self, body, uid):
        body = msgspec.structs.replace(body, metadata=msgspec.structs.replace(body.metadata, uid=uid))
        self.stored[body.metadata.name] = body
        return body


async def test_a_lease_with_a_loop_of_its_own_is_held_however_long_the_programs_loop_is_busy():
    """The deadline of the lease on its own loop is long only for machines that are busy: it is seen to be renewed."""
    cluster, loop = InMemory(), OwnLoop("lease")
    own = Lease(cluster, "ns", "own", "a", duration=120, renew_deadline=60.0, retry=0.05, loop=loop)
    shared = Lease(InMemory(), "ns", "shared", "a", duration=2, renew_deadline=1.0, retry=0.05)
    async with own.hold(), shared.hold():
        before, until = cluster.renewed, time.monotonic() + 60
        while (shared.held or cluster.renewed < before + 5) and time.monotonic() < until:
            pass
        assert own.held and not shared.held and cluster.renewed >= before + 5
    assert cluster.stored["own"].spec.holder_identity == ""
    await loop.close()


async def test_what_is_cancelled_on_another_loop_has_ended_when_that_returns():
    loop, told = OwnLoop("other"), []

    async def work():
        try:
            told.append("began")
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            told.append("ended")

    running = asyncio.create_task(loop.run(work()))
    await eventually(lambda: told == ["began"])
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert told == ["began", "ended"]
    with pytest.raises(ZeroDivisionError):
        await loop.run(divide())
    await loop.close()


async def divide():
    return 1 / 0
