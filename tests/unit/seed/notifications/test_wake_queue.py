from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from common.kube.controller.events import Regarding
from common.quota.guarantees import Guarantee
from seed.accounts.snapshot import QuotaSnapshot
from seed.admission.types import Attempt
from seed.model.consumer import Consumer
from seed.notifications.wake_queue import REWAKE, SETTLE, UNSEEN, Room, Waiter, Waiting, room
from tests.unit.seed_world import nanos, quota_copy

LIMIT = "cpu=10"


def snapshot(
    *,
    limits: str = LIMIT,
    everywhere: str = "",
    here: str = "",
    held: str = "",
    surge: str = "",
    opened: bool = True,
    draining: bool = False,
) -> QuotaSnapshot:
    quota = quota_copy("q", limits=limits, surge=surge, usage=everywhere, draining=draining)
    return QuotaSnapshot(quota=quota, open=opened, granted=nanos(held), use=nanos(here))


def guaranteed(seen: QuotaSnapshot, hard: str, used: str = "") -> QuotaSnapshot:
    """... to project alpha."""
    given = (Guarantee(project="alpha", hard=nanos(hard), used=nanos(used)),)
    return msgspec.structs.replace(seen, quota=msgspec.structs.replace(seen.quota, guarantees=given))


class World:
    """MachineSets of one project with one quota."""

    def __init__(self, most: int = 1000) -> None:
        self.waiting = Waiting(most)
        self.now = 0.0

    def refused(
        self,
        uid: str,
        need: str = "cpu=1",
        *,
        final: bool = True,
        seen: QuotaSnapshot | None = None,
        server: str = "s",
        project: str = "alpha",
    ) -> None:
        regarding = Regarding(api_version="v", kind="MachineSet", namespace="ns", name=uid, uid=uid)
        attempts = [Attempt(snapshot=seen or snapshot(everywhere=LIMIT))]
        self.waiting.refused(server, regarding, Consumer(project), nanos(need), attempts, final=final, now=self.now)

    def refused_in_turn(self, many: int) -> None:
        """u0, u1 and so on, each a second after the one before it."""
        for number in range(many):
            self.now += 1
            self.refused(f"u{number}")

    def wake(self, seen: QuotaSnapshot, *, after: float = 0.0, more: Mapping[str, Room] | None = None) -> list[str]:
        return [waiter.regarding.uid for waiter in self.choose(seen, after=after, more=more)]

    def choose(
        self, seen: QuotaSnapshot, *, after: float = 0.0, more: Mapping[str, Room] | None = None
    ) -> Sequence[Waiter]:
        self.now += after
        rooms = {"q": room(seen), **(more or {})}
        self.choice = self.waiting.choose(lambda _consumer: list(rooms), rooms, self.now)
        return self.choice.woken


def test_as_many_are_woken_as_there_is_room_for_those_that_wait_longest_first() -> None:
    world = World()
    for number in range(300):
        world.refused(str(number))
        world.now += 0.01
    for number in reversed(range(300)):
        world.refused(str(number))  # who comes again keeps his place
    assert world.wake(snapshot(everywhere="cpu=7")) == ["0", "1", "2"]


def test_a_smaller_one_goes_ahead_of_one_that_there_is_no_room_for() -> None:
    world = World()
    world.refused("large", "cpu=4")
    world.refused("small", "cpu=1")
    assert world.wake(snapshot(everywhere="cpu=8")) == ["small"]
    assert world.wake(snapshot(everywhere="cpu=6"), after=REWAKE) == ["large"]


def test_nobody_is_woken_while_there_is_no_room() -> None:
    world = World()
    world.refused("a")
    assert world.wake(snapshot(everywhere=LIMIT), after=1000) == []
    assert world.choice.again is None


def test_every_quota_must_have_room_and_one_that_is_gone_limits_no_more() -> None:
    world = World()
    world.refused("a")
    full = {"organization": room(snapshot(everywhere=LIMIT))}
    assert world.wake(snapshot(), more=full) == []
    assert world.wake(snapshot()) == ["a"]


def test_what_this_seed_holds_is_room_whatever_the_master_showed_last() -> None:
    world = World()
    world.refused("a")
    assert world.wake(snapshot(everywhere=LIMIT, held="cpu=5", here="cpu=4")) == ["a"]


def test_an_account_that_does_not_admit_has_no_room() -> None:
    world = World()
    world.refused("a", final=False, seen=snapshot(opened=False))
    assert world.wake(snapshot(opened=False), after=UNSEEN) == []
    assert world.wake(snapshot()) == ["a"]


def test_what_is_guaranteed_to_one_project_is_no_room_for_another() -> None:
    world = World()
    world.refused("of-beta", project="beta")
    world.refused("of-alpha", project="alpha")
    kept = guaranteed(snapshot(everywhere="cpu=6"), hard="cpu=4")
    assert world.wake(kept) == ["of-alpha"], "beta would be refused again, and woken again, all the time"
    assert world.wake(guaranteed(snapshot(everywhere="cpu=6"), hard="cpu=4", used="cpu=1"), after=UNSEEN) == ["of-beta"]


def test_a_seed_that_drains_has_the_room_that_it_holds() -> None:
    world = World()
    world.refused("a")
    assert world.wake(snapshot(draining=True)) == []
    assert world.wake(snapshot(draining=True, held="cpu=1")) == ["a"]


def test_what_one_is_woken_for_is_not_promised_to_the_next_until_it_has_had_time_to_take_it() -> None:
    world = World()
    world.refused("a")
    world.refused("b")
    one = snapshot(everywhere="cpu=9")
    assert world.wake(one) == ["a"]
    assert world.wake(one, after=SETTLE / 2) == []
    assert world.choice.again == SETTLE
    assert world.wake(one, after=SETTLE / 2) == ["b"]
    assert len(world.waiting) == 1, "who was woken and not refused has what it waited for"


def test_once_its_machine_was_admitted_use_alone_tells_what_is_left() -> None:
    world = World()
    world.refused("a")
    world.refused("b")
    assert world.wake(snapshot(everywhere="cpu=9")) == ["a"]
    world.waiting.admitted("s", "a")
    assert world.wake(snapshot(everywhere="cpu=9"), after=0.1) == ["b"]


def test_who_was_woken_in_vain_rests_and_others_get_the_room() -> None:
    world = World()
    world.refused("a")
    world.refused("b")
    one = snapshot(everywhere="cpu=9")
    assert world.wake(one) == ["a"]
    world.now += 0.1
    world.refused("a")
    assert world.wake(one) == ["b"]
    assert world.wake(one, after=SETTLE) == []
    assert world.choice.again == REWAKE
    assert world.wake(one, after=REWAKE) == ["a"]


def test_who_could_not_be_decided_is_woken_by_more_room_or_after_a_while() -> None:
    free = snapshot(everywhere="cpu=5")  # free, and held by a seed out of reach
    world = World()
    world.refused("a", final=False, seen=free)
    assert world.wake(free, after=1.0) == []
    assert world.choice.again == UNSEEN
    assert world.wake(snapshot(everywhere="cpu=5", held="cpu=1")) == ["a"]
    world.now += 0.1
    world.refused("a", final=False, seen=free)
    assert world.wake(free, after=UNSEEN) == ["a"]


def test_a_rollout_is_woken_when_surge_comes_back_and_others_are_not_for_surge() -> None:
    full = "cpu=10,surge.cpu=2"
    world = World()
    world.refused("rollout", seen=snapshot(everywhere=full, surge="cpu=2"))
    world.refused("growth", seen=snapshot(everywhere="cpu=10", surge="cpu=2"))
    assert world.wake(snapshot(everywhere="cpu=10,surge.cpu=1", surge="cpu=2")) == ["rollout"]


def test_a_rollout_is_woken_once_nothing_is_used_beyond_what_is_held() -> None:
    """Though there was surge all the time."""
    world = World()
    beyond = snapshot(
        everywhere="cpu=11,surge.cpu=1", here="cpu=11,surge.cpu=1", held="cpu=10,surge.cpu=2", surge="cpu=2"
    )
    world.refused("rollout", seen=beyond)
    assert world.wake(beyond, after=1000) == []
    within = snapshot(everywhere="cpu=10", here="cpu=10", held="cpu=10,surge.cpu=2", surge="cpu=2")
    assert world.wake(within) == ["rollout"]


def test_it_keeps_no_more_than_it_may_and_drops_who_was_not_refused_for_longest() -> None:
    world = World(most=2)
    for uid in ("a", "b", "a", "c"):
        world.refused(uid)
        world.now += 1
    assert world.waiting.dropped == 1
    assert world.wake(snapshot()) == ["a", "c"]


def test_a_cluster_with_very_many_pushes_out_its_own_and_none_of_another() -> None:
    """Whoever creates a Machine chooses the uid of its owner."""
    world = World(most=10)
    world.refused("quiet", server="other")
    world.refused_in_turn(100)
    assert world.wake(snapshot())[0] == "quiet"
    assert len(world.waiting) <= 10


def test_of_very_many_several_are_dropped_at_once_since_that_takes_a_look_at_all() -> None:
    world = World(most=640)
    world.refused("quiet", server="other")
    world.refused_in_turn(640)
    assert world.waiting.dropped == 10
    left = world.wake(snapshot(limits="cpu=1000"))
    assert left[:2] == ["quiet", "u10"]


def test_who_is_gone_or_has_all_its_machines_is_dropped_and_so_is_a_whole_cluster() -> None:
    world = World()
    world.refused("a")
    world.refused("b")
    for waiter in world.choose(snapshot(everywhere="cpu=9")):
        world.waiting.drop(waiter)
    assert world.wake(snapshot(everywhere="cpu=9")) == ["b"]
    world.waiting.forget("s")
    assert len(world.waiting) == 0 and world.waiting.consumers == set()


def test_a_namespace_with_very_many_pushes_out_its_own_and_none_of_another() -> None:
    waiting = Waiting(10)

    def refused(name: str, namespace: str, now: float) -> None:
        regarding = Regarding(api_version="apps/v1", kind="ReplicaSet", namespace=namespace, name=name, uid=name)
        attempts = [Attempt(snapshot=snapshot(everywhere=LIMIT))]
        shares = {"q": nanos("cpu=1")}
        waiting.refused("s", regarding, Consumer("seed"), nanos("cpu=1"), attempts, final=True, now=now, shares=shares)

    refused("quiet", "web", 0.0)
    for number in range(50):
        refused(f"loud-{number}", "flood", 1.0 + number)
    assert waiting.dropped == 41
    free = {"q": room(snapshot(everywhere="cpu=9"))}
    woken = waiting.choose(lambda _consumer: [], free, 100.0).woken
    assert [waiter.regarding.name for waiter in woken] == ["quiet"], "the longest waiting, and as many as fit"
