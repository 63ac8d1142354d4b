"""The examples of providers.md, sized as a user would by `seedquota-seed size`, cost what the page says."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from seed import size_command
from seed.providers import CLOUDS, PROVIDERS
from tests.unit.fake_cloud import Handler, fake_cloud
from tests.unit.seed.kinds.machines import test_sizes as ec2
from tests.unit.seed.providers import test_alibaba as alibaba
from tests.unit.seed.providers import test_aws as aws
from tests.unit.seed.providers import test_azure as azure
from tests.unit.seed.providers import test_digitalocean as digitalocean
from tests.unit.seed.providers import test_gcp as gcp
from tests.unit.seed.providers import test_hetzner as hetzner
from tests.unit.seed.providers import test_linode as linode
from tests.unit.seed.providers import test_openstack as openstack
from tests.unit.seed.providers import test_scaleway as scaleway
from tests.unit.seed.providers import test_vultr as vultr

PAGE = (Path(__file__).parents[4] / "docs" / "reference" / "providers.md").read_text()
EXAMPLES = re.findall(r"^### (\S+)\n.*?^```yaml\n# (\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)

# What is asked for the examples' types, under which names, and what the page tells to set in the environment.
SERVED: dict[str, tuple[Callable[[], Handler], tuple[str, ...], dict[str, str], str]] = {
    "alibaba": (
        alibaba.Ecs,
        ("ecs.eu-central-1.aliyuncs.com",),
        {"ALIBABA_ACCESS_KEY_ID": alibaba.ID, "ALIBABA_ACCESS_KEY_SECRET": alibaba.SECRET},
        "ecs.g7.large of alibaba eu-central-1",
    ),
    "aws": (
        lambda: ec2.ec2,
        (ec2.HOST,),
        {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": aws.SECRET},
        "m5.large of aws eu-central-1",
    ),
    "azure": (
        lambda: azure.serve,
        ("login.microsoftonline.com", "management.azure.com"),
        {
            "AZURE_SUBSCRIPTION_ID": azure.SUBSCRIPTION,
            "AZURE_TENANT_ID": azure.TENANT,
            "AZURE_CLIENT_ID": "client",
            "AZURE_CLIENT_SECRET": azure.SECRET,
        },
        "Standard_D4s_v5 of azure westeurope",
    ),
    "digitalocean": (
        lambda: digitalocean.sizes,
        ("api.digitalocean.com",),
        {"DO_TOKEN": digitalocean.TOKEN},
        "s-2vcpu-4gb of digitalocean api.digitalocean.com",
    ),
    "gce": (
        lambda: gcp.serve,
        ("oauth2.googleapis.com", "compute.googleapis.com"),
        {"GOOGLE_SERVICE_ACCOUNT": gcp.encoded(gcp.ACCOUNT)},
        "g2-standard-4 of gce europe-west3-a",
    ),
    "hetzner": (
        lambda: hetzner.server_types,
        ("api.hetzner.cloud",),
        {"HZ_TOKEN": hetzner.TOKEN},
        "cax11 of hetzner api.hetzner.cloud",
    ),
    "linode": (lambda: linode.types, ("api.linode.com",), {}, "g6-standard-2 of linode api.linode.com"),
    "openstack": (
        lambda: openstack.Nova().serve,
        ("keystone.example.com", "nova.example.com"),
        {
            "OS_AUTH_URL": openstack.IDENTITY,
            "OS_APPLICATION_CREDENTIAL_ID": "app-id",
            "OS_APPLICATION_CREDENTIAL_SECRET": openstack.APPLICATION_SECRET,
        },
        f"m1.medium of openstack RegionOne at {openstack.IDENTITY}",
    ),
    "scaleway": (
        lambda: scaleway.servers,
        ("api.scaleway.com",),
        {"SCW_SECRET_KEY": scaleway.SECRET},
        "DEV1-M of scaleway fr-par-1",
    ),
    "vultr": (lambda: vultr.plans, ("api.vultr.com",), {}, "vhf-8c-32gb of vultr api.vultr.com"),
}


@pytest.mark.parametrize(("provider", "costs", "example"), EXAMPLES, ids=[example[0] for example in EXAMPLES])
async def test_the_example_of_each_provider_costs_what_the_page_says(
    provider: str,
    costs: str,
    example: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "machine.yaml").write_text(example)
    arguments = ["-f", str(tmp_path / "machine.yaml")]
    if provider not in SERVED:
        assert await asyncio.to_thread(size_command.main, arguments) == 0
        told = f"all of it stands in the spec, as {provider} reads it"
    else:
        serve, hosts, environment, told = SERVED[provider]
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        async with fake_cloud(serve(), *hosts) as cloud:
            monkeypatch.setattr(size_command, "Transport", lambda **_: cloud.transport())
            assert await asyncio.to_thread(size_command.main, arguments) == 0
        assert cloud.requests
    shown = capsys.readouterr()
    assert shown.out.startswith(f"pool-a-x7k2p: {costs}\n")
    assert f"\n  found: {told}" in shown.out
    assert shown.err == ""


def test_the_page_has_a_row_and_an_example_of_every_provider() -> None:
    assert sorted(example[0] for example in EXAMPLES) == sorted(PROVIDERS)
    assert re.findall(r"^\| `([a-z-]+)` \|", PAGE, re.MULTILINE) == sorted(PROVIDERS)
    assert set(SERVED) == set(CLOUDS) - {"kubevirt"}  # whose example says its size itself
