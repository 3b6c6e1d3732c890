"""The number of pods that may be missing from many: one of them is always starting, and it must not hold up all the others.

Up to ten pods every one counts, and up to twenty every one must be read.
"""

from __future__ import annotations


def tolerated_unready(pods: int) -> int:
    """Count the pods that need not be ready among so many: fewer than a tenth. The others take their requests."""
    return max(0, pods - 1) // 10


def tolerated_silent(pods: int) -> int:
    """Count the ready pods that need not be read among so many: fewer than a twentieth, the share that a p95 leaves out."""
    return max(0, pods - 1) // 20
