"""The charts, by the real helm."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from devcluster.charts import SEED
from devcluster.objects import CHARTS

Object = dict[str, Any]

_Loader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class HelmError(Exception):
    """What helm said."""


class Helm:
    """`kubeconfig` is for what asks a cluster."""

    def __init__(self, executable: Path, directory: Path, kubeconfig: str = "") -> None:
        self._executable = executable
        self._environment = {"HOME": str(directory), "PATH": os.environ["PATH"], "GOMAXPROCS": "2", "GOGC": "off"}
        if kubeconfig:
            (directory / "kubeconfig").write_text(kubeconfig)
            (directory / "kubeconfig").chmod(0o600)
            self._environment["KUBECONFIG"] = str(directory / "kubeconfig")

    def __call__(self, *arguments: str, values: Mapping[str, object] | None = None) -> str:
        """Its output. Raises HelmError."""
        given = [] if values is None else ["--values=-"]
        done = subprocess.run(
            [str(self._executable), *arguments, *given],
            input=yaml.safe_dump(dict(values or {})),
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if done.returncode:
            raise HelmError(done.stderr + done.stdout)
        return done.stdout

    def render(
        self, chart: str, values: Mapping[str, object], *, namespace: str = "quotas", served: Sequence[str] = ()
    ) -> list[Object]:
        """`values` beside those that the chart requires. `served`: what the cluster serves, beside Kubernetes' own."""
        given = (f"--namespace={namespace}", *(f"--api-versions={each}" for each in served))
        text = self("template", "a-release", str(CHARTS / chart), *given, values=full(chart, values))
        return [document for document in yaml.load_all(text, _Loader) if document]


def full(chart: str, values: Mapping[str, object]) -> dict[str, object]:
    return {"seedName": "eu-1", **values} if chart == SEED else dict(values)


def of_kind(objects: Iterable[Object], *kinds: str) -> Iterator[Object]:
    return (found for found in objects if found["kind"] in kinds)


def the(objects: Iterable[Object], kind: str) -> Object:
    (found,) = of_kind(objects, kind)
    return found


def container(objects: Iterable[Object]) -> Object:
    (found,) = the(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    return dict(found)


def arguments(objects: Iterable[Object]) -> Sequence[str]:
    return [str(argument) for argument in container(objects)["args"]]
