"""What a new user meets: help, mistyped commands, flags and names, and a cluster that is not the master."""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
import pytest

from cli import quotas, top
from cli.__main__ import parser, run
from cli.outcome import STALE, Failed
from common.api.labels import UID_LABEL
from common.kube.client.api_client import Cluster
from common.kube.client.errors import NotFound
from common.kube.client.resource import Listing, WatchEvent
from master.cache.objects import MasterQuota
from tests.unit.quota_examples import ALPHA, ANN, GPUS, NEW, quota


def every(one: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield one
    for action in one._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from every(inner)


def test_every_command_has_examples_that_it_understands() -> None:
    leaves = [command for command in every(parser()) if command._subparsers is None]
    for command in [parser(), *leaves]:
        epilog = command.epilog or ""
        assert "examples:\n" in epilog, command.prog
        lines = [line.partition("#")[0].split() for line in epilog.splitlines() if line.startswith("  seedquota ")]
        assert lines, command.prog
        for words in lines:
            before_pipe = words[1 : words.index("|")] if "|" in words else words[1:]
            assert parser().parse_args([each for each in before_pipe if each not in ("<", ">")])


def test_help_has_descriptions_and_examples_as_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    for command in every(parser()):
        for text in (command.description, command.epilog):
            assert (text or "") in command.format_help(), command.prog


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tpo"], "'tpo' is none of top, describe, "),
        (["tpo"], "did you mean top?\nSee `seedquota --help`"),
        (["top", "--sotr=peak"], "seedquota top: '--sotr' is no argument here; did you mean --sort?"),
        (["top", "-o", "jsn"], "did you mean json?\nSee `seedquota top --help`"),
        (["describe", "a", "b"], "seedquota describe: 'b' is no argument here\n"),
        (["seed", "drian", "eu-1"], "did you mean drain?"),
    ],
)
def test_a_mistyped_word_is_answered_with_what_was_meant(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(words)
    assert ended.value.code == Failed.status
    assert said in capsys.readouterr().err


def test_a_name_that_no_object_can_have_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    (tmp_path / "kubeconfig").write_bytes(msgspec.yaml.encode(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    assert run(["seed", "drain", "a/b"]) == Failed.status
    assert capsys.readouterr().err == "seedquota: 'a/b' cannot be the name of an object\n"


def test_a_reader_that_ends_first_is_no_error_of_ours() -> None:
    """As `seedquota ... | head -1`, whose pipe is full. Here it begins when nobody reads any more."""
    script = f"{sys.executable} -m cli completion zsh | true; echo ${{PIPESTATUS[0]}}"
    gone = "import select; pipe = select.poll(); pipe.register(1, 0); pipe.poll()"
    late = script.replace("-m cli", f"-c '{gone}; from cli.__main__ import main; main()'")
    answer = subprocess.run(["bash", "-c", late], capture_output=True, text=True, check=True)
    assert (answer.stdout, answer.stderr) == ("1\n", "")


class Master:
    """`pictures` are what each list has; after the last one, watching it interrupts the user's command."""

    server = "https://master"
    name = "master"

    def __init__(self, *pictures: list[MasterQuota]) -> None:
        self.pictures = list(pictures)
        self.watched: list[str] = []
        self.lists = 0

    async def get(self, _resource: object, name: str) -> MasterQuota:
        found = [each for each in self.pictures[0] if each.metadata.name == name]
        if not found:
            raise NotFound(404, "NotFound", "no")
        return found[0]

    async def list(self, resource: Any, _namespace: str | None = None) -> Listing[Any]:
        if resource.plural != "resourcequotas":
            return Listing([], "")
        self.lists += 1
        return Listing(self.pictures[0], f"{self.lists}")

    @asynccontextmanager
    async def open_watch(self, _resource: object, *, resource_version: str) -> Any:
        self.watched.append(resource_version)
        if len(self.pictures) == 1:
            raise asyncio.CancelledError
        self.pictures.pop(0)
        yield self

    async def read(self) -> Sequence[WatchEvent[MasterQuota]] | None:
        return [WatchEvent("MODIFIED", "2", ALPHA)]


def one(master: Master, named: str) -> str:
    return asyncio.run(quotas.the_one(cast(Cluster, master), named)).metadata.name


@pytest.mark.parametrize(
    ("named", "name"),
    [
        ("project-alpha", "project-alpha"),
        ("seedquota/project-alpha", "project-alpha"),
        ("project/alpha", "project-alpha"),
        ("organization/acme", "org-acme"),
        ("owner-ann", "owner-ann"),
        ("sq/owner-ann", "owner-ann"),
        ("resourcequotas.seedquota.io/owner-ann", "owner-ann"),
        ("sqp/alpha", "project-alpha"),
        ("Projects/alpha", "project-alpha"),
        ("sqo/acme", "org-acme"),
        ("sqa/ann", "allocation.ann"),
        ("resourcequotaallocations.seedquota.io/ann", "allocation.ann"),
    ],
)
def test_a_quota_is_named_by_itself_or_by_its_subject(named: str, name: str) -> None:
    promised = quota("allocation.ann", {"kind": "namespaces", "counts": "ResourceQuotas"}, {"pods": "50"})
    assert one(Master([NEW, GPUS, ALPHA, ANN, promised]), named) == name


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("project-alpa", "there is no seedquota/project-alpa on https://master; did you mean project-alpha?"),
        ("project/alpa", "no quota limits project/alpa on https://master; did you mean project/alpha?"),
        ("cluster/c1", "'cluster/c1' names no quota: write NAME, seedquota/NAME, project/NAME"),
        ("project/a/b", "'project/a/b' names no quota"),
        ("seedquota/", "'seedquota/' names no quota"),
        ("project/twice", "several quotas limit project/twice: name one of seedquota/one, seedquota/two instead"),
    ],
)
def test_a_quota_that_is_not_there_is_answered_with_what_was_meant(named: str, said: str) -> None:
    twice = [quota(name, {"kind": "project", "name": "twice"}, {"cpu": "1"}) for name in ("one", "two")]
    with pytest.raises(Failed) as failed:
        one(Master([ALPHA, ANN, *twice]), named)
    assert said in str(failed.value)


def test_a_seed_is_not_taken_for_the_master() -> None:
    copy = msgspec.structs.replace(ALPHA, metadata=msgspec.structs.replace(ALPHA.metadata, labels={UID_LABEL: "u"}))
    for named in ("project-alpha", "project/alpha", "no-such"):
        with pytest.raises(
            Failed, match="https://master is a seed, and its quotas are copies: --kubeconfig and --context name"
        ):
            one(Master([copy]), named)


def test_top_watches_and_ends_as_if_it_had_looked_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(top, "PAUSE", 0.0)
    master = Master([NEW], [NEW, ALPHA])
    options = parser().parse_args(["top", "--watch"])
    found = asyncio.run(top._watch(cast(Cluster, master), options))
    assert (found.text, found.status) == ("", STALE)
    first, second = (text for text in capsys.readouterr().out.split("QUOTA ")[1:])
    assert "project-alpha" not in first and "project-alpha" in second
    assert master.watched == ["1", "2"]


def test_an_organization_that_nobody_names_is_said() -> None:
    options = parser().parse_args(["top", "--organization", "acem"])
    with pytest.raises(Failed, match="of organization acem; did you mean acme"):
        asyncio.run(top._look(cast(Cluster, Master([GPUS])), options))


def test_without_arguments_it_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 0
    assert "examples:" in capsys.readouterr().out
