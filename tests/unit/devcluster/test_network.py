"""Ports of programs that are started beside each other."""

from __future__ import annotations

import subprocess
import sys

from devcluster import network


def test_no_port_is_handed_out_twice_whichever_process_asks() -> None:
    """Several processes start programs at once, and those listen seconds later."""
    code = "from devcluster import network; network._PORTS = range(20_000, 20_020); input(network.free_port())"
    others = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    try:
        theirs = []
        for other in others:
            assert other.stdout is not None
            theirs.append(int(other.stdout.read(5)))
        assert len(set(theirs)) == 4
        assert not any(network._claimed(port) for port in theirs)
    finally:
        for other in others:
            other.communicate("\n")
    assert network._claimed(theirs[0]), "it is free when its process has ended"
    assert not network._claimed(theirs[0]), "it was handed out"
