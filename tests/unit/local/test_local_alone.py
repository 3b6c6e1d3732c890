"""Protects a cluster that one program starts from a second one: `make up` in another terminal took the first one's half-made
cluster for the remains of an earlier run, and ended its programs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pagefleet_local.base.alone import alone
from pagefleet_local.base.paths import Layout
from pagefleet_local.base.preflight import Refused

HOLD = """
import sys
from pathlib import Path
from pagefleet_local.base.alone import alone
from pagefleet_local.base.paths import Layout
with alone(Layout(state=Path(sys.argv[1]))):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_program_is_refused_and_told_which_is_the_first(tmp_path: Path) -> None:
    layout, other = Layout(state=tmp_path / "one"), Layout(state=tmp_path / "two")
    with alone(layout):
        with (
            pytest.raises(Refused, match=rf"another pagefleet-local \(pid {os.getpid()}\) .* wait for its end"),
            alone(layout),
        ):
            pass
        with alone(other):
            pass
    with alone(layout):
        pass
    assert not list(tmp_path.iterdir())


def test_a_program_that_was_killed_holds_nothing(tmp_path: Path) -> None:
    layout = Layout(state=tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(Refused, match=f"pid {holder.pid}"), alone(layout):
            pass
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with alone(layout):
        pass
