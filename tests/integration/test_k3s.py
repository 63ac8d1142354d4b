"""The charts and the product's image on k3s, a Kubernetes of others, where Docker is and a registry can be reached."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
import pytest_asyncio
from docker.errors import APIError, NotFound
from testcontainers.community.k3s import K3SContainer

from devcluster import binaries, images, load
from devcluster import docker as dockers
from devcluster.install import NAMESPACE
from devcluster.load import Size
from devcluster.manifests import MACHINE_CRDS
from devcluster.objects import CHARTS, named, project, quota
from tests.e2e.containers import PRODUCT

pytestmark = pytest.mark.integration

K3S = "rancher/k3s:v1.34.1-k3s1"
SEED = {"seedName": "home", "ownMachines": {"namespaces": ["alpha"]}, "providers": {"enabled": ["fake"]}}
SMALL = Size("1", "1Gi", "1Gi")
SECONDS = 300.0


class Cluster:
    def __init__(self, kubeconfig: Path, programs: dict[str, Path]) -> None:
        self._programs = programs
        self._environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "HOME": str(kubeconfig.parent)}

    def run(self, program: str, *arguments: str, given: object = None) -> subprocess.CompletedProcess[str]:
        """`given` is passed on as JSON."""
        return subprocess.run(
            [self._programs[program], *arguments],
            input=json.dumps(given),
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    def done(self, program: str, *arguments: str, given: object = None) -> None:
        ended = self.run(program, *arguments, given=given)
        assert ended.returncode == 0, ended.stdout + ended.stderr

    def install(self, chart: str, **given: object) -> None:
        repository, _, tag = PRODUCT.partition(":")
        values = {"image": {"repository": repository, "tag": tag, "pullPolicy": "Never"}, "replicas": 1, **given}
        where = (str(CHARTS / chart), f"--namespace={NAMESPACE}", "--create-namespace", "--wait", "--timeout=5m")
        self.done("helm", "install", chart, *where, "--values=-", given=values)

    def answers(self, machine: object, text: str) -> None:
        """Waits until that is said of the Machine, which is not stored."""
        deadline = time.monotonic() + SECONDS
        while text not in (said := self._ask(machine)):
            assert time.monotonic() < deadline, said
            time.sleep(1.0)

    def _ask(self, machine: object) -> str:
        ended = self.run("kubectl", "create", "--namespace=alpha", "-f=-", "--dry-run=server", given=machine)
        return ended.stdout + ended.stderr


@pytest.fixture
def cluster(programs: dict[str, Path], tmp_path: Path) -> Iterator[Cluster]:
    archive = tmp_path / "product.tar"
    images.product(archive, PRODUCT)
    with K3SContainer(K3S).with_volume_mapping(archive, "/product.tar") as k3s:
        imported = k3s.exec(["ctr", "images", "import", "/product.tar"])
        assert imported.exit_code == 0, imported.output.decode(errors="replace")
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(k3s.config_yaml())
        yield Cluster(kubeconfig, programs)


@pytest_asyncio.fixture
async def programs() -> dict[str, Path]:
    if why := dockers.missing():
        pytest.skip(why)
    if not dockers.is_there():
        pytest.skip("k3s needs a Docker whose containers have a network; Debian's, below `make e2e`, has none")
    client = docker.from_env()
    try:
        client.images.pull(K3S)
    except NotFound:
        raise  # the registry was reached: what is pinned is wrong
    except APIError as error:
        pytest.skip(f"{K3S} cannot be pulled, no registry can be reached: {error.explanation}")
    finally:
        client.close()
    return await binaries.ensure(["kubectl", "helm"])


def test_the_charts_admit_and_refuse_on_k3s(cluster: Cluster) -> None:
    cluster.done("kubectl", "apply", "--server-side", f"-f={MACHINE_CRDS}")
    cluster.done("kubectl", "create", "namespace", "alpha")
    cluster.install("seedquota-master")
    cluster.install("seedquota-seed", **SEED)
    own = {**named("UserCluster", "home", project="alpha"), "metadata": {"name": "home", "namespace": "alpha"}}
    seed, limit = named("Seed", "home", inCluster=True), quota("project-alpha", "alpha", {"cpu": "1"})
    for found in (seed, project("alpha"), own, limit):
        cluster.done("kubectl", "create", "-f=-", given=found)
    cluster.done("kubectl", "wait", "--for=condition=Enforced", "seedquota/project-alpha", f"--timeout={SECONDS:.0f}s")
    first, second = (load.machine(f"machine-{number}", SMALL) for number in range(2))
    cluster.answers(first, "created (server dry run)")
    cluster.done("kubectl", "create", "--namespace=alpha", "-f=-", given=first)
    cluster.answers(second, "exceeded quota: project-alpha, requested: cpu=1, used: cpu=1, limited: cpu=1")
