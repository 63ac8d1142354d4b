"""`seedquota fits`: what a file asks for, and what the command says of the answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.fitting import answer, files
from cli.fitting.asking import Found
from cli.outcome import Failed
from seed.previews import objects
from seed.webhooks.fits import Fits, QuotaFits

GOLDEN = Path(__file__).parent / "golden"
WIDTHS = {"80": 80, "200": 200}


def workload(kind: str = "Deployment", api: str = "apps/v1", **spec: Any) -> dict[str, Any]:
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "web"}]}}
    return {"apiVersion": api, "kind": kind, "metadata": {"name": "web"}, "spec": {"template": template, **spec}}


def one(document: dict[str, Any]) -> objects.Manifest:
    (found,) = files.read(yaml.safe_dump(document))
    return found


def counts(document: dict[str, Any], before: dict[str, Any] | None = None) -> list[tuple[str, int]]:
    return [(made.what, made.count) for made in objects.made_by(one(document), document, before)]


def existing(document: dict[str, Any], **status: int) -> dict[str, Any]:
    return {**document, "status": status}


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (workload(replicas=3), 3),
        (workload(), 1),
        (workload(replicas=0), 0),
        (workload("Job", "batch/v1", parallelism=4, completions=10), 4),
        (workload("Job", "batch/v1", parallelism=4, completions=2), 2),
        (workload("ReplicationController", "v1", replicas=2), 2),
    ],
)
def test_a_workload_is_asked_about_by_the_pods_that_it_makes(document: dict[str, Any], expected: int) -> None:
    assert [count for _, count in counts(document)] == ([expected] if expected else [])


def test_an_edit_is_asked_about_by_its_difference() -> None:
    before = existing(workload(replicas=3), replicas=3)
    assert counts(workload(replicas=5), before) == [("pods of deployment/web", 2)]
    assert counts(workload(replicas=2), before) == []
    assert counts(workload(replicas=3), before) == []
    job = workload("Job", "batch/v1", parallelism=4, completions=10)
    assert counts(job, existing(job, active=3)) == [("pods of job/web", 1)]


@pytest.mark.parametrize(
    ("unavailable", "surge", "count"), [("25%", "25%", 0), (0, 1, 1), (0, "50%", 2)], ids=["default", "one", "half"]
)
def test_a_rollout_is_asked_about_by_the_pods_that_must_start_first(
    unavailable: int | str, surge: int | str, count: int
) -> None:
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": unavailable, "maxSurge": surge}}
    before = existing(workload(replicas=4, strategy=rolling), replicas=4)
    after = workload(replicas=4, strategy=rolling)
    after["spec"]["template"]["spec"]["containers"][0]["image"] = "nginx"
    found = objects.made_by(one(after), after, before)
    assert [made.count for made in found] == ([count] if count else [])
    assert all("its pods are replaced" in made.note for made in found)


def test_a_stateful_set_is_asked_about_by_its_claims_too() -> None:
    claim = {"metadata": {"name": "data"}, "spec": {"resources": {"requests": {"storage": "1Gi"}}}}
    document = workload("StatefulSet", replicas=3, volumeClaimTemplates=[claim])
    pods, claims = objects.made_by(one(document), document, None)
    assert (pods.manifest.kind, pods.count) == ("Pod", 3)
    assert pods.manifest.body["metadata"] == {"generateName": "web-", "labels": {"app": "web"}}
    assert (claims.manifest.kind, claims.count) == ("PersistentVolumeClaim", 3)
    assert claims.manifest.body["spec"] == claim["spec"]


def test_replicas_are_those_of_what_scales_and_copies_of_what_does_not() -> None:
    pool = {"apiVersion": "cluster.k8s.io/v1alpha1", "kind": "MachineDeployment", "metadata": {"name": "pool-a"}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}}
    assert objects.with_replicas(one(pool), 7).body["spec"] == {"replicas": 7}
    assert objects.with_replicas(one(pod), 7).body == pod
    assert [objects.copies(one(each), 7) for each in (pool, pod, workload())] == [1, 7, 1]
    job = objects.with_replicas(one(workload("Job", "batch/v1", completions=2)), 3)
    assert (job.body["spec"]["parallelism"], job.body["spec"]["completions"]) == (3, 3)


def test_what_kubectl_get_prints_can_be_asked_about() -> None:
    metadata = {"name": "web", "uid": "u", "resourceVersion": "7", "managedFields": [], "labels": {"a": "b"}}
    listed = {"kind": "List", "items": [{**workload(), "metadata": metadata, "status": {"replicas": 3}}]}
    (found,) = files.read(yaml.safe_dump(listed))
    assert found.body["metadata"] == {"name": "web", "labels": {"a": "b"}}
    assert "status" not in found.body


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "there is no object in the file"),
        ("a: [", "the file is no YAML"),
        ("- a", "something that is no object"),
        ("kind: Pod", "has no apiVersion, kind or metadata"),
        (yaml.safe_dump(workload("DaemonSet")), "daemonset/web: how many pods it makes depends on the nodes"),
        (yaml.safe_dump_all([workload()] * 65), "65 objects in the file: ask for 64 at a time"),
    ],
)
def test_a_file_that_cannot_be_asked_about_says_why(text: str, said: str) -> None:
    with pytest.raises(Failed, match=said):
        files.read(text)


def part(name: str, fitting: int, enforcement: Any = "deny", undecided: str = "", **amounts: str) -> QuotaFits:
    found = {word: {"cpu": amount} for word, amount in amounts.items()}
    return QuotaFits(name=name, enforcement=enforcement, fitting=fitting, undecided=undecided, **found)  # type: ignore[arg-type]


ALPHA = part("project-alpha", 2, need="8", used="60", free="4", limits="64")
ACME = part("org-acme", 4, need="8", used="160", free="40", limits="200")
FULL = Fits(decision="01JD3Y6K", asked=4, code=403, reason="QuotaExceeded", quotas=[ALPHA, ACME])
ENOUGH = Fits(decision="01JD3Y6L", asked=4, quotas=[ACME])
WARNS = Fits(decision="01JD3Y6M", asked=4, quotas=[part("trial", 2, "warn", need="8", free="4"), ACME])
AWAY = "4 is free but held by seed us-1, unreachable for 7m"
CASES = {
    "short": Found(what="machinedeployment/pool-a", group="cluster.k8s.io", count=1, answer=FULL),
    "fits": Found(what="pods of deployment/web", group="", count=4, answer=ENOUGH),
    "warns": Found(what="machine/a", group="cluster.k8s.io", count=4, answer=WARNS, note="its pods are replaced"),
    "unlimited": Found(what="service/web", group="", count=1),
    "edit": Found(what="pod/web", group="", count=1, exists=True),
    "nobody": Found(what="machine/b", group="cluster.k8s.io", count=1),
    "nothing": Found(what="machineset/c", group="cluster.k8s.io", count=1, answer=Fits(decision="x", asked=0)),
    "unsized": Found(
        what="machine/d",
        group="cluster.k8s.io",
        count=1,
        answer=Fits(decision="01JD3Y6N", asked=1, code=422, reason="MachineNotSized", message="no m5.larg; decision y"),
    ),
    "away": Found(
        what="machine/e",
        group="cluster.k8s.io",
        count=1,
        answer=Fits(
            decision="01JD3Y6P", asked=1, code=503, quotas=[part("project-alpha", 0, undecided=AWAY, need="8"), ACME]
        ),
    ),
}
CASES["kept"] = Found(
    what="machine/f",
    group="cluster.k8s.io",
    count=1,
    answer=Fits(
        decision="01JD3Y6Q",
        asked=1,
        code=403,
        quotas=[part("org-acme", 0, need="8", used="196", kept="16", free="4", limits="200")],
    ),
)
RESULTS = {
    "kept": ("does not fit", 2),
    "short": ("does not fit", 2),
    "fits": ("fits", 0),
    "warns": ("fits", 0),
    "unlimited": ("unlimited", 0),
    "edit": ("costs nothing more", 0),
    "nobody": ("cannot be told", 3),
    "nothing": ("costs nothing more", 0),
    "unsized": ("does not fit", 2),
    "away": ("cannot be told", 3),
}


@pytest.mark.parametrize("name", CASES)
def test_the_exit_status_is_that_of_the_answer(name: str) -> None:
    found = answer.told(CASES[name])
    assert (found.result, answer.status([found])) == RESULTS[name]
    assert answer.status([found, answer.told(CASES["short"]), answer.told(CASES["nobody"])]) == 2


@pytest.mark.parametrize("width", WIDTHS)
def test_what_does_not_fit_is_told_with_what_it_needs_and_what_is_free(width: str) -> None:
    found = [answer.told(each) for each in CASES.values()]
    text = answer.lines(found, WIDTHS[width])
    assert text + "\n" == (GOLDEN / f"fits-{width}.txt").read_text()
    assert max(map(len, text.splitlines())) <= WIDTHS[width]
    text = answer.table(found, None)
    assert text + "\n" == (GOLDEN / "fits-wide.txt").read_text()
