"""Whether the objects of a manifest would fit: what is sent to the agents of the seeds, which know what objects use,
and how their answers are compared with the quotas. Pure.

What a seed answers is only shown, to whoever asked: it decides nothing. No seed is sent what may be a secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from common.api.preview_pages import MAX_DOCUMENTS, MAX_QUESTION, MAX_QUOTAS, NeedsPage, NeedsQuestion, ObjectNeeds
from common.kube.client import bounded_yaml
from common.kube.client.bounded_yaml import InvalidYaml
from common.quota import resources
from common.quota.resources import ResourceList
from master.apiserver import previews
from master.apiserver.previews import Holder, Organization, PreviewInput, Project, QuotaName, Shortage
from master.apiserver.problem import invalid
from master.apiserver.serializers import AnswerBody, Body
from master.quotas.placing import Place

MAX_MANIFEST = 64 * 1024  # characters
MAX_VALUES = 8192
MAX_ANSWERS = 8

_SECRET = re.compile(
    r"(?i).*(password|passwd|secret|token|credential|access_?key|private_?key|kubeconfig|user_?data|service_?account).*"
)
_CONTENT = frozenset({"data", "stringData", "binaryData", "env", "envFrom", "args", "command"})
_REFERENCE = re.compile(r"(?i).*(ref|name)")


class ManifestFitsRequest(Body, kw_only=True):
    """One of `project`, `organization` and `quota`. A project's organization limits it, too. `manifest`: YAML or JSON,
    several objects or a List. `replicas`: instead of the number in the objects. `seed`: ask this seed alone."""

    project: Project | UnsetType = UNSET
    organization: Organization | UnsetType = UNSET
    quota: QuotaName | UnsetType = UNSET
    manifest: Annotated[str, Meta(min_length=1, max_length=MAX_MANIFEST)]
    replicas: Annotated[int, Meta(ge=1, le=999_999)] | UnsetType = UNSET
    seed: QuotaName | UnsetType = UNSET


class ManifestObject(AnswerBody, kw_only=True):
    """An object of the manifest, or what it makes. `need`: what one of it uses, the most that a quota counts.
    `fitting`: how many of `count` do fit, if there were nothing else in the manifest. `unknown`: what it uses in an
    amount that is not known, and why. `problem`: why all of that is not known, or why it is refused whatever is
    free."""

    object: str
    count: int
    fitting: int
    need: dict[str, str]
    unknown: dict[str, str]
    problem: str


class ManifestAnswer(AnswerBody, kw_only=True):
    """What these seeds say. `result`: of all objects together; Unknown: of some it is not known what they use.
    `items`: how many times the whole manifest would fit, the seed with the most first. The rest is as in
    FitsResult."""

    result: Literal["Fits", "DoesNotFit", "Unknown"]
    seeds: list[str]
    objects: list[ManifestObject]
    shortages: list[Shortage]
    holders: list[Holder] | UnsetType = UNSET
    items: list[Place]
    message: str
    as_of: str
    stale: bool


class ManifestFits(AnswerBody, kw_only=True):
    """One answer, or several where seeds know different sizes. Seeds that do not know all of the sizes are left out
    where others do. `more`: there are others. `notAsked`: why no seed, or not each one, was asked."""

    answers: list[ManifestAnswer]
    more: bool
    not_asked: str


def question(asked: ManifestFitsRequest, known: PreviewInput, project: str) -> bytes:
    """What an agent is asked. Raises ProblemError, also for what is no manifest."""
    names = [quota.metadata.name for quota in known.quotas]
    if len(names) > MAX_QUOTAS:
        raise invalid("", f"{len(names)} quotas limit it: name one of them, as `quota`")
    documents = read(asked.manifest)
    replicas = asked.replicas if isinstance(asked.replicas, int) else 0
    content = msgspec.json.encode(NeedsQuestion(quotas=names, documents=documents, project=project, replicas=replicas))
    if len(content) > MAX_QUESTION:
        raise invalid("/manifest", "it is too large: ask for fewer objects")
    return content


def read(text: str) -> list[dict[str, Any]]:
    """The objects, without what may be a secret. Raises ProblemError."""
    try:
        documents = [each for each in bounded_yaml.load_all(text, MAX_VALUES) if each is not None]
    except InvalidYaml as error:
        raise invalid("/manifest", f"it {error}") from None
    found = list[dict[str, Any]]()
    for document in documents:
        for each in _listed(document):
            if not isinstance(each, dict):
                raise invalid("/manifest", "it holds something that is no object of Kubernetes")
            found.append(_without_secrets(each))
    if not found:
        raise invalid("/manifest", "there is no object in it")
    if len(found) > MAX_DOCUMENTS:
        raise invalid("/manifest", f"there are {len(found)} objects in it: ask for {MAX_DOCUMENTS} at a time")
    return found


def _listed(document: object) -> Sequence[object]:
    if isinstance(document, dict) and str(document.get("kind")).endswith("List"):
        items = document.get("items")
        return items if isinstance(items, list) else ()
    return [document]


def _without_secrets(value: Any) -> Any:
    """No size depends on these. Whoever runs a seed may read what is sent there."""
    if isinstance(value, list):
        return [_without_secrets(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {name: _without_secrets(each) for name, each in value.items() if not _is_secret(name)}


def _is_secret(name: str) -> bool:
    return name in _CONTENT or (_SECRET.fullmatch(name) is not None and _REFERENCE.fullmatch(name) is None)


def answers(known: PreviewInput, of_seeds: Mapping[str, Sequence[NeedsPage]]) -> tuple[list[ManifestAnswer], bool]:
    """And whether there are more. `of_seeds`: what the agents of each seed answered."""
    best = {seed: min(pages, key=_problems) for seed, pages in of_seeds.items() if pages}
    complete = {seed: page for seed, page in best.items() if not _problems(page)}
    alike: dict[bytes, tuple[NeedsPage, list[str]]] = {}
    for seed, page in sorted((complete or best).items()):
        alike.setdefault(msgspec.json.encode(page, order="deterministic"), (page, []))[1].append(seed)
    groups = sorted(alike.values(), key=lambda each: -len(each[1]))
    return [_answer(known, page, seeds) for page, seeds in groups[:MAX_ANSWERS]], len(groups) > MAX_ANSWERS


def _problems(page: NeedsPage) -> int:
    return sum(bool(each.problem) for each in page.items) + (MAX_DOCUMENTS if page.problem else 0)


def _answer(known: PreviewInput, page: NeedsPage, seeds: list[str]) -> ManifestAnswer:
    needs = {quota.metadata.name: _need(page.items, quota.metadata.name) for quota in known.quotas}
    compared = previews.compared(known, needs)
    whole = known if any(needs.values()) else None
    problems = [f"{each.object}: {each.problem}" for each in page.items if each.problem]
    if page.problem:
        problems.append(page.problem)
    denied = any(each.enforcement == "deny" for each in compared.shortages)
    message = [compared.message] if compared.message else problems
    if not message and not any(needs.values()):
        message = ["no quota counts any of it"]
    return ManifestAnswer(
        result="DoesNotFit" if denied else "Unknown" if problems else "Fits",
        seeds=seeds,
        objects=[_object(known, each) for each in page.items],
        shortages=compared.shortages,
        holders=compared.holders,
        items=previews.places(whole, needs) if whole is not None and not problems else [],
        message="; ".join(message),
        as_of=compared.as_of,
        stale=compared.stale,
    )


def _need(items: Iterable[ObjectNeeds], quota: str) -> ResourceList:
    """Of all together."""
    each = (
        {name: amount * item.count for name, amount in resources.parse(item.needs.get(quota, {})).items()}
        for item in items
    )
    return resources.total(each)


def _object(known: PreviewInput, item: ObjectNeeds) -> ManifestObject:
    sizes = {quota.metadata.name: resources.parse(item.needs.get(quota.metadata.name, {})) for quota in known.quotas}
    largest: ResourceList = {}
    for size in sizes.values():
        largest = resources.maximum(largest, size)
    return ManifestObject(
        object=item.object,
        count=item.count,
        fitting=0 if item.problem else previews.fitting(known, sizes, item.count),
        need=resources.render(largest),
        unknown=dict(item.unknown),
        problem=item.problem,
    )
