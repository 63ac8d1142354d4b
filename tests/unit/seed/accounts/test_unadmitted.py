"""The leader's count finds the Machines that nobody admitted, and takes none for one that was."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from seed.kinds.machines.totals import MachineTotals
from tests.unit.fake_api_server import eventually
from tests.unit.seed.accounts.test_usage_writer import KEY, Leading, reserve, use


async def counted(leader: Leading, cpu: int) -> set[str]:
    leader.changed()
    unadmitted = leader.source.totals.unadmitted
    await eventually(lambda: use(leader.world) == cpu and not unadmitted.waiting and KEY in leader.counting._counted_in)
    return set(unadmitted.found)


async def test_what_appears_without_a_reservation_was_not_admitted(leader: Leading) -> None:
    leader.there("from-before")
    assert await counted(leader, 8) == set()
    await reserve(leader.world, "admitted")
    leader.there("admitted", "smuggled")
    assert await counted(leader, 24) == {"smuggled-uid"}
    assert KEY in leader.world.account().used, "it is charged all the same"


async def test_a_reservation_that_another_count_dropped_is_not_forgotten(
    leader: Leading, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Machine that appears while a count is written is in that count, and judged by the next one."""
    assert await counted(leader, 0) == set()
    writer = leader.world.handle().writer
    change = writer.change

    async def meanwhile(decide: object) -> object:
        monkeypatch.setattr(writer, "change", change)
        await reserve(leader.world, "admitted")
        leader.there("admitted")
        return await change(decide)  # type: ignore[arg-type]

    monkeypatch.setattr(writer, "change", meanwhile)
    leader.there("smuggled")
    assert await counted(leader, 16) == {"smuggled-uid"}
    assert await counted(leader, 16) == {"smuggled-uid"}


async def test_another_cluster_is_only_counted_and_another_connection_goes_on(leader: Leading) -> None:
    assert await counted(leader, 0) == set()
    totals = leader.source.totals
    leader.source.totals = MachineTotals(totals, unadmitted=totals.unadmitted.elsewhere())
    leader.there("a")
    assert await counted(leader, 8) == set()
    leader.source.totals = MachineTotals(leader.source.totals)  # of the same one, over another connection
    leader.there("a", "b")
    assert await counted(leader, 16) == {"b-uid"}


async def test_without_a_limit_that_denies_nobody_has_to_be_admitted(leader: Leading) -> None:
    assert await counted(leader, 0) == set()
    copy = leader.world.copies["project-alpha"]
    leader.world._put(msgspec.structs.replace(copy, spec=msgspec.structs.replace(copy.spec, enforcement="warn")))
    await asyncio.sleep(0)
    leader.there("a")
    assert await counted(leader, 8) == set()


async def test_an_account_that_was_rebuilt_says_nothing_of_what_was_admitted_before(leader: Leading) -> None:
    assert await counted(leader, 0) == set()
    another_life = frozenset({("project-alpha-uid", "another life")})
    leader.counting._counted_in[KEY] = (leader.source.totals.unadmitted.line, another_life)
    leader.there("a")
    assert await counted(leader, 8) == set()
