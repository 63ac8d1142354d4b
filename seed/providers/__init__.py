"""The clouds whose Machines can be sized, by the name in `cloudProvider`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from seed.providers import anexia, fake, kubevirt, nutanix, vmware_cloud_director, vsphere
from seed.providers.size import Provider

PROVIDERS: Mapping[str, Provider] = MappingProxyType(
    {provider.NAME: provider.size for provider in (anexia, fake, kubevirt, nutanix, vmware_cloud_director, vsphere)}
)
