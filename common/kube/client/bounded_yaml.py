"""YAML from outside, read in linear time: no aliases, no merge keys and no tags, and bounded in nodes and depth.

A kilobyte of aliases or merge keys can stand for gigabytes. Scalars are text, except for true, false, null and plain
numbers, so that a number is not taken for a text. No kubeconfig needs more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

MAX_NODES = 16_384  # a file with some hundred contexts has some thousand
MAX_DEPTH = 32

_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # libyaml is ten times as fast, and not everywhere
_CONSTANTS = {"": None, "~": None, "null": None, "true": True, "false": False}
_NUMBER = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
_LONGEST_NUMBER = 64


class InvalidYaml(ValueError):
    """The message quotes nothing: the text may hold credentials."""


def load(text: str, most: int = MAX_NODES) -> object:
    """The one document in the text. `most`: values in it. Raises InvalidYaml."""
    events = _events(text)
    for event in events:
        if isinstance(event, yaml.NodeEvent):
            found = _Document(events, most).node(event, 0)
            for after in events:
                if isinstance(after, yaml.DocumentStartEvent):
                    raise _invalid(after, "there is more than one document")
            return found
    return None


def _events(text: str) -> Iterator[yaml.Event]:
    try:
        yield from yaml.parse(text, Loader=_LOADER)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidYaml(f"is not valid YAML{_line(getattr(error, 'problem_mark', None))}") from None


def _invalid(event: yaml.Event, why: str) -> InvalidYaml:
    return InvalidYaml(f"is not valid YAML{_line(event.start_mark)}: {why}")


def _line(mark: Any) -> str:
    return f" (line {mark.line + 1})" if mark is not None else ""


class _Document:
    def __init__(self, events: Iterator[yaml.Event], most: int) -> None:
        self._events = events
        self._left = most

    def node(self, event: yaml.Event, depth: int) -> object:
        self._left -= 1
        if self._left < 0:
            raise _invalid(event, "there are too many values")
        if depth > MAX_DEPTH:
            raise _invalid(event, "it is nested too deep")
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise _invalid(event, "anchors and aliases are not read here")
        if getattr(event, "tag", None) is not None:
            raise _invalid(event, "tags are not read here")
        if isinstance(event, yaml.ScalarEvent):
            return event.value if event.style else _plain(event.value)
        if isinstance(event, yaml.SequenceStartEvent):
            return [self.node(item, depth + 1) for item in self._until(yaml.SequenceEndEvent)]
        found: dict[str, object] = {}
        for item in self._until(yaml.MappingEndEvent):
            self.node(item, depth + 1)
            if not isinstance(item, yaml.ScalarEvent) or item.value == "<<":
                raise _invalid(item, "a key is not plain text")
            found[item.value] = self.node(next(self._events), depth + 1)
        return found

    def _until(self, end: type[yaml.Event]) -> Iterator[yaml.Event]:
        for event in self._events:
            if isinstance(event, end):
                return
            yield event


def _plain(text: str) -> object:
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    return float(text) if len(text) <= _LONGEST_NUMBER and _NUMBER.fullmatch(text) else text
