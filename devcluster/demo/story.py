"""The steps of the demo. Each does something, waits until it shows, and checks it against the Machines that exist."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack

import msgspec
import yaml

from common.quota import resources
from common.quota.quantity import UNIT
from common.quota.resources import ResourceList
from devcluster.demo.screen import Rows, Screen
from devcluster.demo.sizes import SMALLEST_CPU, STORM_CPUS, amounts, limits_of, mixed, outcomes, shown, size
from devcluster.install import GROUP_PATH, Installation
from devcluster.load import Attempt, Outcome, Size, Tenant, fill, storm, unjustified
from devcluster.manifests import apply
from devcluster.objects import quota
from devcluster.observe import Overshoot, QuotaView, QuotaWatch, api_writes, latencies, percentile, quota_on

QUOTA = "project-alpha"
SETTLE_SECONDS = 20.0
FILL_AT_MOST = 1000
SINGLES = 10
PATIENCE = 0.1  # seconds between two looks


class DemoError(Exception):
    """Something did not happen that should have, or the other way round. The message is for people."""


class Result(msgspec.Struct):
    """The last line. `overshoot` and `unfilled` count Machines of the smallest size: too many, or refused with room."""

    limit: dict[str, str]
    admitted: int
    refused: int
    overshoot: int
    unfilled: int
    seeds: dict[str, dict[str, str | int]]


class Story:
    """`tell()` runs all of it. `result()` may be asked at any time after the quota was applied."""

    def __init__(self, installed: Installation, screen: Screen, machines: int, clients: int) -> None:
        self._installed = installed
        self._seeds = list(installed.user_clusters)
        self._screen = screen
        self._machines = machines
        self._clients = clients
        self._random = random.Random(1)  # noqa: S311 (the same sizes every time)
        self._attempts: list[Attempt] = []
        self._limits: dict[str, int] = {}
        self._unfilled = 0
        self._wrong: list[str] = []

    async def tell(self) -> None:
        """Raises DemoError, TimeoutError and what HTTP raises."""
        async with AsyncExitStack() as stack:
            clusters = self._installed.user_clusters.values()
            self._tenants = [
                await stack.enter_async_context(Tenant(self._installed.cluster(name))) for name in clusters
            ]
            self._over = Overshoot(self._tenants, size(SMALLEST_CPU))
            self._quota = await stack.enter_async_context(QuotaWatch(self._installed.master, QUOTA))
            await self._apply_quota()
            counting = asyncio.create_task(self._over.watch(), name="recount")
            try:
                await self._storm()
                await self._fill_up()
                await self._agree()
                await self._delete()
                await self._singles()
                await self._raise()
                await self._lower()
                await self._kill()
                await self._agree()
                if counting.done():
                    counting.result()
            finally:
                counting.cancel()
                await asyncio.gather(counting, return_exceptions=True)
        if self._wrong:
            raise DemoError("; ".join(self._wrong))

    def result(self) -> Result:
        outcomes = Counter(attempt.outcome for attempt in self._attempts)
        seeds: dict[str, dict[str, str | int]] = {}
        for seed, cluster in self._installed.user_clusters.items():
            used = self._over.used_in.get(cluster, {})
            seeds[seed] = {
                "machines": self._over.machines.get(cluster, 0),
                **resources.render(resources.only(used, self._limits)),
            }
        return Result(
            limit=resources.render(self._limits),
            admitted=outcomes[Outcome.ADMITTED],
            refused=outcomes[Outcome.REFUSED],
            overshoot=self._over.count,
            unfilled=self._unfilled,
            seeds=seeds,
        )

    async def _apply_quota(self) -> None:
        cpus = sum(STORM_CPUS) / len(STORM_CPUS) * self._machines / 2
        limits = limits_of(int(cpus) // 4 * 4 + 3)
        manifest = quota(QUOTA, self._installed.project, resources.render(limits))
        self._screen.step("An admin applies one quota on the master")
        self._screen.quote(yaml.safe_dump(manifest, sort_keys=False))
        await self._over.limit(limits)
        self._limits = limits
        begun = time.monotonic()
        await apply(self._installed.master, [manifest])
        await self._installed.enforced(QUOTA)
        self._screen.say(
            f"In force everywhere after {time.monotonic() - begun:.1f} s: each seed has its copy, and each user "
            "cluster's API server asks its seed about every Machine."
        )

    async def _storm(self) -> None:
        count, clients = self._machines, self._clients
        self._screen.step(f"{clients} clients create {count} Machines at once")
        self._screen.say(
            f"{STORM_CPUS[0]} to {STORM_CPUS[-1]} cpu each, spread over the {len(self._tenants)} user clusters. About "
            "half of them fit. `counted anew` does not trust SeedQuota: it lists the Machines in the user clusters "
            "and adds them up, again and again."
        )
        before = await api_writes(self._installed.clusters())
        attempts = await self._create(mixed(self._random, count))
        await self._quiet()
        writes = await api_writes(self._installed.clusters())
        writes.subtract(before)
        admitted = outcomes(attempts)[Outcome.ADMITTED]
        taken = [attempt.seconds for attempt in attempts]
        self._screen.say(
            f"A client waited {percentile(taken, 50) * 1000:.0f} ms in the median, with all of this on one machine. "
            f"SeedQuota wrote {writes.total()} objects for it, {writes.total() / max(admitted, 1):.2f} per Machine "
            "admitted."
        )
        self._judge(attempts)
        refusal = next((attempt.message for attempt in attempts if attempt.outcome is Outcome.REFUSED), "")
        if not refusal:
            raise DemoError("nothing was refused")
        self._screen.say("What one of the refused was told:")
        self._screen.say(refusal)

    async def _fill_up(self, *, quietly: bool = False) -> None:
        smallest = size(SMALLEST_CPU)
        if not quietly:
            self._screen.step("The rest is filled exactly, from each seed in turn")
        before = self._limits["cpu"] - self._over.used.get("cpu", 0)
        attempts = await fill(self._tenants, smallest, FILL_AT_MOST)
        self._attempts += attempts
        await self._over.look()
        self._unfilled = max(self._unfilled, self._over.room())
        found = outcomes(attempts)
        self._screen.say(
            f"cpu={before // UNIT} was left. Machines of the smallest size, created one after the other: "
            f"{found[Outcome.ADMITTED]} admitted, then each seed refused one more. "
            f"Room left for {self._over.room()} more, {self._over.count} too many."
        )
        if unexpected := found[Outcome.UNAVAILABLE] + found[Outcome.FAILED]:
            self._wrong.append(f"{unexpected} Machines were neither admitted nor refused while filling up")

    async def _agree(self) -> None:
        self._screen.step("Everyone sees the same numbers")
        await self._over.look()
        want = resources.only(self._over.used, self._limits)
        views = await self._everywhere(want)
        copies = [view for name, view in views.items() if name in self._seeds]
        here = resources.total(resources.parse(view.local_usage) for view in copies)
        rows = [["", *self._limits]]
        rows += [[f"globalUsage on {name}", *amounts(view.used, self._limits)] for name, view in views.items()]
        rows.append(["localUsage of all seeds", *amounts(here, self._limits)])
        rows.append(["Machines counted anew", *amounts(want, self._limits)])
        self._screen.table(rows)

    async def _everywhere(self, want: ResourceList) -> dict[str, QuotaView]:
        """What the master and every seed show, once all show what is wanted or have had time to."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            copies = await asyncio.gather(*(quota_on(self._installed.cluster(seed), QUOTA) for seed in self._seeds))
            views = {"master": self._quota.view, **dict(zip(self._seeds, copies, strict=True))}
            differing = [name for name, view in views.items() if resources.only(view.used, self._limits) != want]
            if not differing:
                return views
            if time.monotonic() > deadline:
                self._wrong.append(f"{', '.join(differing)} show other numbers than the Machines that exist")
                return views
            await asyncio.sleep(PATIENCE)

    async def _delete(self) -> None:
        tenant = self._tenants[0]
        doomed = list(await tenant.machines())[: self._machines // 8]
        self._screen.step(f"{len(doomed)} Machines in {tenant.name} are deleted")
        begun = time.monotonic()
        async with self._live():
            await tenant.delete(doomed)
            await self._over.look()
            want = resources.only(self._over.used, self._limits)
            await self._seen(lambda view: resources.only(view.used, self._limits) == want, "use does not fall")
            shown_after = time.monotonic() - begun
            await self._everywhere(want)
        self._screen.say(f"{shown_after:.2f} s after the first deletion the master shows it.")

    async def _singles(self) -> None:
        self._screen.step("How soon the master knows")
        taken, attempts = await latencies(self._tenants[-1], self._quota, size(SMALLEST_CPU), SINGLES)
        self._attempts += attempts
        if len(taken) < SINGLES:
            raise DemoError(f"a Machine was not admitted although it fits: {attempts[-1].message}")
        self._screen.say(
            f"{SINGLES} single Machines in {self._tenants[-1].name}: from sending each to the master's globalUsage "
            f"p50 {percentile(taken, 50) * 1000:.0f} ms, the slowest {max(taken) * 1000:.0f} ms."
        )

    async def _raise(self) -> None:
        await self._over.look()
        more = self._machines // 8
        target = self._limits["cpu"] // UNIT + more * 4
        self._screen.step(f"The limit is raised to {target} cpu")
        await self._set_limit(target)
        attempts = await self._create(mixed(self._random, more * 2))
        self._judge(attempts)
        await self._fill_up(quietly=True)

    async def _lower(self) -> None:
        await self._over.look()
        target = self._limits["cpu"] // UNIT // 2
        machines = sum(self._over.machines.values())
        self._screen.step(f"The limit is lowered to {target} cpu, half of what is used")
        await self._set_limit(target)
        await self._seen(lambda view: view.holds("Exceeded"), "the quota does not say that it is exceeded")
        exceeded = self._quota.view.condition("Exceeded")
        assert exceeded is not None
        attempts = await self._create([size(SMALLEST_CPU)] * (len(self._tenants) * 4), live=False)
        found = outcomes(attempts)
        await self._over.look()
        left = sum(self._over.machines.values())
        self._screen.say(
            f"Allowed: condition Exceeded=True, {exceeded.reason}. Of {machines} Machines {left} are still there; of "
            f"{len(attempts)} more, {found[Outcome.REFUSED]} were refused."
        )
        if left != machines or found[Outcome.REFUSED] != len(attempts):
            self._wrong.append("with the limit lowered, something was removed or admitted")

    async def _kill(self) -> None:
        await self._over.look()
        seed, cluster = next(iter(self._installed.user_clusters.items()))
        count = self._machines * 2 // 5
        used = self._over.used["cpu"] // UNIT
        self._screen.step(
            f"The agent of {seed} is killed with SIGKILL while {self._clients} clients create {count} Machines"
        )
        await self._set_limit(used + sum(STORM_CPUS) // len(STORM_CPUS) * count // 2)
        recovered: list[float] = []
        killed_at = 0.0

        def saw(attempt: Attempt) -> None:
            if killed_at and attempt.cluster == cluster and attempt.sent > killed_at and attempt.status == 201:
                recovered.append(attempt.answered - killed_at)

        async def kill() -> None:
            nonlocal killed_at
            begun = len(self._attempts)
            while len(self._attempts) < begun + count // 4:
                await asyncio.sleep(0.02)
            killed = await self._installed.kill_replicas(seed)
            killed_at = time.monotonic()
            await asyncio.gather(*(program.start() for program in killed))

        killing = asyncio.create_task(kill())
        attempts = await self._create(mixed(self._random, count), also=saw)
        await killing
        repeated = [attempt for attempt in attempts if attempt.tries > 1]
        if recovered:
            back = f"{seed} admitted again {recovered[0]:.1f} s after the kill"
        else:
            back = f"{seed} decided again soon, but the quota was full by then"
        self._screen.say(
            f"{back}, with the ledger as it was. {len(repeated)} of {len(attempts)} attempts had to be repeated."
        )
        self._judge(attempts)
        self._screen.say(
            "Requests whose answer died with the agent may have left capacity reserved. It comes back once it is sure "
            "that no Machine will appear."
        )
        begun = time.monotonic()
        async with self._live():
            await self._quiet()
        self._screen.say(f"Nothing is reserved any more ({time.monotonic() - begun:.1f} s later).")
        await self._fill_up(quietly=True)

    async def _create(
        self, sizes: Sequence[Size], *, live: bool = True, also: Callable[[Attempt], None] = lambda _attempt: None
    ) -> list[Attempt]:
        def note(attempt: Attempt) -> None:
            self._attempts.append(attempt)
            also(attempt)

        begun = time.monotonic()
        self._before = resources.only(self._over.used, self._limits)
        async with AsyncExitStack() as stack:
            if live:
                await stack.enter_async_context(self._live())
            attempts = await storm(self._tenants, sizes, self._clients, note)
            await self._over.look()
        found = outcomes(attempts)
        words = ", ".join(f"{number} {outcome.value}" for outcome, number in found.items())
        if live:
            self._screen.say(f"{words} in {time.monotonic() - begun:.1f} s. Too many: {self._over.count}.")
        if lost := found[Outcome.UNAVAILABLE] + found[Outcome.FAILED]:
            example = next(a for a in attempts if a.outcome in (Outcome.UNAVAILABLE, Outcome.FAILED))
            self._wrong.append(f"{lost} Machines got no decision: {example.status} {example.message}")
        return attempts

    def _judge(self, attempts: Sequence[Attempt]) -> None:
        wrong = unjustified(attempts, self._limits, self._before)
        refused = outcomes(attempts)[Outcome.REFUSED]
        self._screen.say(
            f"Of {refused} refusals {refused - len(wrong)} were right: the Machine did not fit at that moment."
        )
        if wrong:
            attempt, why = wrong[0]
            self._wrong.append(f"{len(wrong)} refusals were wrong, such as {attempt.message!r}: {why}")

    async def _set_limit(self, cpus: int) -> None:
        limits = limits_of(cpus)
        raised = limits["cpu"] > self._limits["cpu"]
        if raised:
            await self._over.limit(limits)
        patch = {"spec": {"quota": resources.render(limits)}}
        self._screen.quote(f"kubectl patch seedquota {QUOTA} --type=merge -p '{msgspec.json.encode(patch).decode()}'")
        headers = {"Content-Type": "application/merge-patch+json"}
        async with (
            self._installed.master.session() as session,
            session.patch(f"{GROUP_PATH}/resourcequotas/{QUOTA}", json=patch, headers=headers) as answer,
        ):
            if answer.status != 200:
                raise DemoError(f"the limit could not be set: {await answer.text()}")
        self._limits = limits
        await self._seen(lambda view: view.limit == limits, "the new limit does not come into force")
        deadline = time.monotonic() + SETTLE_SECONDS
        for seed in self._seeds:
            while (await quota_on(self._installed.cluster(seed), QUOTA)).limit != limits:
                if time.monotonic() > deadline:
                    raise DemoError(f"{seed} does not get the new limit")
                await asyncio.sleep(PATIENCE)
        if not raised:
            await self._over.limit(limits)

    async def _quiet(self) -> None:
        """Until nothing is admitted that is not counted."""
        await self._seen(lambda view: not any(resources.parse(view.reserved).values()), "reservations stay")

    async def _seen(self, holds: Callable[[QuotaView], bool], otherwise: str) -> None:
        try:
            await self._quota.until(holds, SETTLE_SECONDS + self._installed.in_flight_window)
        except TimeoutError:
            raise DemoError(f"{otherwise}; the master shows {self._quota.view}") from None

    def _live(self) -> AbstractAsyncContextManager[None]:
        return self._screen.live(self._table, self._line)

    def _table(self) -> Rows:
        view = self._quota.view
        seeds = {seed.name: resources.parse(seed.local_usage) for seed in view.seeds}
        refused = Counter(a.cluster for a in self._attempts if a.outcome is Outcome.REFUSED)
        rows = [["", "limit", "used", *self._seeds, "counted anew"]]
        for name, limit in self._limits.items():
            by_seed = (shown(name, seeds.get(seed, {}).get(name, 0)) for seed in self._seeds)
            rows.append(
                [
                    name,
                    shown(name, limit),
                    shown(name, view.used.get(name, 0)),
                    *by_seed,
                    shown(name, self._over.used.get(name, 0)),
                ]
            )
        machines = [self._over.machines.get(cluster, 0) for cluster in self._installed.user_clusters.values()]
        rows.append(["machines", "", "", *map(str, machines), str(sum(machines))])
        denied = [refused[cluster] for cluster in self._installed.user_clusters.values()]
        rows.append(["refused", "", str(sum(denied)), *map(str, denied), ""])
        return rows

    def _line(self) -> str:
        used = self._quota.view.used.get("cpu", 0) // UNIT
        refused = outcomes(self._attempts)[Outcome.REFUSED]
        return (
            f"cpu {used}/{self._limits['cpu'] // UNIT}, counted anew {self._over.used.get('cpu', 0) // UNIT}, "
            f"machines {sum(self._over.machines.values())}, refused {refused}"
        )
