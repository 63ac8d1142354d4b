"""Flags with environment fallbacks, declared once as a dataclass and read by argparse.

    @dataclass(frozen=True, kw_only=True)
    class SeedOptions(CommonOptions):
        seed_name: Annotated[str, Flag(text, "the name this seed has on the master")]

makes `--seed-name`, with `SEEDQUOTA_SEED_NAME` behind it; without a default it is required. A flag wins over the
environment; an empty variable is unset.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Annotated, TypeVar, get_type_hints
from urllib.parse import urlsplit

from common.runtime.logs import LEVELS
from common.runtime.metrics import build_version

ENVIRONMENT_PREFIX = "SEEDQUOTA_"
HELP_WIDTH = 100

# Kubernetes puts such variables into every pod for each Service; one named seedquota would set our flags.
_SERVICE_VARIABLE = re.compile(r"_PORT(_|$)|_SERVICE_(HOST|PORT)")
_NUMBER = r"(\d{1,9}(?:\.\d{1,9})?)"
_DURATION = re.compile(rf"(?:{_NUMBER}h)?(?:{_NUMBER}m(?!s))?(?:{_NUMBER}s)?(?:{_NUMBER}ms)?")


class UsageError(Exception):
    """What the user gave cannot be used. The program ends with status 2 and this message, without a traceback."""


@dataclass(frozen=True, slots=True)
class Flag:
    """How a field is read from text (ValueError when it cannot be) and what it is for. `unit` follows its default."""

    read: Callable[[str], object]
    what: str
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen. An empty host is every interface."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def text(raw: str) -> str:
    if not raw.strip():
        raise ValueError("must not be empty")
    return raw


def path(raw: str) -> Path:
    return Path(text(raw)).expanduser()


def duration(raw: str) -> float:
    """Seconds. "15s", "1m30s", "250ms", "1.5h"."""
    match = _DURATION.fullmatch(raw)
    if match is None or not raw:
        raise ValueError(f"{raw!r} is not a duration such as 15s, 1m30s or 250ms")
    hours, minutes, seconds, milliseconds = (float(part or 0) for part in match.groups())
    return hours * 3600 + minutes * 60 + seconds + milliseconds / 1000


def address(raw: str) -> Address:
    """host:port, [IPv6]:port, or :port for every interface. Port 0 lets the system choose."""
    host, colon, port = raw.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{raw!r} is ambiguous: write an IPv6 address in brackets, [::1]:8443")
    if not colon or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
        raise ValueError(f"{raw!r} is not an address such as :8443 or 127.0.0.1:8443")
    return Address(host, int(port))


def https_url(raw: str, schemes: Sequence[str] = ("https",)) -> str:
    """Without the trailing slash."""
    parts = urlsplit(raw)
    if parts.scheme not in schemes or not parts.hostname or parts.query or parts.fragment or parts.username is not None:
        raise ValueError(f"{raw!r} is not a URL such as https://seed.example.com:8443")
    parts.port  # noqa: B018 - raises ValueError when it is no number
    return raw.rstrip("/")


def http_url(raw: str) -> str:
    """With TLS or without, without the trailing slash."""
    return https_url(raw, ("http", "https"))


def whole_seconds(least: int, most: int) -> Callable[[str], int]:
    """A duration, or a number of seconds without a unit."""

    def read(raw: str) -> int:
        try:
            seconds = float(raw) if re.fullmatch(r"[0-9]{1,18}", raw) else duration(raw)
        except ValueError:
            seconds = -1.0
        if not least <= seconds <= most or seconds != int(seconds):
            raise ValueError(f"{raw!r} is not a duration of whole seconds from {least}s to {most}s")
        return int(seconds)

    return read


def whole_number(least: int, most: int) -> Callable[[str], int]:
    def read(raw: str) -> int:
        if not re.fullmatch(r"[0-9]{1,18}", raw) or not least <= int(raw) <= most:
            raise ValueError(f"{raw!r} is not a whole number from {least} to {most}")
        return int(raw)

    return read


def choice(*values: str) -> Callable[[str], str]:
    def read(raw: str) -> str:
        if raw not in values:
            raise ValueError(f"{raw!r} is not one of {', '.join(values)}")
        return raw

    return read


def words(raw: str) -> tuple[str, ...]:
    """Comma separated."""
    return tuple(word for word in (part.strip() for part in raw.split(",")) if word)


def labels(raw: str) -> tuple[tuple[str, str], ...]:
    """Of metrics: `namespace=seedquota,cluster=prod`."""
    found = []
    for word in words(raw):
        name, _, value = word.partition("=")
        if not re.fullmatch("[a-zA-Z_][a-zA-Z0-9_]*", name) or not value:
            raise ValueError(f"{word!r} is not a label and its value, such as namespace=seedquota")
        found.append((name, value))
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class CommonOptions:
    """What both programs take."""

    kubeconfig: Annotated[
        Path | None,
        Flag(path, "kubeconfig of the cluster that the program serves; not set: the pod's ServiceAccount is used"),
    ] = None
    context: Annotated[str | None, Flag(text, "context of that kubeconfig; not set: its current context")] = None
    namespace: Annotated[str, Flag(text, "namespace of this release: its Lease, ledgers and Secrets")] = "seedquota"
    health_address: Annotated[Address, Flag(address, "where /healthz, /readyz and /metrics are, plain HTTP")] = Address(
        "", 8081
    )
    log_format: Annotated[str, Flag(choice("json", "text"), "json for machines, text for people")] = "json"
    log_level: Annotated[str, Flag(choice(*LEVELS), "lowest level that is logged: debug, info, warning or error")] = (
        "info"
    )
    drain_delay: Annotated[
        float, Flag(duration, "after SIGTERM: time for which the program is not ready but still serves")
    ] = 3.0
    stop_timeout: Annotated[float, Flag(duration, "after that: longest time until unfinished work is cut off")] = 20.0

    def problem(self) -> str | None:
        """What is wrong with the options together."""
        return None


OptionsT = TypeVar("OptionsT", bound=CommonOptions)


@dataclass(frozen=True, slots=True)
class Declared:
    """One flag of a program. `default` is None when it is required, and empty when it is simply not set."""

    name: str
    flag: Flag
    default: str | None

    @property
    def option(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return ENVIRONMENT_PREFIX + self.name.upper()


def parse(
    options: type[OptionsT],
    program: str,
    description: str,
    arguments: Sequence[str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> OptionsT:
    """Reads the command line and the environment. Exits with status 2 and a line on stderr when they cannot be used."""
    environment = os.environ if environment is None else environment
    flags = declared(options)
    parser = _parser(flags, program, description)
    given = vars(parser.parse_args(sys.argv[1:] if arguments is None else arguments))
    values: dict[str, object] = {}
    missing: list[str] = []
    for entry in flags:
        value, source = given[entry.name], entry.option
        if value is None:
            value, source = environment.get(entry.variable) or None, entry.variable
        if value is not None:
            try:
                values[entry.name] = entry.flag.read(value)
            except ValueError as error:
                parser.error(f"{source}: {error}")
        elif entry.default is None:
            missing.append(f"{entry.option} (or {entry.variable})")
    if missing:
        parser.error(f"missing: {', '.join(missing)}")
    build: Callable[..., OptionsT] = options
    built = build(**values)
    problem = built.problem()
    if problem is not None:
        parser.error(problem)
    return built


def declared(options: type[CommonOptions]) -> list[Declared]:
    """The required ones first: they are what somebody who asks for help is missing."""
    hints = get_type_hints(options, include_extras=True)
    found = []
    for entry in fields(options):
        (flag,) = (note for note in hints[entry.name].__metadata__ if isinstance(note, Flag))
        default = None if entry.default is MISSING else _shown(entry.default) + flag.unit
        found.append(Declared(entry.name, flag, default))
        assert not _SERVICE_VARIABLE.search(found[-1].variable), f"{entry.name} has the name of a Service's variable"
    return sorted(found, key=lambda entry: entry.default is not None)


def _parser(flags: Sequence[Declared], program: str, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program,
        usage=f"{program} [flags]",
        description=description,
        epilog="Durations are written 15s, 1m30s or 250ms. A flag wins over its environment variable.",
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=8, width=HELP_WIDTH),
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"{program} {build_version()}", help="show the version")
    for entry in flags:
        default = "required" if entry.default is None else f"default {entry.default}" if entry.default else "not set"
        explanation = f"{entry.flag.what} [{default}; {entry.variable}]"
        metavar = entry.name.rpartition("_")[2].upper()
        parser.add_argument(entry.option, dest=entry.name, metavar=metavar, help=explanation.replace("%", "%%"))
    return parser


def _shown(default: object) -> str:
    """A default as a user would write it. Floats are durations."""
    if default is None:
        return ""
    if isinstance(default, float):
        return f"{default:g}s"
    if isinstance(default, tuple):
        return ",".join(default)
    return str(default)
