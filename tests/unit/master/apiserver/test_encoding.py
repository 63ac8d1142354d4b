from __future__ import annotations

import gzip
import time

import pytest

from master.apiserver.encoding import compressed, takes_gzip


@pytest.mark.parametrize(
    ("accept_encoding", "takes"),
    [
        ("gzip", True),
        ("GZip", True),
        ("x-gzip", True),
        ("deflate, gzip;q=0.5, br", True),
        ("gzip ; q = 1.000", True),
        ("*", True),
        ("*;q=0.1, gzip;q=0", False),
        ("gzip;q=0, gzip", False),
        ("gzip;q=0.000", False),
        ("gzip;q=2", False),
        ("gzip;level=9", False),
        ("identity", False),
        ("", False),
        (",".join(["br"] * 99) + ",gzip", False),
    ],
)
def test_who_takes_gzip(accept_encoding: str, takes: bool) -> None:
    assert takes_gzip(accept_encoding) is takes


def test_a_field_is_read_in_little_time() -> None:
    """A hundred times as long as a field can be: more than linear time would be minutes."""
    for field in ("gzip;" + " " * 1_600_000, "a" * 1_600_000, "gzip;q=" + "0" * 1_600_000, "," * 1_600_000):
        begun = time.thread_time()
        assert not takes_gzip(field)
        assert time.thread_time() - begun < 10


def test_what_is_compressed_is_the_same_for_the_same_content() -> None:
    content = b'{"type":"servers"}' * 5000
    assert gzip.decompress(compressed(content)) == content
    assert compressed(content) == compressed(content) and len(compressed(content)) < len(content) / 10
