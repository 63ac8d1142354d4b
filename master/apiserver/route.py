"""One route, and everything about it that the OpenAPI document says and the server holds it to. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

Method = Literal["GET", "POST", "PUT", "DELETE"]

NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
PATTERNS = {"decision": re.compile(r"[0-9A-Za-z]{8}"), "kind": re.compile(r"(?:project|organization)")}
"""Of parameters that are no names of objects."""

MAX_LIMIT = 500


@dataclass(frozen=True)
class Parameter:
    name: str
    what: str
    schema: dict[str, object]


@dataclass(frozen=True)
class Route:
    """`handler` is a method of one of the classes of handlers. `replayed`: the status where all
    was there already. `problems`: statuses beside those that every route has. `conditional`: a write that If-Match and
    If-None-Match may hinder. `streams`: it is answered for as long as somebody listens."""

    method: Method
    path: str
    handler: str
    summary: str
    description: str
    tag: str
    answer: Any = None
    status: int = 200
    body: Any = None
    query: tuple[Parameter, ...] = ()
    problems: tuple[int, ...] = ()
    conditional: bool = False
    public: bool = False
    headers: dict[str, str] = field(default_factory=dict)
    replayed: int = 0
    reads: bool = False
    streams: bool = False
    media_type: str = "application/json"

    @cached_property
    def parameters(self) -> list[str]:
        return re.findall(r"\{(\w+)\}", self.path)

    @property
    def resource(self) -> str:
        """The path as aiohttp has it. Names that no object has are not found."""
        return re.sub(r"\{(\w+)\}", lambda found: f"{{{found[1]}:{PATTERNS.get(found[1], NAME).pattern}}}", self.path)

    @property
    def versioned(self) -> bool:
        """Each answer has an ETag."""
        return self.method == "GET" and not self.streams

    @property
    def writes(self) -> bool:
        return self.method != "GET" and not self.reads
