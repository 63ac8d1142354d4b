"""What docstrings and comments of the product name exists: files, modules, classes and functions."""

from __future__ import annotations

import ast
import builtins
import io
import keyword
import re
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec
import pytest

from tests.unit.test_size import PRODUCT, ROOT, files

FOLDERS = "|".join((*PRODUCT, "charts", "docs", "image", "tests"))
PATH = re.compile(rf"(?<![\w./<-])((?:{FOLDERS})/[\w*./-]*[\w*])")
FILE = re.compile(r"(?<![\w/.])(\w+\.py)\b")
NAME = re.compile(r"`([A-Za-z_][\w.]*)(?:\([\w., ]*\))?`")
ELSEWHERE = {
    *("EscapeValue", "Add", "SyncJobBatchPeriod", "credentialsReference", "passValidation"),  # in others' code
    *("SEEDQUOTA_SEED_NAME", "CPUS", "e3"),  # made from a flag, and examples
}


class Code(msgspec.Struct):
    """Of one file. `names`: what is defined or used. `words`: of texts. `modules`: what is imported, by name there."""

    prose: list[str]
    names: set[str] = msgspec.field(default_factory=set)
    words: set[str] = msgspec.field(default_factory=set)
    modules: dict[str, str] = msgspec.field(default_factory=dict)


class Class(msgspec.Struct):
    members: set[str]
    bases: set[str]


class Product(msgspec.Struct):
    """`code`: by module. `names`: of all of it, with its words."""

    code: dict[str, Code] = {}
    classes: dict[str, Class] = {}
    names: set[str] = set()


@cache
def product() -> Product:
    """Read when a test asks, since every process that runs tests loads this file."""
    found = Product()
    for path in files():
        read(found, module_of(path), path.read_text())
    found.names.update(*(code.names | code.words for code in found.code.values()))
    found.names.update(module.rpartition(".")[2] for module in found.code)
    return found


def read(into: Product, module: str, text: str) -> None:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    found = into.code[module] = Code([token.string for token in tokens if token.type == tokenize.COMMENT])
    tree = ast.parse(text)
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        found.names.update(names(node))
        match node:
            case ast.Constant(value=str(value)) if id(node) in prose:
                found.prose.append(value)
            case ast.Constant(value=str(value)):
                found.words.update(re.findall(r"\w+", value))
            case ast.ClassDef(name=name):
                known = into.classes.setdefault(name, Class(set(), set()))
                known.members.update(each for part in node.body for inner in ast.walk(part) for each in names(inner))
                known.bases.update(each for base in node.bases for inner in ast.walk(base) for each in names(inner))
            case ast.ImportFrom(module=str(package)):
                found.modules |= {each.asname or each.name: f"{package}.{each.name}" for each in node.names}


def names(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
            yield name
        case ast.alias(name=name, asname=other):
            yield from (other or name).split(".")


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def missing(module: str, prose: str) -> Iterator[str]:
    yield from (path for path in PATH.findall(prose) if not any(ROOT.glob(path)))
    yield from (name for name in FILE.findall(prose) if not any(path.name == name for path in files()))
    yield from (name for name in NAME.findall(prose) if not exists(module, name.split(".")))


def exists(module: str, parts: list[str]) -> bool:
    code = product().code
    first, *rest = parts
    if first in sys.stdlib_module_names and rest:
        return True
    if first in PRODUCT and rest:
        ends = (end for end in range(len(parts), 1, -1) if ".".join(parts[:end]) in code)
        end = next(ends, 0)
        return end == len(parts) or (bool(end) and exists_in(".".join(parts[:end]), parts[end:]))
    if rest and (other := code[module].modules.get(first, "")) in code:
        return exists_in(other, rest)
    if rest and first in product().classes:
        return rest[0] in members(first)
    return all(known(part) for part in parts)


def exists_in(module: str, parts: list[str]) -> bool:
    return parts[0] in product().code[module].names and exists(module, parts)


def members(name: str) -> set[str]:
    """Also of its bases in the product."""
    found = product().classes.get(name, Class(set(), set()))
    return found.members.union(*(members(base) for base in found.bases - {name}))


def known(name: str) -> bool:
    """Fields of objects are named as they are in YAML."""
    field = re.sub("(?<=[a-z])([A-Z])", r"_\1", name).lower() if name[0].islower() else name
    return keyword.iskeyword(name) or hasattr(builtins, name) or bool({name, field} & (product().names | ELSEWHERE))


def test_what_prose_in_code_names_exists() -> None:
    code = product().code
    found = {module: [name for prose in each.prose for name in missing(module, prose)] for module, each in code.items()}
    assert len(found) > 400
    assert {module: names for module, names in found.items() if names} == {}


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("seed/admission/admitter.py", "seed/admission/nothing.py"),
        ("seed/kinds/*/source.py", "seed/kinds/*/nothing.py"),
        ("seed/projections", "seed/nothing"),
        ("admitter.py", "nothing.py"),
        ("`QuotaClaim`", "`NothingOfThisName`"),
        ("`object_in_namespace(resource, name)`", "`nothing_of_this_name(resource, name)`"),
        ("`seed.admission.admitter`", "`seed.admission.nothing`"),
        ("`seed.admission.admitter.Admission.decide`", "`seed.admission.admitter.Nothing`"),
        ("`Admission.decide`", "`Admission.nothing`"),
        ("`denial.exceeded`", "`denial.nothing`"),  # a module that admitter.py imports
    ],
)
def test_what_does_not_exist_is_found(right: str, wrong: str) -> None:
    assert list(missing("seed.admission.admitter", f"See {right}.")) == []
    assert len(list(missing("seed.admission.admitter", f"See {wrong}."))) == 1
