"""What the CRDs and the runbooks say of conditions: every type and reason that they name is one that the code sets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CODE = "\n".join(
    path.read_text() for package in ("common", "master", "seed") for path in (ROOT / package).rglob("*.py")
)
NAME = re.compile(r"\b[A-Z][a-z]+(?:[A-Z]+[a-z]*)*\b")
WORD = re.compile(r"\b[A-Z][A-Za-z]*[a-z][A-Z][A-Za-z]*\b")
"""Such as WebhookMissing; a word of one part may be just a word."""


def is_set(name: str) -> bool:
    return f'"{name}"' in CODE


@pytest.mark.parametrize("path", sorted((ROOT / "charts" / "crds").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_crds_name_no_type_and_no_reason_that_is_never_set(path: Path) -> None:
    (version,) = yaml.safe_load(path.read_text())["spec"]["versions"]
    status = version["schema"]["openAPIV3Schema"]["properties"].get("status", {})
    text = status.get("properties", {}).get("conditions", {}).get("description", "")
    types = re.findall(r"^(\w+): ", text, re.MULTILINE)
    types += [name for both in re.findall(r"(\w+) and (\w+) exist only", text) for name in both]
    listed = [
        name for part in re.findall(r"\(([^)]*)\)|otherwise ([^.]*)\.", text) for name in NAME.findall(" ".join(part))
    ]
    assert [name for name in (*types, *listed) if not is_set(name)] == []


def code_by_kind() -> dict[str, str]:
    """What writes the status of each kind, since others have conditions and fields of the same name."""

    def text(*patterns: str) -> str:
        return "".join(path.read_text() for pattern in patterns for path in sorted(ROOT.glob(pattern)))

    tenants, _, organizations = text("master/reporting/tenant_status.py").partition("def _organization(")
    conditions = text("master/reporting/tenant_conditions.py")
    assert "self._on_seeds(" in tenants and "self._on_seeds(" in organizations.partition("def _on_seeds")[0]
    return {
        "localresourcequota": text("seed/projections/local_quota.py"),
        "localresourcequotaallocation": text("seed/projections/local_quota.py"),
        "organization": organizations + conditions,
        "quotanotification": text("master/notifications/*.py"),
        "project": tenants + organizations.partition("def _quotas(")[2] + conditions,
        "resourcequotaallocation": text("master/tenancy/quota_allocations.py"),
        "resourcequota": text("master/quotas/*.py", "master/seeds/status_publisher.py", "seed/accounts/*.py"),
        "seed": text("master/reporting/seed_*.py", "master/seeds/cluster_record.py", "seed/controllers/seed_status.py"),
        "usercluster": text(
            "seed/controllers/user_cluster*.py",
            "seed/controllers/cloud_quotas.py",
            "seed/kinds/machines/cluster_identity.py",
        ),
    }


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])([A-Z])", r"_\1", name).lower()


def test_the_columns_show_only_what_is_set() -> None:
    code = code_by_kind()
    for path in sorted((ROOT / "charts" / "crds").glob("*.yaml")):
        (version,) = yaml.safe_load(path.read_text())["spec"]["versions"]
        for column in version["additionalPrinterColumns"]:
            shown = re.fullmatch(r'\.status\.(?:conditions.*=="(\w+)".*|.*?(\w+))', column["jsonPath"])
            if shown is not None:
                name = shown[1] or shown[2]
                assert re.search(rf'"{name}"|\b{snake(name)}=', code[path.stem]), (path.stem, column["name"])


def test_every_field_of_a_status_is_set() -> None:
    for kind, code in code_by_kind().items():
        (version,) = yaml.safe_load((ROOT / "charts" / "crds" / f"{kind}.yaml").read_text())["spec"]["versions"]
        fields = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
        for name in fields:
            assert re.search(rf'"{name}"|\b{snake(name)}=', code), (kind, name)


def test_the_runbooks_name_no_reason_that_is_never_set() -> None:
    page = (ROOT / "docs" / "how-to" / "conditions.md").read_text()
    rows = [line.split("|") for line in page.splitlines() if line.startswith("|")][2:]
    named = {name for row in rows for cell in row[2:4] for name in WORD.findall(cell.replace("`", " "))}
    assert len(named) > 20
    kinds = {"UserCluster", "UserClusters"}
    assert sorted(name for name in named - kinds if not is_set(name)) == []
