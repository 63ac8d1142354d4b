"""What tools do that render the charts and apply them without Helm: nothing conflicts, nothing differs afterwards."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import tarfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from devcluster import binaries
from devcluster.charts import CRDS, MASTER, NAMES, SEED
from devcluster.controlplane import ControlPlane
from devcluster.install import Program
from devcluster.objects import CHARTS
from devcluster.processes import ProcessGroup
from tests.chart import values
from tests.chart.helm import Helm, Object, full
from tests.chart.test_installation import CONFIGURATIONS, OURS, Place, as_installed
from tests.chart.test_installation import NAMES as DEFINITIONS

NAMESPACE = "seedquota"
WITHOUT_DEFINITIONS: dict[str, object] = {"crds": {"install": False}}


def by_identity(objects: list[Object]) -> dict[tuple[str, str, str], Object]:
    found = {(each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]): each for each in objects}
    assert len(found) == len(objects)
    return found


@pytest.fixture(scope="module")
async def kubectl() -> Path:
    return (await binaries.ensure(["kubectl"]))["kubectl"]


@pytest.mark.parametrize("chart", NAMES)
def test_kustomize_renders_what_helm_renders_without_its_hooks(
    helm: Helm, helm_executable: Path, kubectl: Path, chart: str, tmp_path: Path
) -> None:
    shutil.copytree(CHARTS / chart, tmp_path / "charts" / chart)
    given = full(chart, values.OBJECTS if chart == MASTER else {})
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "helmGlobals": {"chartHome": "charts"},
        "helmCharts": [
            {
                "name": chart,
                "releaseName": "a-release",
                "namespace": NAMESPACE,
                "skipHooks": True,
                "valuesInline": given,
            }
        ],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    done = subprocess.run(
        [kubectl, "kustomize", "--enable-helm", f"--helm-command={helm_executable}", tmp_path],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    kustomized = by_identity([each for each in yaml.safe_load_all(done.stdout) if each])
    rendered = by_identity(helm.render(chart, given, namespace=NAMESPACE))
    hooks = {key for key, each in rendered.items() if "helm.sh/hook" in each["metadata"].get("annotations", {})}
    assert {kind for kind, _, _ in hooks} <= {"Job"}
    assert bool(hooks) == (chart != CRDS)
    assert kustomized == {key: each for key, each in rendered.items() if key not in hooks}


@pytest.mark.parametrize("chart", NAMES)
def test_an_archive_without_links_has_the_whole_chart(helm: Helm, chart: str, tmp_path: Path) -> None:
    """Flux makes such archives of a repository: files alone."""
    with tarfile.open(tmp_path / "archive.tar", "w") as archive:
        for path in sorted((CHARTS / chart).rglob("*")):
            if path.is_file() and not path.is_symlink():
                archive.add(path, arcname=str(path.relative_to(CHARTS)))
    with tarfile.open(tmp_path / "archive.tar") as archive:
        archive.extractall(tmp_path / "source", filter="data")
    unpacked = helm("template", "a-release", str(tmp_path / "source" / chart), values=full(chart, {}))
    assert unpacked == helm("template", "a-release", str(CHARTS / chart), values=full(chart, {}))


@pytest_asyncio.fixture(scope="module")
async def place(helm_executable: Path, kubectl: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Place]:
    served = ["apps/v1", "batch/v1", "flowcontrol.apiserver.k8s.io/v1", "policy/v1"]
    async with ControlPlane() as plane:
        await plane.start(["gitops"], also_served=served)
        programs: Mapping[str, Path] = {"kubectl": kubectl, "helm": helm_executable}
        yield Place(plane.cluster("gitops"), tmp_path_factory.mktemp("gitops"), programs)


OF_A_SEED: dict[str, object] = {
    "seedName": "main",
    "projectOwner": {"enabled": True},
    "namespaceQuotas": {"enabled": True},
    "networkPolicy": {"enabled": True, "metricsFrom": [{"namespaceSelector": {}}]},
    "kubermatic": {"enabled": True},
    "hostNetwork": True,
    "extraVolumes": [{"name": "scratch", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
}
APPLY = ("apply", "--server-side", "-f=-")


@pytest.mark.integration
async def test_nothing_conflicts_and_nothing_differs_after_the_programs_have_run(place: Place) -> None:
    """By kubectl, in place of Argo CD and Flux: both apply on the server, or compare what they rendered."""

    def rendered(chart: str, given: Mapping[str, object]) -> str:
        where = (chart, str(CHARTS / chart), f"--namespace={NAMESPACE}", "--no-hooks")
        return place.helm("template", *where, values=full(chart, given))

    both = {
        CRDS: rendered(CRDS, {}),
        MASTER: rendered(MASTER, {**WITHOUT_DEFINITIONS, **values.OBJECTS}),
        SEED: rendered(SEED, {**WITHOUT_DEFINITIONS, **OF_A_SEED}),
    }
    place.kubectl("create", "namespace", NAMESPACE)
    for text in both.values():
        place.kubectl(*APPLY, "--field-manager=argocd-controller", given=text)
    place.wait_until_served("sqseed,sqset")
    group = ProcessGroup()
    try:
        for chart in (MASTER, SEED):
            flags = as_installed(place, chart, NAMESPACE, yaml.safe_load_all(both[chart]))
            await Program(chart, flags, place.directory, group).start()
        seed = {"apiVersion": "seedquota.io/v1alpha1", "kind": "Seed", "metadata": {"name": "main"}}
        place.kubectl("apply", "-f=-", given=json.dumps({**seed, "spec": {"inCluster": True}}))
        await asyncio.to_thread(place.kubectl, "wait", "--for=condition=Synced", "sqseed/main", "--timeout=60s")
        configurations = {each["metadata"]["name"] for each in place.objects(*CONFIGURATIONS)}
        assert {"seedquota-clusters", "seedquota-allocations"} <= configurations
        for manager in ("argocd-controller", "kustomize-controller"):
            for text in both.values():
                said = place.kubectl("diff", "--server-side", f"--field-manager={manager}", "-f=-", given=text)
                assert said == "", "a tool would apply it again and again"
                place.kubectl(*APPLY, f"--field-manager={manager}", given=text)
        for chart in (SEED, MASTER):
            place.kubectl("delete", "--wait=false", "-f=-", given=both[chart])
        assert place.kubectl("get", "deployments,serviceaccounts", "-A", f"-l={OURS}", "-o=name") == ""
        assert place.crds_there() == DEFINITIONS
        left = {each["metadata"]["name"] for each in place.objects(*CONFIGURATIONS)}
        assert left == configurations, "a tool that deletes objects withdraws no webhook: see docs/how-to/gitops.md"
    finally:
        group.close()
