"""The conditions: what the CRDs say of each, and every reason that the code gives one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path

from devcluster.reference.fields import crds
from devcluster.reference.markdown import code, table

ROOT = Path(__file__).parents[2]

_HEAD = """\
# Conditions

What to do about a condition that is bad is in [Conditions that are bad](../how-to/conditions.md).
"""
_SET = (
    "These reasons stand in the code with their condition. A condition can also repeat the reason of another "
    "condition or object, or have one that is computed. The list above names those reasons, too."
)
_STATUS = {"True": "True", "False": "False", "None": "Unknown"}
_PROOF_OR_PROBLEM = {"Problem", "Proof"}
_REASON = re.compile(r"[A-Z][A-Za-z]+")

# The modules that decide them.
_BY_MASTER = {
    "ResourceQuota": ("master/quotas/*.py",),
    "ResourceQuotaAllocation": ("master/tenancy/quota_allocations.py",),
    "Seed": ("master/reporting/seed_*.py", "master/seeds/*.py"),
    "Project": ("master/reporting/tenant_*.py",),
    "QuotaNotification": ("master/notifications/*.py",),
    "Organization": ("master/reporting/tenant_conditions.py", "master/tenancy/organization_namespaces.py"),
}
_BY_SEED = {
    "Seed": ("seed/registration/health.py",),
    "UserCluster": tuple(
        f"seed/{name}/*.py" for name in ("controllers", "kinds/*", "usage", "registration", "sizing", "cache")
    ),
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
            for scope in _scopes(tree):
                for node in ast.walk(scope):
                    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "condition":
                        kinds, statuses, reasons = (_literals(argument, scope, tree) for argument in node.args[:3])
                        yield from product(kinds, [_STATUS.get(status, status) for status in statuses], reasons)


def _scopes(tree: ast.Module) -> Iterator[ast.AST]:
    """Functions, since two of them may have a variable of one name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _seeds_own(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        reason: ast.expr | None = None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _PROOF_OR_PROBLEM:
            reason = node.args[1 if node.func.id == "Proof" else 0] if node.args else None
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "condition":
            reason = node.args[2]
        if reason is not None:
            yield from (found for found in _literals(reason, tree, tree) if _REASON.fullmatch(found))


def _literals(node: ast.expr, scope: ast.AST, tree: ast.Module) -> list[str]:
    """A literal's value; of a choice both; of a name the literals that are assigned to it in the scope, or else at the
    top of the module."""
    if isinstance(node, ast.Constant):
        return [str(node.value)]
    if isinstance(node, ast.IfExp):
        return [*_literals(node.body, scope, tree), *_literals(node.orelse, scope, tree)]
    if isinstance(node, ast.Name):
        return _assigned(node.id, ast.walk(scope)) or _assigned(node.id, tree.body)
    return []


def _assigned(name: str, nodes: Iterable[ast.AST]) -> list[str]:
    return [
        str(node.value.value)
        for node in nodes
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Constant)
        and any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
    ]


def _trees(path: str) -> Iterator[ast.Module]:
    for file in sorted(ROOT.glob(path)):
        yield ast.parse(file.read_text())
