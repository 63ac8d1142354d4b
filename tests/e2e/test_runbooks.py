"""What docs/how-to shows of backups, of a move of the master and of the removal of everything, where pods run.

The commands are those of the pages, literally. Contexts of the kubeconfig have the names that the pages give them.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from devcluster import isolation, load
from devcluster.install import SEED_USER
from devcluster.manifests import Manifest
from devcluster.objects import API, named, namespace, project, quota
from tests.e2e.cluster import NAMESPACE, SMALL, until
from tests.e2e.fleet import PROJECT, Fleet, clusters
from tests.how_to import commands, form, is_shown, outputs

QUOTA = "project-alpha"
OLD, NEW, SEED, USER = "old", "new", "seed-1", "c1"
WEBHOOKS = "validatingwebhookconfigurations,mutatingwebhookconfigurations"


@pytest_asyncio.fixture(scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    machines = {OLD: isolation.FIRST, SEED: isolation.SECOND, NEW: isolation.THIRD}
    async with clusters(tmp_path_factory.mktemp("run"), machines, [USER]) as found:  # short: sockets are below it
        found.before.update({name: await each.everything() for name, each in found.nodes.items()})
        await install(found)
        yield found


async def install(fleet: Fleet) -> None:
    """As docs/how-to/install.md names the releases, with a quota of each origin."""
    await fleet.nodes[OLD].apply(namespace(NAMESPACE))
    await fleet.nodes[OLD].install("master", release="seedquota")
    # Longer than an API server waits for an answer: what is asked meanwhile is refused, and says why.
    await fleet.install_seed(SEED, isolation.SECOND, inFlightWindow="30s")
    await fleet.run(f"seedquota seed add {SEED} --seed-kubeconfig {SEED}-admin.yaml", context=OLD)
    enabled = '{"spec": {"namespaceQuotas": "Enabled"}}'
    await fleet.run(f"kubectl patch sqseed {SEED} --type=merge -p '{enabled}'", context=OLD)
    waits = commands(
        "move-master.md", f"kubectl --context {NEW} -n {NAMESPACE} scale deployment/seedquota-master --replicas=0"
    )
    await fleet.run(waits.partition("\n")[2].replace(f"--context {NEW}", f"--context {OLD}"), context=OLD)
    shared = {"selector": {"matchLabels": {"owner": "ann"}}, "allocation": {"hard": {"pods": "40"}}}
    await fleet.nodes[OLD].apply(
        named("QuotaSettings", "default", defaults={"organization": {"quota": {"cpu": "40"}}}),
        named("Organization", "acme"),
        project(PROJECT, "acme"),
        limit(2),
        {"apiVersion": API, "kind": "ResourceQuotaAllocation", "metadata": {"name": "shared"}, "spec": shared},
    )
    await fleet.add_user_cluster(USER, seed=SEED)
    for each in (QUOTA, "org-acme", "allocation.shared"):
        await fleet.nodes[OLD].enforced(each)


def limit(cpus: int) -> Manifest:
    return quota(QUOTA, PROJECT, {"cpu": str(cpus), "memory": "16Gi"})


async def limited(fleet: Fleet, cpus: int) -> None:
    await fleet.nodes[OLD].apply(limit(cpus))
    await fleet.nodes[OLD].enforced(QUOTA)


async def full(fleet: Fleet, cpus: int) -> None:
    said = (await fleet.machines(USER).refused()).message
    assert f"used: cpu={cpus}, limited: cpu={cpus}" in said, said


async def test_objects_of_a_seed_are_restored_from_files(fleet: Fleet) -> None:
    """backup.md, with agents that are scaled down and up."""
    await until(fleet.machines(USER).admitted, 60)
    await fleet.run(commands("backup.md", "kubectl get sqo,sqp"), context=OLD)
    lost = f"-n {NAMESPACE} delete secrets seedquota-webhook-key seedquota-webhook-tls"
    await fleet.run(commands("backup.md", "kubectl --context seed-1 -n seedquota scale"), context=OLD)
    await fleet.run(f"kubectl -n {PROJECT} delete uc/{USER} secrets/{USER} && kubectl {lost}", context=SEED)
    await fleet.run(commands("backup.md", "clean="), context=OLD)
    await fleet.run(f"kubectl -n {PROJECT} wait --for=condition=Ready uc/{USER} --timeout=120s", context=SEED)
    await until(fleet.machines(USER).admitted, 120)
    await full(fleet, 2)


async def test_the_etcd_of_a_seed_is_restored(fleet: Fleet) -> None:
    """backup.md, with agents that are scaled down before, and that the snapshot brings back."""
    await limited(fleet, 4)
    await snapshot(fleet, SEED)
    await until(fleet.machines(USER).admitted, 60)
    await fleet.run(commands("backup.md", "kubectl --context seed-1 -n seedquota scale"), context=OLD)
    await restored(fleet, SEED)
    create = "kubectl --context c1 create -f machine.json"
    machine = load.machine("late", SMALL)
    (fleet.directory / "machine.json").write_text(
        json.dumps({**machine, "metadata": {"name": "late", "namespace": "kube-system"}})
    )
    said: set[str] = set()

    async def created() -> None:
        answer = await fleet.run(f"{create} || true", context=SEED)
        said.add(form(answer))
        assert "machine.cluster.k8s.io/late created" in answer

    await until(created, 300)
    assert said.issuperset(map(form, outputs("backup.md", create))), said
    await fleet.run(commands("backup.md", "kubectl --context seed-1 -n seedquota rollout status"), context=OLD)
    await full(fleet, 4)


async def test_the_etcd_of_the_master_is_restored(fleet: Fleet) -> None:
    """backup.md, with a limit that was raised and used after the snapshot."""
    await snapshot(fleet, OLD)
    await limited(fleet, 6)
    for _ in range(2):
        await until(fleet.machines(USER).admitted, 60)
    await fleet.run(commands("backup.md", "kubectl -n seedquota scale"), context=OLD)
    await restored(fleet, OLD)
    message = (
        """kubectl get seedquota project-alpha -o jsonpath='{.status.conditions[?(@.type=="Exceeded")].message}'"""
    )

    async def exceeded() -> None:
        is_shown(await fleet.run(message, context=OLD), "backup.md", message)
        is_shown(await fleet.run(f"kubectl get seedquota {QUOTA}", context=OLD), "backup.md", "kubectl get seedquota")

    await until(exceeded, 300)
    await fleet.run(commands("backup.md", "kubectl -n seedquota rollout status"), context=OLD)
    assert "used: cpu=6, limited: cpu=4" in (await fleet.machines(USER).refused()).message


async def snapshot(fleet: Fleet, context: str) -> None:
    (fleet.directory / "etcd.db").unlink(missing_ok=True)
    member = f"export ETCDCTL_ENDPOINTS={fleet.site.plane.etcd_of(context).url}"
    await fleet.run(f"{member}\n{commands('backup.md', 'etcdctl')}", context=context)


async def restored(fleet: Fleet, context: str) -> None:
    plane, server = fleet.site.plane, fleet.nodes[context].server
    etcd, manager = plane.etcd_of(context), plane.manager_of(context)
    for each in (manager, server, etcd):
        await each.kill()
    await fleet.run(commands("backup.md", "etcdutl"), context=context)
    made = fleet.directory / "etcd-restored"
    await etcd.restore(made)
    shutil.rmtree(made)
    for each in (etcd, server, manager):
        await each.start()


async def test_the_master_moves(fleet: Fleet) -> None:
    """move-master.md, from the first command to the last."""
    page, new = "move-master.md", fleet.nodes[NEW]
    await limited(fleet, 8)
    await until(fleet.machines(USER).admitted, 60)
    await new.apply(namespace(NAMESPACE))
    await new.install("master", release="seedquota")
    for each in (
        "kubectl --context new -n seedquota scale deployment/seedquota-master --replicas=0",
        "kubectl --context old -n seedquota scale deployment/seedquota-master --replicas=0",
        "mkdir moved",
        "clean=",
        "kubectl --context new -n seedquota scale deployment/seedquota-master --replicas=2",
    ):
        await fleet.run(commands(page, each), context=OLD)
    await fleet.run(f"helm --kube-context {OLD} uninstall -n {NAMESPACE} seedquota", context=OLD)
    await new.enforced(QUOTA)
    await until(fleet.machines(USER).admitted, 60)
    await full(fleet, 8)


async def test_everything_is_removed(fleet: Fleet) -> None:
    """uninstall.md, in its order."""
    _, first, second, third, fourth = re.split(
        r"^# (?=\d\. )", "\n" + commands("uninstall.md", "# 1. no UserCluster"), flags=re.MULTILINE
    )
    delete, look = first.splitlines()[1:]
    await fleet.run(delete, context=NEW)

    async def no_webhook() -> None:
        assert "seedquota" not in await fleet.run(look, context=NEW)

    await until(no_webhook, 60)
    await fleet.machines(USER).admitted()
    *quotas, ledgers, seeds = second.splitlines()[1:]
    await fleet.run("\n".join(quotas), context=NEW)

    async def no_ledger() -> None:
        assert "No resources found" in await fleet.run(ledgers, context=NEW)

    await until(no_ledger, 60)
    await fleet.run(seeds, context=NEW)
    await fleet.run(f"# {third}", context=NEW)
    for context in (NEW, SEED):
        await fleet.run(f"# {fourth}", context=context)
        left = await fleet.nodes[context].everything() - fleet.before[context]
        assert {each for each in left if f" {PROJECT}" not in each and " kube-node-lease " not in each} == set(), left
    await nothing_but_what_the_page_names(fleet)
    await fleet.machines(USER).admitted()


async def nothing_but_what_the_page_names(fleet: Fleet) -> None:
    """In the user cluster, but for the role and its binding, which are the admin's."""
    kinds = f"crd,clusterroles,clusterrolebindings,apiservices,{WEBHOOKS},validatingadmissionpolicies"
    found = await fleet.run(f"kubectl get {kinds} -o name", context=USER)
    assert {line.partition("/")[2] for line in found.splitlines() if "seedquota" in line} == {
        "localresourcequotas.seedquota.io",
        "localresourcequotaallocations.seedquota.io",
        "v1alpha1.seedquota.io",
        "seedquota-local-quotas",
        "seedquota-user-cluster",
        f"seedquota-user-cluster-{SEED_USER}",
    }
