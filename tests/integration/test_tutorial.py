"""The commands of docs/tutorial.md and README.md, run from their text, do and print what the pages say.

Five things differ from what a reader does: `make` is not run (its targets are looked up), ports and the directory are
free ones, the clusters run in the background, where a reader has a terminal of its own for them, the agents wait
for what is under way as long as the devcluster's API servers go on with it, where a reader waits for a minute, and
what a busy API server cuts off is typed again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import sys
import tempfile
import tomllib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio

from common.runtime.metrics import build_version
from devcluster import binaries
from devcluster.install import IN_FLIGHT_WINDOW
from devcluster.network import free_port
from devcluster.patience import patient_timeout

ROOT = Path(__file__).parents[2]
TUTORIAL, README = ROOT / "docs" / "tutorial.md", ROOT / "README.md"
MAKEFILE = (ROOT / "Makefile").read_text()
CLEAN_UP = "## Clean up"
BACKGROUND = "in-a-terminal-of-its-own"
CUT_OFF = "stream error: stream ID"  # what kubectl says of a request that takes the API servers here ten seconds
SECONDS = 400.0  # for one block; each wait in it ends after two minutes
LOOK_AGAIN = 20.0  # ... for a table that has not everything yet: columns follow what happens by a second or so
LOOKS = re.compile(r"(for N in 1 2; do )?kubectl [^|;]*\b(get|wait) [^|;]*(; done)?")
SHOWN = re.compile(r"\n\nThe output is similar to this:\n\n```text\n(.*?)```", re.DOTALL)
FENCE = re.compile(r"^```(sh[^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
DECISION = re.compile(r"\b[0-9A-HJKMNP-TV-Z]{8}\b")
AGE = re.compile(r"\b(?:\d+(?:ms|[smhd]))+\b")


@dataclass(frozen=True)
class Block:
    """`shown` is what the page says that the commands print, None where it says nothing."""

    kind: str
    commands: str
    shown: str | None

    @property
    def background(self) -> bool:
        return self.kind.endswith(BACKGROUND)

    @property
    def only_looks(self) -> bool:
        return all(LOOKS.fullmatch(line) for line in self.commands.splitlines())

    @property
    def is_make(self) -> bool:
        return all(line.startswith("make ") for line in self.commands.splitlines())


def blocks(text: str) -> Iterator[Block]:
    for found in FENCE.finditer(text):
        after = SHOWN.match(text, found.end())
        yield Block(found[1], found[2], after[1] if after is not None else None)


def test_the_pages_have_commands_to_run() -> None:
    assert len(list(blocks(TUTORIAL.read_text()))) > 15
    assert len(list(blocks(README.read_text()))) > 2


@pytest.mark.parametrize("page", [TUTORIAL, README], ids=lambda page: page.name)
def test_the_targets_of_make_exist(page: Path) -> None:
    named = set(re.findall(r"^ *make ([\w./-]+)", page.read_text(), re.MULTILINE))
    targets = set(re.findall(r"^([\w-]+):", MAKEFILE, re.MULTILINE)) | {".venv/.installed"}
    assert named
    assert named <= targets


@dataclass
class Reader:
    """Somebody who types what a page says into one shell, with files and ports of his own."""

    directory: Path
    kubectl: Path
    shell: asyncio.subprocess.Process | None = None
    running: list[asyncio.subprocess.Process] = field(default_factory=list)
    ports: dict[str, int] = field(default_factory=dict)

    async def begin(self) -> None:
        path = os.pathsep.join((str(self.directory / "bin"), os.environ["PATH"]))
        (self.directory / "bin").mkdir()
        (self.directory / "bin" / "kubectl").symlink_to(self.kubectl)
        self.environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "HOME": str(self.directory)}
        self.environment["SEEDQUOTA_CACHE"] = str(binaries.cache_directory())
        self.environment["SEEDQUOTA_IN_FLIGHT_WINDOW"] = f"{IN_FLIGHT_WINDOW:g}s"
        self.shell = await self._start("bash", "--norc", "-s", stdin=asyncio.subprocess.PIPE)

    async def _start(self, *command: str, stdin: int = asyncio.subprocess.DEVNULL) -> asyncio.subprocess.Process:
        started = await asyncio.create_subprocess_exec(
            *command,
            cwd=ROOT,
            env=self.environment,
            stdin=stdin,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        self.running.append(started)
        return started

    def own(self, text: str) -> str:
        """With this reader's directory and ports; a port that ends in a variable is one for each value."""
        for port in sorted(set(re.findall(r"127\.0\.0\.1:(90\d\d|908\$N|944\$N)", text))):
            text = text.replace(f"127.0.0.1:{port}", f"127.0.0.1:{self._port(port)}")
        return text.replace("/tmp/seedquota", str(self.directory / "seedquota"))

    def _port(self, named: str) -> str:
        if not named.endswith("$N"):
            return str(self.ports.setdefault(named, free_port()))
        both = [str(self.ports.setdefault(named.replace("$N", number), free_port())) for number in "12"]
        return "$((N == 1 ? " + both[0] + " : " + both[1] + "))"

    async def read(self, text: str) -> None:
        for block in blocks(text):
            if block.is_make:
                continue
            if block.background:
                await self._in_background(self.own(block.commands))
                continue
            printed, failed = await self._type(self.own(block.commands))
            if failed and CUT_OFF in printed:
                printed, failed = await self._type(self.own(block.commands))
                errors = [line for line in printed.splitlines() if line.lower().startswith("error")]
                failed = failed and not (errors and all("(AlreadyExists)" in line for line in errors))
            refused = block.shown is not None and block.shown.startswith("Error from server")
            assert failed == refused, f"{block.commands}\n{printed}\n{self.logs()}"
            if block.shown is None:
                continue
            shown, until = self.own(block.shown), asyncio.get_running_loop().time() + LOOK_AGAIN
            while block.only_looks and not matches(shown, printed) and asyncio.get_running_loop().time() < until:
                printed, _ = await self._type(self.own(block.commands))
            assert matches(shown, printed), f"{block.commands}\nprinted:\n{printed}\n{self.logs()}"

    async def _in_background(self, command: str) -> None:
        (line,) = command.splitlines()
        words = line.split()
        words[0] = {".venv/bin/python": sys.executable}.get(words[0], words[0])
        started = await self._start(*words)
        assert started.stdout is not None
        said = ""
        async with patient_timeout(SECONDS):
            while "Ctrl-C stops everything" not in said:
                more = (await started.stdout.readline()).decode()
                assert more, f"{line} ended: {said}"
                said += more

    async def _type(self, commands: str) -> tuple[str, bool]:
        """What they print, and whether one of them fails."""
        assert self.shell is not None and self.shell.stdin is not None and self.shell.stdout is not None
        end = "-- the block has ended:"
        self.shell.stdin.write(f"failed=0; trap 'failed=1' ERR\n{commands}\necho; echo '{end}' $failed\n".encode())
        printed = ""
        async with patient_timeout(SECONDS):
            while not (found := re.search(rf"\n{end} (\d)\n", printed)):
                more = (await self.shell.stdout.readline()).decode()
                assert more, f"the shell ended: {printed}"
                printed += more
        # Programs report the version that was installed, which may be behind where this was not done by `make`.
        return printed[: found.start()].replace(build_version(), VERSION), found[1] == "1"

    def logs(self) -> str:
        files = sorted((self.directory / "seedquota").glob("seedquota-*.log"))
        return "\n".join(f"{file.name}: {file.read_text()[-2000:]}" for file in files)

    async def end(self) -> None:
        for process in self.running:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)
        await asyncio.gather(*(process.wait() for process in self.running))
        shutil.rmtree(self.directory, ignore_errors=True)


def matches(shown: str, printed: str) -> bool:
    """`...` stands for anything; ages, ids of decisions and the width of columns may differ."""
    parts = [re.escape(part.strip()) for part in normal(shown).split("...")]
    return re.fullmatch("(?s:.*)".join(parts), normal(printed)) is not None


def normal(text: str) -> str:
    text = DECISION.sub("DECISION", AGE.sub("AGE", text))
    return "\n".join(" ".join(line.split()) for line in text.strip().splitlines())


@pytest_asyncio.fixture(scope="module")
async def reader() -> AsyncIterator[Reader]:
    kubectl = (await binaries.ensure(["kubectl"]))["kubectl"]
    reader = Reader(Path(tempfile.mkdtemp(prefix="sq-tutorial-")), kubectl)
    try:
        await reader.begin()
        yield reader
    finally:
        await reader.end()


async def test_the_tutorial_leads_to_a_refused_machine(reader: Reader) -> None:
    await reader.read(TUTORIAL.read_text().partition(CLEAN_UP)[0])


async def test_what_the_readme_shows_is_what_happens(reader: Reader) -> None:
    """After the tutorial, in its directory."""
    await reader.read("```sh\ncd /tmp/seedquota\n```\n" + README.read_text())


async def test_cleaning_up_leaves_nothing(reader: Reader) -> None:
    stop, remove = [block.commands for block in blocks(TUTORIAL.read_text().partition(CLEAN_UP)[2])]
    await reader.read(f"```sh\n{stop}```\n")
    os.killpg(reader.running[1].pid, signal.SIGTERM)
    await reader.running[1].wait()
    await reader.read(f"```sh\ncd /; {remove}```\n")
    assert not (reader.directory / "seedquota").exists()
