"""The image's bill of materials, in CycloneDX's JSON: what is installed under ROOT, and Python.

    python sbom.py ROOT > sbom.cdx.json

The same input gives the same text: it has no time and no random number.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
import uuid
from pathlib import Path

PRODUCT = "seedquota"

Component = dict[str, object]


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def component(found: importlib.metadata.Distribution) -> Component:
    name, version = canonical(found.metadata["Name"]), found.version
    purl = f"pkg:pypi/{name}@{version}"
    made: Component = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    said = found.metadata.json
    declared = said.get("license_expression") or said.get("license") or ""
    if isinstance(declared, str) and declared and "\n" not in declared and len(declared) < 100:
        made["licenses"] = [{"license": {"name": declared}}]
    return made


def bill(root: Path) -> dict[str, object]:
    directories = sorted({str(path.parent) for path in root.rglob("*.dist-info")})
    found = {canonical(each.metadata["Name"]): each for each in importlib.metadata.distributions(path=directories)}
    product = component(found.pop(PRODUCT))
    python = ".".join(map(str, sys.version_info[:3]))
    purl = f"pkg:generic/python@{python}"
    interpreter: Component = {"type": "platform", "bom-ref": purl, "name": "python", "version": python, "purl": purl}
    components = [interpreter, *(component(found[name]) for name in sorted(found))]
    content = json.dumps([product, components], sort_keys=True)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, content)}",
        "version": 1,
        "metadata": {"component": {**product, "type": "application"}},
        "components": components,
    }


if __name__ == "__main__":
    print(json.dumps(bill(Path(sys.argv[1])), indent=2))
