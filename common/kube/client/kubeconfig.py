"""From a kubeconfig or a pod's service account to what a connection needs: a server, a TLS context, a header."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import ssl
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from common.kube.client import bounded_pem, bounded_yaml
from common.kube.client.exec_credentials import Plugin, PluginError
from common.kube.client.networks import Networks
from common.kube.client.tenant_hosts import TenantHosts
from common.kube.client.tenant_threads import NotDoneError, TenantThreads
from common.kube.client.tls import verifying

SERVICE_TOKEN_FILENAME = "/var/run/secrets/kubernetes.io/serviceaccount/token"  # noqa: S105 (a path)
SERVICE_CERT_FILENAME = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"

MAX_KUBECONFIG = 256 * 1024  # characters

_OF_TENANTS = TenantThreads("kubeconfig of a tenant", places=4, seconds=30.0)

# Whoever may write a Secret must not thereby read our files, run our programs or switch verification off.
_REFUSED_IN_TEXT = {
    "cluster": ("certificate-authority", "insecure-skip-tls-verify"),
    "user": ("exec", "auth-provider", "client-certificate", "client-key", "tokenFile"),
}
# Not known here; to ignore them would mean another road or another identity than the file says.
_UNSUPPORTED = {
    "cluster": ("proxy-url",),
    "user": ("as", "as-uid", "as-groups", "as-user-extra"),
}


class InvalidKubeconfig(ValueError):
    """A kubeconfig that cannot or must not be used. The message says what is wrong and holds no credential."""


class NotReadYet(InvalidKubeconfig):
    """It was not read in time, and may be later."""


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach one API server, and who we are there.

    `refresh` gives the present Authorization header where credentials expire. It is told which one the API server has
    rejected (401), if it has, and raises InvalidKubeconfig.
    `connection` is a digest of all but the Authorization header, where that comes from a text. `hosts`: where a tenant
    names the server. `impersonated` has the headers that name another user.
    """

    server: str
    tls: ssl.SSLContext | None = None
    tls_server_name: str | None = None
    authorization: str | None = field(default=None, repr=False)
    refresh: Callable[[str | None], Awaitable[str | None]] | None = field(default=None, repr=False)
    connection: str = ""
    hosts: TenantHosts | None = None
    impersonated: tuple[tuple[str, str], ...] = ()


async def from_text(text: str, context: str | None = None) -> Access:
    """Reads a kubeconfig that came from elsewhere, such as a Secret: everything inline, TLS verified.

    Raises InvalidKubeconfig; also for exec plugins, auth providers, file paths and insecure-skip-tls-verify.
    """
    return await asyncio.to_thread(_static_access, text, context, None)


async def of_tenant(text: str, cluster: str, networks: Networks) -> Access:
    """As `from_text`, in threads that the platform does not wait for. `cluster`: whose it is, as namespace/name.
    `networks`: where its server may be."""
    try:
        access = await _OF_TENANTS.run(cluster, lambda: _static_access(text, None, None))
    except NotDoneError as error:
        raise NotReadYet(f"kubeconfig was not read: {error}") from None
    return replace(access, hosts=TenantHosts(cluster, networks))


async def from_file(path: Path, context: str | None = None) -> Access:
    """Reads the operator's own kubeconfig: file paths, exec plugins, YAML anchors. Raises
    InvalidKubeconfig."""
    try:
        text = await asyncio.to_thread(path.read_text)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidKubeconfig(f"kubeconfig file cannot be read: {_why(error)}") from None
    cluster, user = await asyncio.to_thread(_select, text, context, own=True)
    if "auth-provider" in user:
        raise InvalidKubeconfig("user uses auth-provider, which is not supported: name a credential plugin under exec")
    if "exec" in user:
        return await _plugin_access(cluster, user, path.parent)
    return await asyncio.to_thread(_static_access, text, context, path.parent)


async def server_of(path: Path, context: str | None = None) -> dict[str, str]:
    """The entry of the cluster in the operator's own kubeconfig, with everything inline, for a kubeconfig of another
    user. Raises InvalidKubeconfig, also where TLS would not be verified."""
    try:
        text = await asyncio.to_thread(path.read_text)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidKubeconfig(f"kubeconfig file cannot be read: {_why(error)}") from None
    cluster, _ = await asyncio.to_thread(_select, text, context, own=True)
    if cluster.get("insecure-skip-tls-verify"):
        raise InvalidKubeconfig("cluster uses insecure-skip-tls-verify: set certificate-authority-data instead")
    entry = {"server": _server(cluster, allow_http=False)}
    authority = await asyncio.to_thread(_data, cluster, "certificate-authority", path.parent)
    if authority is not None:
        entry["certificate-authority-data"] = base64.b64encode(authority).decode()
    name = _optional_text(cluster, "tls-server-name", "cluster")
    return entry if name is None else {**entry, "tls-server-name": name}


async def in_cluster() -> Access:
    """Reads the pod's service account. Raises InvalidKubeconfig outside a pod."""
    return await asyncio.to_thread(_service_account_access)


def _service_account_access() -> Access:
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise InvalidKubeconfig("service account cannot be used: Service host/port is not set")

    def token() -> str:
        return _header(f"Bearer {_service_account_file(SERVICE_TOKEN_FILENAME).decode(errors='replace')}")

    async def refresh(_rejected: str | None) -> str | None:
        return await asyncio.to_thread(token)

    return Access(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        tls=_tls(_service_account_file(SERVICE_CERT_FILENAME)),
        authorization=token(),
        refresh=refresh,
    )


def _service_account_file(path: str) -> bytes:
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise InvalidKubeconfig(f"service account cannot be used: {_why(error)}") from None
    if not content.strip():
        raise InvalidKubeconfig(f"service account cannot be used: its {Path(path).name} is empty")
    return content


def _static_access(text: str, context: str | None, base: Path | None) -> Access:
    """`base` is the folder that file paths are relative to; None where nothing outside the text may be used."""
    cluster, user = _select(text, context, own=base is not None)
    if base is None:
        for what, entry in (("cluster", cluster), ("user", user)):
            for name in _REFUSED_IN_TEXT[what]:
                if entry.get(name):
                    raise InvalidKubeconfig(f"{what} uses {name}, which is not allowed here: put the data inline")
    server = _server(cluster, allow_http=base is not None)
    server_name = _optional_text(cluster, "tls-server-name", "cluster")
    authority = _data(cluster, "certificate-authority", base)
    certificate = _data(user, "client-certificate", base)
    key = _data(user, "client-key", base)
    if base is None:
        authority, certificate, key = _checked(authority, certificate, key)
    authorization = _authorization(user, base)
    if base is None and authorization is None and certificate is None:
        raise InvalidKubeconfig("user has no credentials: set token, or client-certificate-data and client-key-data")

    async def refresh(_rejected: str | None) -> str | None:
        return await asyncio.to_thread(_authorization, user, base)

    return Access(
        server=server,
        tls=_cluster_tls(cluster, base, authority, certificate, key) if server.startswith("https:") else None,
        tls_server_name=server_name,
        authorization=authorization,
        refresh=refresh if "tokenFile" in user and "token" not in user else None,
        connection=hashlib.sha256(repr((server, server_name, authority, certificate, key)).encode()).hexdigest(),
    )


async def _plugin_access(cluster: Mapping[str, object], user: Mapping[str, object], base: Path) -> Access:
    server = _server(cluster, allow_http=False)
    authority = await asyncio.to_thread(_data, cluster, "certificate-authority", base)
    own = [await asyncio.to_thread(_data, user, name, base) for name in ("client-certificate", "client-key")]
    try:
        plugin = Plugin(_told(cluster, server, authority), user["exec"], base)
    except PluginError as error:
        raise InvalidKubeconfig(f"user's credential plugin {error}") from None

    async def authenticate(rejected: str | None = None) -> str | None:
        try:
            token = await plugin.authenticate(rejected)
        except PluginError as error:
            raise InvalidKubeconfig(f"user's credential plugin {error}") from None
        return None if token is None else _header(token)

    authorization = await authenticate()
    certificate, key = (plugin.certificate, plugin.key) if plugin.certificate is not None else own
    return Access(
        server=server,
        tls=await asyncio.to_thread(_cluster_tls, cluster, base, authority, certificate, key),
        tls_server_name=_optional_text(cluster, "tls-server-name", "cluster"),
        authorization=authorization,
        refresh=authenticate,
    )


def _told(cluster: Mapping[str, object], server: str, authority: bytes | None) -> dict[str, object]:
    """Of the cluster, to a credential plugin that asks for it."""
    told: dict[str, object] = {"server": server}
    if authority is not None:
        told["certificate-authority-data"] = base64.b64encode(authority).decode()
    for name in ("tls-server-name", "insecure-skip-tls-verify"):
        if cluster.get(name):
            told[name] = cluster[name]
    extensions = cluster.get("extensions")
    for each in extensions if isinstance(extensions, list) else ():
        if isinstance(each, Mapping) and each.get("name") == "client.authentication.k8s.io/exec":
            told["config"] = each.get("extension")
    return told


def _select(text: str, context: str | None, *, own: bool) -> tuple[Mapping[str, object], Mapping[str, object]]:
    """The cluster and the user that the context names. `own`: it is a file of whoever runs this program."""
    if len(text) > MAX_KUBECONFIG:
        raise InvalidKubeconfig(f"kubeconfig is longer than {MAX_KUBECONFIG} characters")
    try:
        config = bounded_yaml.load(text, aliases=own)
    except bounded_yaml.InvalidYaml as error:
        raise InvalidKubeconfig(f"kubeconfig {error}") from None
    if not isinstance(config, Mapping):
        raise InvalidKubeconfig("kubeconfig is not a YAML mapping")
    chosen = context if context is not None else config.get("current-context")
    if not isinstance(chosen, str) or not chosen:
        raise InvalidKubeconfig("kubeconfig has no current-context")
    entry = _entry(config, "contexts", chosen, "context")
    cluster_name, user_name = entry.get("cluster"), entry.get("user")
    if not isinstance(cluster_name, str) or not cluster_name:
        raise InvalidKubeconfig(f"context {chosen!r} names no cluster")
    cluster = _entry(config, "clusters", cluster_name, "cluster")
    user = _entry(config, "users", user_name, "user") if isinstance(user_name, str) and user_name else {}
    for what, found in (("cluster", cluster), ("user", user)):
        for name in _UNSUPPORTED[what]:
            if found.get(name):
                raise InvalidKubeconfig(f"{what} uses {name}, which is not supported")
    return cluster, user


def _entry(config: Mapping[object, object], section: str, name: str, what: str) -> Mapping[str, object]:
    entries = config.get(section)
    if not isinstance(entries, list):
        raise InvalidKubeconfig(f"kubeconfig has no list of {section}")
    for entry in entries:
        if isinstance(entry, Mapping) and entry.get("name") == name:
            found = entry.get(what)
            if not isinstance(found, Mapping):
                raise InvalidKubeconfig(f"entry {name!r} of {section} has no {what}")
            return found
    raise InvalidKubeconfig(f"{section} has no entry {name!r}")


def _server(cluster: Mapping[str, object], *, allow_http: bool) -> str:
    server = cluster.get("server")
    if not isinstance(server, str) or not server:
        raise InvalidKubeconfig("cluster has no server")
    try:
        parts = urlsplit(server)
        valid = bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid or parts.query or parts.fragment or not server.isascii() or any(c.isspace() for c in server):
        raise InvalidKubeconfig("cluster's server is not a valid URL")
    if parts.username is not None or parts.password is not None:
        raise InvalidKubeconfig("cluster's server holds a user name or password")
    if parts.scheme != "https" and not (allow_http and parts.scheme == "http"):
        raise InvalidKubeconfig("cluster's server is not an https:// URL")
    return server.rstrip("/")


def _optional_text(entry: Mapping[str, object], name: str, what: str) -> str | None:
    value = entry.get(name)
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise InvalidKubeconfig(f"{what}'s {name} is not a string")
    return value


def _data(entry: Mapping[str, object], name: str, base: Path | None) -> bytes | None:
    """The bytes of NAME-data, or of the file that NAME points to where files are allowed."""
    inline = _optional_text(entry, f"{name}-data", "kubeconfig")
    if inline is not None:
        try:
            return base64.b64decode("".join(inline.split()), validate=True)
        except ValueError:
            raise InvalidKubeconfig(f"{name}-data is not valid base64") from None
    path = _optional_text(entry, name, "kubeconfig")
    return None if path is None or base is None else _read(base / path, name)


def _read(path: Path, name: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidKubeconfig(f"file of {name} cannot be read: {_why(error)}") from None


def _authorization(user: Mapping[str, object], base: Path | None) -> str | None:
    token = _optional_text(user, "token", "user")
    path = _optional_text(user, "tokenFile", "user")
    if token is None and path is not None and base is not None:
        token = _read(base / path, "tokenFile").decode(errors="replace")
    if token is not None:
        return _header(f"Bearer {token}")
    name, password = _optional_text(user, "username", "user"), _optional_text(user, "password", "user")
    if name is not None and password is not None:
        return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()
    return None


def _header(value: str) -> str:
    value = value.strip()
    if not (value.isascii() and value.isprintable()):
        raise InvalidKubeconfig("user's token has characters that an HTTP header cannot carry")
    return value


def _checked(
    authority: bytes | None, certificate: bytes | None, key: bytes | None
) -> tuple[bytes | None, bytes | None, bytes | None]:
    """What OpenSSL may read of a kubeconfig that came from elsewhere. Raises InvalidKubeconfig."""
    if (certificate is None) != (key is None):
        raise InvalidKubeconfig("user has only one of client-certificate-data and client-key-data")
    found = []
    for name, check, pem in (
        ("certificate-authority", bounded_pem.authorities, authority),
        ("client-certificate", bounded_pem.client_certificate, certificate),
        ("client-key", bounded_pem.client_key, key),
    ):
        try:
            found.append(None if pem is None else check(pem))
        except bounded_pem.InvalidPem as error:
            raise InvalidKubeconfig(f"{name}-data {error}") from None
    return found[0], found[1], found[2]


def _cluster_tls(
    cluster: Mapping[str, object],
    base: Path | None,
    authority: bytes | None,
    certificate: bytes | None,
    key: bytes | None,
) -> ssl.SSLContext:
    tls = _tls(authority, certificate, key)
    if base is not None and cluster.get("insecure-skip-tls-verify") is True:
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    return tls


def _tls(authority: bytes | None, certificate: bytes | None = None, key: bytes | None = None) -> ssl.SSLContext:
    """A verifying context; the system's authorities where none is given."""
    try:
        tls = verifying(None if authority is None else authority.decode("ascii"))
    except (ssl.SSLError, ValueError):
        raise InvalidKubeconfig("certificate-authority-data holds no usable PEM certificate") from None
    if certificate is None and key is None:
        return tls
    if certificate is None or key is None:
        raise InvalidKubeconfig("user has only one of client-certificate-data and client-key-data")
    # OpenSSL reads these from files only
    with tempfile.TemporaryDirectory(prefix="kube-") as folder:
        paths = [Path(folder, "certificate"), Path(folder, "key")]
        for path, content in zip(paths, (certificate, key), strict=True):
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(content)
        try:
            tls.load_cert_chain(paths[0], paths[1], password=lambda: "")  # never ask on a terminal
        except (ssl.SSLError, ValueError) as error:
            reason = getattr(error, "reason", None) or type(error).__name__
            raise InvalidKubeconfig(f"client certificate and key cannot be used together: {reason}") from None
    return tls


def _why(error: Exception) -> str:
    """An OSError without its path: a message may travel into a condition that others read."""
    return (error.strerror if isinstance(error, OSError) else str(error)) or type(error).__name__
