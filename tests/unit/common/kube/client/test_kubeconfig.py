from __future__ import annotations

import asyncio
import base64
import datetime
import ipaddress
import json
import ssl
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

import pytest
import yaml
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from common.kube.client import exec_credentials, kubeconfig
from common.kube.client.api_client import Cluster
from common.kube.client.errors import Unauthorized, Unavailable
from common.kube.client.kubeconfig import InvalidKubeconfig
from common.kube.client.networks import Networks

SECRET = "s3cr3t-t0ken"


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


class Authority:
    def __init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test CA")])
        self.certificate = self._sign(self.name, self.key, x509.BasicConstraints(ca=True, path_length=None))
        self.pem = self.certificate.public_bytes(serialization.Encoding.PEM)

    def _sign(self, subject, key, *extensions):
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self.name).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - datetime.timedelta(1)).not_valid_after(now + datetime.timedelta(1))
        for extension in extensions:
            builder = builder.add_extension(extension, critical=False)
        return builder.sign(self.key, hashes.SHA256())

    def issue(self, name: str) -> tuple[bytes, bytes]:
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName(
            [x509.DNSName("api.example"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        )
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._sign(subject, key, names)
        return certificate.public_bytes(serialization.Encoding.PEM), key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )


@pytest.fixture(scope="module")
def authority():
    return Authority()


@pytest.fixture(scope="module")
def client_pair(authority):
    return authority.issue("somebody")


def config(cluster=None, user=None, **top):
    made = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": "https://127.0.0.1:6443", **(cluster or {})}}],
        "users": [{"name": "u", "user": {"token": SECRET} if user is None else user}],
    }
    return {key: value for key, value in {**made, **top}.items() if value is not None}


@pytest.fixture
async def server(authority, tmp_path):
    """An https server that answers with the Authorization header and the client certificate's name. It does not take
    the token `revoked`."""

    async def whoami(request):
        certificate = request.transport.get_extra_info("peercert")
        subject = dict(part[0] for part in certificate["subject"])["commonName"] if certificate else None
        found = {"authorization": request.headers.get("Authorization"), "certificate": subject}
        return web.json_response(found, status=401 if found["authorization"] == "Bearer revoked" else 200)

    certificate, key = authority.issue("server")
    (tmp_path / "tls.crt").write_bytes(certificate)
    (tmp_path / "tls.key").write_bytes(key)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=authority.pem.decode())
    tls.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    tls.verify_mode = ssl.CERT_OPTIONAL
    app = web.Application()
    app.router.add_get("/{path:.*}", whoami)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    yield f"https://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def whoami(cluster):
    try:
        return yaml.safe_load(await cluster.request("GET", "/whoami"))
    finally:
        await cluster.close()


async def test_a_token_is_sent_over_verified_tls(server, authority):
    trusted = {"server": server, "certificate-authority-data": b64(authority.pem)}
    cluster = await Cluster.from_kubeconfig(yaml.safe_dump(config(trusted)), name="c")
    assert await whoami(cluster) == {"authorization": f"Bearer {SECRET}", "certificate": None}
    stranger = {"server": server, "certificate-authority-data": b64(Authority().pem)}
    cluster = await Cluster.from_kubeconfig(yaml.safe_dump(config(stranger)), name="c")
    with pytest.raises(Unavailable, match="certificate verify failed") as error:
        await whoami(cluster)
    assert SECRET not in str(error.value)


async def test_answers_are_waited_for_as_long_as_was_asked_for():
    cluster = await Cluster.from_kubeconfig(yaml.safe_dump(config()), name="c", timeout=7.0)
    await cluster.close()
    assert cluster.timeout == 7.0


async def test_client_certificates_work_and_their_files_are_gone_at_once(
    server, authority, client_pair, tmp_path, monkeypatch
):
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    modes = []
    real = ssl.SSLContext.load_cert_chain

    def look(self, certfile, keyfile=None, password=None):
        modes.append([oct(Path(path).stat().st_mode & 0o777) for path in (certfile, keyfile)])
        return real(self, certfile, keyfile, password)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", look)
    user = {"client-certificate-data": b64(client_pair[0]), "client-key-data": b64(client_pair[1])}
    trusted = {"server": server, "certificate-authority-data": b64(authority.pem)}
    cluster = await Cluster.from_kubeconfig(yaml.safe_dump(config(trusted, user)), name="c")
    assert modes == [["0o600", "0o600"]] and not any(folder.iterdir())
    assert await whoami(cluster) == {"authorization": None, "certificate": "somebody"}


async def test_the_tls_server_name_is_what_is_verified(server, authority):
    trusted = {"server": server, "certificate-authority-data": b64(authority.pem)}
    right = config({**trusted, "tls-server-name": "api.example"})
    assert await whoami(await Cluster.from_kubeconfig(yaml.safe_dump(right), name="c"))
    wrong = config({**trusted, "tls-server-name": "other.example"})
    with pytest.raises(Unavailable, match=r"not valid for 'other\.example'"):
        await whoami(await Cluster.from_kubeconfig(yaml.safe_dump(wrong), name="c"))


async def test_another_context_can_be_chosen():
    contexts = [
        {"name": "c", "context": {"cluster": "missing"}},
        {"name": "d", "context": {"cluster": "k", "user": "u"}},
    ]
    access = await kubeconfig.from_text(yaml.safe_dump(config(contexts=contexts)), "d")
    assert access.server == "https://127.0.0.1:6443" and access.authorization == f"Bearer {SECRET}"


def pem_of_nothing():
    return b64(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ("", "not a YAML mapping"),
        ("just text", "not a YAML mapping"),
        (f"token: *{SECRET}", r"not valid YAML \(line 1\)"),
        (f"a: [\n{SECRET}: 'x", r"not valid YAML \(line \d\)"),
        ("a: 2001-99-99", "no current-context"),
        ("[" * 5000, "not valid YAML"),
        ("a: &a [x, x]\nb: [*a, *a]", r"not valid YAML \(line 1\): anchors and aliases"),
        ("a: {<<: {b: c}}", "a key is not plain text"),
        ("a: !!python/name:os.system x", "tags are not read here"),
        ("a: 1\n---\nb: 2", "more than one document"),
        ("[" + "a," * 100_000 + "]", "too many values"),
        ("x" * (kubeconfig.MAX_KUBECONFIG + 1), "longer than"),
        (config(**{"current-context": None}), "no current-context"),
        (config(**{"current-context": "other"}), "contexts has no entry 'other'"),
        (config(contexts=None), "no list of contexts"),
        (config(contexts=["x", {"name": "c"}]), "entry 'c' of contexts has no context"),
        (config(contexts=[{"name": "c", "context": {}}]), "context 'c' names no cluster"),
        (config(clusters=[]), "clusters has no entry 'k'"),
        (config(users=[]), "users has no entry 'u'"),
        (config({"server": ""}), "cluster has no server"),
        (config({"server": 5}), "cluster has no server"),
        (config({"server": "http://127.0.0.1"}), "not an https:// URL"),
        (config({"server": "https://"}), "not a valid URL"),
        (config({"server": "https://host:port"}), "not a valid URL"),
        (config({"server": f"https://me:{SECRET}@host"}), "holds a user name or password"),
        (config({"certificate-authority-data": "not base64!"}), "certificate-authority-data is not valid base64"),
        (config({"certificate-authority-data": b64(b"no pem")}), "no usable PEM certificate"),
        (config({"certificate-authority-data": pem_of_nothing()}), "no usable PEM certificate"),
        (config({"certificate-authority-data": 5}), "certificate-authority-data is not a string"),
        (config({"certificate-authority": "/etc/passwd"}), "uses certificate-authority, which is not allowed"),
        (config({"insecure-skip-tls-verify": True}), "uses insecure-skip-tls-verify, which is not allowed"),
        (config({"proxy-url": "http://proxy"}), "uses proxy-url, which is not supported"),
        (config(user={}), "no credentials"),
        (config(user={"token": 12345}), "user's token is not a string"),
        (config(user={"token": f"{SECRET}\r\nX-Other: y"}), "characters that an HTTP header cannot carry"),
        (config(user={"exec": {"command": "touch"}}), "user uses exec, which is not allowed"),
        (config(user={"token": SECRET, "exec": {"command": "touch"}}), "user uses exec, which is not allowed"),
        (config(user={"auth-provider": {"name": "gcp"}}), "user uses auth-provider, which is not allowed"),
        (config(user={"tokenFile": "/var/run/secrets/token"}), "user uses tokenFile, which is not allowed"),
        (config(user={"client-certificate": "/a", "client-key": "/b"}), "user uses client-certificate, which is not"),
        (config(user={"token": SECRET, "as": "admin"}), "user uses as, which is not supported"),
        (
            config(user={"client-key-data": b64(SECRET.encode()), "token": SECRET}),
            "only one of client-certificate-data",
        ),
        (
            config(user={"client-certificate-data": b64(b"x"), "client-key-data": b64(SECRET.encode())}),
            "client-certificate-data holds no usable PEM certificate",
        ),
    ],
)
async def test_a_kubeconfig_from_a_secret_is_refused_with_a_reason_and_without_credentials(made, message):
    text = made if isinstance(made, str) else yaml.safe_dump(made)
    with pytest.raises(InvalidKubeconfig, match=message) as error:
        await Cluster.from_kubeconfig(text, name="c")
    shown = "".join(traceback.format_exception(error.value))
    assert SECRET not in shown and b64(SECRET.encode()) not in shown


async def test_a_certificate_with_the_key_of_another_is_refused(authority, client_pair):
    user = {"client-certificate-data": b64(client_pair[0]), "client-key-data": b64(authority.issue("other")[1])}
    with pytest.raises(InvalidKubeconfig, match="client certificate and key cannot be used together"):
        await Cluster.from_kubeconfig(yaml.safe_dump(config(user=user)), name="c")


async def test_the_operators_own_file_may_name_files(server, authority, client_pair, tmp_path):
    (tmp_path / "ca.crt").write_bytes(authority.pem)
    (tmp_path / "c.crt").write_bytes(client_pair[0])
    (tmp_path / "c.key").write_bytes(client_pair[1])
    (tmp_path / "token").write_text(f"{SECRET}\n")
    user = {"client-certificate": "c.crt", "client-key": "c.key", "tokenFile": "token"}
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(config({"server": server, "certificate-authority": "ca.crt"}, user)))
    cluster = await Cluster.from_kubeconfig_file(path, name="c")
    assert cluster._access.refresh is not None
    (tmp_path / "token").write_text("rotated")
    assert await cluster._access.refresh(None) == "Bearer rotated"
    assert await whoami(cluster) == {"authorization": f"Bearer {SECRET}", "certificate": "somebody"}
    with pytest.raises(InvalidKubeconfig, match="kubeconfig file cannot be read: No such file"):
        await Cluster.from_kubeconfig_file(tmp_path / "missing", name="c")


WITH_ANCHORS = f"""\
x-server: &server {{server: "https://127.0.0.1:6443", tls-server-name: api.example}}
x-user: &user
  token: {SECRET}
clusters:
- name: k
  cluster: &k
    <<: *server
- name: other
  cluster:
    <<: [{{server: "https://127.0.0.1:1"}}, *k]
    tls-server-name: "other"
users:
- {{name: &u u, user: *user}}
contexts:
- name: c
  context: {{cluster: k, user: *u}}
- name: d
  context: {{cluster: other, user: *u}}
current-context: c
"""


async def test_the_operators_own_file_may_have_yaml_anchors_as_for_kubectl_and_a_secret_may_not(tmp_path):
    (tmp_path / "config").write_text(WITH_ANCHORS)
    as_yaml_says = {each["name"]: each["cluster"] for each in yaml.safe_load(WITH_ANCHORS)["clusters"]}
    for context, name in (("c", "k"), ("d", "other")):
        access = await kubeconfig.from_file(tmp_path / "config", context)
        assert (access.server, access.tls_server_name) == tuple(as_yaml_says[name].values())
        assert access.authorization == f"Bearer {SECRET}"
        assert (await kubeconfig.server_of(tmp_path / "config", context))["server"] == access.server
    networks = Networks(())
    for read in (kubeconfig.from_text(WITH_ANCHORS), kubeconfig.of_tenant(WITH_ANCHORS, "alpha/c1", networks)):
        with pytest.raises(InvalidKubeconfig, match="anchors and aliases are not read here"):
            await read


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: *none", "an alias names no anchor before it"),
        ("a: &a [*a]", "an alias names no anchor before it"),
        ("a: {<<: text}", "what is merged is no mapping"),
        ("\n".join(["a0: &a0 {x: 1}", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 40))]), ""),
        (
            "a: &a {" + ", ".join(f"k{n}: 1" for n in range(999)) + "}\nb:\n" + "- <<: *a\n" * 99,
            "too many values",
        ),
    ],
)
async def test_anchors_of_the_operators_own_file_cost_no_more_than_the_file(text, message, tmp_path):
    (tmp_path / "config").write_text(text)
    with pytest.raises(InvalidKubeconfig, match=message or "no current-context"):
        await kubeconfig.from_file(tmp_path / "config")


async def test_the_operators_own_file_may_skip_verification_and_use_plain_http(server, tmp_path):
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(config({"server": server, "insecure-skip-tls-verify": True})))
    assert await whoami(await Cluster.from_kubeconfig_file(path, name="c"))
    path.write_text(yaml.safe_dump(config({"server": "http://127.0.0.1:8001"}, user={})))
    cluster = await Cluster.from_kubeconfig_file(path, name="c")
    assert cluster._access.tls is None
    await cluster.close()


def plugin(tmp_path, output, code=0):
    script = tmp_path / "plugin"
    script.write_text(f"#!/bin/sh\necho ran >> {tmp_path}/runs\ncat <<'EOF'\n{output}\nEOF\nexit {code}\n")
    script.chmod(0o700)
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(script)}}


def credential(**status):
    return json.dumps({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status})


async def test_an_exec_plugin_of_the_operators_own_file_is_asked(server, authority, tmp_path):
    trusted = {"server": server, "certificate-authority-data": b64(authority.pem)}
    path = tmp_path / "config"
    output = credential(token=SECRET, expirationTimestamp="2999-01-01T00:00:00Z")
    path.write_text(yaml.safe_dump(config(trusted, plugin(tmp_path, output))))
    cluster = await Cluster.from_kubeconfig_file(path, name="c")
    assert await cluster._access.refresh(None) == f"Bearer {SECRET}"
    assert (tmp_path / "runs").read_text() == "ran\n", "not asked again before the token expires"
    assert await whoami(cluster) == {"authorization": f"Bearer {SECRET}", "certificate": None}


async def test_certificates_of_an_exec_plugin_leave_no_files(server, authority, client_pair, tmp_path, monkeypatch):
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    output = credential(clientCertificateData=client_pair[0].decode(), clientKeyData=client_pair[1].decode())
    trusted = {"server": server, "certificate-authority-data": b64(authority.pem)}
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(config(trusted, plugin(tmp_path, output))))
    cluster = await Cluster.from_kubeconfig_file(path, name="c")
    assert not any(folder.iterdir())
    assert await cluster._access.refresh(None) is None
    assert not any(folder.iterdir()), "nor when it is asked again"
    assert await whoami(cluster) == {"authorization": None, "certificate": "somebody"}


async def test_certificates_beside_an_exec_plugin_leave_no_files_and_its_token_is_refreshed(
    server, authority, client_pair, tmp_path, monkeypatch
):
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    (tmp_path / "c.key").write_bytes(client_pair[1])
    files = {"client-certificate-data": b64(client_pair[0]), "client-key": "c.key"}
    trusted = {"server": server, "certificate-authority-data": b64(authority.pem)}
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(config(trusted, {**plugin(tmp_path, credential(token=SECRET)), **files})))
    cluster = await Cluster.from_kubeconfig_file(path, name="c")
    assert await cluster._access.refresh(None) == f"Bearer {SECRET}"
    assert not any(folder.iterdir())
    assert await whoami(cluster) == {"authorization": f"Bearer {SECRET}", "certificate": "somebody"}


async def test_an_exec_plugin_that_fails_is_named_without_what_it_printed(tmp_path):
    path = tmp_path / "config"
    for output, code in ((SECRET, 0), (SECRET, 3), ("{}", 0)):
        path.write_text(yaml.safe_dump(config(user=plugin(tmp_path, output, code))))
        with pytest.raises(InvalidKubeconfig, match="credential plugin failed") as error:
            await Cluster.from_kubeconfig_file(path, name="c")
        assert SECRET not in str(error.value)


async def asked(tmp_path, script, cluster=None, **spec):
    """The kubeconfig's access, where its plugin is this script beside it."""
    (tmp_path / "plugin").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "plugin").chmod(0o700)
    named = {"apiVersion": "client.authentication.k8s.io/v1", "command": "./plugin", **spec}
    (tmp_path / "config").write_text(yaml.safe_dump(config(cluster, {"exec": named})))
    return await kubeconfig.from_file(tmp_path / "config")


def said(**status):
    return f"echo '{credential(**status)}'"


async def test_an_exec_plugin_gets_its_arguments_its_environment_and_what_it_asks_of_the_cluster(authority, tmp_path):
    cluster = {
        "server": "https://127.0.0.1:6443",
        "certificate-authority-data": b64(authority.pem),
        "tls-server-name": "api.example",
        "extensions": [{"name": "client.authentication.k8s.io/exec", "extension": {"audience": "me"}}],
    }
    script = f'echo "$1 $2 $COLOUR" > {tmp_path}/arguments; printf %s "$KUBERNETES_EXEC_INFO" > {tmp_path}/info\n'
    given = {"args": ["a b", "c"], "env": [{"name": "COLOUR", "value": "red"}]}
    access = await asked(tmp_path, script + said(token=SECRET), cluster, provideClusterInfo=True, **given)
    assert access.authorization == f"Bearer {SECRET}"
    assert (tmp_path / "arguments").read_text() == "a b c red\n"
    assert json.loads((tmp_path / "info").read_text()) == {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "spec": {
            "interactive": False,
            "cluster": {
                **{key: value for key, value in cluster.items() if key != "extensions"},
                "config": {"audience": "me"},
            },
        },
    }
    await asked(tmp_path, script + said(token=SECRET), cluster, **given)
    assert json.loads((tmp_path / "info").read_text())["spec"] == {"interactive": False}


async def test_an_exec_plugin_is_asked_again_when_its_token_has_expired(tmp_path):
    script = f"echo ran >> {tmp_path}/runs\n" + said(token=SECRET, expirationTimestamp="2001-01-01T00:00:00Z")
    access = await asked(tmp_path, script)
    assert await access.refresh(None) == f"Bearer {SECRET}"
    assert (tmp_path / "runs").read_text() == "ran\nran\n"


@pytest.mark.parametrize("lasts", [{}, {"expirationTimestamp": "2999-01-01T00:00:00Z"}])
async def test_an_exec_plugin_is_asked_again_once_the_api_server_rejects_its_token_and_not_before(
    lasts, server, authority, tmp_path
):
    """As client-go does it, whatever the token says of how long it lasts."""
    runs = tmp_path / "runs"
    script = f"echo ran >> {runs}\nif [ $(wc -l < {runs}) = 1 ]; then {said(token='revoked', **lasts)}; exit; fi\n"
    trusted = {"server": server, "certificate-authority-data": b64(authority.pem)}
    access = await asked(tmp_path, script + said(token=SECRET, **lasts), trusted)
    first, second = (Cluster(access, name="c") for _ in range(2))
    try:
        for cluster in (first, second):  # the other one does not know of the new token
            with pytest.raises(Unauthorized):
                await cluster.request("GET", "/")
            assert runs.read_text() == "ran\n" * (1 if cluster is first else 2)
            for _ in range(2):
                await cluster.request("GET", "/")
                assert runs.read_text() == "ran\n" * 2
                cluster._refresh_at = 0.0  # it looks for others, as it does every minute
    finally:
        await first.close()
        await second.close()


@pytest.mark.parametrize(
    ("script", "spec", "why"),
    [
        (said(token="t"), {"apiVersion": "client.authentication.k8s.io/v1beta1"}, "another apiVersion"),
        (said(token="t"), {"apiVersion": "client.authentication.k8s.io/v1alpha1"}, "apiVersion is none of"),
        (said(token="t"), {"interactiveMode": "Always"}, "needs a terminal"),
        (said(token="t"), {"command": "./none"}, "cannot be run: No such file"),
        (said(token="t"), {"command": 5}, "cannot be run: Expected `str`"),
        (said(token="t", expirationTimestamp="2999-01-01T00:00:00"), {}, "no time zone"),
        (said(clientCertificateData="c"), {}, "only one of certificate and key"),
        (said(), {}, "neither a token nor a certificate"),
        ("head -c 2000000 /dev/zero", {}, "more than 1048576 bytes"),
        ("exec sleep 60", {}, "no answer within 0.1 s"),
        ("sleep 60 & echo x", {}, "no answer within 0.1 s"),
    ],
)
async def test_an_exec_plugin_that_cannot_be_used_says_why(script, spec, why, tmp_path, monkeypatch):
    if why.startswith("no answer"):
        monkeypatch.setattr(exec_credentials, "TIMEOUT", 0.1)
    with pytest.raises(InvalidKubeconfig, match=f"user's credential plugin .*{why}"):
        await asked(tmp_path, script, **spec)


def open_files() -> set[str]:
    return {each.name for each in Path("/proc/self/fd").iterdir()}


@pytest.mark.parametrize("script", ["head -c 2000000 /dev/zero", "setsid sleep 20 & head -c 2000000 /dev/zero"])
async def test_an_exec_plugin_whose_output_nobody_reads_any_more_is_not_waited_for(script, tmp_path, monkeypatch):
    async def late(_plugin, _process):
        await asyncio.sleep(0.5)  # it has printed more than is buffered
        raise exec_credentials.PluginError("failed: too late")

    monkeypatch.setattr(exec_credentials.Plugin, "_output", late)
    monkeypatch.setattr(exec_credentials, "_ENDS_WITHIN", 0.5)
    before = open_files()
    async with asyncio.timeout(15):
        with pytest.raises(InvalidKubeconfig, match="too late"):
            await asked(tmp_path, script)
        while not open_files() <= before:  # what other tests have left may be closed meanwhile
            await asyncio.sleep(0.01)


async def test_an_auth_provider_is_refused_with_what_to_use_instead(tmp_path):
    (tmp_path / "config").write_text(yaml.safe_dump(config(user={"auth-provider": {"name": "oidc"}})))
    with pytest.raises(InvalidKubeconfig, match="auth-provider, which is not supported: name a credential plugin"):
        await kubeconfig.from_file(tmp_path / "config")


async def test_the_service_account_of_a_pod_is_used_and_its_token_read_again(authority, tmp_path, monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(InvalidKubeconfig, match="service account cannot be used: Service host/port is not set"):
        await Cluster.in_cluster(name="here")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "ca.crt").write_bytes(authority.pem)
    monkeypatch.setattr(kubeconfig, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(kubeconfig, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    with pytest.raises(InvalidKubeconfig, match="service account cannot be used: No such file or directory"):
        monkeypatch.setattr(kubeconfig, "SERVICE_TOKEN_FILENAME", str(tmp_path / "none"))
        await Cluster.in_cluster(name="here")
    (tmp_path / "empty").touch()
    with pytest.raises(InvalidKubeconfig, match="service account cannot be used: its empty is empty"):
        monkeypatch.setattr(kubeconfig, "SERVICE_TOKEN_FILENAME", str(tmp_path / "empty"))
        await Cluster.in_cluster(name="here")
    monkeypatch.setattr(kubeconfig, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    access = await kubeconfig.in_cluster()
    assert (access.server, access.authorization) == ("https://[fd00::1]:443", "Bearer first")
    (tmp_path / "token").write_text("second")
    assert await access.refresh(None) == "Bearer second"


def test_a_program_that_needs_no_redis_does_not_load_what_speaks_to_it():
    script = "import sys, master.__main__, seed.__main__; sys.exit('redis' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=60).returncode == 0


async def test_another_token_alone_is_the_same_connection_and_can_be_used_without_a_new_one(server, authority):
    trusted = {"server": server, "certificate-authority-data": b64(authority.pem)}
    access = await kubeconfig.from_text(yaml.safe_dump(config(trusted)))
    other = await kubeconfig.from_text(yaml.safe_dump(config(trusted, {"token": "another"})))
    assert other.connection == access.connection != ""
    for changed in ({"server": "https://127.0.0.2"}, {"tls-server-name": "x"}, {"certificate-authority-data": None}):
        found = await kubeconfig.from_text(yaml.safe_dump(config({**trusted, **changed})))
        assert found.connection != access.connection
    cluster = Cluster(access, name="c")
    try:
        cluster.authorize(other.authorization)
        assert yaml.safe_load(await cluster.request("GET", "/whoami"))["authorization"] == "Bearer another"
        assert cluster.access.authorization == "Bearer another"
    finally:
        await cluster.close()


async def test_the_server_of_a_file_is_told_inline_and_never_without_verification(authority, tmp_path):
    path = tmp_path / "kubeconfig"
    (tmp_path / "ca.crt").write_bytes(authority.pem)
    path.write_text(yaml.safe_dump(config({"certificate-authority": "ca.crt", "tls-server-name": "x"})))
    assert await kubeconfig.server_of(path) == {
        "server": "https://127.0.0.1:6443",
        "certificate-authority-data": b64(authority.pem),
        "tls-server-name": "x",
    }
    path.write_text(yaml.safe_dump(config()))
    assert await kubeconfig.server_of(path) == {"server": "https://127.0.0.1:6443"}
    for cluster, message in (
        ({"insecure-skip-tls-verify": True}, "insecure-skip-tls-verify"),
        ({"server": "http://127.0.0.1"}, "not an https:// URL"),
        ({"proxy-url": "http://127.0.0.1"}, "proxy-url"),
    ):
        path.write_text(yaml.safe_dump(config(cluster)))
        with pytest.raises(InvalidKubeconfig, match=message):
            await kubeconfig.server_of(path)
