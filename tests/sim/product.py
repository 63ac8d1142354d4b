"""What the product takes from outside, taken from the schedule instead: the time and random names."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from types import SimpleNamespace

import common.kube.controller.leader_election
import common.quota.object_names
import common.quota.quantity
import common.quota.reservations
import common.quota.resources
import common.quota.shares
import common.runtime.unexpected
import master.cache.informers
import master.quotas.controller
import master.quotas.ledger_store
import master.quotas.state
import seed.accounts.block_collector
import seed.accounts.controller
import seed.accounts.publisher
import seed.accounts.reservation_collector
import seed.accounts.reservation_gc
import seed.accounts.usage_writer
import seed.admission.types
import seed.cache.quotas
import seed.kinds.allocations.evaluator
import seed.kinds.allocations.source
import seed.kinds.namespaces.cache
import seed.kinds.namespaces.cluster_objects
import seed.kinds.namespaces.evaluators.resource_quotas
import seed.kinds.namespaces.source
import seed.kinds.namespaces.terms
import seed.ledger.batcher
import seed.ledger.own_block
import seed.ledger.store_generation
import seed.ledger.writer
import seed.model.quota
from common.api.labels import UID_LABEL
from common.quota.escrow import MasterLedger
from seed.accounts.capacity import CapacityRequester
from seed.accounts.open_limiter import OpenLimiter
from tests.sim.allocations import AllocationWatch
from tests.sim.namespaces import LabelWatch, ObjectWatch, counted, evaluator_of, evaluators_of
from tests.sim.servers import of_objects


def _now() -> float:
    return asyncio.get_running_loop().time()


_source: list[Callable[[], str]] = [str]


def _token() -> str:
    return _source[0]()


def _as_it_is(ledger: MasterLedger) -> MasterLedger:
    return ledger


_time = SimpleNamespace(monotonic=_now, time=_now)
_names = SimpleNamespace(of_objects=of_objects, beside=common.quota.object_names.beside)
_secrets = SimpleNamespace(token_hex=lambda _bytes: _source[0]())
_random = SimpleNamespace(getrandbits=lambda _bits: int(_token()[1:]))
_writes = count()
ROOM = 64  # for reservations, and for requests that wait: quotas are small
FEW = 4


def _unexpected(_part: str, _whose: str, error: BaseException) -> None:
    """The product goes on without the one that failed, so that a world with a mistake of its own would seem right."""
    raise error


_REPLACED = (
    (common.runtime.unexpected, "tell", _unexpected),
    (common.kube.controller.leader_election, "timestamp", lambda _after: str(next(_writes))),
    (common.quota.quantity, "parse", cache(common.quota.quantity.parse)),  # the same few amounts again and again
    (asyncio.tasks._all_tasks, "add", bool),  # type: ignore[attr-defined] # nobody asks which there are
    (common.quota.object_names, "counted", counted),
    (common.quota.reservations, "MAX_RESERVATIONS", ROOM),
    (common.quota.shares, "FEW", FEW),
    (seed.ledger.batcher, "MAX_WAITING", ROOM),
    (seed.ledger.batcher, "MAX_BATCH", ROOM // 4),
    (common.quota.resources, "_render", cache(common.quota.resources._render)),
    (seed.accounts.controller, "time", _time),
    (seed.cache.quotas, "parse_quota", lambda copy, in_cluster: copy.quota),  # each copy was parsed when it was written
    (seed.accounts.controller, "secrets", _secrets),
    (seed.kinds.namespaces.cache, "time", _time),
    (seed.kinds.namespaces.cache, "object_names", _names),
    (seed.model.quota, "object_names", _names),
    (seed.kinds.namespaces.terms, "object_names", _names),  # of whoever has namespaces
    # Also where the master's objects stand for themselves, a quota has a copy here, and the master's uid.
    (seed.accounts.controller, "original_uid", lambda found, in_cluster: found.metadata.labels.get(UID_LABEL, "")),
    (seed.kinds.allocations.evaluator, "UNIT", 1),  # sizes are small
    (seed.kinds.allocations.source, "Reflector", AllocationWatch),
    (
        seed.kinds.namespaces.evaluators.resource_quotas,
        "amount",
        common.quota.quantity.parse,
    ),  # not rounded to thousandths
    (seed.kinds.namespaces.cluster_objects, "Reflector", LabelWatch),
    (seed.kinds.namespaces.cluster_objects, "KindInformer", ObjectWatch),
    (seed.kinds.namespaces.cluster_objects, "evaluators_of", evaluators_of),
    (seed.kinds.namespaces.source, "evaluator_of", evaluator_of),
    (seed.kinds.namespaces.source, "time", _time),
    (seed.accounts.publisher, "time", _time),
    (seed.accounts.block_collector, "time", _time),
    (seed.accounts.reservation_collector, "time", _time),
    (seed.accounts.usage_writer, "time", _time),
    (seed.accounts.reservation_gc, "MOST_UNSEEN", 3),  # quotas are small
    (seed.ledger.own_block, "elapsing", _now),
    (seed.ledger.own_block, "secrets", _secrets),
    (seed.ledger.own_block, "SHARE", 2),  # quotas are small
    (seed.ledger.own_block, "BEGINS", 1),  # requests are few
    (seed.ledger.own_block, "FEW", ROOM // 4),
    (seed.ledger.own_block, "MOST", ROOM // 8),
    (seed.ledger.store_generation, "secrets", _secrets),
    (seed.ledger.writer, "time", _time),
    (seed.ledger.writer, "secrets", _secrets),
    (master.cache.informers, "time", _time),
    (master.quotas.controller, "time", _time),
    (master.quotas.state, "time", _time),
    (master.quotas.ledger_store, "secrets", _secrets),
    (master.quotas.ledger_store, "ledger_to_wire", _as_it_is),  # as it was written
    (master.quotas.ledger_store, "ledger_from_wire", _as_it_is),
    (seed.admission.types, "random", _random),
)


def tokens(token: Callable[[], str]) -> None:
    _source[0] = token


@contextmanager
def on_simulated_time() -> Iterator[None]:
    before = [getattr(module, name) for module, name, _ in _REPLACED]
    clocks = [of.__init__.__kwdefaults__ for of in (CapacityRequester, OpenLimiter)]
    real = [defaults["clock"] for defaults in clocks]
    for module, name, value in _REPLACED:
        setattr(module, name, value)
    for defaults in clocks:
        defaults["clock"] = _now
    try:
        yield
    finally:
        for defaults, clock in zip(clocks, real, strict=True):
            defaults["clock"] = clock
        for (module, name, _), value in zip(_REPLACED, before, strict=True):
            setattr(module, name, value)
