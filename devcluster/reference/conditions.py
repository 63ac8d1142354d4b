"""The conditions: what the CRDs say of each, and every reason that the code gives one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from devcluster.reference.fields import crds
from devcluster.reference.markdown import code, table

ROOT = Path(__file__).parents[2]

_HEAD = """\
# Conditions

What to do about a condition that is bad is in [operations](../operations.md#conditions-that-are-bad).
"""
_SET = "Every reason that the code sets, beside those above where a condition passes on another's:"
_STATUS = {"True": "True", "False": "False", "None": "Unknown"}
_PROOF_OR_PROBLEM = {"Problem", "Proof"}
_REASON = re.compile(r"[A-Z][A-Za-z]+")

# The modules that decide them.
_BY_MASTER = {
    "ResourceQuota": ("master/quotas/*.py",),
    "ResourceQuotaAllocation": ("master/tenancy/quota_allocations.py",),
    "Seed": ("master/reporting/seed_*.py", "master/seeds/*.py"),
    "Project": ("master/reporting/tenant_*.py",),
    "Organization": ("master/reporting/tenant_conditions.py", "master/tenancy/organization_namespaces.py"),
}
_BY_SEED = {
    "Seed": ("seed/registration/health.py",),
    "UserCluster": tuple(f"seed/{name}/*.py" for name in ("controllers", "usage", "registration", "sizing", "cache")),
}


def page() -> str:
    return "\n".join([_HEAD, *(part for crd in crds() if (part := _kind(crd)))])


def _kind(crd: dict[str, object]) -> str:
    names, versions = crd["names"], crd["versions"]
    assert isinstance(names, dict) and isinstance(versions, list)
    properties = versions[0]["schema"]["openAPIV3Schema"]["properties"].get("status", {}).get("properties", {})
    if "conditions" not in properties:
        return ""
    kind, said = names["kind"], properties["conditions"].get("description", "")
    parts = [f"## {kind}", "\n".join(_described(said))]
    found = sorted(set(set_by_master(kind)))
    if found:
        parts += [_SET, table(("condition", "status", "reason"), [(a, b, code(c)) for a, b, c in found])]
    others = sorted({reason for path in _BY_SEED.get(kind, ()) for tree in _trees(path) for reason in _seeds_own(tree)})
    if others:
        parts.append(f"Reasons that the agent sets: {', '.join(map(code, others))}, and those above.")
    return "\n\n".join(parts) + "\n"


def _described(text: str) -> Iterator[str]:
    for line in re.sub(r"\n(?!\w+: )", " ", text).splitlines():
        name, colon, what = line.partition(": ")
        yield f"- `{name}`: {' '.join(what.split())}" if colon and name.isalpha() else f"- {line}"


def set_by_master(kind: str) -> Iterator[tuple[str, str, str]]:
    """Type, status and reason of each call of `condition` with literals."""
    for path in _BY_MASTER.get(kind, ()):
        for tree in _trees(path):
            for node in ast.walk(tree):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "condition":
                    kinds, statuses, reasons = (_literals(argument, tree) for argument in node.args[:3])
                    for name in kinds:
                        for status in statuses:
                            for reason in reasons:
                                yield name, _STATUS.get(status, status), reason


def _seeds_own(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        reason: ast.expr | None = None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _PROOF_OR_PROBLEM:
            reason = node.args[1 if node.func.id == "Proof" else 0] if node.args else None
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "condition":
            reason = node.args[2]
        if reason is not None:
            yield from (found for found in _literals(reason, tree) if _REASON.fullmatch(found))


def _literals(node: ast.expr, tree: ast.AST) -> list[str]:
    """A literal's value; of a choice both; of a name the literals that are assigned to it in the module."""
    if isinstance(node, ast.Constant):
        return [str(node.value)]
    if isinstance(node, ast.IfExp):
        return [*_literals(node.body, tree), *_literals(node.orelse, tree)]
    if isinstance(node, ast.Name):
        return [
            str(assigned.value.value)
            for assigned in ast.walk(tree)
            if isinstance(assigned, ast.Assign)
            and isinstance(assigned.value, ast.Constant)
            and any(isinstance(target, ast.Name) and target.id == node.id for target in assigned.targets)
        ]
    return []


def _trees(path: str) -> Iterator[ast.AST]:
    for file in sorted(ROOT.glob(path)):
        yield ast.parse(file.read_text())
