"""What the demo shows: text, and a table that lives on a terminal and is quiet where the output is a file or a pipe."""

from __future__ import annotations

import asyncio
import shutil
import textwrap
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TextIO

_REFRESH_SECONDS = 0.15
_LINE_SECONDS = 1.0  # between two lines where nothing can be drawn over
_WIDTH_AT_MOST = 100

Rows = Sequence[Sequence[str]]


class Screen:
    """Writes to `out`; control characters only where it is a terminal."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._terminal = out.isatty()
        self._steps = 0
        self._started = time.monotonic()

    def step(self, title: str) -> None:
        self._steps += 1
        line = f"{self._steps}. {title}"
        self._write("", f"\x1b[1m{line}\x1b[0m" if self._terminal else line)

    def say(self, text: str) -> None:
        width = min(shutil.get_terminal_size().columns, _WIDTH_AT_MOST)
        self._write(*textwrap.wrap(text, width, initial_indent="   ", subsequent_indent="   ", break_on_hyphens=False))

    def quote(self, text: str) -> None:
        """Lines as they are: a command, a manifest."""
        self._write(*(f"     {line}" for line in text.splitlines()))

    def progress(self, text: str) -> None:
        self._write(f"   {time.monotonic() - self._started:5.1f}s  {text}")

    def plain(self, line: str) -> None:
        self._write(line)

    @asynccontextmanager
    async def live(self, table: Callable[[], Rows], line: Callable[[], str]) -> AsyncIterator[None]:
        """While the block runs: the table, drawn anew, or a line now and then where that cannot be. Then the table."""
        drawing = asyncio.create_task(self._draw(table) if self._terminal else self._follow(line))
        try:
            yield
        finally:
            drawing.cancel()
            await asyncio.gather(drawing, return_exceptions=True)
            self.table(table())

    def table(self, rows: Rows) -> None:
        self._write(*_aligned(rows))

    async def _draw(self, table: Callable[[], Rows]) -> None:
        height = 0
        try:
            while True:
                lines = _aligned(table())
                self._out.write("".join(f"\x1b[2K{line}\n" for line in lines))
                self._out.flush()
                height = len(lines)
                await asyncio.sleep(_REFRESH_SECONDS)
                self._up(height)
                height = 0
        finally:
            self._up(height)  # what is written next takes its place

    def _up(self, lines: int) -> None:
        if lines:
            self._out.write(f"\x1b[{lines}A\x1b[J")

    async def _follow(self, line: Callable[[], str]) -> None:
        last = ""
        while True:
            await asyncio.sleep(_LINE_SECONDS)
            if (present := line()) != last:
                self.progress(present)
                last = present

    def _write(self, *lines: str) -> None:
        self._out.write("".join(f"{line}\n" for line in lines))
        self._out.flush()


def _aligned(rows: Rows) -> list[str]:
    """The first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "   "
        + "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]
