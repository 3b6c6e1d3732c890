"""How many processors this process may use, and so how many threads Envoy gets. Knows nothing of requests."""

from __future__ import annotations

import math
import os
from pathlib import Path

MOST = 4  # threads without being told: a container without a limit sees all of its node's processors
CGROUP = Path("/sys/fs/cgroup")


def workers(processors: int, limit: float | None) -> int:
    """One for each processor, rounded up, `MOST` at most. `limit`: processors that may be used, None: all."""
    return max(1, min(MOST, processors, math.ceil(limit) if limit is not None else MOST))


def found_workers(cgroup: Path = CGROUP) -> int:
    """The number for this process."""
    return workers(len(os.sched_getaffinity(0)), cpu_limit(cgroup))


def cpu_limit(cgroup: Path = CGROUP) -> float | None:
    """The CPU limit of this process' cgroup, in processors; None without one.

    https://docs.kernel.org/admin-guide/cgroup-v2.html, `cpu.max`; version 1's two files hold the same.
    """
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (cgroup / "cpu/cpu.cfs_quota_us").read_text()
            period = (cgroup / "cpu/cpu.cfs_period_us").read_text()
        except OSError:
            return None
    try:
        return int(quota) / int(period) if int(quota) > 0 else None
    except (ValueError, ZeroDivisionError):
        return None  # "max": no limit
