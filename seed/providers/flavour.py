"""Sizes that only a cloud knows: what a provider asks, where, with which credentials, and what it is answered.

Pure: the caller passes what does I/O, see `Query`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from ipaddress import ip_address
from types import MappingProxyType
from typing import Protocol, TypeVar

import msgspec

from common.kube.client.meta import Object
from common.kube.client.resource import Resource
from common.quota.resources import ResourceList
from seed.providers.size import Footprint, NotSized, footprint

T = TypeVar("T")
ObjectT = TypeVar("ObjectT", bound=Object)

_NOTHING: Mapping[str, str] = MappingProxyType({})
MAX_BODY = 8 * 2**20
"""Bytes of one answer of a cloud, where nothing else is said."""

MAX_VALUES = 250_000
"""In one answer: it is decoded on the event loop, at some ten million a second."""

MAX_BODY_OF_ANY_HOST = 2 * 2**20
"""... where somebody else than the platform may have named the host: it is decoded on the event loop."""


@dataclass(frozen=True, slots=True)
class Flavour:
    """What a machine type brings, in nanos: `cpu` (cores), `memory` (bytes), `devices` by qualified name.

    `storage` is its root disk in bytes: None where the type has none, a text where it has one of unknown size (why).
    `name`: of the type, where a spec may have its id instead; otherwise empty.
    """

    cpu: int
    memory: int
    storage: int | str | None = None
    devices: ResourceList = field(default_factory=dict)
    name: str = ""


class Origin(Enum):
    """Who named something: the platform, in this program's environment, the UserCluster's Secret, or Kubermatic's
    Cluster and Seed; or the tenant, in a Machine or in what it refers to."""

    PLATFORM = "platform"
    TENANT = "tenant"


@dataclass(frozen=True, slots=True)
class Reference:
    """A key of a Secret or ConfigMap in the user cluster."""

    kind: str
    namespace: str
    name: str
    key: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name} key {self.key}"


@dataclass(frozen=True, slots=True)
class Setting:
    """Where one text of a provider's configuration stands, as machine-controller looks for it.

    First the reference, then the value in the Machine, then the environment, see seed/instance_types/access.py. `own`:
    only in the environment of this program. `file`: the same, and the variable names a file that has the text.
    `platform`: no field of a Machine says it. `scope`: it says whose resources are asked for and is no credential, so a
    Machine may set it beside credentials of the platform. `identifier`: it is no secret either, and where a Machine has
    the same as the platform, it is the platform's. `repr` shows no value.
    """

    value: str = field(default="", repr=False)
    reference: Reference | None = None
    variable: str = ""
    file: bool = False
    own: bool = False
    platform: bool = False
    scope: bool = False
    identifier: bool = False


class Settings:
    """The texts themselves. They may be secrets: `repr` and errors show names only. `origin`: who named them, where
    they are credentials."""

    def __init__(
        self,
        provider: str,
        values: Mapping[str, str],
        missing: Mapping[str, str] = _NOTHING,
        error: type[NotSized] = NotSized,
        referred: Collection[str] = (),
        origin: Origin = Origin.PLATFORM,
    ) -> None:
        """`missing` says for a name that has no value where one could be set; `error` is what is raised then.

        `referred`: names that the Machine gives by a reference, whether that led to a value or not.
        """
        self.provider = provider
        self.origin = origin
        self._values = {name: value for name, value in values.items() if value}
        self._missing = missing
        self._error = error
        self._referred = frozenset(referred)

    def __getitem__(self, name: str) -> str:
        """Raises NotSized, which names what is missing."""
        try:
            return self._values[name]
        except KeyError:
            raise self.missing(name) from None

    def missing(self, name: str) -> NotSized:
        """Names where it could be set."""
        return self._error(self.provider, f"{name} is missing{self._missing.get(name, '')}")

    def get(self, name: str) -> str:
        """Empty when it is not set."""
        return self._values.get(name, "")

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def meant(self, *names: str, otherwise: str) -> str:
        """The first of them that is set; if none is, the first that the Machine refers to, for an error to name it."""
        for known in (self._values, self._referred):
            for name in names:
                if name in known:
                    return name
        return otherwise

    def __repr__(self) -> str:
        return f"Settings({self.provider}: {', '.join(sorted(self._values))})"

    def items(self) -> tuple[tuple[str, str], ...]:
        return tuple(sorted(self._values.items()))


@dataclass(frozen=True, slots=True)
class Lookup:
    """A Machine whose size must be asked of its cloud: what its spec tells without asking.

    `where`: the settings that decide which cloud is asked; `endpoint` is the one of them that is a host, if the Machine
    can name any, and `identity` makes one text of all texts for the same host. `credentials`: what else asking takes.
    `root`: the size of the root disk in nanos, None for the flavour's own, a text when it is unknown (why).
    `disks`: further disks, in nanos. `devices`: what the Machine adds to the flavour. `count`: how many such machines
    it is, if it is a pool of them.
    """

    provider: str
    flavour: str
    where: Mapping[str, Setting]
    credentials: Mapping[str, Setting]
    endpoint: str = ""
    root: int | str | None = None
    disks: int = 0
    devices: ResourceList = field(default_factory=dict)
    count: int = 1
    identity: Callable[[str], str] = str

    def complete(self, flavour: Flavour) -> Footprint:
        """The Machine's cost, now that its flavour is known."""
        root = flavour.storage if self.root is None else self.root
        storage = root if isinstance(root, str) else (root or 0) + self.disks
        devices = {**flavour.devices}
        for name, amount in self.devices.items():
            devices[name] = devices.get(name, 0) + amount
        one = footprint(self.provider, cpu=flavour.cpu, memory=flavour.memory, storage=storage, devices=devices)
        return one.times(self.count)


def type_name(flavour: str) -> str:
    """What people call a machine type. The flavours of KubeVirt begin with the kind of the instancetype."""
    kind, slash, name = flavour.partition("/")
    return name if slash and kind.startswith("VirtualMachine") else flavour


@dataclass(frozen=True, slots=True)
class Place:
    """One cloud, as far as the sizes of its machine types go. It is part of cache keys and metrics: no secrets.

    `account` only where two accounts may see different sizes by one name, as in private clouds. `str` is for messages:
    `aws eu-central-1`; two private clouds may call their regions alike.
    """

    provider: str
    endpoint: str
    region: str = ""
    account: str = ""

    @property
    def digest(self) -> str:
        """A short text that no other place has. A hash, because a stamp shows it to whoever can read the Machine."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:32]

    def __str__(self) -> str:
        if not self.region:
            return f"{self.provider} {self.endpoint}"
        return f"{self.provider} {self.region}" + (f" at {self.endpoint}" if self.account else "")


@dataclass(frozen=True, slots=True)
class Catalogue:
    """What one question brought: every flavour that was learned, perhaps many more than asked for.

    A flavour that was asked for and is in neither `flavours` nor `unreadable` does not exist. `names`: others that
    exist, for suggestions. `unreadable`: those whose size cannot be read in the answer, and why.
    """

    flavours: Mapping[str, Flavour]
    names: tuple[str, ...] = ()
    unreadable: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AccountQuota:
    """What the cloud lets these credentials' account have where it was asked, and what that has: `cpu`, `memory` and
    `machines` in nanos. Without what has no limit there, or what the cloud does not tell."""

    limits: ResourceList
    used: ResourceList


class CloudError(Exception):
    """The cloud did not answer as it should: asking again may help. `str()` goes to users and holds no secret.

    `refused`: it does not take these credentials, so it is not the cloud that fails. `retry_after` in seconds.
    """

    def __init__(self, reason: str, *, refused: bool = False, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.refused = refused
        self.retry_after = retry_after


class Unreadable(Exception):
    """One entry of an answer cannot be read. `str()` says what in it; it goes to users and holds no secret."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer. `headers` by lower-case name."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self, shape: type[T], most: int = MAX_VALUES) -> T:
        """Raises CloudError when it is anything else, or holds more than about so many values."""
        if self.body.count(b",") > most:
            raise CloudError(f"answers more than {most} values")
        try:
            return msgspec.json.decode(self.body, type=shape)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise CloudError("answers what cannot be read") from error


def only_429(_answer: Answer) -> str:
    """Of a cloud that says so by 429 and nothing else."""
    return ""


_NEARBY = frozenset({"169.254.169.254", "169.254.170.2", "169.254.170.23", "fd00:ec2::23", "localhost"})


def is_nearby(host: str) -> bool:
    """On this machine, or on the link where AWS gives keys to it: requests need no TLS and use no proxy."""
    try:
        return host in _NEARBY or ip_address(host).is_loopback
    except ValueError:
        return False


Headers = Mapping[str, str] | Callable[[], Mapping[str, str]]
"""Of a request; a function makes them anew for each attempt (a signature that serves only once)."""


class Http(Protocol):
    """Requests of one fetch, bounded together in time. HTTPS only, except on this machine; follows no redirect."""

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Headers = _NOTHING,
        query: Mapping[str, str] = _NOTHING,
        body: bytes = b"",
        ca: str = "",
        timeout: float = 10.0,
        attempts: int = 4,
        throttled: Callable[[Answer], str] = only_429,
        max_body: int = MAX_BODY,
    ) -> Answer:
        """The answer with a status of 2xx, or a 4xx that the provider reads for itself.

        Connections that fail, timeouts, 5xx and 429 are tried again, then raise CloudError; 401, 403 and redirects
        raise CloudError(refused). `ca`: PEM of the only authorities to trust instead of the usual ones. `timeout` is
        for each attempt. `throttled`: the cloud's own word for too many requests, where it says so by a code in an
        error's body instead of by 429; empty where it says something else. `max_body`: bytes of an answer.
        """

    async def kubernetes(
        self, kubeconfig: str, resource: Resource[ObjectT], name: str, namespace: str | None = None
    ) -> ObjectT | None:
        """An object of another cluster; None if there is none. Raises CloudError."""


@dataclass(frozen=True, slots=True)
class Session:
    """What signing in gave, for `lifetime` seconds: a token, or temporary keys, by names of the provider's choice."""

    values: Mapping[str, str] = field(repr=False)
    lifetime: float


SignIn = Callable[[], Awaitable[Session]]


ALL = ""
"""The flavour of a question for all that the place has."""


@dataclass(frozen=True, slots=True)
class Query:
    """One question to one cloud, and what there is to ask it with."""

    place: Place
    flavour: str
    where: Settings
    credentials: Settings
    http: Http
    sign_in: Callable[[SignIn], Awaitable[Mapping[str, str]]]
    """Hands out the session of these credentials, and makes one when there is none or it was refused."""


@dataclass(frozen=True, slots=True)
class Cloud:
    """What a provider adds to its `size` when that returns a Lookup.

    `place`: pure; raises NotSized for a setting that is missing or malformed. `fetch`: asks; raises CloudError, and
    NotSized for credentials that are missing. `lists`: one answer holds all flavours of the place.
    `least_spec`: what a Machine in a region must say at least; None where `fetch` cannot be asked for ALL. `quota`:
    asks for the account's own quota, and raises as `fetch`; None where it is not known how.
    """

    place: Callable[[Settings], Place]
    fetch: Callable[[Query], Awaitable[Catalogue]]
    lists: bool
    least_spec: Callable[[str], Mapping[str, object]] | None = None
    quota: Callable[[Query], Awaitable[AccountQuota]] | None = None
