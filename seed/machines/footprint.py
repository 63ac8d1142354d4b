"""What a Machine costs: the one evaluator that admission, counting and preview use, so they cannot disagree."""

from __future__ import annotations

from functools import lru_cache

from common.quota.quantity import UNIT
from common.quota.resources import ResourceList
from seed.machines import infrastructure
from seed.machines.infrastructure import Described
from seed.machines.machine_controller import LONGEST_SPEC, SHARED_BYTES, SHARED_SPECS, TOO_LARGE, Machine
from seed.providers import PROVIDERS, UNSIZED
from seed.providers.flavour import Lookup
from seed.providers.size import Footprint, NotSized
from seed.providers.spec import Spec, quoted


def evaluate(machine: Machine) -> Footprint | Lookup:
    """The Machine's cpu, memory, storage, devices and `machines`, or what its cloud must be asked. Raises NotSized.

    Pure, and cached by the bytes of the provider spec: a million Machines use few distinct ones.
    """
    raw, described = bytes(machine.spec.provider_spec), isinstance(machine.spec, Described)
    outcome = _cached(raw, described) if len(raw) <= SHARED_BYTES else _evaluate(raw, described)
    if isinstance(outcome, NotSized):
        raise NotSized(outcome.provider, outcome.reason)
    return outcome


def footprint(machine: Machine) -> Footprint:
    """The same, where no cloud is asked. Raises NotSized."""
    found = evaluate(machine)
    if isinstance(found, Lookup):
        raise NotSized(found.provider, f"{quoted(found.flavour)} must be asked of the cloud")
    return found


def least(machine: Machine) -> ResourceList:
    """What it costs whatever its size is."""
    if isinstance(machine.spec, Described):
        return infrastructure.least(bytes(machine.spec.provider_spec))
    return {"machines": UNIT}


@lru_cache(maxsize=SHARED_SPECS)
def _cached(raw: bytes, described: bool) -> Footprint | Lookup | NotSized:
    return _evaluate(raw, described)


def _evaluate(raw: bytes, described: bool) -> Footprint | Lookup | NotSized:
    if raw.startswith(TOO_LARGE):
        return NotSized("", f"spec.providerSpec is larger than {LONGEST_SPEC // 1024} KiB")
    try:
        return infrastructure.size(raw) if described else _size(raw)
    except NotSized as error:
        return error.with_traceback(None)


def _size(raw: bytes) -> Footprint | Lookup:
    config = Spec("", raw or b"{}", "spec.providerSpec").inner("value")
    name = config.string("cloudProvider")
    if not name:
        raise config.missing("cloudProvider")
    if name in UNSIZED:
        raise NotSized(name, UNSIZED[name])
    provider = PROVIDERS.get(name)
    if provider is None:
        raise NotSized("", f"cloudProvider {quoted(name)} is not supported; supported: {', '.join(sorted(PROVIDERS))}")
    return provider(config.within(name, "cloudProviderSpec"))
