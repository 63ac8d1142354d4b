"""The clouds whose Machines can be sized, by the name in `cloudProvider`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, ModuleType

from seed.providers import (
    alibaba,
    anexia,
    aws,
    azure,
    digitalocean,
    external,
    fake,
    gcp,
    hetzner,
    kubevirt,
    linode,
    nutanix,
    opennebula,
    openstack,
    scaleway,
    vmware_cloud_director,
    vsphere,
    vultr,
)
from seed.providers.flavour import Cloud
from seed.providers.spec import Provider

_ALL: tuple[ModuleType, ...] = (
    alibaba,
    anexia,
    aws,
    azure,
    digitalocean,
    external,
    fake,
    gcp,
    hetzner,
    kubevirt,
    linode,
    nutanix,
    opennebula,
    openstack,
    scaleway,
    vmware_cloud_director,
    vsphere,
    vultr,
)

PROVIDERS: Mapping[str, Provider] = MappingProxyType({provider.NAME: provider.size for provider in _ALL})
"""What reads the size from the Machine, or what must be asked to know it."""

CLOUDS: Mapping[str, Cloud] = MappingProxyType(
    {provider.NAME: provider.CLOUD for provider in _ALL if hasattr(provider, "CLOUD")}
)
"""What asks, for those of them that return a Lookup."""

_EQUINIX = "Equinix Metal, which ended on 30 June 2026; use another cloudProvider, and delete the Machines of this one"

UNSIZED: Mapping[str, str] = MappingProxyType(
    {
        "baremetal": "names hardware in another cluster, which has no size that can be read",
        "edge": "has no size in its Machine; use cloudProvider external, with cpu, memory and storage",
        "equinixmetal": f"is {_EQUINIX}",
        "packet": f"became {_EQUINIX}",
    }
)
"""The other clouds of machine-controller, and why their Machines cannot be sized."""

ENDED = frozenset({"equinixmetal"})
"""They were in PROVIDERS: a configuration that still names one is not wrong."""
