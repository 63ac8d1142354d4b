"""The webhook for objects in namespaces: pods, services, claims, and whatever else some quota counts. And for the label
that says whose a namespace is."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from common.api.labels import FITS_ANNOTATION
from common.api.types import Condition
from common.kube.client.meta import Object, ObjectMeta
from common.quota.object_names import PERSISTENT_VOLUME_CLAIMS, PODS, RESOURCE_CLAIMS, SERVICES, GroupResource
from seed.admission import denial
from seed.admission.local_copies import named_in_namespace
from seed.admission.types import Verdict, refused
from seed.cache.clusters import ClusterCache
from seed.kinds.namespaces import project_label
from seed.kinds.namespaces.admission import NamespacedAdmission
from seed.kinds.namespaces.cache import Namespace
from seed.kinds.namespaces.evaluators import resource_quotas
from seed.kinds.namespaces.evaluators.namespaced import AsSent, NamespacedEvaluator, Write
from seed.kinds.namespaces.evaluators.registry import evaluator_of
from seed.model.source_key import OWN_API_SERVER
from seed.webhooks.endpoint import Question, Webhook, WebhookAnswer
from seed.webhooks.review import MAX_NAME, UID, RawRequest, RawReview, TooManyNames

MAX_QUOTES = 60_000
"""In a review of what is decoded as more than its name: two for each name and text."""

KINDS = {PODS: "Pod", SERVICES: "Service", PERSISTENT_VOLUME_CLAIMS: "PersistentVolumeClaim"}
KINDS |= {RESOURCE_CLAIMS: "ResourceClaim", resource_quotas.EVALUATOR.resource: "ResourceQuota"}
NAMESPACE = "Namespace"
OTHER = "Object"  # in metrics: tenants choose the kinds of custom resources

_NAMESPACE = re.compile("[0-9a-z-]{1,63}")
_NAME = re.compile(rf"(?!\.{{1,2}}\Z)[^/%]{{1,{MAX_NAME}}}")
"""What can be a part of a path. Of Roles and the like API servers ask no more."""


class _Annotations(msgspec.Struct, frozen=True):
    fits: str = msgspec.field(default="", name=FITS_ANNOTATION)


class _Named(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    annotations: _Annotations = _Annotations()


class _Counted(msgspec.Struct, frozen=True):
    """What is counted by number needs no more. Labels and other annotations of a tenant's object take no memory."""

    metadata: _Named


_review = msgspec.json.Decoder(RawReview).decode
_counted = msgspec.json.Decoder(_Counted | None).decode


Decode = Callable[[msgspec.Raw], Object | None]


@lru_cache(maxsize=16)
def _decoder(kind: Any) -> Decode:
    return msgspec.json.Decoder(kind | None).decode


def _by_number(raw: msgspec.Raw) -> Object | None:
    found = _counted(raw)
    if found is None:
        return None
    named = found.metadata
    metadata = ObjectMeta(
        name=named.name,
        namespace=named.namespace,
        uid=named.uid,
        resource_version=named.resource_version,
        annotations={FITS_ANNOTATION: named.annotations.fits[:MAX_NAME]} if named.annotations.fits else {},
    )
    return Object(metadata=metadata)


class NamespacedObjectWebhook(Webhook[Object]):
    """At `/namespaces/<user cluster uid, or seed>/<token>`."""

    about = "an object in a namespace"

    def __init__(
        self,
        cluster_cache: ClusterCache,
        admission: NamespacedAdmission,
        own_conditions: Callable[[], Sequence[Condition]] = lambda: (),
        *,
        local_copies: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`own_conditions`: what the leader says of the seed itself. `local_copies`: namespaces have
        LocalResourceQuotas, as far as they can be written. `clock`: seconds since 1970. Only a pod that was deleted
        long ago counts by it."""
        self._cluster_cache = cluster_cache
        self._admission = admission
        self._own_conditions = own_conditions
        self._local_copies = local_copies
        self._clock = clock

    def check(self, body: bytes) -> None:
        """What is in a ConfigMap does not matter; `decode` looks at what does."""

    def decode(self, body: bytes) -> Question[Object]:
        review = _review(body).request
        if review.operation not in {"CREATE", "UPDATE"}:
            return Question(review, None)
        decode: Decode = _by_number
        if (kind := _read_as(review)) is not None:
            if body.count(b'"') > MAX_QUOTES:
                raise TooManyNames(f"it has more than {MAX_QUOTES // 2} names and texts")
            decode = _decoder(kind)
        old = decode(review.old_object) if review.operation == "UPDATE" else None
        return Question(review, decode(review.object), old)

    def is_named(self, question: Question[Object]) -> bool:
        if question.new is None or _evaluator(question.head) is None:
            return True  # nothing of it is kept
        metadata = question.new.metadata
        if _of_namespace(question.head):
            return bool(UID.fullmatch(metadata.uid) and _NAMESPACE.fullmatch(metadata.name))
        has_place = UID.fullmatch(metadata.uid) and _NAMESPACE.fullmatch(metadata.namespace)
        # API servers take control characters in such names: of no use but to mislead whoever reads them.
        return bool(has_place and _NAME.fullmatch(metadata.name) and metadata.name.isprintable())

    async def decide(self, caller: str, question: Question[Object], deadline: float) -> WebhookAnswer:
        head, subject = question.head, question.new
        assert isinstance(head, RawRequest), "as `decode` made it"
        evaluator = _evaluator(head)
        if subject is not None and _of_namespace(head):
            return self._namespace(caller, subject, question.old)
        if evaluator is None or subject is None:
            return WebhookAnswer(verdict=Verdict(), kind=OTHER, recorded=False)
        own = caller == OWN_API_SERVER
        cluster = None if own else self._cluster_cache.user_cluster_by_uid(caller)
        kind = KINDS.get(evaluator.resource, OTHER)
        if cluster is None and not own:
            verdict = self._admission.undecided("its user cluster is not known to this seed any more")
        else:
            write = Write(
                operation=head.operation,
                subresource=head.sub_resource,
                new=subject,
                old=question.old,
                now=self._clock(),
                sent=AsSent(head.resource.version, head.object, head.old_object) if evaluator.type is Object else None,
            )
            verdict = await self._admission.decide(cluster, evaluator, write, dry_run=head.dry_run, deadline=deadline)
            if self._local_copies and verdict.refusal is not None:
                said = cluster.status.conditions if cluster is not None else self._own_conditions()
                verdict = named_in_namespace(verdict, subject.metadata.namespace, said)
        return WebhookAnswer(verdict=verdict, kind=kind, cluster=cluster, subject=subject.metadata)

    def _namespace(self, caller: str, new: Object, old: Object | None) -> WebhookAnswer:
        changed = project_label.changes(old.metadata.labels if old is not None else {}, new.metadata.labels)
        verdict = refused(denial.project_label()) if changed else Verdict()
        cluster = self._cluster_cache.user_cluster_by_uid(caller) if caller != OWN_API_SERVER else None
        return WebhookAnswer(verdict=verdict, kind=NAMESPACE, cluster=cluster, subject=new.metadata, recorded=changed)


def _read_as(review: RawRequest) -> Any:
    """None: it is counted by its number, and nothing but its name is read."""
    if _of_namespace(review):
        return Namespace
    evaluator = _evaluator(review)
    if evaluator is None:
        return Object  # the canary, of which the annotation is read
    return evaluator.type if evaluator.type is not Object else None


def _of_namespace(head: object) -> bool:
    assert isinstance(head, RawRequest), "as `decode` made it"
    return (head.resource.group, head.resource.resource) == ("", "namespaces")


def _evaluator(head: object) -> NamespacedEvaluator[Any] | None:
    assert isinstance(head, RawRequest), "as `decode` made it"
    asked = head.resource
    if max(len(asked.resource), len(asked.group)) > MAX_NAME:
        return None
    return evaluator_of(GroupResource(asked.resource, asked.group))
