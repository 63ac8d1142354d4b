"""What the commands about seeds do before they reach a cluster."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from cli.__main__ import run
from cli.connection import connected
from cli.outcome import Failed
from cli.seeds import on_master, rights
from cli.terminal import columns
from common.kube.client.api_client import Cluster
from common.kube.client.errors import TooManyRequests
from common.kube.client.kubeconfig import Access
from tests.unit.fake_api_server import PLURALS, fake_api_server, status


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["seed", "add", "eu-2", "--seed-kubeconfig", "{}/none"], "none: kubeconfig file cannot be read: No such file"),
        (["seed", "list"], "master: {}/master: kubeconfig file cannot be read"),
        (["seed", "drain", "eu-2", "--context", "x"], "master: {}/master: kubeconfig file cannot be read"),
        (["uninstall", "seed"], "seed: {}/master: kubeconfig file cannot be read"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_status_1_and_named(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/master")
    assert run([argument.format(tmp_path) for argument in arguments]) == 1
    assert said.format(tmp_path) in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["seed"],
        ["seed", "add", "eu-2"],
        ["seed", "add", "eu-2", "--kubeconfig", "eu-2.yaml"],
        ["top", "--as", " "],
        ["uninstall"],
        ["uninstall", "seed", "--timeout=soon"],
        ["seeds"],
        ["top", "--over=full"],
        ["top", "--sort=cpu"],
        ["describe"],
        ["doctor", "-o", "wide"],
    ],
)
def test_flags_that_cannot_be_used_are_status_1(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(arguments)
    assert ended.value.code == 1


def options(**given: object) -> Namespace:
    return Namespace(**{"kubeconfig": None, "context": None, "as_user": None, "as_groups": [], **given})


async def test_a_pod_without_a_kubeconfig_uses_its_own_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def in_cluster(*, name: str, **_options: object) -> Cluster:
        return Cluster(Access("https://127.0.0.1:1"), name=f"the pod's {name}")

    monkeypatch.setattr(Cluster, "in_cluster", in_cluster)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    with pytest.raises(Failed, match="cannot be read"):
        async with connected(options(), "seed"):
            pass
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    async with connected(options(), "seed") as cluster:
        assert cluster.name == "the pod's seed"
    for kubeconfig, context in ((f"{tmp_path}/none", None), (None, "x")):
        with pytest.raises(Failed, match="cannot be read"):
            async with connected(options(kubeconfig=kubeconfig, context=context), "seed"):
                pass


@pytest.mark.parametrize(("refusals", "asked"), [(1, 2), (11, 11)])
async def test_an_api_server_with_new_definitions_is_asked_again_and_not_for_ever(
    refusals: int, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def early(_request: object) -> object:
        return status(429, "TooManyRequests", "storage is (re)initializing", retryAfterSeconds=0)

    monkeypatch.setitem(PLURALS, "quotaledgers", ("seedquota.io/v1alpha1", "QuotaLedger"))
    async with fake_api_server() as api:
        api.answers = [early] * refusals
        if refusals > on_master._RETRIES:
            with pytest.raises(TooManyRequests):
                await on_master.held(api.cluster(), "seedquota")
        else:
            assert await on_master.held(api.cluster(), "seedquota") == {}
        assert api.count("GET", "quotaledgers") == asked


def test_the_rights_are_in_the_release_s_namespace_and_bound_to_an_account_there() -> None:
    found = rights.objects("quota-system")
    assert {each["kind"] for each in found} == set(rights.KINDS)
    for each in found:
        resource = rights.KINDS[each["kind"]]
        assert each["metadata"]["name"] == rights.ACCOUNT
        assert each["metadata"].get("namespace") == ("quota-system" if resource.namespaced else None)
        for subject in each.get("subjects", ()):
            assert subject == {"kind": "ServiceAccount", "name": rights.ACCOUNT, "namespace": "quota-system"}
            assert each["roleRef"]["name"] == rights.ACCOUNT


def test_columns_are_as_wide_as_their_longest_cell_and_lines_have_no_spaces_at_their_end() -> None:
    assert columns(("A", "BC"), [("long", ""), ("", "x")]) == "A      BC\nlong\n       x"
