"""Credentials from an exec plugin or an identity provider, which kubernetes_asyncio runs or asks.

That library loads a class for each of Kubernetes' types: half a second and 36 MB for whoever imports this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import aiohttp
from kubernetes_asyncio import config
from kubernetes_asyncio.client import Configuration
from kubernetes_asyncio.config import ConfigException, kube_config

TIMEOUT = 30.0  # seconds

_PATHS = ("client-certificate", "client-key", "tokenFile")

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
    """What a kubeconfig's user names under `exec` or `auth-provider`. `base` is where relative paths begin.

    `certificate` and `key` are PEM, as the first authentication gave them; None where there are none.
    """

    def __init__(self, server: str, user: Mapping[str, object], base: Path) -> None:
        paths = {name: str(base / path) for name in _PATHS if isinstance(path := user.get(name), str)}
        self._kubeconfig = {
            "current-context": "it",
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            "clusters": [{"name": "it", "cluster": {"server": server}}],
            "users": [{"name": "it", "user": {**user, **paths}}],
        }
        self.certificate: bytes | None = None
        self.key: bytes | None = None
        self._configuration = Configuration()
        self._loader: kube_config.KubeConfigLoader | None = None  # it knows when its token expires

    async def authenticate(self) -> str | None:
        """The Authorization header; None where there are certificates instead. Raises PluginError."""
        try:
            async with asyncio.timeout(TIMEOUT):
                if self._loader is None:
                    self._loader = await config.load_kube_config_from_dict(
                        self._kubeconfig, client_configuration=self._configuration
                    )
                    self._read_certificates()
                else:
                    await self._loader.load_and_set(self._configuration)
        except TimeoutError:
            raise PluginError(f"gave no answer within {TIMEOUT:g} s") from None
        except _ERRORS as error:
            raise PluginError(f"failed ({type(error).__name__})") from None
        finally:
            # Certificates and keys are written to temporary files, which nothing documented removes before the end of
            # the process. Nothing waits between there and here, so these are ours alone.
            kube_config._cleanup_temp_files()
        token = self._configuration.api_key.get("BearerToken")
        return None if token is None else str(token)

    def _read_certificates(self) -> None:
        paths = (self._configuration.cert_file, self._configuration.key_file)
        self.certificate, self.key = (None if path is None else Path(path).read_bytes() for path in paths)
