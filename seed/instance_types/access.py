"""Which cloud a Machine's size is asked of, and with whose credentials. Decided once, from one read of each reference.

Two rules hold for every provider. A size counts only from an endpoint that the platform has named, so no request goes
to another one. Credentials are used as one set: those of the platform, or those of the tenant, never a part of each.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from seed.providers.flavour import Lookup, Origin, Reference, Setting, Settings
from seed.providers.size import CredentialsMissing, EndpointNotAllowed, NotSized


@dataclass(frozen=True, slots=True)
class Environment:
    """What the platform says of one user cluster's cloud, by the names of machine-controller's variables.

    `named`: how messages call it. `own`: it is this program's own. `places`: where a variable stands, for messages, if
    it does not stand in `named` under its name.
    """

    values: Mapping[str, str] = field(repr=False)
    named: str
    own: bool = False
    places: Mapping[str, str] = field(default_factory=dict)

    def place_of(self, variable: str) -> str:
        return self.places.get(variable) or f"{variable} in {self.named}"


class Read(NamedTuple):
    """What a reference held, or why there is no text. `refused`: it was not looked at, so it may hold one."""

    value: str
    problem: str = ""
    refused: bool = False


ReadReference = Callable[[Reference], Awaitable[Read]]
"""Raises ProviderUnavailable."""

ReadFile = Callable[[str], Awaitable[str | None]]
"""The text of the file with this path; None if it cannot be read."""


@dataclass(frozen=True, slots=True)
class Access:
    """`where` a cloud is, in the platform's words, and the `credentials` that are sent there: see Settings.origin."""

    where: Settings
    credentials: Callable[[], Awaitable[Settings]]


async def decide(lookup: Lookup, environment: Environment, read: ReadReference, read_file: ReadFile) -> Access:
    """Raises NotSized and ProviderUnavailable.

    Where `credentials` also decide which cloud it is (two accounts of a private cloud may see different sizes), they
    are all read now. Otherwise they are read when somebody must ask.
    """
    deciding = _Deciding(lookup, environment, read, read_file)
    origin = Origin.PLATFORM
    if not lookup.credentials.keys().isdisjoint(lookup.where):
        origin = await deciding.origin()
    where = await deciding.where(origin)
    return Access(where, deciding.credentials)


class _Deciding:
    """One decision. A reference is read once for all of it."""

    def __init__(self, lookup: Lookup, environment: Environment, read: ReadReference, read_file: ReadFile) -> None:
        self._lookup = lookup
        self._environment = environment
        self._read = read
        self._read_file = read_file
        self._given: dict[Reference, Read] = {}

    async def origin(self) -> Origin:
        """Of the credentials: the tenant's as soon as the Machine has one of them of its own.

        A secret is not compared with the platform's: the answer would tell whether it was guessed.
        """
        for setting in self._lookup.credentials.values():
            given = (await self._of_machine(setting)).value
            same = setting.identifier and given == self._environment.values.get(setting.variable, "")
            if given and not setting.scope and not same:
                return Origin.TENANT
        return Origin.PLATFORM

    async def where(self, origin: Origin) -> Settings:
        lookup = self._lookup
        values: dict[str, str] = {}
        missing: dict[str, str] = {}
        for name, setting in lookup.where.items():
            if name in lookup.credentials:
                found = await self._credential(setting, origin)
            else:
                found = await self._of_machine(setting)
                if found.refused:
                    raise NotSized(lookup.provider, f"{name} is missing{found.problem}: write it in the Machine")
                if name == lookup.endpoint:
                    found = self._endpoint(name, setting, found)
                elif not found.value:
                    found = await self._of_platform(setting, found)
            values[name] = found.value
            missing[name] = self._how_to_set(name, setting, found, origin)
        return Settings(lookup.provider, values, missing, NotSized, self._referred(lookup.where), origin)

    async def credentials(self) -> Settings:
        lookup = self._lookup
        origin = await self.origin()
        values: dict[str, str] = {}
        missing: dict[str, str] = {}
        for name, setting in lookup.credentials.items():
            found = await self._credential(setting, origin)
            values[name] = found.value
            missing[name] = self._how_to_set(name, setting, found, origin)
        referred = self._referred(lookup.credentials)
        return Settings(lookup.provider, values, missing, CredentialsMissing, referred, origin)

    def _endpoint(self, name: str, setting: Setting, given: Read) -> Read:
        """The platform's own text, which may have more than the host, such as the authority to trust."""
        lookup = self._lookup
        platforms = self._environment.values.get(setting.variable, "")
        if given.value:
            asked = lookup.identity(given.value)
            if not platforms or asked != lookup.identity(platforms):
                raise EndpointNotAllowed(
                    lookup.provider,
                    f"{name} is not one that the platform has named, so its sizes do not count: use the platform's, "
                    f"or have an administrator set {self._environment.place_of(setting.variable)}",
                )
        return Read(platforms, given.problem)

    async def _credential(self, setting: Setting, origin: Origin) -> Read:
        given = await self._of_machine(setting)
        if origin is Origin.TENANT:
            return given
        if setting.scope and given.value:
            return given
        return await self._of_platform(setting, given)

    async def _of_machine(self, setting: Setting) -> Read:
        reference = setting.reference
        if reference is None:
            return Read(setting.value)
        if reference not in self._given:
            self._given[reference] = await self._read(reference)
        return self._given[reference]

    async def _of_platform(self, setting: Setting, given: Read) -> Read:
        """`given`: what the Machine has, for the reason why that is nothing."""
        environment = self._environment
        # Whoever fills a Secret must not choose among the files of this program, or whom it asks for its own keys.
        if not environment.own and (setting.file or setting.own):
            return Read("", given.problem, given.refused)
        value = environment.values.get(setting.variable, "")
        if value and setting.file:
            content = await self._read_file(value)
            if content is None:
                return Read("", f": the file that {setting.variable} names cannot be read")
            return Read(content)
        return Read(value, given.problem, given.refused)

    def _referred(self, wanted: Mapping[str, Setting]) -> list[str]:
        return [name for name, setting in wanted.items() if setting.reference is not None]

    def _how_to_set(self, name: str, setting: Setting, found: Read, origin: Origin) -> str:
        if setting.platform or name == self._lookup.endpoint:
            return f": set {self._environment.place_of(setting.variable)}"
        how = found.problem or ": set it in the Machine"
        if not setting.variable or (found.problem and not found.refused):
            return how
        if origin is Origin.TENANT:
            return f"{how}; what the platform has is not used beside credentials that the Machine names"
        place = self._environment.place_of(setting.variable)
        return f"{how}, or {'set ' if found.problem else ''}{place}"
