from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster.processes import ProcessGroup
from devcluster.servers import Server, StartError


class Fatal(Server):
    """Ready at the third start."""

    poll_seconds = 0.01
    starts_again_after = (255,)

    def __init__(self, status: int, directory: Path, group: ProcessGroup) -> None:
        self.starts = directory / "starts"
        script = f"echo start >> {self.starts}; test $(wc -l < {self.starts}) -ge 3 || exit {status}; sleep 60"
        super().__init__("fatal", ["/bin/sh", "-c", script], directory, group)

    async def _ready(self) -> bool:
        return self.starts.exists() and self.starts.read_text().count("start") == 3


@pytest.fixture
def group() -> Iterator[ProcessGroup]:
    group = ProcessGroup()
    yield group
    group.close()


async def test_a_server_whose_start_took_too_long_for_itself_is_started_again(
    tmp_path: Path, group: ProcessGroup
) -> None:
    server = Fatal(255, tmp_path, group)
    await server.start()
    assert server.ended_by_itself() is None
    await server.kill()


async def test_a_server_that_refuses_to_start_is_not_started_again(tmp_path: Path, group: ProcessGroup) -> None:
    server = Fatal(1, tmp_path, group)
    with pytest.raises(StartError, match="ended with status 1"):
        await server.start()
    assert server.starts.read_text() == "start\n"
