from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import pytest

from common.runtime import flags
from common.runtime.flags import Address, CommonOptions, Flag
from master.__main__ import MasterOptions
from seed.options import SeedOptions
from seed.registration.configuration import ServicePort


@dataclass(frozen=True, kw_only=True)
class ExampleOptions(CommonOptions):
    seed_name: Annotated[str, Flag(flags.text, "the name this seed has on the master, 100% of the time")]
    groups: Annotated[tuple[str, ...], Flag(flags.words, "who passes")] = ("a", "b")


HELP = """\
usage: seedquota-seed [flags]

SeedQuota on a seed.

options:
  -h, --help
        show this help message and exit
  --version
        show the version
  --seed-name NAME
        the name this seed has on the master, 100% of the time [required; SEEDQUOTA_SEED_NAME]
  --kubeconfig KUBECONFIG
        kubeconfig of the cluster that the program serves; not set: the pod's ServiceAccount is used
        [not set; SEEDQUOTA_KUBECONFIG]
  --context CONTEXT
        context of that kubeconfig; not set: its current context [not set; SEEDQUOTA_CONTEXT]
  --namespace NAMESPACE
        namespace of this release: its Lease, ledgers and Secrets [default seedquota;
        SEEDQUOTA_NAMESPACE]
  --health-address ADDRESS
        where /healthz, /readyz and /metrics are, plain HTTP [default :8081;
        SEEDQUOTA_HEALTH_ADDRESS]
  --log-format FORMAT
        json for machines, text for people [default json; SEEDQUOTA_LOG_FORMAT]
  --log-level LEVEL
        lowest level that is logged: debug, info, warning or error [default info;
        SEEDQUOTA_LOG_LEVEL]
  --drain-delay DELAY
        after SIGTERM: time for which the program is not ready but still serves [default 3s;
        SEEDQUOTA_DRAIN_DELAY]
  --stop-timeout TIMEOUT
        after that: longest time until unfinished work is cut off [default 20s;
        SEEDQUOTA_STOP_TIMEOUT]
  --groups GROUPS
        who passes [default a,b; SEEDQUOTA_GROUPS]

Durations are written 15s, 1m30s or 250ms. A flag wins over its environment variable.
"""


def parse(*arguments: str, **environment: str) -> ExampleOptions:
    return flags.parse(ExampleOptions, "seedquota-seed", "SeedQuota on a seed.", arguments, environment)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str, **environment: str) -> str:
    with pytest.raises(SystemExit) as ended:
        parse(*arguments, **environment)
    assert ended.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


def test_help_says_of_every_flag_what_it_is_its_default_and_its_variable(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse("--help")
    assert ended.value.code == 0
    assert capsys.readouterr().out == HELP


def test_a_flag_wins_over_the_environment_and_the_environment_over_the_default() -> None:
    assert parse("--seed-name", "a").namespace == "seedquota"
    assert parse("--seed-name", "a", SEEDQUOTA_NAMESPACE="from-env").namespace == "from-env"
    assert parse("--seed-name", "a", "--namespace=flag", SEEDQUOTA_NAMESPACE="from-env").namespace == "flag"


def test_an_empty_variable_is_unset() -> None:
    given = parse(SEEDQUOTA_SEED_NAME="a", SEEDQUOTA_KUBECONFIG="", SEEDQUOTA_STOP_TIMEOUT="")
    assert given.kubeconfig is None
    assert given.stop_timeout == 20.0


def test_values_have_their_types() -> None:
    given = parse(
        "--seed-name=a", "--kubeconfig=/k", "--health-address=[::1]:80", "--drain-delay=250ms", "--groups=x, y"
    )
    assert given.kubeconfig == Path("/k")
    assert given.health_address == Address("::1", 80)
    assert given.drain_delay == 0.25
    assert given.groups == ("x", "y")


def test_what_is_missing_is_named_with_its_variable(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys) == "seedquota-seed: error: missing: --seed-name (or SEEDQUOTA_SEED_NAME)"


def test_a_bad_value_names_where_it_came_from(capsys: pytest.CaptureFixture[str]) -> None:
    expected = "is not a duration such as 15s, 1m30s or 250ms"
    assert refused(capsys, "--seed-name=a", "--stop-timeout=20").endswith(f"--stop-timeout: '20' {expected}")
    environment = {"SEEDQUOTA_STOP_TIMEOUT": "x"}
    assert refused(capsys, "--seed-name=a", **environment).endswith(f"SEEDQUOTA_STOP_TIMEOUT: 'x' {expected}")
    assert "'loud' is not one of debug" in refused(capsys, "--seed-name=a", "--log-level=loud")


@pytest.mark.parametrize(
    ("raw", "seconds"), [("15s", 15), ("1m30s", 90), ("250ms", 0.25), ("1.5h", 5400), ("2h1m", 7260), ("0s", 0)]
)
def test_durations(raw: str, seconds: float) -> None:
    assert flags.duration(raw) == seconds


@pytest.mark.parametrize("raw", ["", "15", "s", "-1s", "1s1m", " 1s", "1d", "nan", "1e3s", "9" * 400 + "h"])
def test_other_durations_are_refused(raw: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        flags.duration(raw)


def test_addresses() -> None:
    assert flags.address(":8443") == Address("", 8443)
    assert flags.address("127.0.0.1:0") == Address("127.0.0.1", 0)
    assert str(flags.address("[::]:8443")) == "[::]:8443"


@pytest.mark.parametrize("raw", ["", "8443", "a:", "a:x", "a:65536", "::1:80", "a:-1"])
def test_other_addresses_are_refused(raw: str) -> None:
    with pytest.raises(ValueError, match=r"not an address|ambiguous"):
        flags.address(raw)


def test_urls() -> None:
    assert flags.https_url("https://seed.example.com:8443/base/") == "https://seed.example.com:8443/base"


@pytest.mark.parametrize(
    "raw", ["http://a", "https://", "a", "https://a?x=1", "https://a#f", "https://me:pw@a", "https://a:99999"]
)
def test_other_urls_are_refused(raw: str) -> None:
    with pytest.raises(ValueError, match=r"not a URL|[Pp]ort"):
        flags.https_url(raw)


def test_whole_seconds_are_written_as_durations_or_without_a_unit() -> None:
    for raw, seconds in (("3", 3), ("3s", 3), ("0.5m", 30), ("3000ms", 3), ("30", 30)):
        assert flags.whole_seconds(1, 30)(raw) == seconds
    for raw in ("0", "31", "31s", "1m", "3.0", "1500ms", "", "x", "-1s", "nan", "9" * 30):
        with pytest.raises(ValueError, match="is not a duration of whole seconds from 1s to 30s"):
            flags.whole_seconds(1, 30)(raw)


@pytest.mark.parametrize(
    ("parser", "name"),
    [(SeedOptions, field.name) for field in fields(SeedOptions)]
    + [(MasterOptions, f.name) for f in fields(MasterOptions)],
)
def test_every_flag_takes_its_own_default_as_help_shows_it(parser: type[CommonOptions], name: str) -> None:
    (declared,) = (found for found in flags.declared(parser) if found.name == name)
    if declared.default:
        default = next(field.default for field in fields(parser) if field.name == name)
        assert declared.flag.read(declared.default) == default


def test_a_ledger_in_redis_without_a_url_is_refused_before_anything_is_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = ["--seed-name=a", "--webhook-url=https://a", "--ledger-store=redis"]
    with pytest.raises(SystemExit) as ended:
        flags.parse(SeedOptions, "seedquota-seed", "d", given, {"SEEDQUOTA_REDIS_URL": ""})
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "seedquota-seed: error: --ledger-store redis needs a Redis: --redis-url (or SEEDQUOTA_REDIS_URL) is missing"
    )
    environment = {"SEEDQUOTA_REDIS_URL": "redis://host"}
    assert flags.parse(SeedOptions, "seedquota-seed", "d", given, environment).ledger_store == "redis"


@pytest.mark.parametrize(
    ("given", "service"),
    [("webhook", ServicePort("webhook", 443)), ("webhook:8443", ServicePort("webhook", 8443))]
    + [(wrong, None) for wrong in ("", "Webhook", "a:b", "a:0", "a:65536", "a:1:2", "a:")],
)
def test_a_service_is_named_with_its_port_or_has_that_of_https(given: str, service: ServicePort | None) -> None:
    arguments = ["--seed-name=a", "--webhook-url=https://a", f"--webhook-service={given}"]
    if service is None:
        with pytest.raises(SystemExit):
            flags.parse(SeedOptions, "seedquota-seed", "d", arguments, {})
    else:
        assert flags.parse(SeedOptions, "seedquota-seed", "d", arguments, {}).webhook_service == service


def test_a_window_in_which_no_request_can_have_ended_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """An API server that has waited for the webhook may still store what was admitted."""
    given = ["--seed-name=a", "--webhook-url=https://a"]
    for more in (
        ["--in-flight-window=0s"],
        ["--in-flight-window=2999ms"],
        ["--webhook-timeout=30", "--in-flight-window=29s"],
    ):
        with pytest.raises(SystemExit) as ended:
            flags.parse(SeedOptions, "seedquota-seed", "d", [*given, *more], {})
        assert ended.value.code == 2
        said = capsys.readouterr().err.splitlines()[-1]
        assert said.startswith(
            "seedquota-seed: error: --in-flight-window (or SEEDQUOTA_IN_FLIGHT_WINDOW) must be at least"
        )
        assert said.endswith("set it to the API servers' --request-timeout (60s by default) or more")
    for window in ("3s", "65s"):
        flags.parse(SeedOptions, "seedquota-seed", "d", [*given, f"--in-flight-window={window}"], {})
    with pytest.raises(SystemExit):
        flags.parse(SeedOptions, "seedquota-seed", "d", [*given, "--ledger-store=redis"], {})


def test_a_flag_that_a_service_of_kubernetes_would_set_is_a_mistake_of_ours() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Collides(CommonOptions):
        webhook_port: Annotated[str, Flag(flags.text, "set by Kubernetes to tcp://... for a Service")] = "1"

    with pytest.raises(AssertionError, match="webhook_port"):
        flags.parse(Collides, "p", "d", [], {})


def test_a_cloud_that_has_ended_does_not_keep_an_agent_from_starting() -> None:
    given = ["--seed-name=eu-1", "--webhook-url=https://seed.example.com", "--providers=equinixmetal,aws"]
    assert flags.parse(SeedOptions, "seedquota-seed", "d", given, {}).providers == ("aws",)
