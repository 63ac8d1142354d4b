"""The OpenAPI document as a page for people: plain HTML with its own style, no script, and nothing loaded. Pure."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from html import escape
from typing import Any

from master.apiserver import openapi
from master.apiserver.problem import MEDIA_TYPE

_Json = Mapping[str, Any]

_STYLE = """
:root { color-scheme: light dark; --line: #8886; --soft: #8882; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 60rem; padding: 1rem; }
body { overflow-wrap: break-word; }
h1 { margin-bottom: 0; } h2 { border-bottom: 1px solid var(--line); margin-top: 2.5rem; }
h3 { font: 600 1rem/1.5 ui-monospace, monospace; margin: 2rem 0 0; } h4 { font-size: 0.9rem; margin: 0.8rem 0 0.2rem; }
p { margin: 0.2rem 0; } code { font-family: ui-monospace, monospace; font-size: 0.9em; }
ul { list-style: none; padding: 0; margin: 0.5rem 0; }
.method { display: inline-block; min-width: 4.8rem; font-weight: 700; }
table { border-collapse: collapse; width: 100%; font-size: 0.9rem; }
th, td { border-bottom: 1px solid var(--line); padding: 0.25rem 0.5rem 0.25rem 0; }
th, td { text-align: left; vertical-align: top; }
td:first-child { white-space: nowrap; }
section:target { background: var(--soft); }
"""

POLICY = (
    f"default-src 'none'; style-src 'sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Its Content-Security-Policy: nothing but its own style, and nobody shows it in a frame."""

_LIMITS = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "minProperties": "at least {} names",
    "maxProperties": "at most {} names",
    "pattern": "like {}",
    "default": "{} if it is not set",
}


@lru_cache(maxsize=1)
def html() -> bytes:
    return _page(openapi.document()).encode()


def _page(document: _Json) -> str:
    operations = [
        (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    schemas = sorted(document["components"]["schemas"].items())
    info = document["info"]
    return "".join(
        (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
            f"<title>{escape(info['title'])} HTTP API</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n",
            f"<header>\n<h1>{escape(info['title'])} HTTP API</h1>\n<p>Version {escape(info['version'])}. ",
            f'{escape(info["description"])} For programs: <a href="openapi.json">openapi.json</a>.</p>\n</header>\n',
            '<nav aria-label="Routes">\n<ul>\n',
            *(
                f'<li><a href="#{escape(operation["operationId"])}">{_head(method, path)}</a></li>\n'
                for method, path, operation in operations
            ),
            "</ul>\n</nav>\n<main>\n<h2>Routes</h2>\n",
            *(_operation(method, path, operation) for method, path, operation in operations),
            "<h2>Types</h2>\n",
            *(_schema(name, schema) for name, schema in schemas),
            "</main>\n</body>\n</html>\n",
        )
    )


def _head(method: str, path: str) -> str:
    return f'<span class="method">{escape(method)}</span> <code>{escape(path)}</code>'


def _operation(method: str, path: str, operation: _Json) -> str:
    parts = [
        f'<section id="{escape(operation["operationId"])}">\n<h3>{_head(method, path)}</h3>\n',
        f"<p>{escape(operation['summary'])}. {_plain(operation['description'])}</p>\n",
    ]
    if operation.get("security") == []:
        parts.append("<p>Without a token.</p>\n")
    if given := operation["parameters"]:
        rows = ((each["name"], each["in"], _type(each["schema"]), each.get("description", "")) for each in given)
        parts.append(f"<h4>Parameters</h4>\n{_table(('name', 'in', 'type', ''), rows)}")
    if body := operation.get("requestBody"):
        parts.append(f"<h4>Body</h4>\n<p>{_content(body)}</p>\n")
    parts.append(f"<h4>Answers</h4>\n{_answers(operation['responses'])}</section>\n")
    return "".join(parts)


def _answers(responses: _Json) -> str:
    """All problems are alike: they are one line."""
    answers = sorted(responses.items())
    done = [(status, answer) for status, answer in answers if MEDIA_TYPE not in answer.get("content", {})]
    problems = [(status, answer) for status, answer in answers if MEDIA_TYPE in answer.get("content", {})]
    parts = []
    if done:
        rows = (
            (status, answer["description"], _content(answer), ", ".join(answer.get("headers", ())))
            for status, answer in done
        )
        parts.append(_table(("status", "", "type", "headers"), rows))
    if problems:
        said = ", ".join(f"<code>{escape(status)}</code> {escape(each['description'])}" for status, each in problems)
        parts.append(f"<p>{_content(problems[0][1])}: {said}</p>\n")
    return "".join(parts)


def _schema(name: str, schema: _Json) -> str:
    required = schema.get("required", ())
    rows = (
        (field, "required" if field in required else "", _type(each), each.get("description", ""))
        for field, each in schema.get("properties", {}).items()
    )
    fields = _table(("field", "", "type", ""), rows) if "properties" in schema else f"<p>{_type(schema)}</p>\n"
    what = _plain(schema.get("description", ""))
    return f'<section id="{_anchor(name)}">\n<h3>{escape(name)}</h3>\n<p>{what}</p>\n{fields}</section>\n'


def _table(heads: Sequence[str], rows: Iterable[tuple[str, str, str, str]]) -> str:
    """The third cell of a row is HTML, the others are text."""
    first = "".join(f'<th scope="col">{escape(head)}</th>' for head in heads)
    body = "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{escape(where)}</td><td>{kind}</td><td>{_plain(what)}</td></tr>\n"
        for name, where, kind, what in rows
    )
    return f"<table>\n<tr>{first}</tr>\n{body}</table>\n"


def _content(of: _Json) -> str:
    return ", ".join(
        f"{_type(content['schema'])} <small>({escape(kind)})</small>" for kind, content in of.get("content", {}).items()
    )


def _type(schema: _Json) -> str:
    """As HTML."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f'<a href="#{_anchor(name)}">{escape(name)}</a>'
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(f"<code>{escape(str(each))}</code>" for each in schema["enum"])
    kind = schema.get("type", "anything")
    if kind == "array":
        kind = f"list of {_type(schema.get('items', {}))}"
    elif kind == "object" and isinstance(of := schema.get("additionalProperties"), Mapping):
        kind = f"map to {_type(of)}"
    limits = [
        said.format(f"<code>{escape(str(schema[name]))}</code>") for name, said in _LIMITS.items() if name in schema
    ]
    return ", ".join((kind, *limits))


def _anchor(name: str) -> str:
    return f"type-{escape(name)}"


def _plain(text: str) -> str:
    """With names in backquotes as code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text))
