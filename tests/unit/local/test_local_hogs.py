"""Protects `make demo HOGS=N`: N loops keep processors busy, and none outlives the demo, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pagefleet_local.base.hogs import hogs


def wait(holds: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def ticks(pid: int) -> int:
    """The processor time that a process has used, in clock ticks."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_loops_use_processors_and_end_with_the_block() -> None:
    with pytest.raises(KeyError), hogs(2) as loops:
        assert len(loops) == 2
        wait(lambda: all(ticks(pid) > 5 for pid in loops))
        raise KeyError
    assert not any(map(runs, loops))
    with hogs(0) as none:
        assert none == []


def test_no_loop_outlives_a_demo_that_is_killed() -> None:
    code = "from pagefleet_local.base.hogs import hogs\nwith hogs(1) as loops:\n print(*loops, flush=True); input()"
    demo = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    assert demo.stdout is not None
    pid = int(demo.stdout.readline())
    demo.send_signal(signal.SIGKILL)
    demo.communicate()
    wait(lambda: not runs(pid))
