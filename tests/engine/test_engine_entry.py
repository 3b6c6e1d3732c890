"""Protects that an engine which gets SIGTERM while it still starts ends at once, as process 1 of its container too. A pod
that is deleted then must not keep its accelerator for the whole grace period."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil

from pagefleet_engine.entry import ENDED

PROGRAM = "from pagefleet_engine.entry import run; run()"


def test_process_1_ends_at_sigterm_while_it_imports() -> None:
    space = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    command = [*space, sys.executable, "-X", "importtime", "-c", PROGRAM, "serve"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, cwd=Path("/"), text=True) as process:
        if process.stderr is None:
            raise RuntimeError("no stderr")
        # The imports that main begins with; most of them are still to come.
        imported = next((line for line in process.stderr if "argparse" in line), "")
        assert imported, "it ended before it was asked to"
        (inner,) = psutil.Process(process.pid).children()
        inner.send_signal(signal.SIGTERM)
        process.stderr.read()
        assert process.wait(30) == ENDED
