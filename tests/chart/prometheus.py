"""A real Prometheus, as tests start and ask it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from devcluster import binaries
from devcluster.network import free_port
from devcluster.processes import ProcessGroup
from devcluster.servers import Server


class Prometheus(Server):
    def __init__(self, executable: Path, directory: Path, group: ProcessGroup) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        where = [f"--config.file={directory}/prometheus.yaml", f"--storage.tsdb.path={directory}/data"]
        super().__init__(
            "prometheus",
            [str(executable), *where, f"--web.listen-address={self.url.removeprefix('http://')}"],
            directory,
            group,
        )

    async def get(self, path: str, **parameters: str) -> Any:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{self.url}/api/v1/{path}", params=parameters) as answer,
        ):
            said = await answer.json()
        assert said["status"] == "success", said
        return said["data"]

    async def _ready(self) -> bool:
        try:
            async with aiohttp.ClientSession() as session, session.get(f"{self.url}/-/ready") as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False


async def started(
    directory: Path, group: ProcessGroup, jobs: Sequence[dict[str, Any]], rules: Sequence[str] = ()
) -> Prometheus:
    """`jobs`: its scrape configurations. `rules`: names of files in the directory."""
    settings = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config = {"global": settings, "rule_files": list(rules), "scrape_configs": list(jobs)}
    (directory / "prometheus.yaml").write_text(yaml.safe_dump(config))
    executable = (await binaries.ensure(["prometheus"]))["prometheus"]
    prometheus = Prometheus(executable, directory, group)
    await prometheus.start()
    return prometheus
