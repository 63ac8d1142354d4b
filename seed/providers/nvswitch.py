"""NVSwitches: bridges between NVIDIA's GPUs, which a guest of all eight GPUs of a host is given beside them. They have
NVIDIA's vendor ID, and names of GPUs' models, but are no GPUs.

https://pci-ids.ucw.cz/read/PC/10de, with names such as `GH100 [H100 NVSwitch]`, of which NVIDIA's plugin for KubeVirt
makes `nvidia.com/GH100_H100_NVSWITCH`.
"""

from __future__ import annotations

import re

_IDS = frozenset({0x1AF1, 0x22A3})  # of A100 and H100
_NAME = re.compile(r"nvswitch|10de[_:-](?:1af1|22a3)", re.IGNORECASE)


def is_nvswitch(device_id: int) -> bool:
    """Of NVIDIA's."""
    return device_id in _IDS


def is_called_nvswitch(name: str) -> bool:
    return _NAME.search(name) is not None
