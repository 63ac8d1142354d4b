"""`seedquota` as a user runs it, with a kubeconfig of one of the clusters."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import Mapping
from pathlib import Path
from unittest import mock

from cli.__main__ import run
from tests.integration.installed.site import Site


class Commands:
    """`await commands("master", "top")`: its exit status, and what it prints."""

    def __init__(self, site: Site, directory: Path) -> None:
        self._site = site
        self._directory = directory

    async def __call__(self, cluster: str, *arguments: str, user: str = "admin") -> tuple[int, str]:
        kubeconfig = self._directory / f"{cluster}-{user}"
        kubeconfig.write_text(self._site.server(cluster).kubeconfig(user))

        def ran(environment: Mapping[str, str]) -> tuple[int, str]:
            out = io.StringIO()
            with (
                mock.patch.dict("os.environ", environment),
                contextlib.redirect_stdout(out),
                contextlib.redirect_stderr(out),
            ):
                status = run(arguments)
            return status, out.getvalue()

        return await asyncio.to_thread(ran, {"KUBECONFIG": str(kubeconfig)})

    def file(self, text: str) -> str:
        path = self._directory / f"{len(list(self._directory.iterdir()))}.yaml"
        path.write_text(text)
        return str(path)
