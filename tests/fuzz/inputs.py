"""Inputs that are almost as they should be, and far too much of them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st

from tests.cpu import no_garbage_collection

STALL = 0.5  # seconds of CPU for one input
GROWTH = 100 * 2**20  # bytes of this process while it works on one input
FUZZ = settings.get_profile("fuzz")

JSON = (b"[", b"]", b"{", b"}", b'"', b":", b",", b"null", b"true", b"-1", b"1e999", b"9" * 400, b'"\\ud800"', b"\xff")
YAML = (b"&a ", b"*a ", b"<<: ", b"- ", b"? ", b"\n  ", b"!!int ", b"|\n", b"# ", b"---\n", b"{", b"[", b"1:", b"\t")


@st.composite
def mangled(draw: st.DrawFn, samples: Sequence[bytes], tokens: Sequence[bytes], largest: int = 2**18) -> bytes:
    """One of the samples with some of it taken away, said again or replaced, up to `largest` bytes."""
    data = draw(st.sampled_from(samples))
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, len(data)))
        until = min(at + draw(st.integers(0, 40)), len(data))
        what = draw(st.sampled_from(["cut", "repeat", "insert", "bytes", "swell"]))
        if what == "cut":
            data = data[:at] + data[until:]
        elif what == "repeat":
            data = data[:until] + data[at:until] * draw(st.integers(1, 2000)) + data[until:]
        elif what == "insert":
            data = (
                data[:at] + draw(st.sampled_from(tokens)) * draw(st.sampled_from([1, 2, 50, 1500, 20_000])) + data[at:]
            )
        elif what == "swell":
            data = (
                data[:at]
                + draw(st.binary(min_size=1, max_size=4)) * draw(st.sampled_from([1, 300, 70_000]))
                + data[at:]
            )
        else:
            data = data[:at] + draw(st.binary(max_size=8)) + data[until:]
        data = data[:largest]
    return data


@contextmanager
def bounded() -> Iterator[None]:
    """Of the memory, what this input takes and gives back. What Hypothesis keeps of all inputs is much more."""
    before = _forget_the_peak()
    with no_garbage_collection():
        started = time.thread_time()
        yield
        took = time.thread_time() - started
    assert took < STALL, f"{took:.2f} s"
    grown = _memory("VmHWM") - before
    assert grown < GROWTH, f"{grown // 2**20} MiB"


def _forget_the_peak() -> int:
    """The memory in use. Where the kernel has no such peak nothing is measured."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
        return _memory("VmRSS")
    return _memory("VmHWM")


def _memory(name: str) -> int:
    """Bytes."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return 0
