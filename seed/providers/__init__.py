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
    }
)
"""What reads the size from the Machine, or what must be asked to know it."""

CLOUDS: Mapping[str, Cloud] = MappingProxyType(
    {
        cloud.NAME: cloud.CLOUD
        for cloud in (
            alibaba,
            aws,
            azure,
            digitalocean,
            equinixmetal,
            gcp,
            hetzner,
            kubevirt,
            linode,
            openstack,
            scaleway,
            vultr,
        )
    }
)
"""What asks, for those of them that return a Lookup."""

UNSIZED: Mapping[str, str] = MappingProxyType(
    {
        "baremetal": "names hardware in another cluster, which has no size that can be read",
        "edge": "has no size in its Machine; use cloudProvider external, with cpu, memory and storage",
        "packet": "is called equinixmetal now",
    }
)
"""The other clouds of machine-controller, and why their Machines cannot be sized."""
