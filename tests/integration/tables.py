"""Every table as it is on a terminal of 80 and of 200 columns, of what real programs have written to real API servers.

Ages, times, ports, decisions and the ends of refusals are made alike; all else is compared with golden/.
`SEEDQUOTA_GOLDEN=write` writes these files.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from cli import terminal
from devcluster.load import Size, machine
from master.quotas import staleness
from tests.integration.installed.commands import Commands
from tests.integration.installed.site import Site, cpus, until

GOLDEN = Path(__file__).parent / "golden"
WIDTHS = (80, 200)
ALIKE = (
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"), "2026-01-01T00:00:00Z"),
    (re.compile(r"decision [0-9A-Z]{8}"), "decision 00000000"),
    (re.compile(r"short by cpu=1;.*"), "short by cpu=1; ..."),  # what is still being created then
    (re.compile(r"127\.0\.0\.1:\d+"), "127.0.0.1:00000"),
)


async def full(site: Site) -> None:
    """A quota of which nothing is free, so that it is known who holds how much, and one refusal."""
    await site.quota(cpus(2))
    await site.admitted("user-1", 2)
    await site.uses(cpus(2))
    await site.reserves_nothing()
    await site.refused("user-1")

    async def settled() -> None:
        lines = (await site.get("master", "resourcequotas/project-alpha"))["status"]["seeds"]
        held = {line["name"]: (line["state"], line.get("granted")) for line in lines}
        assert held["eu-1"] == ("Current", cpus(2)) and not held["eu-2"][1], held

    await until(settled, 90)


async def fit_terminals(site: Site, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an installation in which nothing has happened yet: an hour's Events would be in the tables."""
    seedquota = Commands(site, directory)
    body = {"apiVersion": "cluster.k8s.io/v1alpha1", "kind": "Machine", **machine("m", Size("2", "1Gi", "1Gi"))}
    body["metadata"]["namespace"] = "kube-system"
    one = seedquota.file(json.dumps(body))
    await full(site)
    commands = {
        ("master", "top"): 0,
        ("master", "describe", "project/alpha"): 0,
        ("master", "describe", "project/alpha", "--seed", "eu-1"): 0,
        ("master", "where", "--subject", "project/alpha", "cpu=1", "--seed", "eu-1"): 2,
        ("master", "set", "project/alpha", "cpu=1", "memory=1Ti", "--dry-run=server"): 0,
        ("master", "default", "show"): 0,
        ("master", "seed", "list"): 0,
        ("master", "history", "project/alpha", "--seed", "eu-1"): 0,
        ("eu-1", "denials"): 0,
        ("user-1", "fits", "-f", one, "--replicas", "3"): 2,
    }

    async def refused() -> None:
        assert "exceeded quota" in (await seedquota("eu-1", "denials", "-o", "json"))[1]
        assert "does not fit" in (await seedquota("user-1", "fits", "-f", one))[1]

    await until(refused, 60)
    for name in site.installed.seeds:
        await site.comes("master", f"seeds/{name}", "Ready", "True", seconds=60)
    monkeypatch.setattr(staleness, "age", lambda time, _now: "5s" if time else "")
    found = {}
    for width in WIDTHS:
        monkeypatch.setattr(terminal, "width", lambda width=width: width)
        shown = []
        for (cluster, *words), expected in commands.items():
            status, said = await seedquota(cluster, *words)
            assert status == expected, (words, said)
            named = [{one: "m.yaml"}.get(word, word) for word in words]
            shown.append(f"$ seedquota {' '.join(named)}\n{_alike(said, commands=named)}")
            assert max(map(len, said.splitlines())) <= width, said
        found[width] = "\n".join(shown)
    for width, text in found.items():
        path = GOLDEN / f"tables-{width}.txt"
        if os.environ.get("SEEDQUOTA_GOLDEN") == "write":
            path.write_text(text)
        assert text == path.read_text(), width


def _alike(said: str, *, commands: list[str]) -> str:
    for pattern, instead in ALIKE:
        said = pattern.sub(instead, said)
    if commands[0] != "history":
        return said
    # What happens within one second comes in any order, and a new quota's conditions turn more often than is of use.
    kept = ("TIME", "QuotaExceeded", "LimitsWritten", "Created", "NearLimit=")
    lines = said.split("\n\n")[0].splitlines()
    told = [line for line in lines if any(word in line for word in kept)]
    return "\n".join([told[0], *sorted(told[1:]), "", *said.split("\n\n")[1:]])
