"""The number of processors that this process may use, and so of Envoy's threads. Knows nothing of requests."""

from __future__ import annotations

import math
import os
from pathlib import Path

# Without a setting: a container without a limit sees all processors of its node.
MAX_DEFAULT_WORKERS = 4
CGROUP = Path("/sys/fs/cgroup")


def workers(processors: int, limit: float | None) -> int:
    """Return one thread for each processor, rounded up, MAX_DEFAULT_WORKERS at most. `limit`: the processors that the
    process may use, None for all.
    """
    usable = math.ceil(limit) if limit is not None else MAX_DEFAULT_WORKERS
    return max(1, min(MAX_DEFAULT_WORKERS, processors, usable))


def default_workers(cgroup: Path = CGROUP) -> int:
    """Return the number of threads for this process."""
    return workers(len(os.sched_getaffinity(0)), cpu_limit(cgroup))


def cpu_limit(cgroup: Path = CGROUP) -> float | None:
    """Return the CPU limit of this process' cgroup, in processors; None without one.

    https://docs.kernel.org/admin-guide/cgroup-v2.html, `cpu.max`; the two files of version 1 hold the same.
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
