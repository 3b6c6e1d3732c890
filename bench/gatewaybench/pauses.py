"""What clients see of a picker that stands still for a moment, as when its node's processors are taken: the load goes on meanwhile."""

from __future__ import annotations

import os
import signal
import threading
import time

from bench.gatewaybench.systems import SYSTEMS
from bench.gatewaybench.traffic import Figures, engines, load, warmed

RATE = 1_000.0
# Below the 3 s after which a picker counts as one that hangs.
PAUSE_SECONDS = 2.4
BEFORE_SECONDS = 4.0


def pauses(quick: bool) -> Figures:
    """Stop the gateway's Python process (Envoy runs on) for PAUSE_SECONDS under RATE requests/s, and count the requests that fail."""
    ours = next(one for one in SYSTEMS if one.name == "pagefleet")
    runs = []
    for seed in range(1, 2 if quick else 4):
        with engines(), warmed(ours) as running:
            process = running.process
            if process is None:
                raise RuntimeError("the gateway is no process of its own")
            stopping = threading.Thread(target=_pause, args=(process.pid,))
            stopping.start()
            results = load(port=running.port, path=ours.path, rate=RATE, seconds=12.0, seed=seed)
            stopping.join()
            runs.append({name: results[name] for name in ("answered", "failed", "unanswered", "statuses")})
    return {"rate": RATE, "pauseSeconds": PAUSE_SECONDS, "runs": runs}


def _pause(pid: int) -> None:
    time.sleep(BEFORE_SECONDS)
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(PAUSE_SECONDS)
    finally:
        os.kill(pid, signal.SIGCONT)
