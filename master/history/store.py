"""Samples in one SQLite file, bounded in series and in time. Each call blocks: it is for a thread."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from common.api.refusal_counts import PART
from master.history.forecast import Point
from master.history.refusals import ALL, Lately, PartTold, Refusals, kept, refusals

BUCKET = PART  # seconds: of what is sampled in it, the largest use is kept
KEPT = 30 * 86400  # seconds: 360 points of each series
MAX_SERIES = 5000  # each a quota and a resource: 1.8 million rows, about 80 MB
MAX_REFUSALS = 2000  # of one bucket, each a quota and what it was short of: 0.7 million rows, about 60 MB

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
CREATE TABLE IF NOT EXISTS refusals (
    bucket INTEGER NOT NULL, quota TEXT NOT NULL, resource TEXT NOT NULL, count INTEGER NOT NULL,
    PRIMARY KEY (bucket, quota, resource)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS told (bucket INTEGER PRIMARY KEY, whole INTEGER NOT NULL, ended INTEGER NOT NULL);
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

    def add_refusals(self, told: PartTold) -> None:
        """Beside what is known of that bucket already."""
        rows = self._database.execute("SELECT quota, resource, count FROM refusals WHERE bucket = ?", (told.begin,))
        counts = {(quota, resource): count for quota, resource, count in rows}
        known = self._database.execute("SELECT whole, ended FROM told WHERE bucket = ?", (told.begin,)).fetchone()
        before = PartTold(told.begin, counts, *map(bool, known)) if known is not None else None
        found = kept(before, told, MAX_REFUSALS)
        self._database.execute("BEGIN")
        try:
            self._database.execute("DELETE FROM refusals WHERE bucket = ?", (told.begin,))
            self._database.executemany(
                "INSERT INTO refusals VALUES (?, ?, ?, ?)",
                ((told.begin, *key, count) for key, count in found.counts.items()),
            )
            self._database.execute("REPLACE INTO told VALUES (?, ?, ?)", (told.begin, found.whole, found.ended))
            self._database.execute("COMMIT")
        except BaseException:
            self._database.execute("ROLLBACK")
            raise

    def refusals(self, quota: str, bucket: int) -> Refusals:
        """Of the quota with that uid. `bucket`: that of now."""
        rows = self._database.execute(
            "SELECT refusals.bucket, resource, count FROM told JOIN refusals ON refusals.bucket = told.bucket"
            " WHERE quota = ?",
            (quota,),
        ).fetchall()
        known = self._database.execute("SELECT bucket FROM told WHERE whole AND (ended OR bucket = ?)", (bucket,))
        return refusals(rows, [each for (each,) in known])

    def lately(self, bucket: int) -> Lately:
        """Of all quotas. `bucket`: that of now."""
        both = bucket - BUCKET, bucket
        rows = self._database.execute(
            "SELECT quota, sum(count) FROM refusals WHERE bucket IN (?, ?) AND resource = ? GROUP BY quota",
            (*both, ALL),
        ).fetchall()
        [(known,)] = self._database.execute(
            "SELECT count(*) FROM told WHERE whole AND ((bucket = ? AND ended) OR bucket = ?)", both
        )
        return Lately(both[0], dict(rows), known == len(both))

    def forget(self, time: float) -> None:
        """What is too old, and the series of which nothing is left."""
        first = (int(time) - KEPT,)
        self._database.execute("DELETE FROM samples WHERE bucket < ?", first)
        self._database.execute("DELETE FROM refusals WHERE bucket < ?", first)
        self._database.execute("DELETE FROM told WHERE bucket < ?", first)
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
