"""Deliberate breakages of what counts and admits in namespaces: see tests/sim/mutants.py."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from common.quota.resources import ResourceList
from seed.accounts import source_count
from seed.accounts.controller import Accounts
from seed.admission.admitter import Admission
from seed.admission.quota_claim import QuotaClaim
from seed.kinds.namespaces import admission, same_write, sources
from seed.kinds.namespaces import cache as namespace_cache
from seed.kinds.namespaces.admission import NamespacedAdmission
from seed.kinds.namespaces.cache import Selection
from seed.kinds.namespaces.cluster_objects import ClusterObjects, QuotaNamespaces
from seed.kinds.namespaces.evaluators import namespaced
from seed.kinds.namespaces.evaluators.namespaced import Terms
from seed.kinds.namespaces.same_write import SameWrites
from seed.kinds.namespaces.totals import ObjectTotals
from seed.model.quota import Quota
from seed.model.reserved_object import generation_of
from seed.usage.object_sum import ObjectSum
from tests.sim import namespace_scenes
from tests.sim.mutant import Mutant

FOCUS = ("namespaces",)
KINDS = ("kinds",)
BUDGET = 200


def nothing_comes_in(objects: ClusterObjects, counting: QuotaNamespaces, namespace: str, *_rest: int) -> int:
    objects._selecting.setdefault(namespace, {})[counting] = None
    return 0


def whatever_was_put_is_more(totals: ObjectTotals, evaluator: Any, subject: Any, now: float) -> tuple[bool, bool]:
    found = _put(totals, evaluator, subject, now)
    if not found[0] and (again := totals._objects[subject.metadata.uid].used):
        totals._add(subject.metadata.namespace, again, 1)
        return True, False
    return found


def pods_alone(counting: QuotaNamespaces) -> int:
    return min((informer.listed_from for informer in counting.informers if informer.synced), default=0)


def labels_alone(counting: QuotaNamespaces) -> int:
    namespaces = counting.objects.namespaces
    return namespaces.listed_from if namespaces.synced.is_set() else 0


async def whatever_the_cache_has(
    self: NamespacedAdmission, cluster: str, namespace: str, _deadline: float
) -> Selection:
    return self._namespaces.select(cluster, namespace)


async def the_first_quota_decides(
    self: Admission,
    request: Any,
    replaceable: Any = None,
    quotas: Sequence[Quota] | None = None,
    confirm: Any = None,
) -> Any:
    return await _decide(self, request, replaceable, quotas[:1] if quotas is not None else None, confirm)


async def no_cancel(*_arguments: object) -> None:
    """What the others reserved stays until evidence."""


async def what_the_watch_has(
    objects: ClusterObjects, selector: Any, evaluator: Any, namespace: str, name: str, _uid: str
) -> int | None:
    informer = objects.informers.get(evaluator)
    found = informer.get(f"{namespace}/{name}") if informer is not None else None
    return generation_of(found.metadata) if found is not None else None


async def only_in_a_selected_namespace(
    objects: ClusterObjects, selector: Any, evaluator: Any, namespace: str, name: str, uid: str
) -> int | None:
    """... as far as the watch knows."""
    inside: Any = objects.namespaces.store.get(namespace)
    if inside is None or not objects.selects(selector, inside.metadata.labels):
        return None
    return await _generation(objects, selector, evaluator, namespace, name, uid)


def only_what_is_limited_now(quota: Quota, _granted: object = ()) -> Terms:
    return Terms(limited=quota.of_objects, scopes=quota.scopes)


def never_behind(self: Any, cluster: str, namespace: str) -> Selection:
    return _select(self, cluster, namespace)._replace(known=True, awaited="")


def no_labels_moved(_objects: ClusterObjects, _change: object) -> None:
    """What was selected when it was listed stays selected."""


def whatever_was_listed(_self: Accounts, _quota: Quota, source: Any) -> bool:
    return bool(source.counted)


def all_that_is_seen(totals: ObjectTotals, reservations: Any) -> dict[str, int]:
    return {uid: 1 << 40 for uid in reservations if uid in totals._objects}


def everything_that_left_is_gone(totals: ObjectTotals, reservations: Any) -> set[str]:
    return {uid for uid in reservations if uid not in totals._objects}


def what_a_write_leaves(evaluator: Any, terms: Terms, write: Any) -> ResourceList:
    """All that the object uses, or for an update nothing."""
    return _added(evaluator, terms, write) if write.old is None else {}


async def each_call_by_itself(_same: SameWrites, _key: Any, _asked: object, decide: Any) -> Any:
    return await decide()


async def whatever_is_asked_by_now(same: SameWrites, key: Any, _asked: object, decide: Any) -> Any:
    return await _same_answer(same, key, None, decide)


async def by_the_names_of_the_quotas(same: SameWrites, key: Any, asked: Any, decide: Any) -> Any:
    shares, _ = asked
    return await _same_answer(same, key, {name: share.amount for name, share in shares.items()}, decide)


async def of_any_object_that_needs_as_much(same: SameWrites, key: Any, asked: Any, decide: Any) -> Any:
    shares, _ = asked
    return await _same_answer(same, (key[0], ""), {name: share.amount for name, share in shares.items()}, decide)


async def of_whom_nobody_waits_for(same: SameWrites, key: Any, asked: object, decide: Any) -> Any:
    """A call that is given up takes those with it that wait for the same answer."""
    known = same._known(key, asked, asyncio.get_running_loop().time())
    if known is not None:
        return await known.verdict
    return await _same_answer(same, key, asked, decide)


def covered_in_part(reservations: Any, _doubtful: object, *, live: bool) -> Any:
    return _covered(reservations, frozenset(), live=live)


_covered = source_count.covered
_same_answer = SameWrites.decide
_put = ObjectTotals.put
_decide = Admission.decide
_generation = ClusterObjects.generation
_select = namespace_cache.NamespaceCache.select
_added = namespaced.added
_changed_namespaced: Mapping[str, Any] = {**vars(namespaced), "added": what_a_write_leaves}

ALL: tuple[Mutant, ...] = (
    Mutant(
        "labels that move are not followed", ((ClusterObjects, "_namespace_changed", no_labels_moved),), FOCUS, BUDGET
    ),
    Mutant("what a namespace brings in is not counted", ((ClusterObjects, "_enter", nothing_comes_in),), FOCUS, BUDGET),
    Mutant("a namespace that leaves keeps its use", ((ObjectTotals, "leave", lambda *_a: None),), FOCUS, BUDGET),
    Mutant("what is told again counts again", ((ObjectTotals, "put", whatever_was_put_is_more),), FOCUS, BUDGET),
    Mutant(
        "namespaces need not be listed anew",
        (
            (QuotaNamespaces, "listed_from", property(pods_alone)),
            (QuotaNamespaces, "_has_namespaces", lambda *_a: True),
        ),
        FOCUS,
        BUDGET,
    ),
    Mutant(
        "objects need not be listed anew", ((QuotaNamespaces, "listed_from", property(labels_alone)),), FOCUS, BUDGET
    ),
    Mutant(
        "a namespace's source is counted by any list", ((Accounts, "may_count", whatever_was_listed),), FOCUS, BUDGET
    ),
    Mutant(
        "a kind that cannot be listed has nothing",
        ((source_count, "kept", lambda _before, found, _doubtful: found),),
        KINDS,
        BUDGET,
        namespace_scenes.a_kind_that_cannot_be_listed,
    ),
    Mutant(
        "a reservation goes although a part of it is in no count",
        ((source_count, "covered", covered_in_part),),
        KINDS,
        BUDGET,
        namespace_scenes.a_kind_that_cannot_be_listed,
    ),
    Mutant("labels are never read", ((NamespacedAdmission, "_select", whatever_the_cache_has),), FOCUS, BUDGET),
    Mutant(
        "the first of the quotas of a namespace decides",
        ((Admission, "decide", the_first_quota_decides),),
        FOCUS,
        BUDGET,
    ),
    Mutant(
        "in a namespace, two quotas without cancel",
        ((Admission, "_cancel", no_cancel), (QuotaClaim, "seems_short", lambda _claim: False)),
        ("nothing", "two_quotas", *FOCUS),
        BUDGET,
    ),
    Mutant(
        "each call about a creation is decided by itself",
        ((SameWrites, "decide", each_call_by_itself),),
        ("nothing", "two_quotas", "overlapping", *FOCUS),
        2 * BUDGET,
    ),
    Mutant(
        "what was answered once is answered for ever",
        ((same_write, "KEPT", 1e9),),
        ("two_quotas", "overlapping", *FOCUS),
        BUDGET,
        namespace_scenes.a_call_that_is_made_again_late,
    ),
    Mutant(
        "an answer is given to whatever is asked by now",
        ((SameWrites, "decide", whatever_is_asked_by_now),),
        ("two_quotas", "overlapping", *FOCUS),
        BUDGET,
        namespace_scenes.a_quota_that_changes_between_two_calls,
    ),
    Mutant(
        "an answer of an earlier quota of that name is given again",
        ((SameWrites, "decide", by_the_names_of_the_quotas),),
        ("two_quotas", "overlapping", *FOCUS),
        BUDGET,
        namespace_scenes.a_quota_that_changes_between_two_calls,
    ),
    Mutant(
        "another object's answer is given",
        ((SameWrites, "decide", of_any_object_that_needs_as_much),),
        ("two_quotas", "overlapping", *FOCUS),
        BUDGET,
    ),
    Mutant(
        "a call that is given up ends the others",
        ((SameWrites, "decide", of_whom_nobody_waits_for),),
        ("broken", "two_quotas", "overlapping", *FOCUS),
        BUDGET,
    ),
    Mutant(
        "evidence of an object is the watch's", ((ClusterObjects, "generation", what_the_watch_has),), FOCUS, BUDGET
    ),
    Mutant(
        "evidence of a namespace is the watch's",
        ((ClusterObjects, "generation", only_in_a_selected_namespace),),
        FOCUS,
        BUDGET,
        namespace_scenes.labels_that_the_leader_hears_late,
    ),
    Mutant(
        "what was limited once is not read any more",
        ((sources, "terms_of", only_what_is_limited_now),),
        (*FOCUS, "names"),
        BUDGET,
    ),
    Mutant(
        "an update is reserved as of what it changes",
        ((admission, "generation_after", generation_of),),
        (*FOCUS, "updates"),
        BUDGET,
    ),
    Mutant(
        "any version of an object covers its updates",
        ((ObjectSum, "seen", all_that_is_seen),),
        (*FOCUS, "updates"),
        5 * BUDGET,  # few schedules count in the moment that matters
    ),
    Mutant("what is not in the sum is gone", ((ObjectSum, "gone", everything_that_left_is_gone),), FOCUS, BUDGET),
    Mutant(
        "updates in namespaces cost nothing",
        ((admission, "namespaced", SimpleNamespace(**_changed_namespaced)),),
        (*FOCUS, "updates"),
        BUDGET,
    ),
    Mutant(
        "a cache of labels is never behind",
        ((namespace_cache.NamespaceCache, "select", never_behind),),
        FOCUS,
        BUDGET,
        namespace_scenes.labels_that_admission_does_not_hear,
    ),
    Mutant(
        "a cluster need not be counted before something is admitted there",
        ((QuotaClaim, "_is_uncounted", lambda *_a: False),),
        FOCUS,
        BUDGET,
        namespace_scenes.a_cluster_that_comes_to_take_part,
    ),
)
