"""What goes wrong, when, and how it is mended. The plan is drawn from a random seed before anything begins."""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TextIO

import msgspec

from devcluster.install import MASTER
from devcluster.network import Traffic
from devcluster.servers import Server, StartError
from tests.chaos.place import Place
from tests.chaos.quotas import HOSTS, OWN

_GAP_SECONDS = 3.5  # on average between the beginnings of two faults
_LULL = 0.1  # how likely it is that nothing begins for a while, so that what was fenced can open
_LULL_SECONDS = (12.0, 25.0)
_AT_ONCE = 3
_SNAPSHOTS_KEPT = 4  # of each cluster
_RETRY_SECONDS = 0.5
_LOOK_SECONDS = 0.3


class Fault(msgspec.Struct, frozen=True):
    at: float  # seconds after the storm began
    kind: str
    target: str
    seconds: float  # how long it lasts
    chance: float  # 0 to 1, for what else is to be decided

    def __str__(self) -> str:
        return f"{self.kind} {self.target} {self.seconds:.1f} s"


def _down(chance: random.Random) -> float:
    return chance.choice((0.0, chance.uniform(0.0, 2.0), chance.uniform(2.0, 7.0)))


def _stopped(chance: random.Random) -> float:
    """Mostly short; sometimes longer than an agent's lease, which is 5 s."""
    return chance.choice((chance.uniform(0.1, 1.5), chance.uniform(1.5, 5.0), chance.uniform(5.0, 8.0)))


def _hung(chance: random.Random) -> float:
    """... sometimes longer than the in-flight window, which is 12 s: by then the leader may have taken its block."""
    return chance.choice((_stopped(chance), chance.uniform(8.0, 30.0)))


def _cut(chance: random.Random) -> float:
    return chance.uniform(0.5, 15.0)


REMOTE = ("seed-1", "seed-2")
SEEDS = (*REMOTE, OWN)
_AGENTS = tuple(f"seedquota-{seed}{suffix}" for seed in SEEDS for suffix in ("", "-b"))
_MASTERS = ("seedquota-master", "seedquota-master-b")
_STORED = (MASTER, *REMOTE)  # clusters with an etcd of their own
_RESTORED = (MASTER, *SEEDS)  # the master's is restored as that of the master or of its own seed
_ETCDS = ("etcd", *(f"etcd-{name}" for name in _STORED))

Duration = Callable[[random.Random], float]
_KINDS: dict[str, tuple[int, tuple[str, ...], Duration]] = {  # kind: weight, targets, how long
    "kill agent": (6, _AGENTS, _down),
    "pause agent": (5, _AGENTS, _hung),
    "kill all agents of": (2, SEEDS, _down),
    "kill master": (3, _MASTERS, _down),
    "pause master": (3, _MASTERS, _stopped),
    "kill all masters of": (1, (MASTER,), _down),
    "kill API server": (4, (*_STORED, *HOSTS), _down),
    "restart API server": (2, (*_STORED, *HOSTS), lambda _chance: 0.0),
    "pause API server": (4, (*_STORED, *HOSTS), _stopped),
    "kill etcd": (1, _ETCDS, _down),
    "pause etcd": (2, _ETCDS, _stopped),
    "cut off": (4, REMOTE, _cut),
    "refuse": (2, REMOTE, _cut),
    "snapshot": (4, _STORED, lambda _chance: 0.0),
    "restore": (2, _RESTORED, lambda _chance: 0.0),
    "restore and restart": (1, _RESTORED, lambda _chance: 0.0),
    "restore and restart while cut off": (2, _RESTORED, _cut),  # no program has seen the state from before the restore
}
_REDISES = tuple(f"redis-{seed}" for seed in SEEDS)
_REDIS_KINDS: dict[str, tuple[int, tuple[str, ...], Duration]] = {
    "kill Redis": (3, _REDISES, _down),
    "kill Redis, lose its data": (2, _REDISES, _down),
    "pause Redis": (3, _REDISES, _stopped),
    "flush Redis": (1, _REDISES, lambda _chance: 0.0),
}


def plan(seed: int, seconds: float, store: str) -> list[Fault]:
    chance = random.Random(seed)
    kinds = _KINDS | (_REDIS_KINDS if store == "redis" else {})
    faults: list[Fault] = []
    at = 0.0
    while True:
        at += chance.expovariate(1 / _GAP_SECONDS)
        if chance.random() < _LULL:
            at += chance.uniform(*_LULL_SECONDS)
        kind = chance.choices(list(kinds), [weight for weight, _, _ in kinds.values()])[0]
        _, targets, lasts = kinds[kind]
        fault = Fault(at, kind, chance.choice(targets), lasts(chance), chance.random())
        if at + fault.seconds > seconds:
            return faults
        faults.append(fault)


class Storm:
    """Carries a plan out. Whatever ends by itself is started again, as a kubelet does."""

    def __init__(self, place: Place, log: TextIO) -> None:
        self.counts: Counter[str] = Counter()
        self.ended: list[str] = []  # programs that ended though nobody killed them
        self._place = place
        self._servers = place.servers()
        self._log = log
        self._started = time.monotonic()
        self._running = 0
        self._taken = 0
        self._busy: set[str] = set()  # servers and links that something is being done to
        self._snapshots: dict[str, list[Path]] = {name: [] for name in _STORED}

    async def run(self, faults: Iterable[Fault], seconds: float) -> None:
        """Returns after that time, when everything is mended."""
        await asyncio.gather(*(self._snapshot(name) for name in _STORED))  # so that there is one to restore
        self._started = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for fault in faults:
                await asyncio.sleep(self._started + fault.at - time.monotonic())
                touched = self._touched(fault)
                if self._running >= _AT_ONCE or touched & self._busy:
                    self.note(f"left out: {fault}")
                    continue
                self._busy |= touched
                self._running += 1
                self.counts[fault.kind] += 1
                group.create_task(self._one(fault, touched))
            await asyncio.sleep(self._started + seconds - time.monotonic())

    async def keep_running(self) -> None:
        """Starts again what ended by itself, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            ended = {
                name: status
                for name, server in self._servers.items()
                if name not in self._busy and (status := server.ended_by_itself()) is not None
            }
            for name, status in ended.items():
                self.ended.append(name)
                last = self._servers[name].log.read_text(errors="replace").splitlines()[-1:]
                self.note(f"{name} ended by itself with status {status}: {''.join(last)}")
            self._busy |= ended.keys()
            await asyncio.gather(*(self._up(self._servers[name]) for name in ended))
            self._busy -= ended.keys()

    def note(self, text: str) -> None:
        now = time.time()
        clock = time.strftime("%H:%M:%S", time.gmtime(now))
        self._log.write(f"{clock}.{int(now * 1000) % 1000:03}Z {time.monotonic() - self._started:8.3f} {text}\n")
        self._log.flush()

    def _touched(self, fault: Fault) -> set[str]:
        if fault.kind in ("cut off", "refuse"):
            return {f"link to {fault.target}"}
        if fault.kind == "snapshot":
            return {self._place.etcd_of(fault.target).name}
        if fault.kind.startswith("restore"):
            restarted = self._restarted(fault)
            cut = {f"link to {seed}" for seed in self._cut(fault)}
            return {
                self._place.etcd_of(fault.target).name,
                self._servers[fault.target].name,
                *(program.name for program in restarted),
                *cut,
            }
        return {server.name for server in self._targets(fault)}

    def _restarted(self, fault: Fault) -> list[Server]:
        """The programs that go down while the cluster is restored."""
        return self._place.programs_of(fault.target) if "and restart" in fault.kind else []

    def _cut(self, fault: Fault) -> list[str]:
        """The seeds that the master does not reach from before a restore until a while after it."""
        if "cut off" not in fault.kind:
            return []
        return [fault.target if fault.target in REMOTE else REMOTE[int(len(REMOTE) * fault.chance)]]

    def _targets(self, fault: Fault) -> list[Server]:
        if fault.kind.startswith("kill all"):
            return self._place.programs_of(fault.target)
        return [self._servers[fault.target]]

    async def _one(self, fault: Fault, touched: set[str]) -> None:
        self.note(f"begins: {fault}")
        try:
            await self._carry_out(fault)
        finally:
            self._busy -= touched
            self._running -= 1
        self.note(f"mended: {fault}")

    async def _carry_out(self, fault: Fault) -> None:
        kind = fault.kind
        targets = self._targets(fault) if kind.startswith(("kill", "pause", "restart")) else []
        if kind == "snapshot":
            await self._snapshot(fault.target)
        elif kind.startswith("restore"):
            await self._restore(fault)
        elif kind in ("cut off", "refuse"):
            await self._traffic([fault.target], Traffic.DROPPED if kind == "cut off" else Traffic.REFUSED)
            await asyncio.sleep(fault.seconds)
            await self._traffic([fault.target], Traffic.FORWARDED)
        elif kind == "flush Redis":
            store = self._place.stores[fault.target.removeprefix("redis-")]
            await store.command("FLUSHALL")
        elif kind.startswith("pause"):
            for server in targets:
                server.pause()
            await asyncio.sleep(fault.seconds)
            for server in targets:
                server.resume()
        elif kind.startswith("restart"):
            await self._each(targets, Server.stop)
            await self._each(targets, self._up)
        else:
            await self._each(targets, Server.kill)
            await asyncio.sleep(fault.seconds)
            if "lose" in kind:
                await self._lose_data(fault.target)
            await self._each(targets, self._up)

    async def _each(self, servers: Iterable[Server], act: Callable[[Server], Awaitable[None]]) -> None:
        await asyncio.gather(*(act(server) for server in servers))

    async def _up(self, server: Server) -> None:
        """Until it is ready, as often as it takes."""
        while True:
            try:
                await server.start()
            except StartError as error:
                self.note(f"{server.name} did not start: {str(error).splitlines()[0]}")
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                return

    async def _lose_data(self, redis: str) -> None:
        """An empty disk."""
        data = self._place.stores[redis.removeprefix("redis-")].data
        await asyncio.to_thread(shutil.rmtree, data / "appendonlydir", ignore_errors=True)

    async def _snapshot(self, cluster: str) -> None:
        taken = self._snapshots[cluster]
        self._taken += 1
        target = self._place.directory / f"snapshot-{cluster}-{self._taken}"
        await self._place.etcd_of(cluster).snapshot(target)
        taken.append(target)
        if len(taken) > _SNAPSHOTS_KEPT:  # the first and the latest
            await asyncio.to_thread(shutil.rmtree, taken.pop(1))

    async def _restore(self, fault: Fault) -> None:
        """As Kubernetes advises: the API servers are down while etcd is restored. Our programs are not always."""
        cluster = fault.target
        server, etcd = self._servers[cluster], self._place.etcd_of(cluster)
        taken = self._snapshots[cluster if cluster in _STORED else MASTER]
        snapshot = taken[int(len(taken) * fault.chance)]
        programs, cut = self._restarted(fault), self._cut(fault)
        self.note(f"restores {snapshot.name}, cut off: {cut}")
        await self._traffic(cut, Traffic.DROPPED)
        await self._each([server, etcd, *programs], Server.kill)
        self._place.restored(cluster)
        await etcd.restore(snapshot)
        await self._up(etcd)
        await self._each([server, *programs], self._up)
        await asyncio.sleep(fault.seconds)
        await self._traffic(cut, Traffic.FORWARDED)

    async def _traffic(self, seeds: Iterable[str], traffic: Traffic) -> None:
        for seed in seeds:
            await self._place.installed.links[seed].set(traffic)
