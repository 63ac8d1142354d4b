"""A provider's part of a Machine's spec, read field by field as machine-controller does."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeVar

import msgspec

from common.quota import quantity
from common.quota.quantity import UNIT
from seed.providers.flavour import Lookup, Reference, Setting
from seed.providers.size import Footprint, NotSized

LARGEST = 2**53
"""No size field may exceed this, in its own unit: JSON numbers above it are not exact everywhere."""

MAX_FIELDS = 512
"""Of one object, read or not."""
MAX_ITEMS = 256
"""Of one list that is read."""

_SHOWN_CHARACTERS = 40
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
T = TypeVar("T")


class Spec:
    """A JSON object of a provider's spec, read field by field; whatever cannot be read raises NotSized by its name.

    machine-controller decodes these specs with Go's encoding/json, which matches field names regardless of case and
    takes the last that matches. Reading `cpus` while it obeys `CPUS` would let a tenant order more than is counted,
    so another spelling of a field that is read here is refused.
    """

    __slots__ = ("_fields", "_path", "_spellings", "provider")

    def __init__(self, provider: str, raw: bytes | msgspec.Raw, path: str) -> None:
        """`path` is how messages call the object: empty for the spec itself, `virtualMachine.template` inside it."""
        self.provider = provider
        self._path = path
        self._fields = self._decode(raw, dict[str, msgspec.Raw], path or "cloudProviderSpec", "an object")
        if len(self._fields) > MAX_FIELDS:
            raise NotSized(provider, f"{path or 'cloudProviderSpec'} has more than {MAX_FIELDS} fields")
        self._spellings: dict[str, list[str]] = {}
        for name in self._fields:
            self._spellings.setdefault(name.casefold(), []).append(name)

    def names(self) -> Iterable[str]:
        return self._fields.keys()

    def has(self, name: str) -> bool:
        return self._raw(name) is not None

    def integer(self, name: str) -> int:
        """A whole number from 1."""
        value = self.optional_integer(name)
        if value is None:
            raise self.missing(name)
        return value

    def optional_integer(self, name: str, *, minimum: int = 1) -> int | None:
        """A whole number from `minimum`; None when absent or null."""
        raw = self._raw(name)
        if raw is None:
            return None
        value = self._decode(raw, int, self._named(name), "a whole number")
        if not minimum <= value <= LARGEST:
            raise NotSized(self.provider, f"{self._named(name)} must be from {minimum} to 2^53, got {_shown(raw)}")
        return value

    def number(self, name: str) -> int:
        """A JSON number above 0, with a fraction or without, in nanos."""
        raw = self._raw(name)
        if raw is None:
            raise self.missing(name)
        self._decode(raw, float, self._named(name), "a number")
        return self._positive(name, raw.decode("ascii", "backslashreplace"), "a number")

    def quantity(self, name: str) -> int:
        """A positive Kubernetes quantity in a ConfigVarString, in nanos."""
        text = self.variable(name)
        if not text:
            raise self.missing(name)
        return self._positive(name, text, "a quantity")

    def _positive(self, name: str, text: str, what: str) -> int:
        try:
            nanos = quantity.parse(text)
        except quantity.QuantityError as error:
            raise NotSized(self.provider, f"{self._named(name)} must be {what}, got {_shown(text.encode())}") from error
        if not 0 < nanos <= LARGEST * UNIT:
            raise NotSized(
                self.provider, f"{self._named(name)} must be above 0 and at most 2^53, got {_shown(text.encode())}"
            )
        return nanos

    def string(self, name: str) -> str:
        """A plain string; empty when absent or null."""
        raw = self._raw(name)
        return "" if raw is None else self._decode(raw, str, self._named(name), "a string")

    def variable(self, name: str) -> str:
        """The text of a ConfigVarString; empty when absent or null.

        It is a bare JSON string or number, or `{value}`; a `{secretKeyRef}` or `{configMapKeyRef}` raises NotSized:
        what it holds can change after the Machine was admitted. One that lacks a part of its name refers to nothing.
        k8c.io/machine-controller/sdk/providerconfig: types.go, ConfigVarString.UnmarshalJSON, and
        configvar/resolver.go, GetStringValue.
        """
        raw = self._raw(name)
        if raw is None:
            return ""
        if raw[:1] == b"{":
            variable = Spec(self.provider, raw, self._named(name))
            for field in ("secretKeyRef", "configMapKeyRef"):
                reference = variable.inner(field)
                if all(reference.string(part) for part in ("namespace", "name", "key")):
                    raise NotSized(
                        self.provider, f"{self._named(name)} is a {field}: sizes must be written in the Machine"
                    )
            return variable.string("value")
        if raw[:1] == b'"':
            return self._decode(raw, str, self._named(name), "a string")
        if raw[:1] in b"-0123456789":
            return raw.decode("ascii", "backslashreplace")
        raise NotSized(self.provider, f"{self._named(name)} must be a string, got {_shown(raw)}")

    def text(self, name: str) -> str:
        """A ConfigVarString that must be written in the Machine, as everything that sizes depend on."""
        text = self.variable(name)
        if not text:
            raise self.missing(name)
        return text

    def word(self, name: str, what: str) -> str:
        """A `text` of the kind that clouds call things by. It is kept, logged and shown, so it is not long."""
        text = self.text(name)
        if not _WORD.fullmatch(text):
            raise NotSized(self.provider, f"{self._named(name)} is no name of {what}")
        return text

    def setting(self, name: str, variable: str = "", *, scope: bool = False, identifier: bool = False) -> Setting:
        """A ConfigVarString that may stand elsewhere; `variable` is its name in the environment, if it has one.

        `scope`, `identifier`: see Setting.
        """
        found = self._setting(name)
        return replace(found, variable=variable, scope=scope, identifier=identifier)

    def _setting(self, name: str) -> Setting:
        raw = self._raw(name)
        if raw is None or raw[:1] != b"{":
            return Setting(self.variable(name))
        inner = Spec(self.provider, raw, self._named(name))
        for kind, field in (("Secret", "secretKeyRef"), ("ConfigMap", "configMapKeyRef")):
            reference = inner.inner(field)
            parts = [reference.string(part) for part in ("namespace", "name", "key")]
            if all(parts):
                return Setting(reference=Reference(kind, *parts))
        return Setting(inner.string("value"))

    def inner(self, name: str) -> Spec:
        """The object inside; an empty one when absent or null, so that errors name the field that is missing in it."""
        return Spec(self.provider, self._raw(name) or b"{}", self._named(name))

    def within(self, provider: str, name: str) -> Spec:
        """The object inside as the spec of `provider`: its fields are called by their names alone."""
        return Spec(provider, self._raw(name) or b"{}", "")

    def items(self, name: str) -> list[Spec]:
        """The objects in a list; none when absent or null."""
        raw = self._raw(name)
        if raw is None:
            return []
        items = self._decode(raw, list[msgspec.Raw], self._named(name), "a list")
        if len(items) > MAX_ITEMS:
            raise NotSized(self.provider, f"{self._named(name)} has more than {MAX_ITEMS} entries")
        return [Spec(self.provider, item, f"{self._named(name)}[{index}]") for index, item in enumerate(items)]

    def integers(self, name: str) -> list[int]:
        """The whole numbers from 1 in a list; none when absent or null."""
        raw = self._raw(name)
        if raw is None:
            return []
        numbers = self._decode(raw, list[int], self._named(name), "a list of whole numbers")
        if len(numbers) > MAX_ITEMS:
            raise NotSized(self.provider, f"{self._named(name)} has more than {MAX_ITEMS} entries")
        if not all(1 <= number <= LARGEST for number in numbers):
            raise NotSized(self.provider, f"{self._named(name)} must be from 1 to 2^53 each, got {_shown(raw)}")
        return numbers

    def missing(self, name: str) -> NotSized:
        return NotSized(self.provider, f"{self._named(name)} is missing")

    def _raw(self, name: str) -> bytes | None:
        for key in self._spellings.get(name.casefold(), ()):
            if key != name:
                raise NotSized(self.provider, f"{self._named(name)} must be spelled exactly so, got {quoted(key)}")
        raw = bytes(self._fields.get(name, b"null"))
        return None if raw == b"null" else raw

    def _named(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def _decode(self, raw: bytes | msgspec.Raw, shape: type[T], name: str, expected: str) -> T:
        try:
            return msgspec.json.decode(raw, type=shape)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise NotSized(self.provider, f"{name} must be {expected}, got {_shown(bytes(raw))}") from error


Provider = Callable[[Spec], Footprint | Lookup]
"""Reads the size out of a cloudProviderSpec, or what must be asked to know it; raises NotSized. Pure."""


def quoted(text: str) -> str:
    """A user's text for a message: in quotes, one line, ASCII, not long."""
    return _shown(msgspec.json.encode(text))


def _shown(raw: bytes) -> str:
    text = " ".join(raw[: 2 * _SHOWN_CHARACTERS].decode("ascii", "backslashreplace").split())
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
