"""The charts installed, upgraded and uninstalled by the real helm on a real API server, and the programs beside it with
the flags and the ServiceAccounts of their releases. No pod runs here."""

from __future__ import annotations

import asyncio
import base64
import importlib.metadata
import json
import os
import re
import shlex
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import trustme
import yaml
from cryptography import x509

from common.server.pki import alternative_names
from devcluster import binaries
from devcluster.charts import MASTER, SEED
from devcluster.controlplane import ApiServer, ControlPlane
from devcluster.install import Program
from devcluster.manifests import load
from devcluster.network import free_port
from devcluster.objects import CHARTS
from devcluster.patience import patient_timeout
from devcluster.processes import ProcessGroup
from tests.chart import values
from tests.chart.helm import Helm, HelmError, Object, arguments, full

pytestmark = [pytest.mark.integration, pytest.mark.steps]

OTHERS = {  # kinds of others, which the charts make where they are switched on: their real definitions, in Go modules
    "Certificate": ("github.com/cert-manager/cert-manager", "deploy/crds/cert-manager.io_certificates.yaml"),
    **{
        kind: (
            "github.com/prometheus-operator/prometheus-operator",
            f"example/prometheus-operator-crd/monitoring.coreos.com_{kind.lower()}s.yaml",
        )
        for kind in ("PodMonitor", "PrometheusRule", "ServiceMonitor")
    },
    "TLSRoute": ("sigs.k8s.io/gateway-api", "config/crd/standard/gateway.networking.k8s.io_tlsroutes.yaml"),
}
KINDS = (
    "deployments,services,serviceaccounts,poddisruptionbudgets,networkpolicies,roles,rolebindings,clusterroles,"
    "clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings,configmaps,"
    "flowschemas,prioritylevelconfigurations"
)
OURS = "app.kubernetes.io/part-of=seedquota"
CONFIGURATIONS = ("validatingwebhookconfigurations", "-l=app.kubernetes.io/managed-by=seedquota")


class Place:
    """`programs`: where helm and kubectl are."""

    def __init__(self, server: ApiServer, directory: Path, programs: Mapping[str, Path]) -> None:
        self.server = server
        self.helm = Helm(programs["helm"], directory, server.kubeconfig())
        self.directory = directory
        self._kubectl = programs["kubectl"]
        unchecked = directory / "bin" / "helm"
        unchecked.parent.mkdir()
        unchecked.write_text(f'#!/bin/sh\nexec {programs["helm"]} "$@" --no-hooks\n')
        unchecked.chmod(0o700)
        self._environment = {
            "KUBECONFIG": str(directory / "kubeconfig"),
            "HOME": str(directory),
            "GOGC": "off",  # what ends soon needs no memory back
            "PATH": ":".join([*(str(path.parent) for path in (unchecked, *programs.values())), os.environ["PATH"]]),
        }

    def kubectl(self, *arguments: str, given: str = "", fails: bool = False) -> str:
        """Its output; with `fails` what it complains of."""
        return self._run([str(self._kubectl), *arguments], given, fails=fails)

    def kubectl_said(self, *arguments: str) -> str:
        """What it logs."""
        command = [str(self._kubectl), *arguments]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, timeout=60, check=True)
        return done.stderr

    def wait_until_served(self, kinds: str) -> None:
        """An API server discovers a definition a moment after it was created."""
        deadline = time.monotonic() + 60
        command = [str(self._kubectl), "get", kinds, "-o=name"]
        while subprocess.run(command, env=self._environment, capture_output=True, check=False).returncode:
            assert time.monotonic() < deadline, f"{kinds} are not served"
            time.sleep(0.25)

    def delete_crds(self) -> None:
        """An API server that has just rebuilt the storage of a changed definition cannot list its objects, and tries
        again after minutes. A change of the definition makes it try at once."""
        self.kubectl("delete", "crd", "--wait=false", "--ignore-not-found", *NAMES)
        for number in range(120):
            left = self.kubectl("get", "crd", "--ignore-not-found", "-o=name", *NAMES).split()
            if not left:
                return
            time.sleep(0.25)
            if number % 4 == 3:
                subprocess.run(
                    [str(self._kubectl), "annotate", "--overwrite", *left, f"tried={number}"],
                    env=self._environment,
                    capture_output=True,
                    timeout=60,
                    check=False,
                )
        raise AssertionError(f"still there: {left}")

    def shell(self, commands: str) -> str:
        """Its helm installs without hooks: no pod runs here."""
        return self._run(["sh", "-ec", commands], "", fails=False)

    def run(self, command: list[str]) -> str:
        """Its output, whatever its exit status."""
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, timeout=120, check=False)
        return done.stdout

    def _run(self, command: list[str], given: str, *, fails: bool) -> str:
        done = subprocess.run(
            command,
            input=given,
            env=self._environment,
            cwd=CHARTS.parent,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert (done.returncode != 0) == fails, done.stderr + done.stdout
        return done.stderr if fails else done.stdout

    def install(self, chart: str, namespace: str) -> str:
        """What helm says then. The release has the chart's name. No hook: no pod runs here."""
        where = (str(CHARTS / chart), f"--namespace={namespace}", "--no-hooks")
        return self.helm("install", chart, *where, "--create-namespace", values=full(chart, {}))

    def upgrade(self, chart: str, namespace: str, **changed: object) -> str:
        where = (str(CHARTS / chart), f"--namespace={namespace}", "--no-hooks")
        return self.helm("upgrade", chart, *where, values=full(chart, changed))

    def uninstall(self, chart: str, namespace: str) -> None:
        """Without the hook: no pod runs here."""
        self.helm("uninstall", chart, f"--namespace={namespace}", "--no-hooks")

    def run_job(self, chart: str, namespace: str, name: str, *more: str, fails: bool = False) -> str:
        """What the pod of that Job of the release would do and say, as its ServiceAccount."""
        hooks = yaml.safe_load_all(self.helm("get", "hooks", chart, f"--namespace={namespace}"))
        (job,) = (found for found in hooks if found and found["metadata"]["name"] == f"{chart}-{name}")
        pod = job["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert container["command"] == ["seedquota"]
        given = [str(argument) for argument in container["args"]]
        for mount, volume in zip(container.get("volumeMounts", ()), pod.get("volumes", ()), strict=True):
            name = volume["configMap"]["name"]
            data = json.loads(self.kubectl("-n", namespace, "get", "configmap", name, "-o=jsonpath={.data}"))
            for file, text in data.items():
                (self.directory / file).write_text(text)
                given = [each.replace(f"{mount['mountPath']}/{file}", str(self.directory / file)) for each in given]
        kubeconfig = self.kubeconfig_of(pod["serviceAccountName"], namespace)
        command = [sys.executable, "-m", "cli", *given, f"--kubeconfig={kubeconfig}", *more]
        return self._run(command, "", fails=fails)

    def run_pod(self, chart: str, namespace: str, program: Program) -> None:
        """An object that says where the program serves."""
        port = int(program.health.rpartition(":")[2])
        container = {"name": chart, "image": "i", "ports": [{"name": "health", "containerPort": port}]}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"{chart}-1", "namespace": namespace, "labels": {"app.kubernetes.io/name": chart}},
            "spec": {"containers": [container], "serviceAccountName": chart},
        }
        self.kubectl("apply", "-f=-", given=json.dumps(pod))
        status = json.dumps({"status": {"phase": "Running", "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}})
        self.kubectl("-n", namespace, "patch", f"pod/{chart}-1", "--subresource=status", "--type=merge", "-p", status)

    def kubeconfig_of(self, account: str, namespace: str) -> Path:
        """With a token of the ServiceAccount."""
        config = yaml.safe_load(self.server.kubeconfig())
        config["users"][0]["user"] = {"token": self.kubectl("-n", namespace, "create", "token", account).strip()}
        path = self.directory / f"{account}.kubeconfig"
        path.write_text(yaml.safe_dump(config))
        return path

    def objects(self, *arguments: str) -> list[Any]:
        return list(json.loads(self.kubectl("get", "-o=json", *arguments))["items"])

    def crds(self) -> dict[str, str]:
        """Ours, with the release that each belongs to."""
        found = (each["metadata"] for each in self.objects("crd"))
        release = "meta.helm.sh/release-name"
        return {one["name"]: one["annotations"][release] for one in found if one["name"].endswith(".seedquota.io")}

    def crds_there(self) -> set[str]:
        return {each["metadata"]["name"] for each in self.objects("crd") if each["spec"]["group"] == "seedquota.io"}

    def left(self) -> list[str]:
        found = self.kubectl("get", KINDS, "-A", f"-l={OURS}", "-o=name").split()
        return (
            found
            + self.kubectl("get", "serviceaccounts", "-A", "-l=app.kubernetes.io/managed-by=Helm", "-o=name").split()
        )


@pytest_asyncio.fixture(scope="module")
async def place(helm_executable: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Place]:
    directory = tmp_path_factory.mktemp("installed")
    programs = await binaries.ensure(["kubectl"]) | {"helm": helm_executable}
    async with ControlPlane() as plane:
        await plane.start(["helm"], also_served=["apps/v1", "batch/v1", "flowcontrol.apiserver.k8s.io/v1", "policy/v1"])
        yield Place(plane.cluster("helm"), directory, programs)


NAMES = {str(each["metadata"]["name"]) for each in load(CHARTS / "crds")}  # type: ignore[index]


@pytest.mark.parametrize(
    ("first", "second", "namespaces"),
    [(MASTER, SEED, ("quotas", "quotas")), (SEED, MASTER, ("agents", "masters"))],
    ids=["one namespace", "two namespaces, the seed first"],
)
def test_both_are_installed_in_one_cluster_upgraded_and_uninstalled(
    place: Place, first: str, second: str, namespaces: tuple[str, str]
) -> None:
    place.install(first, namespaces[0])
    notes = place.install(second, namespaces[1])
    assert f"belong to the release {first} in the namespace {namespaces[0]}" in notes
    assert place.crds() == dict.fromkeys(NAMES, first)
    for chart, namespace in ((first, namespaces[0]), (second, namespaces[1])):
        place.upgrade(chart, namespace, replicas=3)
        (deployment,) = place.objects("deployments", "-A", f"-l=app.kubernetes.io/instance={chart}")
        assert deployment["spec"]["replicas"] == 3

    place.uninstall(first, namespaces[0])
    assert place.crds() == dict.fromkeys(NAMES, first), "quotas stay"
    notes = place.upgrade(second, namespaces[1])
    place.shell("\n".join(line for line in notes.splitlines() if " --overwrite crd " in line))
    place.upgrade(second, namespaces[1])
    assert place.crds() == dict.fromkeys(NAMES, second)
    manifest = place.helm("get", "manifest", second, f"--namespace={namespaces[1]}")
    assert manifest.count("kind: CustomResourceDefinition\n") == len(NAMES)

    place.uninstall(second, namespaces[1])
    assert place.crds().keys() == NAMES
    assert place.left() == []
    assert "custom resource definitions" not in place.install(second, namespaces[1]), "they are its own again"
    place.uninstall(second, namespaces[1])
    place.delete_crds()


def test_the_commands_of_the_readme_install_both_and_make_a_seed_of_the_cluster(place: Place) -> None:
    section = (CHARTS.parent / "README.md").read_text().partition("## Install it\n")[2].partition("\n## ")[0]
    place.shell("\n".join(line[4:] for line in section.splitlines() if line.startswith("    ")))
    assert place.kubectl("get", "sqseed", "-o=name").strip() == "seed.seedquota.io/main"
    deployments = place.objects("deployments", "-n=seedquota", f"-l={OURS}")
    images = {each["spec"]["template"]["spec"]["containers"][0]["image"] for each in deployments}
    (version,) = {yaml.safe_load((CHARTS / chart / "Chart.yaml").read_text())["appVersion"] for chart in (MASTER, SEED)}
    assert (len(deployments), images) == (2, {f"registry.example.com/seedquota:{version}"})

    text = (CHARTS.parent / "docs" / "how-to" / "upgrade.md").read_text()
    guide = text.partition("## Both charts in one cluster\n")[2].partition("\n## ")[0]
    upgrades, rollbacks = (
        [line[4:] for line in guide.splitlines() if line.startswith(f"    helm {verb} ")]
        for verb in ("upgrade", "rollback")
    )
    released = [line.split()[2] for line in upgrades]
    assert {*place.crds().values()} == {released[0]}, "the first one has the CRDs"
    assert [line.split()[2] for line in rollbacks] == released[::-1]
    for commands, revisions in ((upgrades, ["2", "2"]), (rollbacks, ["3", "3"])):
        place.shell("\n".join(command.removesuffix(" --wait") for command in commands))  # no pod runs here
        listed = json.loads(place.helm("list", "-n=seedquota", "-o=json"))
        assert [each["revision"] for each in listed] == revisions, listed
        assert {each["status"] for each in listed} == {"deployed"}
        assert {*place.crds().values()} == {released[0]}
    after = place.objects("deployments", "-n=seedquota", f"-l={OURS}")
    assert {each["spec"]["template"]["spec"]["containers"][0]["image"] for each in after} == images, "values stay"
    place.uninstall(SEED, "seedquota")
    place.uninstall("seedquota", "seedquota")
    place.delete_crds()


def test_one_installation_makes_the_seeds_and_settings_of_the_values_and_they_stay(place: Place) -> None:
    where = (str(CHARTS / MASTER), "--namespace=quotas", "--create-namespace")
    place.helm("install", MASTER, *where, "--no-hooks", values=values.OBJECTS)
    said = place.run_job(MASTER, "quotas", "values")
    assert said.splitlines() == ["QuotaSettings default is applied", "Seed eu-1 is applied", "Seed main is applied"]
    names = "seed.seedquota.io/eu-1\nseed.seedquota.io/main\nquotasettings.seedquota.io/default\n"
    assert place.kubectl("get", "sqseed,sqset", "-o=name") == names
    place.kubectl("patch", "sqseed/eu-1", "--type=merge", '-p={"spec":{"state":"Draining"}}')
    place.upgrade(MASTER, "quotas", **values.OBJECTS)
    place.run_job(MASTER, "quotas", "values")
    assert place.kubectl("get", "sqseed/eu-1", "-o=jsonpath={.spec.state}") == "Draining", "that is for people"
    (as_job,) = place.directory.glob("*-values.kubeconfig")
    said = place.kubectl(f"--kubeconfig={as_job}", "delete", "sqseed/eu-1", fails=True)
    assert "cannot delete resource" in said
    place.upgrade(MASTER, "quotas")
    place.uninstall(MASTER, "quotas")
    assert place.kubectl("get", "sqseed,sqset", "-o=name") == names
    place.delete_crds()


def test_seeds_that_a_former_release_created_itself_are_taken_over(place: Place) -> None:
    """Helm created them as objects of the release, and keeps them when a release has them no more."""
    place.install(MASTER, "quotas")
    place.wait_until_served("sqseed,sqset")
    seed = {
        "apiVersion": "seedquota.io/v1alpha1",
        "kind": "Seed",
        "metadata": {"name": "eu-1", "annotations": {"helm.sh/resource-policy": "keep"}},
        "spec": {"kubeconfigSecretRef": {"name": "former"}},
    }
    place.upgrade(MASTER, "quotas", extraObjects=[seed])
    uid = place.kubectl("get", "sqseed/eu-1", "-o=jsonpath={.metadata.uid}")
    place.upgrade(MASTER, "quotas", **values.OBJECTS)
    place.run_job(MASTER, "quotas", "values")
    found = json.loads(place.kubectl("get", "sqseed/eu-1", "-o=json"))
    assert (found["metadata"]["uid"], found["spec"]["kubeconfigSecretRef"]["name"]) == (uid, "eu-1-kubeconfig")
    place.uninstall(MASTER, "quotas")
    place.delete_crds()


def test_definitions_that_were_applied_by_hand_are_left_alone(place: Place) -> None:
    place.kubectl("apply", "--server-side", f"-f={CHARTS / 'crds'}")
    notes = place.install(MASTER, "quotas")
    assert "The custom resource definitions were not brought by Helm." in notes
    assert "app.kubernetes.io/managed-by" not in place.kubectl("get", "crd", "seeds.seedquota.io", "-o=yaml")
    place.uninstall(MASTER, "quotas")
    place.delete_crds()


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ({}, "https://localhost:8443/ after\n\n  kubectl -n quotas port-forward service/seedquota-master 8443:443\n"),
        ({"url": "https://example.com/seedquota"}, "The web page is at https://example.com/seedquota."),
        ({"enabled": False}, ""),
    ],
)
def test_where_the_page_is_and_how_to_sign_in_is_in_the_notes(place: Place, page: dict[str, object], said: str) -> None:
    given = {"api": {"enabled": True}, "page": page}
    flags = ("--dry-run=client", "--namespace=quotas")
    notes = place.helm("install", "a-release", str(CHARTS / MASTER), *flags, values=given).partition("NOTES:")[2]
    assert notes and said in notes
    assert ("kubectl create token viewer -n quotas" in notes) is bool(said)


async def test_an_api_server_takes_every_object(place: Place) -> None:
    """Strictly, and without storing it, kinds of others by their own schemas."""
    definitions = [await binaries.module("chart-kinds", module) / file for module, file in OTHERS.values()]
    place.kubectl("apply", "--server-side", *(f"-f={definition}" for definition in definitions))
    namespaces = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        for name in ("dry", "alpha", "beta", "own")
    ]
    place.kubectl("apply", "--server-side", "-f=-", given=yaml.safe_dump_all(namespaces))
    place.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
    objects = [
        *place.helm.render(MASTER, values.MONITORED, namespace="dry"),
        *place.helm.render(MASTER, values.OF_A_MASTER["api"], namespace="dry"),
        *place.helm.render(MASTER, values.OF_A_MASTER["page"], namespace="dry"),
        *place.helm.render(SEED, values.OF_A_SEED["all"], namespace="dry"),
        *place.helm.render(SEED, values.OWN_CERTIFICATE, namespace="dry"),
        *(
            found
            for chart, of_chart in ((MASTER, values.OF_A_MASTER), (SEED, values.OF_A_SEED))
            for case in ("fitted", "on nodes")
            for found in place.helm.render(chart, of_chart[case], namespace="dry")
        ),
    ]
    assert {found["kind"] for found in objects} >= OTHERS.keys() | {"Ingress", "NetworkPolicy"}
    flags = ("--server-side", "--dry-run=server", "--validate=strict", "--force-conflicts")
    done = place.kubectl("apply", *flags, "-f=-", given=yaml.safe_dump_all(objects))
    assert len(done.splitlines()) == len(objects)
    assert place.crds() == {}


@pytest_asyncio.fixture
async def programs(place: Place) -> AsyncIterator[dict[str, Program]]:
    group = ProcessGroup()
    made: dict[str, Program] = {}
    try:
        for chart, namespace in ((MASTER, "masters"), (SEED, "agents")):
            manifest = place.helm("get", "manifest", chart, f"--namespace={namespace}")
            given = as_installed(place, chart, namespace, yaml.safe_load_all(manifest))
            made[chart] = Program(chart, given, place.directory, group)
        yield made
    finally:
        group.close()


def as_installed(place: Place, chart: str, namespace: str, manifest: Iterable[Object]) -> list[str]:
    """As the container is started, but for where it finds the API server and where it listens."""
    objects = [found for found in manifest if found]
    kubeconfig = place.kubeconfig_of(chart, namespace)
    here = [f"--kubeconfig={kubeconfig}", f"--identity={chart}", "--drain-delay=0s"]
    if chart == SEED:
        here += [f"--webhook-address=127.0.0.1:{free_port()}", "--lease-duration=5s"]
    return [chart.removeprefix("seedquota-"), *arguments(objects), *here]


@pytest_asyncio.fixture
async def installed(place: Place) -> str:
    """In two namespaces of one cluster. What helm said about the master."""
    notes = place.install(MASTER, "masters")
    where = ("--namespace=agents", "--create-namespace", "--no-hooks")
    place.helm("install", SEED, str(CHARTS / SEED), *where, values={"seedName": "main"})
    return notes


def requests_of_a_level_of_their_own(place: Place) -> None:
    """Of both programs: Leases and ledgers. What else they ask for has none."""
    for chart, namespace in ((MASTER, "masters"), (SEED, "agents")):
        place.kubectl("wait", f"flowschema/{chart}", "--for=condition=Dangling=False", "--timeout=60s")
        schema = json.loads(place.kubectl("get", "flowschema", chart, "-o=json"))
        level = json.loads(place.kubectl("get", "prioritylevelconfiguration", chart, "-o=json"))
        as_program = f"--kubeconfig={place.kubeconfig_of(chart, namespace)}"
        with_level = {}
        for path in (
            f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{chart}",
            f"/apis/seedquota.io/v1alpha1/namespaces/{namespace}/quotaledgers",
            "/apis/seedquota.io/v1alpha1/seeds",
        ):
            said = place.kubectl_said(as_program, "get", "-v=8", "--raw", path)
            found = dict(re.findall(r"X-Kubernetes-Pf-(Flowschema|Prioritylevel)-Uid: ?(\S+)", said, re.IGNORECASE))
            with_level[path.rpartition("/")[2]] = {key.lower(): uid.strip('"') for key, uid in found.items()}
        ours = {"flowschema": schema["metadata"]["uid"], "prioritylevel": level["metadata"]["uid"]}
        assert (with_level[chart], with_level["quotaledgers"]) == (ours, ours)
        assert with_level["seeds"].keys() == ours.keys()
        assert not with_level["seeds"].items() & ours.items()


async def doctor_finds_both_programs(place: Place, agent: Program) -> None:
    """In the namespaces of their releases, without being told. No cure may end what a release uses."""

    def doctor(*arguments: str) -> tuple[dict[str, str], list[str]]:
        command = [sys.executable, "-m", "cli", "doctor", "-o=json", f"--kubeconfig={place.directory}/kubeconfig"]
        found = json.loads(place.run([*command, *arguments]))
        return {each["reason"]: each["cure"] for each in found["items"]}, found["notChecked"]

    for more in ((), ("-n=masters",), ("-n=agents",)):
        cures, missing = await asyncio.to_thread(doctor, *more)
        assert missing == [] and not cures.keys() & {"NoLeader", "LeftOver", "SeveralLead"}, cures
    await agent.kill()
    long_ago = json.dumps({"spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}})
    place.kubectl("-n=agents", "patch", "lease/seedquota-seed", "--type=merge", "-p", long_ago)
    cures, missing = await asyncio.to_thread(doctor)
    assert missing == [] and "NoLeader" in cures and "LeftOver" not in cures, "its Deployment is there"
    await agent.start()


def of_clusters(place: Place) -> list[Any]:
    """The configuration by which this API server asks about UserClusters, if it is there. Another one is for
    Allocations."""
    return [each for each in place.objects(*CONFIGURATIONS) if each["metadata"]["name"] == "seedquota-clusters"]


def only_problem(place: Place) -> str:
    """What the check of an agent that has just been started still misses when all else is there."""
    for seconds in (1, 2, 4, 8, 16, 32):  # a leader is seen at the second look; the first takes long on a busy machine
        said = place.run_job(SEED, "agents", "start-check", f"--timeout={seconds}s", fails=True)
        problems = [line for line in said.partition("waiting:")[0].splitlines() if line.startswith("- ")]
        if len(problems) == 1:
            return problems[0]
    raise AssertionError(said)


async def test_the_programs_serve_with_the_flags_and_the_rights_of_their_releases(
    place: Place, installed: str, programs: dict[str, Program]
) -> None:
    said = place.run_job(SEED, "agents", "start-check", "--timeout=1s", fails=True)
    assert "no replica leads: there is no Lease agents/seedquota-seed" in said
    assert "no pod of seedquota-seed runs; see `kubectl -n agents describe pods" in said
    assert "the API server does not ask the agents: it admitted a dry run of a UserCluster" in said
    for program in programs.values():
        await program.start()
    for chart, namespace in ((MASTER, "masters"), (SEED, "agents")):
        place.run_pod(chart, namespace, programs[chart])
    said = await asyncio.to_thread(place.run_job, MASTER, "masters", "start-check")
    assert f"{MASTER} {importlib.metadata.version('seedquota')} leads, and its metrics can be read" in said
    problem = await asyncio.to_thread(only_problem, place)
    assert problem.startswith("- no UserCluster can be created, the API server does not reach the webhook"), (
        "no Service leads anywhere here"
    )
    # The notes tell what comes next: the Seed of this cluster.
    lines = [line.strip() for line in installed.splitlines()]
    start = lines.index("kubectl apply -f - <<Y")
    place.shell("\n".join(lines[start : lines.index("Y", start) + 1]))
    for condition in ("Connected", "Synced", "AccountsOpen"):
        place.kubectl("wait", f"--for=condition={condition}", "sqseed/main", "--timeout=60s")
    assert place.kubectl("get", "sqseed/main", "-o=jsonpath={.status.clusterUID}"), (
        "it may not be known which one it is"
    )

    (configuration,) = of_clusters(place)
    client = configuration["webhooks"][0]["clientConfig"]
    service = {key: client["service"][key] for key in ("namespace", "name", "port")}
    assert service == {"namespace": "agents", "name": SEED, "port": 443}
    secret = json.loads(place.kubectl("-n=agents", "get", "secret", "seedquota-webhook-tls", "-o=json"))["data"]
    certificate = x509.load_pem_x509_certificate(base64.b64decode(secret["tls.crt"]))
    assert alternative_names(certificate) == {"seedquota-seed.agents.svc"}

    foreign = {**configuration, "metadata": {"name": "mine"}}
    as_agent = f"--kubeconfig={place.directory / SEED}.kubeconfig"
    said = place.kubectl(as_agent, "create", "-f=-", given=json.dumps(foreign), fails=True)
    assert "may not write the webhook configuration mine: it is not its own" in said

    requests_of_a_level_of_their_own(place)
    await doctor_finds_both_programs(place, programs[SEED])
    place.run_job(SEED, "agents", "uninstall")
    assert place.objects(*CONFIGURATIONS) == []
    said = place.run_job(SEED, "agents", "start-check", "--timeout=1s", fails=True)
    assert "the webhooks are withdrawn by `seedquota uninstall seed`; its --undo enforces again" in said

    for program in programs.values():
        await program.stop()
        refused = [line for line in program.log.read_text().splitlines() if "forbidden" in line.lower()]
        assert refused == [], f"{program.name} lacks rights"


async def test_a_certificate_of_others_is_served_and_its_ca_is_in_the_configuration(
    place: Place, tmp_path: Path
) -> None:
    """After the other test, as with tls.mode=existingSecret; the Secret is a directory."""
    authority = trustme.CA()
    made = authority.issue_cert(f"{SEED}.agents.svc")
    made.cert_chain_pems[0].write_to_path(str(tmp_path / "tls.crt"))
    made.private_key_pem.write_to_path(str(tmp_path / "tls.key"))
    authority.cert_pem.write_to_path(str(tmp_path / "ca.crt"))
    manifest = yaml.safe_load_all(place.helm("get", "manifest", SEED, "--namespace=agents"))
    port, group = free_port(), ProcessGroup()
    changed = [f"--webhook-tls-directory={tmp_path}", f"--webhook-address=127.0.0.1:{port}"]
    try:
        await Program(SEED, [*as_installed(place, SEED, "agents", manifest), *changed], place.directory, group).start()
        trusting = ssl.create_default_context(cadata=authority.cert_pem.bytes().decode())
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting, server_hostname=f"{SEED}.agents.svc")
        writer.close()

        def bundles() -> list[bytes]:
            return [
                base64.b64decode(each["webhooks"][0]["clientConfig"]["caBundle"]).strip() for each in of_clusters(place)
            ]

        async with patient_timeout(60):
            while bundles() != [authority.cert_pem.bytes().strip()]:
                await asyncio.sleep(0.5)
    finally:
        group.close()


def test_what_the_seed_needs_is_named_in_its_notes(place: Place) -> None:
    """After the other test: a project's namespace is opened to the agents with the command of the notes."""
    notes = place.upgrade(SEED, "agents", seedName="main")
    (command,) = (line.strip() for line in notes.splitlines() if "create rolebinding" in line)
    place.kubectl("create", "namespace", "project")
    place.shell(command.replace("NAMESPACE", "project", 1))
    can = shlex.split("auth can-i list secrets --as=system:serviceaccount:agents:seedquota-seed")
    assert place.kubectl(*can, "-n=project").strip() == "yes"
    assert place.kubectl(*can, "-n=masters", fails=True) == ""


def test_a_release_whose_webhooks_could_not_be_removed_stays_and_can_be_kept(place: Place) -> None:
    """After the other test. The Job does not end: no pod runs here."""
    with pytest.raises(HelmError):
        place.helm("uninstall", SEED, "--namespace=agents", "--timeout=3s")
    assert place.objects("deployments", "-n=agents", f"-l={OURS}")
    (release,) = json.loads(place.helm("list", "--all", "--namespace=agents", "-o=json"))
    assert release["status"] == "uninstalling"
    with pytest.raises(HelmError, match="has no deployed releases"):
        place.upgrade(SEED, "agents", seedName="main")
    place.helm("rollback", SEED, release["revision"], "--namespace=agents")
    place.upgrade(SEED, "agents", seedName="main")


def test_what_lets_the_seeds_own_namespaces_take_part_is_named_in_its_notes(place: Place) -> None:
    """After the other test."""
    notes = place.upgrade(SEED, "agents", seedName="main", namespaceQuotas={"enabled": True})
    (command,) = (line.strip() for line in notes.splitlines() if "patch sqseed" in line)
    place.shell(command)
    assert place.kubectl("get", "sqseed/main", "-o=jsonpath={.spec.namespaceQuotas}") == "Enabled"
    can = "auth can-i --as=system:serviceaccount:agents:seedquota-seed -A list"
    assert place.kubectl(*shlex.split(can), "pods").strip() == "yes"
    assert place.kubectl(*shlex.split(can), "secrets", fails=True) == ""
