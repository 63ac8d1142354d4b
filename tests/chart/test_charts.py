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
from devcluster.manifests import load
from devcluster.objects import CHARTS
from master.__main__ import MasterOptions
from master.cache.objects import MASTER_QUOTAS
from seed.options import SeedOptions
from tests.chart import values
from tests.chart.helm import MASTER, SEED, Helm, HelmError, Object, arguments, container, full, of_kind, the

CASES = [(MASTER, name) for name in values.OF_A_MASTER] + [(SEED, name) for name in values.OF_A_SEED]
OF_CHART = {MASTER: values.OF_A_MASTER, SEED: values.OF_A_SEED}
OPTIONS: Mapping[str, type[flags.CommonOptions]] = {MASTER: MasterOptions, SEED: SeedOptions}
ROLES = ("Role", "ClusterRole")


@pytest.fixture(scope="module")
def rendered(helm: Helm) -> dict[tuple[str, str], list[Object]]:
    return {(chart, name): helm.render(chart, OF_CHART[chart][name]) for chart, name in CASES}


Rendered = dict[tuple[str, str], list[Object]]
every_case = pytest.mark.parametrize("case", CASES, ids=" ".join)


@pytest.mark.parametrize("chart", [MASTER, SEED])
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
    assert the(objects, "NetworkPolicy")["spec"]["ingress"] == [{"ports": [{"port": "api", "protocol": "TCP"}]}]
    assert not list(of_kind(rendered[MASTER, "defaults"], "Service", "Secret"))


@every_case
def test_every_file_that_a_flag_names_is_mounted(rendered: Rendered, case: tuple[str, str]) -> None:
    pod = the(rendered[case], "Deployment")["spec"]["template"]["spec"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container(rendered[case]).get("volumeMounts", [])}
    used = [argument.partition("=")[2] for argument in arguments(rendered[case]) if "=/etc/" in argument]
    assert {path if path in mounts else path.rpartition("/")[0] for path in used} == mounts.keys()
    assert sorted(mounts.values()) == sorted(volume["name"] for volume in pod.get("volumes", []))


@every_case
def test_its_pods_are_allowed_where_pod_security_is_restricted(rendered: Rendered, case: tuple[str, str]) -> None:
    pod = the(rendered[case], "Deployment")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container(rendered[case])["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert {kind for volume in pod.get("volumes", []) for kind in volume if kind != "name"} <= {"secret", "configMap"}


@pytest.mark.parametrize("case", [name for name in values.OF_A_SEED if name != "own certificate"])
def test_before_a_seeds_release_goes_its_agents_remove_their_webhooks(rendered: Rendered, case: str) -> None:
    job, deployment = (the(rendered[SEED, case], kind) for kind in ("Job", "Deployment"))
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete"
    pod, agent = (found["spec"]["template"]["spec"] for found in (job, deployment))
    for name in ("serviceAccountName", "imagePullSecrets", "nodeSelector", "tolerations"):
        assert pod.get(name) == agent.get(name)
    (ours,), (theirs,) = pod["containers"], agent["containers"]
    for name in ("image", "imagePullPolicy", "securityContext"):
        assert ours[name] == theirs[name]
    assert pod["securityContext"].items() <= agent["securityContext"].items()
    selector = deployment["spec"]["selector"]["matchLabels"]
    assert not selector.items() <= job["spec"]["template"]["metadata"]["labels"].items(), "no Service is to find it"


def test_the_job_before_a_release_goes_can_be_switched_off(rendered: Rendered) -> None:
    assert not list(of_kind(rendered[SEED, "own certificate"], "Job"))


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
    if case == (MASTER, "api"):  # the right to read the CA of client certificates
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
    "Seed": (MASTER, "objects"),
    "QuotaSettings": (MASTER, "objects"),
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
        assert each["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
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
    assert rules_of(rendered[MASTER, "defaults"]) == rules_in("master", "master-in-cluster", "viewer")
    of_api = ("master-api", "master-client-ca", "api-actors")
    assert rules_of(rendered[MASTER, "api"]) == rules_in("master", "master-in-cluster", "viewer", *of_api)
    always = rules_in("seed", "seed-in-cluster", "seed-namespace", "explain")
    always |= {found: rules for found, rules in rules_in("master-on-seed").items() if found[0] == "ClusterRole"}
    assert rules_of(rendered[SEED, "defaults"]) == always
    of_namespaces = ("user-cluster-namespaces", "seed-local-quotas", "local-quotas")
    of_secrets = (*of_namespaces, "user-cluster-secrets")
    switched_on = rules_in("seed-kubermatic", "seed-own-machines", "seed-own-webhooks", "project-owner", *of_secrets)
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
    assert allowed((MASTER, "monitored")) == ([metrics], [53, 53, 443, 6443, 30443])
    assert allowed((SEED, "monitored")) == ([webhook, metrics], [53, 53, 443, 6443, 30443])
    assert allowed((SEED, "redis")) == ([webhook], [53, 53, 443, 6443, 26379, 6379]), "sentinels name servers"


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
    names = set(re.findall(r"seedquota_\w+", query))
    assert names
    assert names <= labels.keys(), query
    of_targets = {"namespace", "job", "pod"}  # Prometheus adds these
    known = of_targets.union(*(labels[name] for name in names))
    kept = [set(re.split(r",\s*", by)) for by in re.findall(r"(?:by|on) \(([^)]*)\)", query)]
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
        assert rule["labels"]["severity"] in ("page", "ticket")
        kept = is_about_what_is_measured(rule["expr"], measured(chart))
        assert set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) <= kept, rule["alert"]


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
    assert all(each and each[2] in measured(chart)[each[1]] | {"job"} for each in asked)
    used = {name for query, _ in queries for name in re.findall(r"\$(\w+)", query)}
    assert used == {each["name"] for each in variables[1:]}


def test_objects_of_the_values_come_only_where_they_can_be_created_and_are_kept(rendered: Rendered, helm: Helm) -> None:
    objects = list(of_kind(rendered[MASTER, "objects"], "Seed", "QuotaSettings"))
    assert [(each["metadata"]["name"], each["spec"]) for each in objects] == [
        ("default", values.OBJECTS["settings"]["spec"]),  # type: ignore[index]
        ("eu-1", {"kubeconfigSecretRef": {"name": "eu-1-kubeconfig"}}),
        ("main", {"inCluster": True}),
    ]
    assert {each["metadata"]["annotations"]["helm.sh/resource-policy"] for each in objects} == {"keep"}
    (digits,) = of_kind(helm.render(MASTER, {"seeds": [{"name": "7", "existingSecret": "123"}]}), "Seed")
    assert (digits["metadata"]["name"], digits["spec"]["kubeconfigSecretRef"]["name"]) == ("7", "123"), "no numbers"
    at_first = helm.render(MASTER, values.OBJECTS, served=())
    assert not list(of_kind(at_first, "Seed", "QuotaSettings")), "Helm creates no object together with its definition"


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


@pytest.mark.parametrize("chart", [MASTER, SEED])
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
        elif path not in ("resources.",):
            yield f"{path}{name}"


@pytest.mark.parametrize("chart", [MASTER, SEED])
def test_a_packaged_chart_renders_the_same(helm: Helm, chart: str, tmp_path: Path) -> None:
    """In the repository it has links to files that both charts have."""
    helm("package", str(CHARTS / chart), f"--destination={tmp_path}")
    (package,) = tmp_path.iterdir()
    source = ("template", "a-release", "--namespace=quotas")
    rendered = [helm(*source, str(chart_at), values=full(chart, {})) for chart_at in (package, CHARTS / chart)]
    assert rendered[0] == rendered[1]


@pytest.mark.parametrize("chart", [MASTER, SEED])
def test_a_chart_installs_the_programs_of_its_own_version(rendered: Rendered, chart: str) -> None:
    version = tomllib.loads((CHARTS.parent / "pyproject.toml").read_text())["project"]["version"]
    described = yaml.safe_load((CHARTS / chart / "Chart.yaml").read_text())
    assert (described["version"], described["appVersion"]) == (version, version)
    assert container(rendered[chart, "defaults"])["image"] == f"ghcr.io/seedquota/seedquota:{version}"
    assert container(rendered[chart, "placed"])["image"] == f"registry.example.com/seedquota@sha256:{'0' * 64}"
