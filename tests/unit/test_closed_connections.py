"""Whether pytest succeeds is decided by tests, and not by how soon the other side of a connection answers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULE = """
import asyncio, socket, ssl, threading
from devcluster import certificates

async def test_one_that_connects(tmp_path):
    made = certificates.serving("server")
    (tmp_path / "server").write_text(made.certificate + made.key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "server")
    trusts = ssl.create_default_context(cadata=made.ca)
    trusts.check_hostname = False

    def shakes_hands_and_is_silent():
        global connection
        connection = context.wrap_socket(listening.accept()[0], server_side=True)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=shakes_hands_and_is_silent)
        thread.start()
        _, writer = await asyncio.open_connection(*listening.getsockname(), ssl=trusts)
        await asyncio.to_thread(thread.join)
    CLOSE

def teardown_module():
    connection.close()
"""


@pytest.mark.parametrize(("close", "status"), [("writer.close()", 0), ("pass", 1)])
def test_a_connection_that_a_test_closed_is_no_leak_and_one_that_nobody_closed_is(
    tmp_path: Path, close: str, status: int
) -> None:
    module = tmp_path / "test_module.py"
    module.write_text(MODULE.replace("CLOSE", close))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.closed_connections", f"--rootdir={ROOT}"]
    command += ["-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"), str(module)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == status, ran.stdout + ran.stderr
