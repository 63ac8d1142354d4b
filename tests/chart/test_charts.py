"""What the charts render, by the real helm and without a cluster."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from common.api.types import ORGANIZATIONS, PROJECTS, QUOTA_SETTINGS, SEEDS, USER_CLUSTERS
from common.runtime import flags
from devcluster.charts import CRDS, MASTER, NAMES, SEED, copies
from devcluster.manifests import load
from devcluster.objects import CHARTS
from master.__main__ import MasterOptions
from master.cache.objects import MASTER_QUOTAS
from master.page.navigation import prefix_of
from seed.options import SeedOptions
from seed.registration.configuration import ServicePort
from tests.chart import values
from tests.chart.helm import Helm, HelmError, Object, arguments, container, full, of_kind, the

FILE = re.compile(r"=/(etc|var/lib)/")

CASES = [(MASTER, name) for name in values.OF_A_MASTER] + [(SEED, name) for name in values.OF_A_SEED]
OF_CHART = {MASTER: values.OF_A_MASTER, SEED: values.OF_A_SEED}
OPTIONS: Mapping[str, type[flags.CommonOptions]] = {MASTER: MasterOptions, SEED: SeedOptions}
ROLES = ("Role", "ClusterRole")


@pytest.fixture(scope="module")
def rendered(helm: Helm) -> dict[tuple[str, str], list[Object]]:
    return {(chart, name): helm.render(chart, OF_CHART[chart][name]) for chart, name in CASES}


Rendered = dict[tuple[str, str], list[Object]]
every_case = pytest.mark.parametrize("case", CASES, ids=" ".join)


def test_what_the_charts_share_is_the_same_in_each() -> None:
    """As files: archives of a repository that Flux makes have no links."""
    expected = {copy: source.read_bytes() for source, copy in copies()}
    found = {copy: copy.read_bytes() for copy in expected if copy.exists()}
    assert found == expected, "run `make charts-sync`"
    in_files = {path for chart in NAMES for path in (CHARTS / chart / "files").glob("*/*")}
    assert in_files <= expected.keys(), "run `make charts-sync`"
    assert [path for path in CHARTS.rglob("*") if path.is_symlink()] == []


@pytest.mark.parametrize("chart", NAMES)
def test_helms_own_linter_has_nothing_to_say(helm: Helm, chart: str) -> None:
    assert "1 chart(s) linted, 0 chart(s) failed" in helm(
        "lint", "--strict", str(CHARTS / chart), values=full(chart, {})
    )


@every_case
def test_the_program_knows_every_flag_that_it_gets(rendered: Rendered, case: tuple[str, str]) -> None:
    chart, _ = case
    started = container(rendered[case])
    assert started["command"] == [chart]
    options = flags.parse(OPTIONS[chart], chart, "", started["args"], {})
    assert options.namespace == "quotas"
    assert options.health_address.port == port(started, "health")


def test_what_is_not_set_is_what_the_program_does_by_itself(rendered: Rendered) -> None:
    """But for what an installation in a cluster makes: its names and the Service."""
    given = flags.parse(SeedOptions, SEED, "", arguments(rendered[SEED, "defaults"]), {})
    assert isinstance(given, SeedOptions)
    url = "https://seedquota-seed.quotas.svc"
    required = ["--seed-name=eu-1", f"--webhook-url={url}", "--namespace=quotas", "--webhook-service=seedquota-seed"]
    assert given == flags.parse(SeedOptions, SEED, "", required, {})


def test_each_value_comes_to_its_flag(rendered: Rendered) -> None:
    given = flags.parse(SeedOptions, SEED, "", arguments(rendered[SEED, "all"]), {})
    assert isinstance(given, SeedOptions)
    assert given.webhook_url == "https://webhook.example.com:8443"
    assert (given.webhook_timeout, given.seed_break_glass, given.user_cluster_break_glass) == (5, "off", "on")
    assert (given.providers, str(given.providers_ca_file)) == (
        ("aws", "openstack"),
        "/etc/seedquota/providers-ca/bundle.pem",
    )
    assert (given.project_label, given.in_flight_window) == ("example.com/project", 70.0)
    assert (given.ledger_store, given.redis_username, given.local_copies) == ("redis", "quotas", "off")
    assert str(given.redis_password_file) == "/etc/seedquota/redis-password/pass"
    assert (given.log_level, given.log_format) == ("debug", "text")


def test_the_http_api_has_a_service_and_its_name_in_the_certificate(rendered: Rendered) -> None:
    objects = rendered[MASTER, "api"]
    given = flags.parse(MasterOptions, MASTER, "", arguments(objects), {})
    assert isinstance(given, MasterOptions)
    assert given.api_address is not None
    assert given.api_address.port == port(container(objects), "api")
    assert given.api_names == ("seedquota-master.quotas.svc", "quotas.example.com")
    assert the(objects, "Service")["spec"]["ports"][0]["targetPort"] == "api"
    assert the(objects, "NetworkPolicy")["spec"]["ingress"][0] == {"ports": [{"port": "api", "protocol": "TCP"}]}
    assert not list(of_kind(rendered[MASTER, "defaults"], "Service", "Secret"))


def test_plots_are_made_from_the_metrics_of_this_installation_alone(rendered: Rendered) -> None:
    given = flags.parse(MasterOptions, MASTER, "", arguments(rendered[MASTER, "prometheus"]), {})
    assert isinstance(given, MasterOptions)
    assert given.history_prometheus_url == "http://prometheus-operated.monitoring:9090"
    assert dict(given.history_prometheus_labels) == {"namespace": "quotas", "cluster": "prod"}
    assert given.history_file is None


def test_an_ingress_leads_to_the_page_at_its_address(rendered: Rendered) -> None:
    objects = rendered[MASTER, "page"]
    found = the(objects, "Ingress")
    (rule,), (tls,) = found["spec"]["rules"], found["spec"]["tls"]
    assert (rule["host"], tls) == (
        "quota.example.com",
        {"hosts": ["quota.example.com"], "secretName": "of-the-host"},
    )
    (path,) = rule["http"]["paths"]
    given = flags.parse(MasterOptions, MASTER, "", arguments(objects), {})
    assert isinstance(given, MasterOptions) and given.page_url is not None
    assert path["path"] == prefix_of(given.page_url) == "/seedquota"
    to = path["backend"]["service"]
    service = the(objects, "Service")
    assert (to["name"], to["port"]["name"]) == (service["metadata"]["name"], service["spec"]["ports"][0]["name"])
    assert found["spec"]["ingressClassName"] == "nginx" and found["metadata"]["annotations"]
    assert service["metadata"]["annotations"] == {"example.com/transport": "of-the-page"}
    assert service["spec"]["ports"][0]["appProtocol"] == "https", "controllers speak HTTPS by themselves"


@every_case
def test_every_file_that_a_flag_names_is_mounted(rendered: Rendered, case: tuple[str, str]) -> None:
    pod = the(rendered[case], "Deployment")["spec"]["template"]["spec"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container(rendered[case]).get("volumeMounts", [])}
    used = [argument.partition("=")[2] for argument in arguments(rendered[case]) if FILE.search(argument)]
    given = {mount["mountPath"] for mount in OF_CHART[case[0]][case[1]].get("extraVolumeMounts", [])}  # type: ignore[attr-defined]
    assert {path if path in mounts else path.rpartition("/")[0] for path in used} == mounts.keys() - given
    assert sorted(mounts.values()) == sorted(volume["name"] for volume in pod.get("volumes", []))


@every_case
def test_its_pods_are_allowed_where_pod_security_is_restricted(rendered: Rendered, case: tuple[str, str]) -> None:
    for found in of_kind(rendered[case], "Deployment", "Job"):
        pod = found["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        (of_container,) = (each["securityContext"] for each in pod["containers"])
        assert {key: of_container[key] for key in ("allowPrivilegeEscalation", "readOnlyRootFilesystem")} == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
        }
        assert of_container["capabilities"] == {"drop": ["ALL"]}
        assert not of_container.get("privileged")
        assert not {"hostPID", "hostIPC"} & pod.keys()
        on_nodes = case[1] == "on nodes" and found["kind"] == "Deployment"
        assert pod.get("hostNetwork", False) is on_nodes, "nobody else asks for it"
        kinds = {kind for volume in pod.get("volumes", []) for kind in volume if kind != "name"}
        assert kinds <= {"secret", "configMap", "emptyDir"}


def jobs(objects: list[Object]) -> dict[str, Object]:
    return {found["metadata"]["name"]: found for found in of_kind(objects, "Job")}


@every_case
def test_jobs_run_where_and_as_the_programs_do(rendered: Rendered, case: tuple[str, str]) -> None:
    deployment = the(rendered[case], "Deployment")
    agent = deployment["spec"]["template"]
    (theirs,) = agent["spec"]["containers"]
    selector = deployment["spec"]["selector"]["matchLabels"]
    for job in jobs(rendered[case]).values():
        template = job["spec"]["template"]
        pod = template["spec"]
        for name in (
            "affinity",
            "automountServiceAccountToken",
            "imagePullSecrets",
            "nodeSelector",
            "priorityClassName",
            "securityContext",
            "tolerations",
        ):
            assert pod.get(name) == agent["spec"].get(name), name
        (ours,) = pod["containers"]
        for name in ("image", "imagePullPolicy", "securityContext", "envFrom"):
            assert ours.get(name) == theirs.get(name), name
        assert ours["env"] == [{"name": "HOME", "value": "/"}, *theirs.get("env", [])], "such as a proxy"
        assert not selector.items() <= template["metadata"]["labels"].items(), "no Service is to find it"
        policies = {"before-hook-creation", "hook-succeeded"}  # Argo CD runs the Job again at each sync
        assert set(job["metadata"]["annotations"]["helm.sh/hook-delete-policy"].split(",")) == policies


@pytest.mark.parametrize("case", [name for name in values.OF_A_SEED if name != "own certificate"])
def test_before_a_seeds_release_goes_its_agents_remove_their_webhooks(rendered: Rendered, case: str) -> None:
    job, deployment = jobs(rendered[SEED, case])["seedquota-seed-uninstall"], the(rendered[SEED, case], "Deployment")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete"
    pod, agent = (found["spec"]["template"]["spec"] for found in (job, deployment))
    assert pod["serviceAccountName"] == agent["serviceAccountName"]


def test_the_job_before_a_release_goes_can_be_switched_off(rendered: Rendered) -> None:
    assert jobs(rendered[SEED, "own certificate"]).keys() == {"seedquota-seed-start-check"}


@every_case
def test_a_release_is_checked_after_it_was_installed_or_upgraded(rendered: Rendered, case: tuple[str, str]) -> None:
    """... before Helm gives up, by an account of its own."""
    chart, name = case
    found = jobs(rendered[case]).get(f"{chart}-start-check")
    assert (found is None) == (name == "on nodes"), "there it is switched off"
    if found is None:
        return
    assert found["metadata"]["annotations"]["helm.sh/hook"] == "post-install,post-upgrade"
    seconds = 120 if name == "fitted" else 180
    pod = found["spec"]["template"]["spec"]
    (ours,) = pod["containers"]
    what = chart.removeprefix("seedquota-")
    assert ours["command"] == ["seedquota"]
    assert ours["args"] == ["start-check", what, "--namespace=quotas", f"--timeout={seconds}s"]
    assert seconds < found["spec"]["activeDeadlineSeconds"] < 300, "Helm waits for five minutes"
    account = "mine" if name == "alone" else f"{chart}-start-check"
    assert pod["serviceAccountName"] == account
    bound = {
        (each["kind"], each["roleRef"]["name"])
        for each in of_kind(rendered[case], "RoleBinding", "ClusterRoleBinding")
        if account in [subject["name"] for subject in each["subjects"]]
    }
    assert bound == (set() if name == "alone" else {("RoleBinding", f"{chart}-start-check")})
    accounts = {each["metadata"]["name"] for each in of_kind(rendered[case], "ServiceAccount")}
    assert (account in accounts) == (name != "alone")


@pytest.mark.parametrize("chart", [MASTER, SEED])
def test_what_other_clusters_ask_for_comes_to_its_place(rendered: Rendered, chart: str) -> None:
    objects = rendered[chart, "fitted"]
    deployment, started = the(objects, "Deployment"), container(objects)
    pod = deployment["spec"]["template"]
    for found in objects:
        named = found["metadata"]["name"] in (f"{chart}-a", f"{chart}-b")
        assert named or found["metadata"]["labels"]["example.com/team"] == "quotas", found["metadata"]
    for each in of_kind(objects, "Deployment", "Job"):
        labels = each["spec"]["template"]["metadata"]["labels"]
        assert (labels["example.com/team"], labels["example.com/mesh"]) == ("quotas", "off")
    context = pod["spec"]["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"], context["fsGroup"]) == (1000660000, 0, 1000660000)
    assert started["securityContext"]["privileged"] is False
    assert port(started, "health") == 10251
    times = {"periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 30, "initialDelaySeconds": 5}
    assert started["livenessProbe"] == {"httpGet": {"path": "/healthz", "port": "health"}, **times}
    times = {"periodSeconds": 3, "timeoutSeconds": 2, "failureThreshold": 2, "successThreshold": 2}
    assert started["readinessProbe"] == {"httpGet": {"path": "/readyz", "port": "health"}, **times}
    assert deployment["spec"]["strategy"] == values.FITTED["updateStrategy"]
    assert flags.parse(OPTIONS[chart], chart, "", started["args"], {}).log_level == "warning"
    assert pod["spec"]["volumes"][-1] == {"name": "scratch", "emptyDir": {}}
    assert started["volumeMounts"][-1] == {"name": "scratch", "mountPath": "/scratch"}
    for each in (found for found in of_kind(objects, "ConfigMap") if "data" not in found):
        assert each["metadata"] in [{"name": f"{chart}-{letter}", "namespace": "quotas"} for letter in "ab"]
    services = [found["spec"] for found in of_kind(objects, "Service")]
    assert len(services) == 2
    for each in services:
        assert (each["ipFamilyPolicy"], each["ipFamilies"]) == ("SingleStack", ["IPv4"])
    for kind, endpoints in (("ServiceMonitor", "endpoints"), ("PodMonitor", "podMetricsEndpoints")):
        (endpoint,) = the(objects, kind)["spec"][endpoints]
        given = values.FITTED["metrics"][f"{kind[0].lower()}{kind[1:]}"]  # type: ignore[index]
        for name in ("interval", "metricRelabelings"):
            assert endpoint[name] == given[name]
        own = [{"targetLabel": "seed", "replacement": "eu-1"}] if chart == SEED else []
        assert endpoint["relabelings"] == own + given["relabelings"]
    for job in jobs(objects).values():
        assert job["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"] == "1"


def test_the_webhook_is_reached_at_the_ports_of_the_values(rendered: Rendered) -> None:
    objects = rendered[SEED, "fitted"]
    given = flags.parse(SeedOptions, SEED, "", arguments(objects), {})
    assert isinstance(given, SeedOptions)
    assert given.webhook_address.port == port(container(objects), "webhook") == 10250
    (service,) = (each for each in of_kind(objects, "Service") if each["metadata"]["name"] == SEED)
    assert service["spec"]["ports"][0]["port"] == 8443
    assert given.webhook_service == ServicePort(SEED, 8443), "what the agents write into their configurations"


@pytest.mark.parametrize("chart", [MASTER, SEED])
def test_on_the_network_of_nodes_an_old_pod_leaves_its_ports_to_the_new_one(rendered: Rendered, chart: str) -> None:
    deployment = the(rendered[chart, "on nodes"], "Deployment")["spec"]
    pod = deployment["template"]["spec"]
    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert deployment["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    assert port(container(rendered[chart, "on nodes"]), "health") == 18081
    usual = the(rendered[chart, "defaults"], "Deployment")["spec"]
    assert not {"hostNetwork", "dnsPolicy"} & usual["template"]["spec"].keys()
    assert usual["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


@pytest.mark.parametrize("chart", [MASTER, SEED])
def test_openshift_chooses_users_and_groups(rendered: Rendered, chart: str) -> None:
    for found in of_kind(rendered[chart, "OpenShift"], "Deployment", "Job"):
        context = found["spec"]["template"]["spec"]["securityContext"]
        assert context == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


@every_case
def test_leases_and_ledgers_have_a_priority_level_of_their_own(rendered: Rendered, case: tuple[str, str]) -> None:
    chart, name = case
    found = {each["kind"]: each for each in of_kind(rendered[case], "FlowSchema", "PriorityLevelConfiguration")}
    if name == "alone":
        assert not found
        return
    assert {each["metadata"]["name"] for each in found.values()} == {chart}
    schema, level = found["FlowSchema"]["spec"], found["PriorityLevelConfiguration"]["spec"]
    assert schema["priorityLevelConfiguration"] == {"name": chart}
    given = (schema["matchingPrecedence"], level["limited"]["nominalConcurrencyShares"])
    assert given == ((500, 20) if name == "fitted" else (1000, 10))
    ((subject,),) = (rule["subjects"] for rule in schema["rules"])
    account = the(rendered[case], "Deployment")["spec"]["template"]["spec"]["serviceAccountName"]
    assert subject["serviceAccount"] == {"name": account, "namespace": "quotas"}


@every_case
def test_only_pods_of_the_programs_get_a_token(rendered: Rendered, case: tuple[str, str]) -> None:
    accounts = list(of_kind(rendered[case], "ServiceAccount"))
    assert all(account["automountServiceAccountToken"] is False for account in accounts)
    pod = the(rendered[case], "Deployment")["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is True
    assert case[1] == "alone" or pod["serviceAccountName"] in {account["metadata"]["name"] for account in accounts}


@every_case
def test_what_selects_pods_finds_them_and_their_ports(rendered: Rendered, case: tuple[str, str]) -> None:
    objects = rendered[case]
    labels = the(objects, "Deployment")["spec"]["template"]["metadata"]["labels"].items()
    for found in objects:
        spec = found.get("spec", {})
        for selector in (spec.get("podSelector"), spec.get("selector")):
            if selector is not None and found["kind"] != "ServiceMonitor":
                assert selector.get("matchLabels", selector).items() <= labels, found["kind"]
    for service in of_kind(objects, "Service"):
        for entry in service["spec"]["ports"]:
            assert port(container(objects), entry["targetPort"])
    for monitor in of_kind(objects, "ServiceMonitor"):
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        selected = [found for found in of_kind(objects, "Service") if wanted <= found["metadata"]["labels"].items()]
        assert [found["metadata"]["name"] for found in selected] == [f"{case[0]}-metrics"]


def port(of: Object, name: str) -> int:
    (number,) = (entry["containerPort"] for entry in of["ports"] if entry["name"] == name)
    return int(number)


@every_case
def test_every_object_is_in_the_releases_namespace_or_in_one_that_was_named(
    rendered: Rendered, case: tuple[str, str]
) -> None:
    named = {"alpha", "beta", "own"} if case[1] in ("rights", "all") else set()
    if case[0] == MASTER and case[1] in (
        "api",
        "fitted",
        "page",
        "prometheus",
        "without-page",
    ):  # the right to read the CA of client certificates
        named = {"kube-system"}
    namespaces = {found["metadata"].get("namespace") for found in rendered[case]}
    assert namespaces == {"quotas", *named} | ({None} if case[1] != "alone" else set())
    for found in of_kind(rendered[case], "RoleBinding", "ClusterRoleBinding"):
        assert {subject.get("namespace", "quotas") for subject in found["subjects"]} == {"quotas"}


OPTIONAL = {
    "PodMonitor": (MASTER, "monitored"),
    "ServiceMonitor": (MASTER, "monitored"),
    "PrometheusRule": (MASTER, "monitored"),
    "ConfigMap": (SEED, "monitored"),
    "NetworkPolicy": (MASTER, "monitored"),
    "Ingress": (SEED, "outside"),
    "TLSRoute": (SEED, "outside"),
    "Certificate": (SEED, "outside"),
}


@pytest.mark.parametrize("kind", OPTIONAL)
def test_what_is_optional_comes_only_where_it_is_switched_on(rendered: Rendered, kind: str) -> None:
    assert not list(of_kind(rendered[SEED, "defaults"] + rendered[MASTER, "defaults"], kind))
    assert list(of_kind(rendered[OPTIONAL[kind]], kind))


@pytest.mark.parametrize("chart", [MASTER, SEED])
def test_one_replica_has_no_disruption_budget_that_would_hold_its_node(rendered: Rendered, chart: str) -> None:
    assert the(rendered[chart, "defaults"], "PodDisruptionBudget")["spec"]["minAvailable"] == 1
    assert not list(of_kind(rendered[chart, "alone"], "PodDisruptionBudget"))


@pytest.mark.parametrize("chart", [MASTER, SEED])
def test_the_definitions_are_those_of_charts_crds_and_stay_when_the_release_goes(
    rendered: Rendered, chart: str
) -> None:
    found = list(of_kind(rendered[chart, "defaults"], "CustomResourceDefinition"))
    for each in found:
        assert each["metadata"]["annotations"] == {
            "argocd.argoproj.io/sync-options": "Prune=false",
            "helm.sh/resource-policy": "keep",
        }
        assert each["metadata"]["labels"]["app.kubernetes.io/part-of"] == "seedquota"
    by_name = {each["metadata"]["name"]: each["spec"] for each in load(CHARTS / "crds")}  # type: ignore[index]
    assert {each["metadata"]["name"]: each["spec"] for each in found} == by_name
    assert not list(of_kind(rendered[chart, "alone"], "CustomResourceDefinition"))


def rules_of(objects: list[Object]) -> dict[tuple[str, str], Any]:
    return {(found["kind"], found["metadata"]["name"]): found.get("rules") for found in of_kind(objects, *ROLES)}


def rules_in(*files: str) -> dict[tuple[str, str], Any]:
    objects: list[Any] = load(*(CHARTS / "rbac" / f"{file}.yaml" for file in files))
    return rules_of(objects)


BOUND: dict[tuple[str, str], set[tuple[str, str, str | None]]] = {
    (MASTER, "defaults"): {
        ("ClusterRole", "seedquota-master", None),
        ("Role", "seedquota-master", "quotas"),
        ("ClusterRole", "seedquota-master-in-cluster", None),
    },
    (SEED, "defaults"): {
        ("ClusterRole", "seedquota-seed", None),
        ("Role", "seedquota-seed", "quotas"),
        ("ClusterRole", "seedquota-seed-in-cluster", None),
        ("Role", "seedquota-seed-in-cluster", "quotas"),
    },
}
BOUND[MASTER, "api"] = BOUND[MASTER, "defaults"] | {
    ("ClusterRole", "seedquota-master-api", None),
    ("ClusterRole", "seedquota-master-client-ca", "kube-system"),
}
BOUND[SEED, "rights"] = BOUND[SEED, "defaults"] | {
    ("ClusterRole", "seedquota-seed-kubermatic", None),
    *(("ClusterRole", "seedquota-seed-namespace", namespace) for namespace in ("alpha", "beta", "own")),
    *(("ClusterRole", "seedquota-seed-own-machines", namespace) for namespace in ("beta", "own")),
    ("ClusterRole", "seedquota-seed-own-webhooks", None),
    ("ClusterRole", "seedquota-user-cluster-namespaces", None),
    ("ClusterRole", "seedquota-user-cluster-secrets", None),
    ("ClusterRole", "seedquota-seed-local-quotas", None),
}
BOUND[SEED, "namespaces"] = BOUND[SEED, "defaults"] | {
    ("ClusterRole", "seedquota-user-cluster-namespaces", None),
    ("ClusterRole", "seedquota-seed-local-quotas", None),
}
"""The roles of the program's own ServiceAccount, and in which namespace."""


@pytest.mark.parametrize("case", BOUND, ids=" ".join)
def test_the_program_has_the_rights_that_it_was_seen_to_use_and_no_other(
    rendered: Rendered, case: tuple[str, str]
) -> None:
    """`test_rights.py` sees them used, by the files of charts/rbac."""
    account = the(rendered[case], "Deployment")["spec"]["template"]["spec"]["serviceAccountName"]
    subject = {"kind": "ServiceAccount", "name": account, "namespace": "quotas"}
    bindings = list(of_kind(rendered[case], "RoleBinding", "ClusterRoleBinding"))
    bound = {
        (found["roleRef"]["kind"], found["roleRef"]["name"], found["metadata"].get("namespace"))
        for found in bindings
        if subject in found["subjects"]
    }
    assert bound == BOUND[case]
    assert {name for _, name, _ in bound} <= {name for _, name in rules_of(rendered[case])}


def test_the_roles_are_those_of_charts_rbac(rendered: Rendered) -> None:
    of_master = ("master", "master-in-cluster", "viewer", "notifications", "master-start-check")
    assert rules_of(rendered[MASTER, "defaults"]) == rules_in(*of_master)
    of_api = ("master-api", "master-client-ca", "api-actors")
    assert rules_of(rendered[MASTER, "api"]) == rules_in(*of_master, *of_api)
    assert rules_of(rendered[MASTER, "objects"]) == rules_in(*of_master, "master-values")
    assert rules_of(rendered[MASTER, "on nodes"]) == rules_in(
        "master", "master-in-cluster", "viewer", "notifications"
    ), "no start check"
    always = rules_in("seed", "seed-in-cluster", "seed-namespace", "explain", "seed-start-check")
    always |= {found: rules for found, rules in rules_in("master-on-seed").items() if found[0] == "ClusterRole"}
    assert rules_of(rendered[SEED, "defaults"]) == always
    of_namespaces = ("user-cluster-namespaces", "seed-local-quotas", "local-quotas")
    of_secrets = (*of_namespaces, "user-cluster-secrets")
    of_values = ("seed-kubermatic", "seed-own-machines", "seed-own-webhooks", "project-owner", "master-decisions")
    switched_on = rules_in(*of_values, *of_secrets)
    assert rules_of(rendered[SEED, "rights"]) == always | switched_on
    assert rules_of(rendered[SEED, "namespaces"]) == always | rules_in(*of_namespaces)
    for chart in (MASTER, SEED):
        assert not rules_of(rendered[chart, "alone"])


def test_the_viewer_reads_what_commands_read_and_nothing_more(rendered: Rendered) -> None:
    role = next(
        each
        for each in of_kind(rendered[MASTER, "defaults"], "ClusterRole")
        if each["metadata"]["name"] == "seedquota:viewer"
    )
    assert role["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    (rule,) = role["rules"]
    assert (rule["apiGroups"], rule["verbs"]) == (["seedquota.io"], ["get", "list", "watch"])
    read = (MASTER_QUOTAS, PROJECTS, ORGANIZATIONS, QUOTA_SETTINGS, SEEDS, USER_CLUSTERS)
    assert set(rule["resources"]) == {each.plural for each in read}


def test_roles_keep_the_labels_by_which_others_select_them(rendered: Rendered) -> None:
    objects: list[Any] = load(*(CHARTS / "rbac").glob("*.yaml"))
    written = {(each["kind"], each["metadata"]["name"]): each["metadata"]["labels"] for each in objects}
    found = [
        each for name in ("defaults", "rights") for chart in (MASTER, SEED) for each in rendered.get((chart, name), [])
    ]
    compared = 0
    for each in found:
        labels = written.get((each["kind"], each["metadata"]["name"]), {})
        assert labels.keys() <= each["metadata"]["labels"].keys()
        assert each["metadata"]["labels"].items() >= labels.items() - {("app.kubernetes.io/managed-by", "seedquota")}
        compared += bool(labels)
    assert compared > 10


def test_every_file_of_charts_rbac_has_a_chart_but_that_of_all_user_clusters() -> None:
    texts = [(CHARTS / chart / "templates" / "rbac.yaml").read_text() for chart in (MASTER, SEED)]
    files = {path.stem for path in (CHARTS / "rbac").glob("*.yaml")}
    left_out = {file for file in files if not any(f'"{file}"' in text for text in texts)}
    assert left_out == {"user-cluster"}


def test_the_role_of_owners_comes_whole_and_its_rules_are_left_to_the_control_plane(rendered: Rendered) -> None:
    """An upgrade would write rules that a release names, and owners would have none until they are filled in."""
    of_owners: list[Any] = load(CHARTS / "rbac" / "project-owner.yaml")
    found = {(each["kind"], each["metadata"]["name"]): each for each in rendered[SEED, "rights"]}
    for each in of_owners:
        content = found[each["kind"], each["metadata"]["name"]]
        for part in ("spec", "rules", "aggregationRule"):
            assert content.get(part) == each.get(part)
    assert "rules" not in found["ClusterRole", "seedquota:project-owner"]


def test_the_policies_hold_for_the_agents_own_account(rendered: Rendered) -> None:
    policies = list(of_kind(rendered[SEED, "rights"], "ValidatingAdmissionPolicy"))
    of_the_agent = [policy for policy in policies if policy["metadata"]["name"] != "seedquota-project-owner"]
    assert (len(policies), len(of_the_agent)) == (4, 3)
    for policy in of_the_agent:
        (condition,) = policy["spec"]["matchConditions"]
        assert "'system:serviceaccount:quotas:agent'" in condition["expression"]


def test_the_master_is_bound_on_the_seed_only_where_it_is_named(rendered: Rendered) -> None:
    def subjects(case: str) -> list[Any]:
        found = of_kind(rendered[SEED, case], "ClusterRoleBinding")
        return [each["subjects"] for each in found if each["metadata"]["name"] == "seedquota-master-on-seed-by-values"]

    assert subjects("defaults") == []
    assert subjects("rights") == [[{"kind": "User", "name": "master", "apiGroup": "rbac.authorization.k8s.io"}]]


@pytest.mark.parametrize(
    ("served", "version"),
    [((), "v1"), (["v1alpha2"], "v1alpha2"), (["v1alpha2", "v1alpha3"], "v1alpha3"), (["v1", "v1alpha3"], "v1")],
)
def test_a_route_is_of_the_newest_version_that_the_cluster_serves(
    helm: Helm, served: Sequence[str], version: str
) -> None:
    """Where nothing is known of the cluster: of the one that the Gateway API's standard channel serves."""
    kinds = [f"gateway.networking.k8s.io/{each}/TLSRoute" for each in served]
    objects = helm.render(SEED, values.OUTSIDE, served=kinds)
    assert the(objects, "TLSRoute")["apiVersion"] == f"gateway.networking.k8s.io/{version}"


def test_from_outside_the_webhook_is_reached_by_the_name_that_its_certificate_has(rendered: Rendered) -> None:
    objects = rendered[SEED, "outside"]
    certificate = the(objects, "Certificate")["spec"]
    assert certificate["dnsNames"] == ["seedquota-seed.quotas.svc", "webhook.example.com"]
    assert the(objects, "TLSRoute")["spec"]["hostnames"] == ["webhook.example.com"]
    assert the(objects, "Ingress")["spec"]["rules"][0]["host"] == "webhook.example.com"
    assert the(objects, "Service")["spec"]["type"] == "LoadBalancer"
    (volume,) = the(objects, "Deployment")["spec"]["template"]["spec"]["volumes"]
    assert volume["secret"]["secretName"] == certificate["secretName"]


def test_a_network_policy_denies_but_what_the_programs_need(rendered: Rendered) -> None:
    def allowed(case: tuple[str, str]) -> tuple[list[Any], list[Any]]:
        spec = the(rendered[case], "NetworkPolicy")["spec"]
        assert spec["policyTypes"] == ["Ingress", "Egress"]
        return spec["ingress"], [entry["port"] for rule in spec["egress"] for entry in rule["ports"]]

    metrics = {"from": [{"namespaceSelector": {}}], "ports": [{"port": "health", "protocol": "TCP"}]}
    webhook = {"ports": [{"port": "webhook", "protocol": "TCP"}]}

    def checked(chart: str) -> Object:
        """The pods of the start check read metrics."""
        (job,) = (each for name, each in jobs(rendered[chart, "monitored"]).items() if name.endswith("-start-check"))
        name = job["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/name"]
        return {**metrics, "from": [{"podSelector": {"matchLabels": {"app.kubernetes.io/name": name}}}]}

    assert allowed((MASTER, "monitored")) == ([checked(MASTER), metrics], [53, 53, 443, 6443, 30443])
    assert allowed((SEED, "monitored")) == ([webhook, checked(SEED), metrics], [53, 53, 443, 6443, 30443])
    assert allowed((SEED, "redis")) == (
        [webhook, checked(SEED)],
        [53, 53, 443, 6443, 26379, 6379],
    ), "sentinels name servers"


def measured(chart: str) -> dict[str, set[str]]:
    """The labels of each metric of the program, by the page of metrics, which is made from the code."""
    text = (CHARTS.parent / "docs" / "reference" / "metrics.md").read_text()
    both, of_program = (
        text.partition(f"\n## {title}\n")[2].partition("\n## ")[0] for title in ("Both programs", chart)
    )
    found: dict[str, set[str]] = {}
    for line in (both + of_program).splitlines():
        if line.startswith("| `seedquota_"):
            _, name, kind, known, *_ = (cell.strip() for cell in line.split("|"))
            labels = set(re.findall(r"`(\w+)`", known))
            name = name.strip("`")
            found |= {f"{name}_bucket": {*labels, "le"}} if kind == "histogram" else {name: labels}
    return found


def is_about_what_is_measured(query: str, labels: Mapping[str, set[str]]) -> set[str]:
    """The labels that its result keeps."""
    names = set(re.findall(r"seedquota_\w+|\bup\b", query)) - {"up"}
    assert names or "up{" in query
    assert names <= labels.keys(), query
    of_targets = {"namespace", "job", "pod", "instance", "seed"}  # Prometheus adds these
    known = of_targets.union(*(labels[name] for name in names))
    kept = [set(re.split(r",\s*", by)) for by in re.findall(r"(?:by|on) \(([^)]+)\)", query)]
    assert all(each <= known for each in kept), query
    assert set(re.findall(r"(\w+)(?:=|!=|=~|!~)\"", query)) <= known, query
    return set().union(*kept)


@pytest.mark.parametrize("chart", [MASTER, SEED])
def test_alerts_are_about_what_the_program_measures(rendered: Rendered, chart: str) -> None:
    found = the(rendered[chart, "monitored"], "PrometheusRule")
    assert found["metadata"]["labels"]["release"] == "prometheus"
    rules = [rule for group in found["spec"]["groups"] for rule in group["rules"]]
    assert len(rules) >= 5
    for rule in rules:
        kept = is_about_what_is_measured(rule["expr"], measured(chart))
        kept |= {"namespace", "seed"} if rule["expr"].startswith("absent(") else set()
        said = "".join(rule["annotations"].values())
        assert set(re.findall(r"\$labels\.(\w+)", said)) <= kept, rule["alert"]


@pytest.mark.parametrize("chart", [MASTER, SEED])
def test_dashboards_are_about_what_the_program_measures(rendered: Rendered, chart: str) -> None:
    found = the(rendered[chart, "monitored"], "ConfigMap")
    assert found["metadata"]["labels"]["grafana_dashboard"] == "quotas"
    dashboard = json.loads(found["data"][f"{chart}.json"])
    panels, variables = dashboard["panels"], dashboard["templating"]["list"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 10
    assert [panel["title"] for panel in panels if panel["gridPos"]["x"] + panel["gridPos"]["w"] > 24] == []
    queries = [(target["expr"], target["legendFormat"]) for panel in panels for target in panel["targets"]]
    for query, legend in queries:
        kept = is_about_what_is_measured(query, measured(chart))
        assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= kept, query
    asked = [re.fullmatch(r"label_values\((\w+), (\w+)\)", each["query"]) for each in variables[1:]]
    assert all(each and each[2] in measured(chart)[each[1]] | {"seed"} for each in asked)
    used = {name for query, _ in queries for name in re.findall(r"\$(\w+)", query)}
    assert used == {each["name"] for each in variables[1:]}


def test_objects_of_the_values_are_applied_by_a_job_after_their_definitions(rendered: Rendered, helm: Helm) -> None:
    """Helm creates no object together with its definition. A changed object is a changed ConfigMap, which tools see."""

    def given(objects: list[Object]) -> list[Object]:
        return list(yaml.safe_load_all(the(objects, "ConfigMap")["data"]["objects.yaml"]))

    objects = rendered[MASTER, "objects"]
    assert not list(of_kind(objects, "Seed", "QuotaSettings"))
    assert [(each["metadata"]["name"], each["spec"]) for each in given(objects)] == [
        ("default", values.OBJECTS["settings"]["spec"]),  # type: ignore[index]
        ("eu-1", {"kubeconfigSecretRef": {"name": "eu-1-kubeconfig"}}),
        ("main", {"inCluster": True}),
    ]
    digits = given(helm.render(MASTER, {"seeds": [{"name": "7", "existingSecret": "123"}]}))
    assert [(each["metadata"]["name"], each["spec"]["kubeconfigSecretRef"]["name"]) for each in digits] == [
        ("7", "123")
    ], "no numbers"
    job = jobs(objects)["seedquota-master-values"]
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "post-install,post-upgrade"
    (started,) = job["spec"]["template"]["spec"]["containers"]
    (mount,), (volume,) = started["volumeMounts"], job["spec"]["template"]["spec"]["volumes"]
    assert started["args"] == ["apply", f"--filename={mount['mountPath']}/objects.yaml"]
    assert volume["configMap"]["name"] == the(objects, "ConfigMap")["metadata"]["name"]
    weights = [jobs(objects)[f"{MASTER}-{name}"]["metadata"]["annotations"] for name in ("values", "start-check")]
    assert int(weights[0]["helm.sh/hook-weight"]) < int(weights[1]["helm.sh/hook-weight"])
    assert "seedquota-master-values" not in jobs(rendered[MASTER, "defaults"])


REFUSED: dict[str, tuple[str, dict[str, object], str]] = {
    "a name that is no value": (MASTER, {"replicaCount": 3}, "'replicaCount' not allowed"),
    "... deeper": (SEED, {"webhook": {"url": "https://a"}}, "at '/webhook': additional properties 'url' not allowed"),
    "a spec of no object": (MASTER, {"settings": {"spec": {"scaleCheck": "deny"}}}, "without settings.create=true"),
    "... of the other chart": (MASTER, {"seedName": "eu-1"}, "'seedName' not allowed"),
    "no seedName": (SEED, {"seedName": ""}, "seedName is required: the name that this seed has on the master"),
    "an unknown cloud": (SEED, {"providers": {"enabled": ["awz"]}}, "must be one of 'alibaba', 'anexia', 'aws'"),
    "an unknown mode": (SEED, {"tls": {"mode": "own"}}, "must be one of 'selfSigned', 'certManager', 'existingSecret'"),
    "plain HTTP": (SEED, {"webhook": {"externalURL": "http://a"}}, "at '/webhook/externalURL'"),
    "a path in the URL": (SEED, {"webhook": {"externalURL": "https://a/b"}}, "at '/webhook/externalURL'"),
    "a window without a unit": (SEED, {"inFlightWindow": 65}, "at '/inFlightWindow': got number, want string"),
    "a timeout of no API server": (SEED, {"webhook": {"timeoutSeconds": 31}}, "maximum: got 31, want 30"),
    "a label by which pods are selected": (
        SEED,
        {"podLabels": {"app.kubernetes.io/name": "mine"}},
        "podLabels may not set app.kubernetes.io/name: the chart sets this label",
    ),
    "... of all objects": (
        MASTER,
        {"commonLabels": {"app.kubernetes.io/instance": "mine"}},
        "commonLabels may not set app.kubernetes.io/instance: the chart sets this label",
    ),
    "an unknown time of a probe": (SEED, {"livenessProbe": {"period": 3}}, "invalid propertyName 'period'"),
    "an argument that is no flag": (SEED, {"extraArgs": ["debug"]}, "at '/extraArgs/0'"),
    "an unknown family": (MASTER, {"serviceIPFamilies": ["IPv5"]}, "must be one of 'IPv4', 'IPv6'"),
    "a policy of no Service": (MASTER, {"serviceIPFamilyPolicy": "Dual"}, "at '/serviceIPFamilyPolicy'"),
    "a port that there is not": (SEED, {"webhook": {"port": 70000}}, "at '/webhook/port'"),
    "an interval without a unit": (
        SEED,
        {"metrics": {"podMonitor": {"interval": "30"}}},
        "at '/metrics/podMonitor/interval'",
    ),
    "an unknown strategy": (MASTER, {"updateStrategy": {"type": "OnDelete"}}, "at '/updateStrategy/type'"),
    "no replica": (MASTER, {"replicas": 0}, "at '/replicas': minimum: got 0, want 1"),
    "a tag as a digest": (MASTER, {"image": {"digest": "v1"}}, "at '/image/digest'"),
    "credentials in a URL": (SEED, {"ledger": {"redis": {"url": "redis://u:p@a:6379"}}}, "at '/ledger/redis/url'"),
    "Redis without a URL": (
        SEED,
        {"ledger": {"store": "redis"}},
        "ledger.redis.url is required with ledger.store=redis",
    ),
    "no issuer": (SEED, {"tls": {"mode": "certManager"}}, "tls.certManager.issuerRef is required"),
    "Secrets of namespaces that are not counted": (
        SEED,
        {"namespaceQuotas": {"secrets": True}},
        "namespaceQuotas.secrets has no effect without namespaceQuotas.enabled=true",
    ),
    "no Secret": (SEED, {"tls": {"mode": "existingSecret"}}, "tls.existingSecret is required"),
    "an Ingress without a host": (SEED, {"webhook": {"ingress": {"enabled": True}}}, "webhook.externalURL is required"),
    "an Ingress without an address": (
        MASTER,
        {"api": {"enabled": True, "ingress": {"enabled": True}}},
        "page.url is required with api.ingress.enabled=true",
    ),
    "an Ingress to nothing": (
        MASTER,
        {"api": {"ingress": {"enabled": True}}, "page": {"url": "https://quota.example.com"}},
        "api.ingress.enabled has no effect without api.enabled=true",
    ),
    "an address with a strange path": (
        MASTER,
        {"api": {"enabled": True}, "page": {"url": "https://quota.example.com/a b"}},
        "does not match pattern",
    ),
    "no account": (MASTER, {"serviceAccount": {"create": False}}, "serviceAccount.name is required"),
    "a Seed with two ways": (
        MASTER,
        {"seeds": [{"name": "eu-1", "existingSecret": "eu-1", "inCluster": True}]},
        "at '/seeds/0': 'oneOf' failed",
    ),
    "a Seed without a way": (MASTER, {"seeds": [{"name": "eu-1"}]}, "missing property 'existingSecret'"),
    "a Seed's state": (MASTER, {"seeds": [{"name": "a", "inCluster": True, "state": "Lost"}]}, "'state' not allowed"),
    "a route without a Gateway": (
        SEED,
        {"webhook": {"externalURL": "https://a", "tlsRoute": {"enabled": True}}},
        "webhook.tlsRoute.parentRefs is required",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_value_is_refused_with_a_message_that_helps(helm: Helm, case: str) -> None:
    chart, given, said = REFUSED[case]
    with pytest.raises(HelmError) as refused:
        helm.render(chart, given)
    assert said in str(refused.value)


@pytest.mark.parametrize("chart", NAMES)
def test_the_schema_knows_no_value_that_there_is_not(chart: str) -> None:
    """helm refuses the other way round: a value that the schema does not know."""
    schema = json.loads((CHARTS / chart / "values.schema.json").read_text())
    given = yaml.safe_load((CHARTS / chart / "values.yaml").read_text())
    assert set(missing(schema, given)) == {"global"}


def missing(schema: Mapping[str, Any], given: object, path: str = "") -> Iterator[str]:
    if not isinstance(given, dict) or not given:
        return
    for name, each in schema.get("properties", {}).items():
        if name in given:
            yield from missing(each, given[name], f"{path}{name}.")
        elif not path.endswith("resources."):
            yield f"{path}{name}"


@pytest.mark.parametrize("chart", NAMES)
def test_a_packaged_chart_renders_the_same(helm: Helm, chart: str, tmp_path: Path) -> None:
    helm("package", str(CHARTS / chart), f"--destination={tmp_path}")
    (package,) = tmp_path.iterdir()
    source = ("template", "a-release", "--namespace=quotas")
    rendered = [helm(*source, str(chart_at), values=full(chart, {})) for chart_at in (package, CHARTS / chart)]
    assert rendered[0] == rendered[1]


def test_the_chart_of_the_definitions_has_these_alone(helm: Helm, rendered: Rendered) -> None:
    objects = helm.render(CRDS, {"commonLabels": {"example.com/team": "quotas"}})
    assert {each["metadata"]["labels"]["example.com/team"] for each in objects} == {"quotas"}
    of_master = list(of_kind(rendered[MASTER, "defaults"], "CustomResourceDefinition"))
    assert [each["spec"] for each in objects] == [each["spec"] for each in of_master]


@pytest.mark.parametrize("chart", NAMES)
def test_a_chart_has_the_version_of_the_programs(chart: str) -> None:
    version = tomllib.loads((CHARTS.parent / "pyproject.toml").read_text())["project"]["version"]
    described = yaml.safe_load((CHARTS / chart / "Chart.yaml").read_text())
    assert (described["version"], described["appVersion"]) == (version, version)


@pytest.mark.parametrize("chart", [MASTER, SEED])
def test_a_chart_installs_the_programs_of_its_own_version(rendered: Rendered, chart: str) -> None:
    version = tomllib.loads((CHARTS.parent / "pyproject.toml").read_text())["project"]["version"]
    assert container(rendered[chart, "defaults"])["image"] == f"ghcr.io/seedquota/seedquota:{version}"
    assert container(rendered[chart, "placed"])["image"] == f"registry.example.com/seedquota@sha256:{'0' * 64}"
