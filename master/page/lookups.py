"""Pages that show what a route of the HTTP API answers: allocations, a decision, and what was refused."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal
from urllib.parse import parse_qs, urlencode, urlsplit

from master.apiserver.allocation_types import Allocation
from master.apiserver.call import RouteResponse
from master.apiserver.cluster_lists import QuotaClusters
from master.apiserver.decisions import Decision, Refusals
from master.apiserver.problem import ProblemError
from master.apiserver.route import NAME, PATTERNS
from master.page.handlers import EVENTS, Asked, Shown, ask_of_quota, content_of
from master.page.views import amounts, quota_clusters
from master.page.views.times import Moment, moment

PER_PAGE = "50"


class Lookups:
    """Each raises ProblemError and ApiError."""

    async def allocations(self, asked: Asked) -> Shown:
        name = asked.names["name"]
        query = {
            each: value for each in ("projectID", "kind", "continue") if (value := asked.query.get(each, "").strip())
        }
        if not all(NAME.fullmatch(query[each]) for each in ("projectID", "continue") if each in query):
            raise ProblemError(404, "no project has this name")
        answer = await asked.ask(
            "list_allocations", asked.user, parameters={"organization": name}, query={**query, "limit": PER_PAGE}
        )
        found = answer.content
        assert isinstance(found, list), "it is a list of allocations"
        items: Sequence[Allocation] = found
        return Shown(
            "allocations.html",
            f"Allocations of {name}",
            {
                "name": name,
                "items": items,
                "query": query,
                "next": _next(answer, query),
                "whole": amounts.whole,
                "moment": _moment,
            },
            f"kubectl get alloc -n org-{name}",
            f"GET /api/v1/organizations/{name}/allocations",
            f"kubectl get alloc -n org-{name} -o yaml",
            events="" if "projectID" in query else f"{EVENTS}?organization={name}",
        )

    async def decision(self, asked: Asked) -> Shown:
        """Of the decision whose id is asked for; without one, the form alone."""
        id, seed = asked.query.get("id", "").strip().upper(), asked.query.get("seed", "").strip()
        found: Decision | None = None
        problem = ""
        if id and not PATTERNS["decision"].fullmatch(id):
            problem = "The id of a decision has eight letters and digits. It is at the end of the refusal's message."
        elif id:
            query = {"seed": seed} if NAME.fullmatch(seed) else {}
            try:
                content = (
                    await asked.ask("get_decision", asked.user, parameters={"decision": id}, query=query)
                ).content
                assert isinstance(content, Decision), "it is a decision"
                found = content
            except ProblemError as error:
                if error.status != 404:
                    raise
                problem = f"No agent keeps a decision {id}, or you cannot see it. Agents keep the latest ones."
        values = {"id": id, "seed": seed, "found": found, "problem": problem, "moment": _moment}
        command = found.command if found is not None else "kubectl seedquota explain DECISION"
        shown = id if found is not None else "{decision}"
        call = f"GET /api/v1/decisions/{shown}"
        return Shown("decision.html", "Why was it refused?", values, command, call, events="")

    async def quota_clusters(self, asked: Asked) -> Shown:
        """The user clusters that use most of a quota."""
        name = asked.names["name"]
        found = content_of(QuotaClusters, await ask_of_quota(asked, "list_quota_clusters"))
        values = {"name": name, "found": found, "rest": quota_clusters.shown(found.rest)}
        values |= {"lines": quota_clusters.lines(found, datetime.now(UTC))}
        command, call = f"kubectl seedquota consumers {name} --all", f"GET /api/v2/quotas/{name}/clusters"
        yaml = f"/quotas/{name}/yaml"
        return Shown("quota_clusters.html", f"User clusters of {name}", values, command, call, yaml, events="")

    async def refusals(self, kind: Literal["quota", "project"], asked: Asked) -> Shown:
        """What a quota refused lately, or was refused in a project."""
        name = asked.names["name"]
        found = content_of(Refusals, await asked.ask("list_refusals", asked.user, query={kind: name}))
        values = {"kind": kind, "name": name, "found": found, "moment": _moment}
        call = f"GET /api/v1/refusals?{kind}={name}"
        title, command, yaml = f"Refusals of {name}", "kubectl seedquota denials --all-seeds", f"/{kind}s/{name}/yaml"
        return Shown("refusals.html", title, values, command, call, yaml, events="")


def _moment(time: str) -> Moment:
    return moment(time, datetime.now(UTC))


def _next(answer: RouteResponse, query: Mapping[str, str]) -> str:
    """The query of the next page; empty: there is none."""
    link = next((value for name, value in answer.headers if name == "Link"), "")
    found = re.match("<([^>]*)>", link)
    if found is None:
        return ""
    rest = parse_qs(urlsplit(found[1]).query).get("continue", [""])[0]
    return urlencode({**query, "continue": rest})
