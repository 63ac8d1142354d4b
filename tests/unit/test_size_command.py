from __future__ import annotations

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
        "m: 422 cannot size machine: aws secretAccessKey is missing: it is in Secret a/b key c, of a user cluster that "
        "was not named\n"
    )


@pytest.mark.parametrize(
    ("text", "more", "message"),
    [
        ("a: [", [], "no YAML"),
        ("kind: Pod", [], "only Machines"),
        ("kind: MachineSet", [], "MachineSet has no spec.template"),
        ("kind: Machine\nspec: 5", [], "not a Machine"),
        ("kind: Machine\nmetadata: {}", ["--user-cluster", "a/b"], "needs the --kubeconfig"),
    ],
)
def test_what_cannot_be_used_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, more: list[str], message: str
) -> None:
    assert run(tmp_path, text, *more) == 2
    assert message in capsys.readouterr().err
