"""What a Reflector knows of objects that cannot be read: they are there, and what they say is unknown."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from common.kube.client.bounds import MAX_BROKEN
from common.kube.client.errors import Malformed, TooMany
from common.kube.client.resource import Broken
from common.runtime import metrics

NAMED = 3

log = logging.getLogger(__name__)


class MalformedObjects:
    """Those of one kind of one API server, by key. Iterating gives the keys."""

    def __init__(self, cluster: str, plural: str) -> None:
        self._cluster = cluster
        self._plural = plural
        self._errors: dict[str, str] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._errors)

    def __len__(self) -> int:
        return len(self._errors)

    @property
    def text(self) -> str | None:
        """How many there are, with the first of them; None where there is none."""
        if not self._errors:
            return None
        first = [f"{key}: {error}" for key, error in list(self._errors.items())[:NAMED]]
        return f"{len(self)} {self._plural} cannot be read, such as {'; '.join(first)}"

    def add(self, broken: Broken) -> bool:
        """True if that is new. Raises Malformed for too many, and if nobody can tell which object it is: then it is not
        known either which others are gone."""
        if not broken.key or not broken.uid:
            what = f"{self._plural}: the name or uid of one cannot be read"
            raise self._refused(Malformed(200, "Malformed", f"cluster {self._cluster}: {what}: {broken.error}"))
        if self._errors.get(broken.key) == broken.error:
            return False
        if broken.key not in self._errors:
            if len(self) >= MAX_BROKEN:
                raise self._refused(TooMany(f"more than {MAX_BROKEN} {self._plural} cannot be read"))
            metrics.malformed_objects(self._cluster, self._plural, 1)
        self._errors[broken.key] = broken.error
        facts = {"cluster": self._cluster, "resource": self._plural, "object": broken.key, "error": broken.error}
        log.warning("malformed object", extra=facts)
        return True

    def discard(self, key: str) -> bool:
        """True if it was there."""
        found = self._errors.pop(key, None) is not None
        if found:
            metrics.malformed_objects(self._cluster, self._plural, -1)
        return found

    def keep(self, listed: Iterable[Broken]) -> None:
        """Forgets all others."""
        remaining = {broken.key for broken in listed}
        for key in self._errors.keys() - remaining:
            self.discard(key)

    def clear(self) -> None:
        self.keep(())

    def _refused(self, error: Malformed) -> Malformed:
        metrics.api_answer_refused(self._cluster, error.wrong.value)
        return error
