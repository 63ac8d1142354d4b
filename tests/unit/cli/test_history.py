"""What `history` tells of a quota, and what it says is not known."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from cli.denials import Denied, Event
from cli.history import command, timeline, use
from cli.history.command import History
from cli.history.timeline import Entry, Managed
from cli.history.use import Part, Peak
from cli.outcome import Failed
from master.history import prometheus_api
from tests.unit.quota_examples import NOW, quota

GOLDEN = Path(__file__).parent / "golden"
WIDTHS = {"80": 80, "200": 200}
UID = "9d90abc1-0cb1-454a-b6f7-fca8b34b8818"


def written(manager: str, *limits: str, subresource: str = "") -> dict[str, Any]:
    fields = {"f:spec": {".": {}, "f:quota": {".": {}, **{f"f:{name}": {} for name in limits}}}}
    time = "2026-11-20T09:40:00Z"
    return {"manager": manager, "time": time, "fieldsV1": fields if limits else {}, "subresource": subresource}


MANAGED = msgspec.convert(
    {
        "metadata": {
            "name": "project-alpha",
            "managedFields": [
                written("kubectl-edit", "memory", "cpu", "nvidia.com/gpu"),
                written("argocd"),
                written("seedquota-master", "cpu", subresource="status"),
                {"manager": "applied", "fieldsV1": {"f:spec": {"f:quota": {}}}},
                {"manager": "odd", "fieldsV1": {"f:spec": []}},
            ],
        }
    },
    Managed,
)


def about(reason: str, note: str, *, uid: str = UID, controller: str = "seedquota.io/master") -> Event:
    body = {
        "metadata": {"name": "e", "namespace": "default"},
        "reason": reason,
        "note": note,
        "eventTime": "2026-11-20T09:30:00.123456Z",
        "reportingController": controller,
        "regarding": {"kind": "ResourceQuota", "name": "project-alpha", "uid": uid},
    }
    return msgspec.convert(body, Event)


def refusal(message: str, count: int = 1) -> Denied:
    times = ("2026-11-20T09:58:00Z", "2026-11-20T09:10:00Z")
    return Denied(times[0], times[1], count, "QuotaExceeded", "usercluster/alpha/c1", message)


def the_quota() -> Any:
    full = {
        "type": "NearLimit",
        "status": "True",
        "reason": "Full",
        "message": "cpu 64/64",
        "lastTransitionTime": "2026-11-20T09:50:00Z",
    }
    enforced = {"type": "Enforced", "status": "True", "reason": "AllSeeds"}
    found = quota("project-alpha", {"kind": "project", "name": "alpha"}, {"cpu": "64"}, conditions=[full, enforced])
    metadata = msgspec.structs.replace(found.metadata, uid=UID, creation_timestamp="2026-11-19T08:00:00Z")
    return msgspec.structs.replace(found, metadata=metadata)


def test_of_those_who_wrote_fields_those_are_named_who_own_limits() -> None:
    assert timeline.of_writers(MANAGED) == [
        Entry("2026-11-20T09:40:00Z", "LimitsWritten", "by kubectl-edit, which owns cpu, memory, nvidia.com/gpu")
    ]


def test_events_are_of_this_quota_and_not_of_one_before_or_of_somebody_else() -> None:
    events = [
        about("LimitsChanged", "cpu 32 to 64"),
        about("NearLimit", "of the one before", uid="other"),
        about("NearLimit", "invented", controller="example.com/x"),
    ]
    assert [(each.what, each.detail) for each in timeline.of_events(events, the_quota())] == [
        ("LimitsChanged", "cpu 32 to 64")
    ]


def test_refusals_have_how_often_and_since_when() -> None:
    found = timeline.of_refusals({"eu-1": [refusal("too much", 41), refusal("it is fenced")], "us-1": []})
    assert [(each.count, each.since) for each in found] == [(41, "2026-11-20T09:10:00Z"), (1, "")]
    assert found[0].detail == "usercluster/alpha/c1 on eu-1: too much"


def test_what_is_older_than_is_asked_is_left_out_and_the_last_comes_first() -> None:
    entries = timeline.of_quota(the_quota())
    assert [each.what for each in timeline.ordered(entries, NOW, 3600)] == ["NearLimit=True"]
    assert [each.what for each in timeline.ordered(entries, NOW, 2 * 86400)] == ["NearLimit=True", "Created"]
    # Texts of times that are alike in order only after they are read.
    mixed = [Entry("2026-11-20T09:00:00.5Z", "half", ""), Entry("2026-11-20T09:00:00Z", "whole", "")]
    assert [each.what for each in timeline.ordered(mixed, NOW, 86400)] == ["half", "whole"]


@pytest.mark.parametrize("width", WIDTHS)
def test_history_shows_when_what_and_what_is_not_known(width: str) -> None:
    entries = [
        *timeline.of_quota(the_quota()),
        *timeline.of_writers(MANAGED),
        *timeline.of_events([about("LimitsChanged", "cpu 32 to 64")], the_quota()),
        *timeline.of_refusals({"eu-1": [refusal("exceeded quota: project-alpha, requested: cpu=8", 41)]}),
    ]
    peaks = {"cpu": Peak("60", "32", "64"), "memory": Peak("232Gi", "256Gi", "256Gi"), "storage": Peak("1Ti", "", "")}
    parts = [
        Part("2026-11-20T08:00:00Z", "2026-11-20T10:00:00Z", peaks, 41),
        Part("2026-11-20T06:00:00Z", "2026-11-20T08:00:00Z", {"cpu": Peak("31500m", "32", "32")}, None),
    ]
    histories = [
        History(timeline.ordered(entries, NOW, 7 * 86400), parts, [command._BEFORE, command._USERS]),
        History([], [], ["use over time: Prometheus refuses the question: too many samples"]),
        History([], None, [command._USERS]),
    ]
    text = "\n\n".join(command.text(each, NOW, WIDTHS[width]) for each in histories)
    assert text + "\n" == (GOLDEN / f"history-{width}.txt").read_text()
    assert max(map(len, text.splitlines())) <= WIDTHS[width]


# Answers as Prometheus 2.42 gave them.
USED = (
    '{"status":"success","data":{"resultType":"matrix","result":['
    '{"metric":{"resource":"cpu"},"values":[[%(end)s,"451.5"]]},'
    '{"metric":{"resource":"memory"},"values":[[%(end)s,"1937030250496"]]}]}}'
)
LIMIT = (
    '{"status":"success","data":{"resultType":"matrix","result":['
    '{"metric":{"resource":"cpu"},"values":[[%(end)s,"500"]]}]}}'
)
COUNT = '{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[[%(end)s,"2.6"]]}]}}'
NOTHING = '{"status":"success","data":{"resultType":"matrix","result":[]}}'
REFUSED = '{"status":"error","errorType":"bad_data","error":"1:9: parse error: unexpected \\"[\\""}'


async def asked(answers: dict[str, str], status: int = 200) -> tuple[list[Part], list[dict[str, str]]]:
    """By the metric that is asked for."""
    queries: list[dict[str, str]] = []

    async def answer(request: web.Request) -> web.Response:
        query = dict(request.query)
        queries.append(query)
        text = next(text for metric, text in answers.items() if metric in query["query"])
        return web.Response(text=text.replace("%(end)s", query["end"]), status=status)

    app = web.Application()
    app.router.add_get("/prom/api/v1/query_range", answer)
    server = TestServer(app)
    await server.start_server()
    try:
        return await use.parts(f"{server.make_url('/prom/')}", "project-alpha", NOW, 86400), queries
    finally:
        await server.close()


async def test_peaks_are_asked_of_prometheus_in_parts() -> None:
    found, queries = await asked({"seedquota_used": USED, "seedquota_limit": LIMIT, "seedquota_refusals": COUNT})
    assert found == [
        Part(
            "2026-11-20T08:00:03Z",
            "2026-11-20T10:00:03Z",
            {"cpu": Peak("451500m", "500", "500"), "memory": Peak("1804Gi", "", "")},
            3,
        )
    ]
    assert {query["step"] for query in queries} == {"7200"}
    assert all('{quota="project-alpha"}[7200s]' in query["query"] for query in queries)


async def test_what_prometheus_does_not_have_is_not_zero() -> None:
    found, _ = await asked({"seedquota_used": USED, "seedquota": NOTHING})
    assert [(part.resources["cpu"], part.refusals) for part in found] == [(Peak("451500m", "", ""), None)]
    assert (await asked({"seedquota": NOTHING}))[0] == []


@pytest.mark.parametrize(
    ("text", "status", "said"),
    [
        (REFUSED, 400, "refuses the question: 1:9: parse error"),
        ("<html>", 200, "answers what cannot be read"),
        (USED.replace("451.5", "many"), 200, "answers what cannot be read"),
        ("", 404, "answered 404: is that the URL of its start page?"),
        ("", 302, "answered 302"),
        ("[" * 5_000_000, 200, "answers more than"),
    ],
)
async def test_an_answer_that_is_none_is_said(text: str, status: int, said: str) -> None:
    with pytest.raises(Failed, match=said.replace("?", r"\?")):
        await asked({"seedquota": text}, status)


@pytest.mark.parametrize("amount", ["NaN", "+Inf", "-1", "1e300"])
def test_an_amount_that_no_quota_has_is_left_out(amount: str) -> None:
    series = {"metric": {"resource": "cpu"}, "values": [[1, amount], [2, "4"]]}
    answer = {"status": "success", "data": {"resultType": "matrix", "result": [series]}}
    assert prometheus_api.by_resource(prometheus_api.read(json.dumps(answer).encode())) == {2.0: {"cpu": 4.0}}


def test_times_and_urls_are_checked_and_a_password_is_not_repeated() -> None:
    assert [command._seconds(raw) for raw in ("7d", "12h", "30m")] == [7 * 86400, 12 * 3600, 1800]
    for raw in ("d", "1d2h", "7days", "x"):
        with pytest.raises(argparse.ArgumentTypeError):
            command._seconds(raw)
    for url in ("https://ann:secret@prometheus", "ftp://prometheus", "prometheus:9090", "http://p/?query=1"):
        with pytest.raises(argparse.ArgumentTypeError) as error:
            command._url(url)
        assert "secret" not in str(error.value)
