"""YAML from outside, read in linear time: no aliases, no merge keys and no tags, and bounded in nodes and depth.

A kilobyte of aliases or merge keys can stand for gigabytes. They are read only in the user's own files: an alias is the
object that it names and no copy of it, and what a merge key copies counts as nodes. Scalars are text, except for true,
false, null and plain numbers, so that a number is not taken for a text. No kubeconfig needs more.
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
_WHOLE = re.compile(r"[-+]?[0-9]{1,18}")
_LONGEST_NUMBER = 64


class InvalidYaml(ValueError):
    """The message quotes nothing: the text may hold credentials."""


def load_all(text: str, most: int = MAX_NODES) -> list[object]:
    """Each document in the text. `most`: values in all of them. Raises InvalidYaml."""
    events = _events(text)
    document = _Document(events, most, None)
    return [document.node(event, 0) for event in events if isinstance(event, yaml.NodeEvent)]


def load(text: str, most: int = MAX_NODES, *, aliases: bool = False) -> object:
    """The one document in the text. `most`: values in it. `aliases`: anchors, aliases and merge keys are read, too.
    Raises InvalidYaml."""
    events = _events(text)
    for event in events:
        if isinstance(event, yaml.NodeEvent):
            found = _Document(events, most, {} if aliases else None).node(event, 0)
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
    """`named`: what anchors name, as far as it is read; None where they are not read."""

    def __init__(self, events: Iterator[yaml.Event], most: int, named: dict[str, object] | None) -> None:
        self._events = events
        self._left = most
        self._named = named

    def node(self, event: yaml.Event, depth: int) -> object:
        self._take(event)
        if depth > MAX_DEPTH:
            raise _invalid(event, "it is nested too deep")
        anchor = getattr(event, "anchor", None)
        if anchor is not None and self._named is None:
            raise _invalid(event, "anchors and aliases are not read here")
        if isinstance(event, yaml.AliasEvent):
            assert self._named is not None
            if event.anchor not in self._named:
                raise _invalid(event, "an alias names no anchor before it")
            return self._named[event.anchor]
        if getattr(event, "tag", None) is not None:
            raise _invalid(event, "tags are not read here")
        found = self._value(event, depth)
        if anchor is not None and self._named is not None:
            self._named[anchor] = found
        return found

    def _value(self, event: yaml.Event, depth: int) -> object:
        if isinstance(event, yaml.ScalarEvent):
            return event.value if event.style else _plain(event.value)
        if isinstance(event, yaml.SequenceStartEvent):
            return [self.node(item, depth + 1) for item in self._until(yaml.SequenceEndEvent)]
        found: dict[str, object] = {}
        merged: dict[str, object] = {}
        for item in self._until(yaml.MappingEndEvent):
            self.node(item, depth + 1)
            is_merge = isinstance(item, yaml.ScalarEvent) and item.value == "<<"
            if not isinstance(item, yaml.ScalarEvent) or (is_merge and self._named is None):
                raise _invalid(item, "a key is not plain text")
            value = self.node(next(self._events), depth + 1)
            if is_merge:
                self._merge(merged, value, item)
            else:
                found[item.value] = value
        return {**merged, **found}

    def _merge(self, merged: dict[str, object], value: object, event: yaml.Event) -> None:
        """A list of mappings is merged, too: what comes first wins."""
        for each in value if isinstance(value, list) else [value]:
            if not isinstance(each, dict):
                raise _invalid(event, "what is merged is no mapping")
            for name, one in each.items():
                self._take(event)
                merged.setdefault(name, one)

    def _take(self, event: yaml.Event) -> None:
        self._left -= 1
        if self._left < 0:
            raise _invalid(event, "there are too many values")

    def _until(self, end: type[yaml.Event]) -> Iterator[yaml.Event]:
        for event in self._events:
            if isinstance(event, end):
                return
            yield event


def _plain(text: str) -> object:
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if len(text) > _LONGEST_NUMBER or not _NUMBER.fullmatch(text):
        return text
    return int(text) if _WHOLE.fullmatch(text) else float(text)
