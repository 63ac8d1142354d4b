"""The condition MachinesSized and its metric: what must be put right, of which cloud, and never a secret."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest
from prometheus_client import REGISTRY, generate_latest

from common.api.types import Condition, UserCluster
from common.kube.controller.store import Change
from common.quota.quantity import UNIT
from common.runtime import flags
from seed import metrics
from seed.controllers.user_cluster_conditions import judge
from seed.instance_types.cache import FlavourCache
from seed.instance_types.http_client import Transport
from seed.instance_types.settings import SettingsReader
from seed.kinds.machines.source import Source
from seed.kinds.machines.totals import MachineTotals
from seed.machines.machine_controller import FOOTPRINT_ANNOTATION, Machine
from seed.options import SeedOptions
from seed.providers.flavour import Flavour, Place
from seed.providers.size import CONDITIONS, NotSized, ProviderUnavailable
from seed.sizing import sizer
from seed.sizing.sizer import Sizing
from seed.sizing.stamp_audit import Drift
from tests.unit.fake_cloud import Handler, answering, fake_cloud, hang, machine
from tests.unit.seed.kinds.machines.test_sizes import HOST, ec2
from tests.unit.seed.providers.test_aws import SECRET
from tests.unit.seed_world import CLUSTER_UID, sizing

CLUSTER = msgspec.convert(
    {"metadata": {"name": "c1", "namespace": "alpha", "uid": CLUSTER_UID}, "spec": {"project": "alpha"}}, UserCluster
)
KEY = CLUSTER.metadata.key


def aws(instance_type: str = "m5.large", secret: str | None = SECRET) -> Machine:
    keys = {"accessKeyId": "AKIDEXAMPLE", "secretAccessKey": secret}
    return machine("aws", {"instanceType": instance_type, "region": "eu-central-1", "diskSize": 50, **keys})


async def condition_of(
    subject: Machine, bad_day: Handler | None = None, limited: frozenset[str] = frozenset()
) -> Condition:
    """As the leader finds it when it asks."""
    async with fake_cloud(ec2, HOST) as cloud:
        cloud.disturb = bad_day
        sizes = sizing(transport=cloud.transport())
        totals = MachineTotals(size=lambda found: sizes.counted(CLUSTER_UID, found))
        totals.apply(Change(None, subject))
        try:
            await sizes.size(CLUSTER, subject, asyncio.get_running_loop().time() + (0.7 if bad_day is hang else 30.0))
            totals.apply(Change(subject, subject))
        except (NotSized, ProviderUnavailable) as error:
            totals.explain(subject.metadata.uid, error)
        await sizes.close()
    unsized = totals.unsized(limited)
    metrics.machines(KEY, unsized.counts, 0, 0)
    source = SimpleNamespace(totals=totals, drift=Drift(), problem=None, current=True)
    found = judge(CLUSTER, cast(Source, source), None, None, unsized)
    return next(condition for condition in found if condition.type == "MachinesSized")


def metric(reason: str) -> float | None:
    return REGISTRY.get_sample_value("seedquota_machines_unsized", {"user_cluster": KEY, "reason": reason})


@pytest.mark.parametrize(
    ("subject", "bad_day", "reason", "message"),
    [
        (aws("m5.larg"), None, "FlavorUnknown", "aws eu-central-1 has no type m5.larg; nearest: m5.large"),
        (aws(), answering(401, SECRET), "CredentialsRejected", "aws eu-central-1 refuses these credentials (401)"),
        (aws(secret=None), None, "CredentialsRejected", "aws secretAccessKey is missing: set it in the Machine; what"),
        (aws(), answering(500, SECRET), "ProviderUnavailable", "aws eu-central-1 answered 500"),
        (aws(), answering(429, Retry_After="60"), "ProviderUnavailable", "answers too many requests (429)"),
        (aws(), hang, "ProviderUnavailable", "aws eu-central-1 has not answered yet"),
        (machine("vsphere", {"cpus": 2}), None, "NotSized", "vsphere memoryMB is missing"),
        (machine("vsphere", {"cpus": 2, "memoryMB": 2048}), None, "NotSized", "vsphere diskSizeGB is not set, so"),
    ],
)
async def test_each_cause_has_its_reason_message_and_count(
    subject: Machine, bad_day: Handler | None, reason: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    found = await condition_of(subject, bad_day, frozenset({"storage"}))
    assert (found.status, found.reason) == ("False", reason)
    assert found.message.startswith("1 machine: kube-system/m: cannot size machine")
    assert message in found.message
    assert {each: metric(each) for each in CONDITIONS} == {each: float(each == reason) for each in CONDITIONS}
    logged = " ".join(repr(vars(record)) for record in caplog.records)
    shown = f"{found} {generate_latest().decode()} {logged}"
    assert SECRET not in shown
    assert "AKIDEXAMPLE" not in shown


async def test_what_is_sized_is_said_so_and_its_metric_ends_with_its_cluster() -> None:
    assert (await condition_of(aws(), None, frozenset({"storage"}))).status == "True"
    assert [metric(reason) for reason in CONDITIONS] == [0.0] * len(CONDITIONS)
    metrics.no_machines(KEY)
    assert [metric(reason) for reason in CONDITIONS] == [None] * len(CONDITIONS)


NOT_NAMED = (
    "cannot size machine: cloudProvider {} is not named by --providers of seedquota-seed, so it cannot be sized; {}"
)


@pytest.mark.parametrize(
    ("enabled", "on"), [((), "none is named yet"), (("vsphere", "aws"), "those of aws, vsphere can")]
)
@pytest.mark.parametrize(
    ("provider", "spec"),
    [("fake", {"cpu": "1", "memory": "1Gi"}), ("fake", {}), ("hetzner", {"serverType": "cax11"}), ("hetzner", {})],
)
async def test_a_cloud_is_off_unless_it_is_named(
    provider: str, spec: dict[str, object], enabled: tuple[str, ...], on: str
) -> None:
    cache = FlavourCache(Transport())
    made = Sizing(cache, SettingsReader(None), lambda _text: "", lambda _text, _seal: False, enabled)
    for size in (
        made.size(CLUSTER, machine(provider, spec), asyncio.get_running_loop().time() + 30),
        made.admitted(CLUSTER, machine(provider, spec), asyncio.get_running_loop().time() + 30),
    ):
        with pytest.raises(NotSized) as caught:
            await size
        assert str(caught.value) == NOT_NAMED.format(provider, on)
    await made.close()


def test_without_the_flag_no_cloud_is_named() -> None:
    given = ["--seed-name=a", "--webhook-url=https://a"]
    assert flags.parse(SeedOptions, "seedquota-seed", "d", given, {}).providers == ()
    assert flags.parse(SeedOptions, "seedquota-seed", "d", [*given, "--providers=aws,fake"], {}).providers == (
        "aws",
        "fake",
    )


def test_specs_of_one_user_cluster_push_out_no_place_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizer, "MAX_PLACES_KEPT", 2)
    made = Sizing(FlavourCache(Transport()), SettingsReader(None), lambda _text: "", lambda _text, _seal: False)
    place = Place("hetzner", "api.hetzner.cloud")
    made._remember("ann", machine("hetzner", {"serverType": "cax11"}), place)
    for number in range(10):
        made._remember("mallory", machine("hetzner", {"serverType": f"cax{number}"}), place)
    with pytest.raises(ProviderUnavailable, match="is being asked"):
        made.known("ann", machine("hetzner", {"serverType": "cax11"}))
    made._cache._shelves.recall(place, "cax11", Flavour(1, 1), asker="ann", as_of="", now=0.0, fresh=1.0)
    assert made.known("ann", machine("hetzner", {"serverType": "cax11"})).place == "hetzner api.hetzner.cloud"


def test_a_type_counts_by_its_name_whatever_the_spec_calls_it() -> None:
    """Hetzner and OpenStack take an id, too: a limit of the name must hold for it."""
    place, costs = Place("hetzner", "api.hetzner.cloud"), []
    made = Sizing(FlavourCache(Transport()), SettingsReader(None), lambda _text: "s", lambda _text, _seal: True)
    for written in ("cax11", "45"):
        of_type = machine("hetzner", {"serverType": written})
        made._remember("u", of_type, place)
        flavour = Flavour(1, 1, name="cax11")
        made._cache._shelves.recall(place, written, flavour, asker="ann", as_of="", now=0.0, fresh=1.0)
        sized = made.known("u", of_type)
        of_type.metadata.annotations[FOOTPRINT_ANNOTATION] = made.make_stamp("u", of_type, sized)
        costs += [sized.footprint.resources, made.counted("u", of_type).resources]
    assert all(each == costs[0] for each in costs)
    assert costs[0]["instances.cax11"] == UNIT and not any(name == "instances.45" for name in costs[0])
