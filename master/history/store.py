"""Samples in one SQLite file, bounded in series and in time. Each call blocks: it is for a thread."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from master.history.forecast import Point

BUCKET = 2 * 3600  # seconds: of what is sampled in it, the largest use is kept
KEPT = 30 * 86400  # seconds: 360 points of each series
MAX_SERIES = 5000  # each a quota and a resource: 1.8 million rows, about 80 MB

_SCHEMA = """
PRAGMA journal_mode = WAL;
PRAGMA foreign_keys = ON;
PRAGMA synchronous = OFF; -- after a power cut the last minutes may be lost
CREATE TABLE IF NOT EXISTS series (
    id INTEGER PRIMARY KEY, quota TEXT NOT NULL, resource TEXT NOT NULL, UNIQUE (quota, resource)
);
CREATE TABLE IF NOT EXISTS samples (
    series INTEGER NOT NULL REFERENCES series ON DELETE CASCADE, bucket INTEGER NOT NULL,
    used REAL NOT NULL, most REAL NOT NULL, PRIMARY KEY (series, bucket)
) WITHOUT ROWID;
"""
_WRITE = """
INSERT INTO samples VALUES (?, ?, ?, ?)
ON CONFLICT (series, bucket) DO UPDATE SET used = max(used, excluded.used), most = excluded.most
"""


class Sample(NamedTuple):
    """`quota`: its uid. `used`, `limit`: cores, bytes or pieces."""

    quota: str
    resource: str
    used: float
    limit: float


class History:
    """Raises sqlite3.Error where the file cannot be read or written. One thread at a time uses it."""

    def __init__(self, file: Path) -> None:
        self._database = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
        self._database.executescript(
            f"PRAGMA journal_mode=WAL; PRAGMA foreign_keys=ON; PRAGMA synchronous=OFF;{_SCHEMA}"
        )
        self._series = self._known()

    def add(self, time: float, samples: Iterable[Sample]) -> int:
        """Returns how many of them are not kept, since there are too many series."""
        bucket = int(time) // BUCKET * BUCKET
        omitted = 0
        self._database.execute("BEGIN")
        try:
            for sample in samples:
                series = self._id(sample)
                if series is None:
                    omitted += 1
                    continue
                self._database.execute(_WRITE, (series, bucket, sample.used, sample.limit))
            self._database.execute("COMMIT")
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        return omitted

    def forget(self, time: float) -> None:
        """What is too old, and the series of which nothing is left."""
        self._database.execute("DELETE FROM samples WHERE bucket < ?", (int(time) - KEPT,))
        self._database.execute("DELETE FROM series WHERE id NOT IN (SELECT series FROM samples)")
        self._series = self._known()

    def points(self, quota: str) -> dict[str, list[Point]]:
        """By resource, the oldest first. A time of which nothing is known has no point."""
        found: dict[str, list[Point]] = {}
        rows = self._database.execute(
            "SELECT resource, bucket, used, most FROM series JOIN samples ON series = id WHERE quota = ?"
            " ORDER BY resource, bucket",
            (quota,),
        )
        for resource, bucket, used, limit in rows:
            found.setdefault(resource, []).append(Point(bucket, used, limit))
        return found

    def close(self) -> None:
        self._database.close()

    def _known(self) -> dict[tuple[str, str], int]:
        return {(quota, resource): id for id, quota, resource in self._database.execute("SELECT * FROM series")}

    def _id(self, sample: Sample) -> int | None:
        key = sample.quota, sample.resource
        known = self._series.get(key)
        if known is not None or len(self._series) >= MAX_SERIES:
            return known
        made = self._database.execute("INSERT INTO series (quota, resource) VALUES (?, ?)", key).lastrowid
        assert made is not None, "a row was inserted"
        self._series[key] = made
        return made
