"""Credentials from the command that a kubeconfig names under `exec` (client.authentication.k8s.io), as client-go runs
it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import Process, SubprocessStreamProtocol
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec

TIMEOUT = 30.0  # seconds
MAX_OUTPUT = 1024 * 1024  # bytes

_READ_AHEAD = 64 * 1024  # bytes
_ENDS_WITHIN = 2.0  # seconds, when it is killed

_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


class PluginError(Exception):
    """It gave no credentials. The message goes on where "the plugin ..." begins, and holds nothing that it printed."""


class _Variable(msgspec.Struct):
    name: str
    value: str = ""


class _Exec(msgspec.Struct, rename="camel"):
    command: str
    api_version: str
    args: list[str] | None = None
    env: list[_Variable] | None = None
    provide_cluster_info: bool = False
    interactive_mode: Literal["Never", "IfAvailable", "Always"] = "IfAvailable"


class _Status(msgspec.Struct, rename="camel"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: datetime | None = None

    def header(self) -> str | None:
        return f"Bearer {self.token.strip()}" if self.token else None

    def expired(self) -> bool:
        return self.expiration_timestamp is not None and self.expiration_timestamp <= datetime.now(UTC)


class _Credential(msgspec.Struct, rename="camel"):
    api_version: str
    kind: Literal["ExecCredential"]
    status: _Status


class Plugin:
    """`cluster`: the entry of the kubeconfig, which the command gets if it asks for it. `base`: the directory to which
    relative paths belong.

    `certificate` and `key` are PEM, as the first authentication gave them; None where there are none. Raises
    PluginError.
    """

    def __init__(self, cluster: Mapping[str, object], spec: object, base: Path) -> None:
        try:
            self._spec = msgspec.convert(spec, _Exec)
        except msgspec.ValidationError as error:
            raise PluginError(f"cannot be run: {error}") from None
        if self._spec.api_version not in _VERSIONS:
            raise PluginError(f"cannot be run: its apiVersion is none of {', '.join(_VERSIONS)}")
        self._cluster = cluster
        self._base = base
        self._last: _Status | None = None
        self.certificate: bytes | None = None
        self.key: bytes | None = None

    async def authenticate(self, rejected: str | None = None) -> str | None:
        """The Authorization header; None where there are certificates instead. The command is run at first, when that
        expires, and where it is what an API server has `rejected` with 401. Raises PluginError."""
        last = self._last
        if last is None or last.expired() or (rejected is not None and rejected == last.header()):
            self._last = last = self._read(await self._run())
            if self.certificate is None and last.client_certificate_data:
                self.certificate = last.client_certificate_data.encode()
                self.key = last.client_key_data.encode()
        return last.header()

    def _read(self, output: bytes) -> _Status:
        try:
            found = msgspec.json.decode(output, type=_Credential)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise PluginError("failed: what it printed is no ExecCredential") from None
        status = found.status
        if found.api_version != self._spec.api_version:
            raise PluginError("failed: what it printed has another apiVersion than the kubeconfig")
        if bool(status.client_certificate_data) != bool(status.client_key_data):
            raise PluginError("failed: it gave only one of certificate and key")
        if not status.token and not status.client_certificate_data:
            raise PluginError("failed: it gave neither a token nor a certificate")
        if status.expiration_timestamp is not None and status.expiration_timestamp.tzinfo is None:
            raise PluginError("failed: its expirationTimestamp has no time zone")
        return status

    async def _run(self) -> bytes:
        """What it printed. On a terminal it may ask, as its `interactiveMode` says."""
        mode, terminal = self._spec.interactive_mode, sys.stdin is not None and sys.stdin.isatty()
        if mode == "Always" and not terminal:
            raise PluginError("cannot be run: it needs a terminal (interactiveMode: Always)")
        interactive = terminal and mode != "Never"
        try:
            loop = asyncio.get_running_loop()
            transport, protocol = await loop.subprocess_exec(
                lambda: SubprocessStreamProtocol(limit=_READ_AHEAD, loop=loop),
                self._command(),
                *(self._spec.args or ()),
                stdin=None if interactive else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=None if interactive else asyncio.subprocess.DEVNULL,
                env={**os.environ, **self._told(interactive=interactive)},
                start_new_session=not interactive,
            )
            process = Process(transport, protocol, loop)
        except (OSError, ValueError) as error:
            raise PluginError(f"cannot be run: {getattr(error, 'strerror', None) or type(error).__name__}") from None
        try:
            async with asyncio.timeout(TIMEOUT):
                output = await self._output(process)
                status = await process.wait()
        except BaseException as error:
            await _end(process, transport, group=not interactive)
            if isinstance(error, TimeoutError):
                raise PluginError(f"gave no answer within {TIMEOUT:g} s") from None
            raise
        if status != 0:
            raise PluginError(f"failed with status {status}")
        return output

    async def _output(self, process: Process) -> bytes:
        assert process.stdout is not None
        found = b""
        while part := await process.stdout.read(MAX_OUTPUT):
            found += part
            if len(found) > MAX_OUTPUT:
                raise PluginError(f"failed: it printed more than {MAX_OUTPUT} bytes")
        return found

    def _command(self) -> str:
        """A name is looked for in PATH. A path is relative to the kubeconfig."""
        command = self._spec.command
        return str(self._base.absolute() / command) if os.sep in command else command

    def _told(self, *, interactive: bool) -> dict[str, str]:
        spec: dict[str, object] = {"interactive": interactive}
        if self._spec.provide_cluster_info:
            spec["cluster"] = self._cluster
        info = {"apiVersion": self._spec.api_version, "kind": "ExecCredential", "spec": spec}
        given = {each.name: each.value for each in self._spec.env or ()}
        return {**given, "KUBERNETES_EXEC_INFO": msgspec.json.encode(info).decode()}


async def _end(process: Process, transport: asyncio.SubprocessTransport, *, group: bool) -> None:
    """Also what it has started, which may keep its output open; unless it shares the terminal with us.

    The transport is closed here, since `create_subprocess_exec` leaves it open for as long as anything has the output.

    `wait` waits for the end of the output as well (python/cpython#119710), and so for ever if nobody reads that.
    """
    assert process.stdout is not None
    with suppress(ProcessLookupError):
        if group:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    try:
        with suppress(TimeoutError):  # what has left the group may print on
            async with asyncio.timeout(_ENDS_WITHIN):
                while await process.stdout.read(MAX_OUTPUT):
                    pass
                await process.wait()
    finally:
        transport.close()
