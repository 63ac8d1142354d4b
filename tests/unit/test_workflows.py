"""The workflows use only actions that are pinned, make targets that exist, and rights that they need."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
named = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)


def read(path: Path) -> dict[str, Any]:
    loaded: dict[Any, Any] = yaml.safe_load(path.read_text())
    loaded["on"] = loaded.pop(True)  # what YAML 1.1 makes of `on`
    return loaded


def test_there_is_one_for_changes_and_one_for_releases() -> None:
    found = {path.stem: read(path)["on"] for path in WORKFLOWS}
    assert found.keys() == {"ci", "release"}
    assert found["ci"].keys() >= {"pull_request", "workflow_call"}
    assert found["release"] == {"push": {"tags": ["v*"]}}


@named
def test_actions_are_pinned_by_commit(path: Path) -> None:
    used = re.findall(r"uses: (\S+)(.*)", path.read_text())
    assert used
    for action, comment in used:
        if not action.startswith("./"):
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action), action
            assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), "a comment says which version it is"


@named
def test_images_are_pinned_by_digest(path: Path) -> None:
    jobs = read(path)["jobs"].values()
    images = [job["container"]["image"] for job in jobs if "container" in job]
    images += [service["image"] for job in jobs for service in job.get("services", {}).values()]
    assert len(images) == (1 if path.stem == "ci" else 0)
    assert all(re.fullmatch(r"[a-z]+:[a-z0-9.-]+@sha256:[0-9a-f]{64}", image) for image in images)


def test_a_release_is_built_upon_the_base_that_the_containerfile_names_by_digest() -> None:
    steps = read(ROOT / ".github" / "workflows" / "release.yml")["jobs"]["publish"]["steps"]
    (build,) = (step["run"] for step in steps if "docker buildx build ." in step.get("run", ""))
    assert "BASE=" not in build.partition("docker buildx build .")[2], "the Containerfile's is used"
    (checked,) = re.findall(r"^\[\[ .* \]\]$", build, re.MULTILINE)
    for base, passes in (
        (re.findall(r"^ARG BASE=(.+)$", (ROOT / "Containerfile").read_text(), re.MULTILINE)[0], True),
        ("python:3.13-slim-bookworm", False),
        ("python@sha256:abc", False),
    ):
        script = f"base='{base}'; {checked}"
        assert (subprocess.run(["bash", "-c", script], check=False).returncode == 0) == passes, base


@named
def test_the_token_may_read_only_but_where_images_are_published(path: Path) -> None:
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    more = {name: job["permissions"] for name, job in workflow["jobs"].items() if "permissions" in job}
    published = {"publish": {"contents": "write", "packages": "write", "id-token": "write"}}
    assert more == (published if path.stem == "release" else {})


@named
def test_what_they_make_exists(path: Path) -> None:
    targets = set(re.findall(r"^([a-z0-9]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z0-9]+)", path.read_text())) <= targets


def test_nothing_is_published_that_was_not_tested_or_has_another_version_than_the_tag() -> None:
    jobs = read(ROOT / ".github" / "workflows" / "release.yml")["jobs"]
    assert jobs["test"] == {"uses": "./.github/workflows/ci.yml"}
    assert jobs["publish"]["needs"] == "test"
    names = [step.get("name", "") for step in jobs["publish"]["steps"]]
    checked, pushed = "The tag is the version that the programs and charts have", "Build and push the image"
    assert names.index(checked) < names.index(pushed)
    text = (ROOT / "charts" / "seedquota-master" / "values.yaml").read_text()
    assert re.search(r"^  repository: ghcr\.io/\w+/seedquota$", text, re.MULTILINE), "what the workflow compares"
