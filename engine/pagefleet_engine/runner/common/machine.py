"""Finds the processors and the memory that this process may use: OpenMP with too many threads is many times slower."""

from __future__ import annotations

import ctypes
import math
import os
from pathlib import Path


def threads() -> int:
    """The least of CPU affinity, the cgroup's quota and OMP_NUM_THREADS; at least 1."""
    limits = [float(len(os.sched_getaffinity(0)))]
    quota = _quota_v2() or _quota_v1()
    if quota:
        limits.append(quota)
    requested = os.environ.get("OMP_NUM_THREADS", "")
    if requested.isdigit() and int(requested) > 0:
        limits.append(float(requested))
    return max(1, math.ceil(min(limits) - 0.01))


def _quota_v2() -> float | None:
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def _quota_v1() -> float | None:
    try:
        quota = int(Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").read_text())
        period = int(Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return quota / period if quota > 0 else None


def memory_limit() -> int:
    """Bytes this process may use: the cgroup's limit, or the machine's memory."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(path).read_text().strip()
        except OSError:
            continue
        return min(machine, int(text)) if text.isdigit() else machine
    return machine


def return_freed_memory() -> None:
    """Return memory that the allocator holds unused to the system, where glibc is the C library.

    Much memory is unused after the weights were prepared. More is under load: it grew by up to 190 MiB an hour while the
    bytes in use stayed the same (glibc 2.36, `make soak`).
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
