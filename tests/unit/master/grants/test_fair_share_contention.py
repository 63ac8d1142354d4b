"""Seeds and the last units: how full it gets, what it costs in messages, and who waits how long.

Deterministic: times are those of a simulated clock, on which a message takes 10 ms. `pytest -rP` shows the figures.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from common.quota import resources
from master.grants.allocation_state import SeedDemand
from master.grants.fair_share import Allotment
from tests.unit.allotment_world import PATIENCE, World

SIZES = [{"cpu": cpu, "memory": 4 * cpu} for cpu in (1, 2, 4, 8, 16)]
SMALLEST = SIZES[0]
HOUR = 3_600_000


def contend(number: int, *, seeds: int, steps: int) -> World:
    """Machines come and go everywhere while the quota is nearly full all the time."""
    chance = random.Random(number)
    limits = {"cpu": 64 * seeds, "memory": 256 * seeds}
    world = World(limits, [f"seed-{n}" for n in range(seeds)])
    names = list(world.seeds)
    for _ in range(steps):
        room = resources.subtract(limits, world.use)
        seed = world.seeds[chance.choice(names)]
        if seed.machines and room["cpu"] < 8 and chance.random() < 0.5:
            world.delete(seed.name, chance.choice(list(seed.machines)))
        else:
            world.create(seed.name, chance.choice(SIZES))
        world.run(chance.choice((1, 5, 20, 60)))
    world.run(3 * PATIENCE)
    return world


def fill(world: World) -> None:
    """Every seed wants the last units, all at the same time, until each was refused."""
    refused: set[str] = set()
    while len(refused) < len(world.seeds):
        before = {name: len(seed.machines) for name, seed in world.seeds.items()}
        for name in sorted(world.seeds.keys() - refused):
            world.create(name, SMALLEST)
        world.run(PATIENCE)
        refused |= {name for name, seed in world.seeds.items() if len(seed.machines) == before[name]}


@pytest.mark.parametrize("number", range(4))
def test_four_seeds_share_the_last_units(number: int) -> None:
    world = contend(number, seeds=4, steps=1000)
    decided = world.admitted + world.refused
    print(
        f"{world.admitted} admitted, {world.refused} refused, "
        f"{world.messages / decided:.2f} messages and {world.asks / decided:.2f} asks for each, "
        f"longest wait {world.longest_wait} ms",
    )
    assert world.late == world.closed == 0
    assert world.longest_wait < PATIENCE // 5
    assert world.messages <= 2 * decided
    fill(world)
    print(f"filled {world.use['cpu']} of {world.limits['cpu']} cpu")
    assert world.late == world.closed == 0
    assert world.use == world.limits


def test_messages_for_each_machine_do_not_grow_with_the_number_of_seeds() -> None:
    cost = {}
    for seeds in (2, 8, 32):
        world = contend(1, seeds=seeds, steps=15 * seeds + 300)
        cost[seeds] = (world.messages + world.asks) * 100 // (world.admitted + world.refused)
        assert world.late == 0
    print("messages and asks for 100 machines, by the number of seeds:", cost)
    assert max(cost.values()) <= 300


def test_two_that_create_and_delete_in_turn_swap_capacity_at_a_constant_price() -> None:
    """The quota has room for one machine of both, so it has to move each time."""
    big = {"cpu": 20, "memory": 20}
    world = World({"cpu": 60, "memory": 60}, ["eu", "us"])
    world.create("eu", big)
    world.create("us", big)
    world.run(1_000)
    before = world.messages + world.asks
    for turn in range(100):
        name = ("eu", "us")[turn % 2]
        world.create(name, big)
        world.run(500)
        world.delete(name, list(world.seeds[name].machines)[-1])
        world.run(500)
    assert world.admitted == 102
    assert world.messages + world.asks - before <= 4 * 100


def test_two_that_work_near_the_limit_do_not_swap_what_is_idle() -> None:
    world = World({"cpu": 64, "memory": 256}, ["eu", "us"])
    for name in ("eu", "us"):
        for _ in range(31):
            world.create(name, SMALLEST)
            world.run(20)
    world.run(HOUR)
    assert world.at_rest
    before = world.messages, world.asks
    for turn in range(200):  # each replaces its machines: what it deletes it creates again
        name = ("eu", "us")[turn % 2]
        world.delete(name, next(iter(world.seeds[name].machines)))
        world.run(100)
        world.create(name, SMALLEST)
        world.run(1_000)
    assert (world.messages, world.asks) == before


def test_a_big_machine_is_not_starved_by_small_ones() -> None:
    """What others give back goes to small ones of the smallest share, but for the one that waits."""
    world = World({"cpu": 64, "memory": 256}, ["ap", "eu", "sa", "us"])
    big = {"cpu": 24, "memory": 96}
    for _ in range(30):
        world.create("eu", SMALLEST)
        world.create("sa", SMALLEST)
    world.run(1_000)
    for uid in list(world.seeds["sa"].machines)[:24]:
        world.delete("sa", uid)  # room for the big one, idle where others find it too
    world.run(100)
    world.seeds["sa"].latency = 150  # what is recalled there takes a while
    world.create("eu", big)
    for turn in range(120):
        world.create(("ap", "us")[turn % 2], SMALLEST)
        world.run(5)
    world.run(PATIENCE)
    assert world.late == 0
    assert big in world.seeds["eu"].machines.values()


def test_a_seed_that_grows_alone_seldom_has_to_ask() -> None:
    world = World({"cpu": 1024, "memory": 4096}, ["ap", "eu", "sa", "us"])
    for _ in range(200):
        world.create("eu", {"cpu": 2, "memory": 8})
        world.run(5_000)
    assert world.admitted == 200
    assert world.asks <= 3
    assert world.messages <= 60


def test_a_seed_that_grows_without_a_pause_asks_less_and_less() -> None:
    """Whoever creates there waits for each answer."""
    limit = 2_000
    world = World({"pods": limit}, ["eu", "us"], latency=20)
    asks = []
    for _ in range(10):
        for _ in range(50):
            world.create("eu", {"pods": 1})
            world.create("eu", {"pods": 1})
            world.run(10)
        asks.append(world.asks)
    assert world.admitted == 1_000 and asks[-1] - asks[4] <= 5, "in the last two and a half seconds"
    for _ in range(limit):
        world.create("us", {"pods": 1})
        world.run(5)
    assert world.use == {"pods": limit} and world.late == 0, "what it has to spare is no loss to others"


def test_what_a_seed_left_idle_waits_in_the_pool_for_the_next() -> None:
    world = World({"cpu": 64, "memory": 256}, ["eu", "us"])
    for _ in range(15):
        world.create("eu", {"cpu": 4, "memory": 16})
        world.run(50)
    for uid in list(world.seeds["eu"].machines)[1:]:
        world.delete("eu", uid)
    world.run(1_000)
    assert world.pool["cpu"] <= 4, "it may want that back at once"
    before = world.messages
    world.run(HOUR)
    assert world.at_rest
    assert world.pool["cpu"] >= 32
    assert world.messages - before <= 6
    wait = world.longest_wait
    world.longest_wait = 0
    world.create("us", {"cpu": 16, "memory": 64})
    world.run(1_000)
    assert world.longest_wait == 20, f"to the master and back, where a recall takes {wait} and more"


@pytest.mark.parametrize("number", range(2))
def test_seeds_hold_amounts_that_people_can_read(number: int) -> None:
    """Machines of whole cores and GiB come and go for some hours."""
    chance = random.Random(number)
    world = World(resources.parse({"cpu": "100", "memory": "400Gi"}), ["eu", "us", "ap"])
    held: list[str] = []

    def note(demands: Sequence[SeedDemand], _decided: Allotment) -> None:
        held.extend(amount for demand in demands for amount in resources.render(demand.held).values())

    world.on_decision = note
    for _ in range(400):
        seed = world.seeds[chance.choice(list(world.seeds))]
        cores = chance.choice((1, 2, 4, 8))
        for _ in range(chance.randrange(8)):
            world.create(seed.name, resources.parse({"cpu": cores, "memory": f"{4 * cores}Gi"}))
        for uid in chance.sample(list(seed.machines), chance.randrange(len(seed.machines) + 1)):
            world.delete(seed.name, uid)
        world.run(chance.randrange(60_000))
    assert len(set(held)) > 100
    assert {amount.lstrip("0123456789") for amount in held} <= {"", "m", "Gi", "Mi"}
