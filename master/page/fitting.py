"""Whether more fits, asked on a page: amounts, a machine type, or a pasted manifest. Nothing is written."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from master.apiserver.machine_types import MachineType, MachineTypes
from master.apiserver.manifests import MAX_MANIFEST, ManifestFits, ManifestFitsRequest
from master.apiserver.previews import FitsRequest, FitsResult, WhereRequest, WhereResult
from master.apiserver.problem import ProblemError
from master.apiserver.route import NAME
from master.apiserver.serializers import Quota
from master.page.handlers import Asked, Shown, ask_of_quota, content_of

MAX_REPLICAS = 999_999
SHOWN_TYPES = 200
_AMOUNT = "need."  # begins the names of fields that are amounts

Kind = Literal["project", "quota"]


class _Sized(NamedTuple):
    """`sizes`: of a machine type, where seeds know it. `chosen`: the one that is asked about."""

    sizes: Sequence[MachineType] = ()
    chosen: MachineType | None = None
    not_asked: str = ""


async def form(kind: Kind, asked: Asked) -> Shown:
    """The forms, with the answer to what was sent by one of them. Raises ProblemError and ApiError."""
    name = asked.names["name"]
    quota = await _quota(kind, asked)
    typed, replicas = needed(asked.query)
    need = dict(typed)
    type = asked.query.get("type", "").strip()[:255] if kind == "project" else ""
    fits: FitsResult | None = None
    where: WhereResult | None = None
    manifest: ManifestFits | None = None
    sized, problem, text = _Sized(), "", ""
    try:
        if asked.form is not None:
            text = asked.form.get("manifest", "")
            count = asked.form.get("replicas", "").strip()
            manifest = await _manifest(kind, asked, text, count)
        elif type or need:
            if type:
                sized = await _size(asked, type)
                if sized.chosen is None:
                    raise ProblemError(422, f"No seed knows a machine type {type} for user clusters of this project.")
                need = {**sized.chosen.resources, **typed}
            fits = await _fits(kind, asked, need, replicas)
            where = await _where(kind, asked, need, replicas)
    except ProblemError as error:
        if error.status != 422:
            raise
        problem = str(error)
    values = {"kind": kind, "name": name, "quota": quota, "typed": typed, "need": need, "replicas": replicas}
    values |= {
        "type": type,
        "sized": sized,
        "fits": fits,
        "where": where,
        "problem": problem,
        "text": text,
        "manifest": manifest,
    }
    command = "kubectl seedquota fits -f FILE" if asked.form is not None else _command(kind, name)
    call = "POST /api/v1/fits/manifest" if asked.form is not None else "POST /api/v1/fits"
    return Shown("fits.html", f"Does it fit into {name}?", values, command, call, f"/{kind}s/{name}/yaml", events="")


async def machine_types(asked: Asked) -> Shown:
    """Those that seeds know for a project. Raises ProblemError and ApiError."""
    name, wanted = asked.names["name"], asked.query.get("search", "").strip()[:255]
    found = content_of(MachineTypes, await asked.ask("list_machine_types", asked.user, parameters={"project": name}))
    matching = [each for each in found.items if wanted.lower() in each.name.lower()]
    values: dict[str, object] = {
        "name": name,
        "search": wanted,
        "items": matching[:SHOWN_TYPES],
        "not_asked": found.not_asked,
    }
    values |= {"more": found.more or len(matching) > SHOWN_TYPES}
    call = f"GET /api/v1/projects/{name}/machinetypes"
    return Shown("machine_types.html", f"Machine types of {name}", values, "", call, events="")


def needed(query: Mapping[str, str]) -> tuple[dict[str, str | int], int]:
    """What one piece needs, and how many there are to be."""
    need: dict[str, str | int] = {
        name.removeprefix(_AMOUNT): value.strip()
        for name, value in query.items()
        if name.startswith(_AMOUNT) and value.strip() not in ("", "0")
    }
    return need, _count(query.get("replicas", "1").strip()) or 1


def _count(text: str) -> int:
    """0 for what is no number."""
    return min(int(text), MAX_REPLICAS) if re.fullmatch("[0-9]{1,9}", text) else 0


async def _quota(kind: Kind, asked: Asked) -> Quota:
    name = asked.names["name"]
    if kind == "project":
        return content_of(Quota, await asked.ask("get_project_quota", asked.user, parameters={"project": name}))
    return content_of(Quota, await ask_of_quota(asked, "get_quota"))


async def _size(asked: Asked, type: str) -> _Sized:
    parameters, place = {"project": asked.names["name"]}, asked.query.get("place", "")
    answer = await asked.ask("list_machine_types", asked.user, parameters=parameters, query={"name": type})
    found = content_of(MachineTypes, answer)
    chosen = next((each for each in found.items if each.place == place), found.items[0] if found.items else None)
    return _Sized(found.items, chosen, found.not_asked)


async def _fits(kind: Kind, asked: Asked, need: Mapping[str, str | int], replicas: int) -> FitsResult:
    body = FitsRequest(resources=dict(need), replicas=replicas)
    setattr(body, kind, asked.names["name"])
    return content_of(FitsResult, await asked.ask("fits", asked.user, body=body))


async def _where(kind: Kind, asked: Asked, need: Mapping[str, str | int], replicas: int) -> WhereResult:
    body = WhereRequest(resources=dict(need), replicas=replicas)
    setattr(body, kind, asked.names["name"])
    return content_of(WhereResult, await asked.ask("where", asked.user, body=body))


async def _manifest(kind: Kind, asked: Asked, text: str, count: str) -> ManifestFits:
    if not text.strip() or len(text) > MAX_MANIFEST:
        raise ProblemError(422, f"Paste a manifest of at most {MAX_MANIFEST} characters.")
    body = ManifestFitsRequest(manifest=text)
    setattr(body, kind, asked.names["name"])
    if count:
        if not (number := _count(count)):
            raise ProblemError(422, f"How many: a number from 1 to {MAX_REPLICAS}, or nothing.")
        body.replicas = number
    if NAME.fullmatch(seed := (asked.form or {}).get("seed", "")):
        body.seed = seed
    return content_of(ManifestFits, await asked.ask("manifest_fits", asked.user, body=body))


def _command(kind: Kind, name: str) -> str:
    if kind == "quota":
        return f"kubectl seedquota describe {name}"
    return f"kubectl seedquota where --subject project/{name} RESOURCE=AMOUNT"
