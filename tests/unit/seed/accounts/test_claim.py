"""What a leader finds when it takes its accounts up."""

from __future__ import annotations

import msgspec

from seed.ledger.store import Stored
from tests.running import running
from tests.unit.fake_api_server import eventually
from tests.unit.seed.accounts.test_usage_writer import Leading
from tests.unit.seed_world import seed_world


async def test_a_leader_that_goes_on_in_its_term_notices_that_the_store_went_back() -> None:
    """Nobody uses the account, so nothing else would be written to it for an hour. A restore breaks the watch, and what
    it brings then is older than what is known."""
    async with seed_world() as world:
        await world.quota(limits="cpu=64", granted="cpu=64")
        writer = world.handle().writer
        before = world.account()
        first = Leading(world)
        async with running(first.accounts.run()):
            await eventually(lambda: first.accounts._progress)
        await writer.change(lambda account: (msgspec.structs.replace(account), None))
        assert world.account().sequence > before.sequence
        world.store._stored[writer.key.uid] = Stored(before, "restored")
        again = Leading(world)
        async with running(again.accounts.run(), again.counting.run()):
            await eventually(lambda: world.store._stored[writer.key.uid].account.incarnation != before.incarnation)
            assert world.store._stored[writer.key.uid].account.fenced
