"""Credentials from an exec plugin or an identity provider, which kubernetes_asyncio runs or asks.

That library loads a class for each of Kubernetes' types: half a second and 36 MB for whoever imports this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import aiohttp
from kubernetes_asyncio.client import Configuration
from kubernetes_asyncio.config import ConfigException, kube_config

TIMEOUT = 30.0  # seconds

# What a credential plugin, an identity provider and the library between fail with
_ERRORS = (
    ConfigException,
    aiohttp.ClientError,
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    AssertionError,
    RuntimeError,
)


class PluginError(Exception):
    """It gave no credentials. The message goes on where "the plugin ..." begins, and holds nothing that it printed."""


class Plugin:
    """What a kubeconfig's user names under `exec` or `auth-provider`. `base` is where relative paths begin."""

    def __init__(self, server: str, user: Mapping[str, object], base: Path) -> None:
        self._configuration = Configuration()
        self._loader = kube_config.KubeConfigLoader(
            {
                "current-context": "it",
                "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
                "clusters": [{"name": "it", "cluster": {"server": server}}],
                "users": [{"name": "it", "user": dict(user)}],
            },
            config_base_path=str(base),
        )

    async def authenticate(self) -> str | None:
        """The Authorization header; None where there are certificates instead. Raises PluginError."""
        try:
            async with asyncio.timeout(TIMEOUT):
                await self._loader.load_and_set(self._configuration)
        except TimeoutError:
            raise PluginError(f"gave no answer within {TIMEOUT:g} s") from None
        except _ERRORS as error:
            raise PluginError(f"failed ({type(error).__name__})") from None
        token = self._configuration.api_key.get("BearerToken")
        return None if token is None else str(token)

    def take_certificates(self) -> tuple[bytes | None, bytes | None]:
        """Certificate and key, from the temporary files that they were left in. No await may come between."""
        paths = (self._configuration.cert_file, self._configuration.key_file)
        certificate, key = (None if path is None else Path(str(path)).read_bytes() for path in paths)
        kube_config._cleanup_temp_files()
        return certificate, key
