"""What is written into a UserCluster's status of the Machines that nobody admitted."""

from __future__ import annotations

import msgspec

from common.api.types import UserCluster
from seed.controllers.user_cluster_status import desired_status, recorded
from seed.usage.unadmitted import MAX_RECORDED, Unadmitted

NOW = "2026-11-20T10:00:03Z"


def cluster(**status: object) -> UserCluster:
    metadata = {"name": "c1", "namespace": "alpha"}
    return msgspec.convert({"metadata": metadata, "spec": {"project": "alpha"}, "status": status}, UserCluster)


def some(number: int) -> Unadmitted:
    unadmitted = Unadmitted()
    for index in range(number):
        unadmitted.appeared(f"u{index:04}", f"ns/m{index}")
    unadmitted.judge(unadmitted.waiting, sure=True)
    return unadmitted


def test_how_many_there_are_is_written_and_of_many_not_all_uids() -> None:
    few, many = (desired_status(cluster(), (9, {}), [], NOW, recorded(some(number))) for number in (2, 1000))
    assert few is not None and few["unadmitted"] == {"machines": 2, "uids": ["u0000", "u0001"]}
    assert many is not None and isinstance(many["unadmitted"], dict)
    assert (many["unadmitted"]["machines"], len(many["unadmitted"]["uids"])) == (1000, MAX_RECORDED)


def test_it_is_written_only_when_it_changes_and_stays_until_it_is_known_again() -> None:
    before = cluster(machines=9, lastCountTime=NOW, unadmitted={"machines": 2, "uids": ["u0000", "u0001"]})
    assert desired_status(before, (9, {}), [], NOW, recorded(some(2))) is None
    assert desired_status(before, None, [], NOW, None) is None
    gone = desired_status(before, (9, {}), [], NOW, recorded(some(0)))
    assert gone is not None and "unadmitted" not in gone
