from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import trustme

from common.server import certificate_files
from common.server.certificate_files import CertificateFiles
from tests.running import running
from tests.unit.fake_api_server import eventually as until

NAME = "seedquota-seed.quotas.svc"
LOOK, OVERLAP = 0.02, 60.0


class Issuer:
    """Writes certificates as a kubelet does: all files of a Secret at once."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._versions = 0
        self.ca = trustme.CA()

    def new_ca(self) -> None:
        self.ca = trustme.CA()

    def issue(self, *, with_ca: bool = True, key_of_other: bool = False) -> None:
        made = self.ca.issue_cert(NAME)
        key = self.ca.issue_cert(NAME).private_key_pem if key_of_other else made.private_key_pem
        files = {"tls.crt": b"".join(pem.bytes() for pem in made.cert_chain_pems), "tls.key": key.bytes()}
        if with_ca:
            files["ca.crt"] = self.ca.cert_pem.bytes()
        self.write(files)

    def write(self, files: dict[str, bytes]) -> None:
        self._versions += 1
        version = self.directory / f"..{self._versions}"
        version.mkdir()
        for name, content in files.items():
            (version / name).write_bytes(content)
        link = self.directory / "..next"
        link.symlink_to(version)
        link.replace(self.directory / "..data")
        for name in files:
            if not (self.directory / name).is_symlink():
                (self.directory / name).symlink_to(f"..data/{name}")


@pytest.fixture
def issuer(tmp_path: Path) -> Issuer:
    return Issuer(tmp_path)


@asynccontextmanager
async def following(issuer: Issuer) -> AsyncIterator[tuple[CertificateFiles, list[bytes]]]:
    bundles: list[bytes] = []
    files = CertificateFiles(
        issuer.directory,
        look_seconds=LOOK,
        overlap_seconds=OVERLAP,
        on_bundle=lambda: bundles.append(files.ca_bundle),
    )
    async with running(files.run()):
        yield files, bundles


async def handshake(files: CertificateFiles, trusted: bytes) -> bytes:
    """The certificate that a caller who trusts these authorities gets. ssl.SSLError if it does not trust it."""

    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=files.ssl_context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        context = ssl.create_default_context(cadata=trusted.decode())
        _reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=NAME)
        certificate: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return certificate


async def test_a_renewed_certificate_is_served_by_the_next_handshake_and_the_bundle_stays(issuer: Issuer) -> None:
    issuer.issue()
    async with following(issuer) as (files, bundles):
        await files.wait_ready(30)
        first = await handshake(files, files.ca_bundle)
        assert files.not_ready() is None
        issuer.issue()

        async with asyncio.timeout(30):
            while await handshake(files, files.ca_bundle) == first:
                await asyncio.sleep(LOOK)
        assert len(bundles) == 1


async def test_a_new_ca_is_trusted_by_callers_before_anything_of_it_is_served(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    monkeypatch.setattr(certificate_files, "time", SimpleNamespace(monotonic=lambda: now))
    issuer.issue()
    async with following(issuer) as (files, bundles):
        await files.wait_ready(30)
        old, first = files.ca_bundle, await handshake(files, files.ca_bundle)
        issuer.new_ca()
        issuer.issue()
        await until(lambda: len(bundles) == 2)
        assert bundles[1].startswith(old)
        assert await handshake(files, old) == first
        now += OVERLAP
        await until(lambda: len(bundles) == 3)
        assert bundles[1] == old + bundles[2]
        assert await handshake(files, bundles[1]) != first
        with pytest.raises(ssl.SSLError):
            await handshake(files, old)


async def test_what_cannot_be_used_changes_nothing_and_is_logged_once_without_the_key(
    issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    issuer.issue()
    async with following(issuer) as (files, bundles):
        await files.wait_ready(30)
        first = await handshake(files, files.ca_bundle)
        issuer.issue(key_of_other=True)
        await until(lambda: bool(caplog.records))
        await asyncio.sleep(LOOK * 3)
        assert await handshake(files, files.ca_bundle) == first
        assert files.not_ready() is None
        assert len(bundles) == 1
    (record,) = caplog.records
    assert "tls.key is not the key of tls.crt" in vars(record)["error"]


async def test_without_a_ca_callers_trust_what_their_systems_do(issuer: Issuer) -> None:
    issuer.issue(with_ca=False)
    async with following(issuer) as (files, bundles):
        await files.wait_ready(30)
        assert files.ca_bundle == b""
        assert bundles == []


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({}, "tls.crt cannot be read: No such file or directory"),
        ({"tls.crt": b"nothing", "tls.key": b""}, "tls.crt has no certificate in PEM"),
    ],
)
async def test_it_is_not_ready_before_there_is_a_certificate_and_says_why(
    issuer: Issuer, written: dict[str, bytes], said: str
) -> None:
    issuer.write(written)
    async with following(issuer) as (files, _):
        with pytest.raises(TimeoutError, match=said):
            await files.wait_ready(0.1)
        assert said in str(files.not_ready())
        issuer.issue()
        await files.wait_ready(30)
        assert files.not_ready() is None
