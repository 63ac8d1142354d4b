"""The clouds whose Machines can be sized, by the name in `cloudProvider`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from seed.providers import (
    alibaba,
    anexia,
    aws,
    azure,
    digitalocean,
    equinixmetal,
    fake,
    gcp,
    hetzner,
    kubevirt,
    nutanix,
    openstack,
    vmware_cloud_director,
    vsphere,
)
from seed.providers.flavour import Cloud
from seed.providers.spec import Provider

PROVIDERS: Mapping[str, Provider] = MappingProxyType(
    {
        provider.NAME: provider.size
        for provider in (
            alibaba,
            anexia,
            aws,
            azure,
            digitalocean,
            equinixmetal,
            fake,
            gcp,
            hetzner,
            kubevirt,
            nutanix,
            openstack,
            vmware_cloud_director,
            vsphere,
        )
    }
)
"""What reads the size from the Machine, or what must be asked to know it."""

CLOUDS: Mapping[str, Cloud] = MappingProxyType(
    {
        cloud.NAME: cloud.CLOUD
        for cloud in (alibaba, aws, azure, digitalocean, equinixmetal, gcp, hetzner, kubevirt, openstack)
    }
)
"""What asks, for those of them that return a Lookup."""
