"""What a Machine costs, by its stamp, its own spec, or its cloud."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Collection

import msgspec

from common.api.types import UserCluster
from common.runtime.lru import LruByOwner
from seed.instance_types.cache import FlavourCache, Question
from seed.instance_types.catalogue import Known
from seed.instance_types.settings import SettingsReader
from seed.machines.footprint import evaluate
from seed.machines.machine_controller import Machine
from seed.providers import CLOUDS, PROVIDERS
from seed.providers.flavour import ALL, AccountQuota, Lookup, Place, type_name
from seed.providers.size import Footprint, NotSized, ProviderUnavailable
from seed.providers.spec import Spec
from seed.sizing import stamp
from seed.sizing.stamp import CheckSeal, Seal, State

MAX_PLACES_KEPT = 4096  # of one user cluster


class Sized(msgspec.Struct, frozen=True):
    """`flavour`, where it is sold and when the cloud said how big it is; empty where the Machine's spec tells all.

    `digest`: of the place.
    """

    footprint: Footprint
    flavour: str = ""
    place: str = ""
    as_of: str = ""
    digest: str = ""


class Sizing:
    def __init__(
        self,
        cache: FlavourCache,
        settings: SettingsReader,
        seal: Seal,
        check: CheckSeal,
        enabled: Collection[str] = tuple(PROVIDERS),
    ) -> None:
        """`enabled`: the providers whose Machines are sized; a stamp of another one still tells its size."""
        self._enabled = frozenset(enabled)
        self._cache = cache
        self._settings = settings
        self._seal = seal
        self._check = check
        # by cluster uid, and hash of the provider spec
        self._places: LruByOwner[str, Place] = LruByOwner(MAX_PLACES_KEPT)

    def stamped(self, cluster_uid: str, machine: Machine) -> tuple[State, Footprint | None]:
        state, found = stamp.read(machine, cluster_uid, self._check)
        return state, found.cost() if found is not None else None

    def make_stamp(self, cluster_uid: str, machine: Machine, sized: Sized) -> str:
        return stamp.make(
            machine, cluster_uid, sized.footprint, sized.flavour, sized.as_of, self._seal, place=sized.digest
        )

    def tampered(self, cluster_uid: str, machine: Machine, old: Machine | None) -> bool:
        return stamp.tampered(machine, old, cluster_uid, self._check)

    def counted(self, cluster_uid: str, machine: Machine) -> Footprint:
        """As it stands in a count, at once: by its stamp, or by what is known. Raises NotSized, ProviderUnavailable."""
        _, found = self.stamped(cluster_uid, machine)
        return found if found is not None else self.known(cluster_uid, machine).footprint

    def known(self, cluster_uid: str, machine: Machine) -> Sized:
        """Without its stamp and without asking anybody. Raises NotSized, and ProviderUnavailable for what to ask."""
        found = self._evaluated(machine)
        if not isinstance(found, Lookup):
            return Sized(found)
        place = self._places.get(cluster_uid, stamp.spec_hash(machine))
        known = self._cache.known(place, found.flavour) if place is not None else None
        if place is None or known is None:
            raise ProviderUnavailable(found.provider, "is being asked")
        return _complete(found, place, known)

    def read(self, machine: Machine) -> Footprint | Lookup:
        """By its spec alone; or what a cloud must be asked. Raises NotSized."""
        return self._evaluated(machine)

    async def admitted(self, cluster: UserCluster, machine: Machine, deadline: float) -> Footprint:
        """As admission sees it: by a stamp of the place that it names now, or like `size`."""
        found = await self.stamped_here(cluster, machine, deadline)
        if found is None:
            found = (await self.size(cluster, machine, deadline)).footprint
        found.require()
        return found

    async def stamped_here(self, cluster: UserCluster, machine: Machine, deadline: float) -> Footprint | None:
        """By its stamp, if that is of the place that the Machine leads to now. No cloud is asked.

        A spec with references may lead elsewhere than when it was stamped, and somebody may have copied the stamp.
        Raises NotSized, and ProviderUnavailable for a reference that cannot be read.
        """
        state, found = stamp.read(machine, cluster.metadata.uid, self._check)
        if found is None or state is not State.VALID:
            return None
        lookup = evaluate(machine) if found.flavour else None
        if isinstance(lookup, Lookup) and lookup.provider in self._enabled:
            question = await self._question(cluster, lookup, deadline)
            if question.place.digest != found.place:
                return None
        return found.cost()

    async def size(self, cluster: UserCluster, machine: Machine, deadline: float) -> Sized:
        """By asking, where that is needed, until `deadline` (event loop's clock).

        Raises NotSized, and ProviderUnavailable for what cannot be known in time.
        """
        found = self._evaluated(machine)
        if not isinstance(found, Lookup):
            return Sized(found)
        question = await self._question(cluster, found, deadline)
        self._remember(cluster.metadata.uid, machine, question.place)
        return _complete(found, question.place, await self._cache.find(question, deadline))

    async def catalogue_of(self, cluster: UserCluster) -> Question | None:
        """What to ask for all that there is where the user cluster is, by its own word; None if that cannot be asked.

        Raises NotSized and ProviderUnavailable.
        """
        declared = cluster.spec.provider
        cloud = CLOUDS.get(declared.name) if declared is not None and declared.name in self._enabled else None
        if declared is None or cloud is None or cloud.least_spec is None:
            return None
        least = msgspec.json.encode(cloud.least_spec(declared.region))
        found = PROVIDERS[declared.name](Spec(declared.name, least, ""))
        assert isinstance(found, Lookup), "the least spec names a type that must be asked for"
        return await self._question(cluster, dataclasses.replace(found, flavour=ALL))

    async def account_quota(self, cluster: UserCluster) -> tuple[Place, AccountQuota] | None:
        """What the cloud lets the user cluster's account have; None if it cannot be asked for that.

        Raises NotSized and ProviderUnavailable.
        """
        cloud = CLOUDS.get(cluster.spec.provider.name) if cluster.spec.provider is not None else None
        if cloud is None or cloud.quota is None:
            return None
        question = await self.catalogue_of(cluster)
        return (question.place, await self._cache.account_quota(question)) if question is not None else None

    async def close(self) -> None:
        """The cache and the settings with it."""
        await self._cache.close()
        await self._settings.close()

    def _evaluated(self, machine: Machine) -> Footprint | Lookup:
        try:
            found = evaluate(machine)
        except NotSized as error:
            self._require_on(error.provider)
            raise
        self._require_on(found.provider)
        return found

    def _require_on(self, provider: str) -> None:
        if provider in PROVIDERS and provider not in self._enabled:
            on = f"those of {', '.join(sorted(self._enabled))} can" if self._enabled else "none is named yet"
            raise NotSized(
                "",
                f"cloudProvider {provider} is not named by --providers of seedquota-seed, so it cannot be sized; {on}",
            )

    async def _question(self, cluster: UserCluster, lookup: Lookup, deadline: float | None = None) -> Question:
        try:
            async with asyncio.timeout_at(deadline):
                access = await self._settings.access(cluster, lookup)
        except TimeoutError:
            raise ProviderUnavailable(lookup.provider, "has settings that cannot be read in time") from None
        cloud = CLOUDS[lookup.provider]
        return Question(
            cloud=cloud,
            place=cloud.place(access.where),
            flavour=lookup.flavour,
            where=access.where,
            credentials=access.credentials,
            asker=cluster.metadata.uid,
        )

    def _remember(self, cluster_uid: str, machine: Machine, place: Place) -> None:
        self._places.keep(cluster_uid, stamp.spec_hash(machine), place)


def _complete(lookup: Lookup, place: Place, known: Known) -> Sized:
    flavour = known.flavour.name or lookup.flavour  # an id in the spec counts as the name does
    cost = lookup.complete(known.flavour).of_type(type_name(flavour))
    return Sized(cost, flavour, str(place), known.as_of, place.digest)
