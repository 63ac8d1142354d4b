from __future__ import annotations

import json
from pathlib import Path

import pytest

from seed import size_command

VSPHERE = "{value: {cloudProvider: vsphere, cloudProviderSpec: {cpus: 2, memoryMB: 2048}}}"


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_WEB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)


def run(tmp_path: Path, text: str, *more: str) -> int:
    (tmp_path / "machines.yaml").write_text(text)
    return size_command.main(["-f", str(tmp_path / "machines.yaml"), *more])


def test_it_prints_what_each_machine_costs_and_how_that_was_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    template = f"{{template: {{spec: {{providerSpec: {VSPHERE}}}}}}}"
    text = f"kind: MachineDeployment\nmetadata: {{name: pool}}\nspec: {template}\n---\n"
    text += "kind: Machine\nmetadata: {name: m}\nspec: {providerSpec: {value: {cloudProvider: fake, "
    text += "cloudProviderSpec: {cpu: 1, memory: 1Gi, storage: 1Gi}}}}\n"
    assert run(tmp_path, text) == 0
    assert capsys.readouterr().out == (
        "pool: cpu=2,machines=1,memory=2Gi\n"
        "  storage is not known: vsphere diskSizeGB is not set, so the disk is as big as the template's, which is not "
        "known: set it in the spec; refused where a quota limits storage\n"
        "  found: all of it stands in the spec, as vsphere reads it\n"
        "m: cpu=1,machines=1,memory=1Gi,storage=1Gi\n"
        "  found: all of it stands in the spec, as fake reads it\n"
    )


def test_it_prints_what_admission_would_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = (
        "{instanceType: m5.large, diskSize: 5, region: eu-central-1, accessKeyId: a, secretAccessKey: {secretKeyRef: "
    )
    spec += "{namespace: a, name: b, key: c}}}"
    value = f"{{cloudProvider: aws, cloudProviderSpec: {spec}}}"
    text = f"kind: Machine\nmetadata: {{name: m}}\nspec: {{providerSpec: {{value: {value}}}}}"
    assert run(tmp_path, text) == 1
    assert capsys.readouterr().out == (
        "m: 422 cannot size machine: aws secretAccessKey is missing: Secret a/b key c can be read with --user-cluster; "
        "what the platform has is not used beside credentials that the Machine names\n"
    )


def test_credentials_that_the_machine_refers_to_are_the_ones_that_are_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two ways to sign in, the one that it chose; and only a private cloud that the environment names is asked."""
    reference = "{secretKeyRef: {namespace: a, name: b, key: c}}"
    spec = (
        f"{{identityEndpoint: 'https://k.example/v3', flavor: f, applicationCredentialID: {reference}, "
        f"applicationCredentialSecret: {reference}}}"
    )
    value = f"{{cloudProvider: openstack, cloudProviderSpec: {spec}}}"
    text = f"kind: Machine\nmetadata: {{name: m}}\nspec: {{providerSpec: {{value: {value}}}}}"
    assert run(tmp_path, text) == 1
    assert capsys.readouterr().out == (
        "m: 422 cannot size machine: openstack identityEndpoint is not one that the platform has named, so its sizes "
        "do not count: use the platform's, or have an administrator set OS_AUTH_URL in seedquota-seed's environment\n"
    )
    monkeypatch.setenv("OS_AUTH_URL", "https://K.example:443/")
    assert run(tmp_path, text) == 1
    assert capsys.readouterr().out == (
        "m: 422 cannot size machine: openstack applicationCredentialID is missing: Secret a/b key c can be read with "
        "--user-cluster, or set OS_APPLICATION_CREDENTIAL_ID in seedquota-seed's environment\n"
    )


def test_what_kubectl_writes_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    value = {"cloudProvider": "fake", "cloudProviderSpec": {"cpu": 1, "memory": "1Gi", "storage": "1Gi"}}
    machines: list[dict[str, object]] = [
        {"apiVersion": "cluster.k8s.io/v1alpha1", "kind": "Machine", "metadata": {"generateName": "pool-"}},
        {"kind": "Machine"},
    ]
    items = [{**machine, "spec": {"providerSpec": {"value": value}}} for machine in machines]
    assert run(tmp_path, json.dumps({"apiVersion": "v1", "kind": "List", "items": items})) == 0
    assert capsys.readouterr().out.splitlines()[::2] == [
        "pool-: cpu=1,machines=1,memory=1Gi,storage=1Gi",
        "Machine: cpu=1,machines=1,memory=1Gi,storage=1Gi",
    ]


@pytest.mark.parametrize(
    ("text", "more", "message"),
    [
        ("a: [", [], "no YAML"),
        ("kind: Pod", [], "only Machines"),
        ("kind: MachineSet", [], "MachineSet has no spec.template"),
        ("kind: Machine\nspec: 5", [], "not a Machine"),
        ("---\n", [], "there is no Machine in it"),
        ("{kind: List, items: null}", [], "there is no Machine in it"),
        (
            "apiVersion: cluster.x-k8s.io/v1beta1\nkind: Machine",
            [],
            "only those of cluster.k8s.io can be sized: a Machine of cluster.x-k8s.io costs what its infrastructure",
        ),
        ("kind: Machine\nmetadata: {}", ["--user-cluster", "a/b"], "needs the --kubeconfig"),
        ("kind: Machine", ["--user-cluster", "a", "--kubeconfig", "k"], "--user-cluster must be NAMESPACE/NAME"),
        ("kind: Machine", ["--user-cluster", "a/b", "--kubeconfig", "/none"], "kubeconfig file cannot be read"),
        ("kind: Machine", ["--providers-ca-file", "/none"], "/none: "),
    ],
)
def test_what_cannot_be_used_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, more: list[str], message: str
) -> None:
    assert run(tmp_path, text, *more) == 2
    assert message in capsys.readouterr().err


def test_a_file_that_cannot_be_read_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert size_command.main(["-f", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.endswith("none cannot be read: No such file or directory\n")
    (tmp_path / "disk.img").write_bytes(b"\xff\xfe")
    assert size_command.main(["-f", str(tmp_path / "disk.img")]) == 2
    assert capsys.readouterr().err.endswith("disk.img is no text\n")
