"""Other work on this machine: busy loops beside the demo, which end with it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

# A loop ends by itself when the process that started it is gone, even by SIGKILL: its parent is another one then.
LOOP = "import os, sys\nwhile os.getppid() == int(sys.argv[1]):\n for _ in range(1000000): pass"


@contextlib.contextmanager
def hogs(number: int) -> Iterator[list[int]]:
    """Keep `number` processors busy, at the usual priority. Yield the loops' process ids."""
    with contextlib.ExitStack() as running:
        loops = []
        for _ in range(number):
            command = [sys.executable, "-S", "-c", LOOP, str(os.getpid())]
            loop = running.enter_context(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL))
            running.callback(loop.kill)
            loops.append(loop.pid)
        yield loops
