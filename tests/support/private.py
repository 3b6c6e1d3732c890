"""A network of one's own: a program that brings a control plane up begins anew in a network namespace, with folders of
its own, so that no other run on the machine matters to it, nor it to them. Reaches nothing outside the namespace."""

from __future__ import annotations

import os
import sys

MARK = "PAGEFLEET_PRIVATE"
ENTER = 'ip link set lo up && exec "$@"'


def alone(name: str) -> None:
    """Replaces this process by itself inside a namespace, once. What it needs must be in the cache already. Root."""
    if os.environ.get(MARK) == name:
        return
    os.environ |= {MARK: name, "PAGEFLEET_TEST_STATE": f"/var/lib/pagefleet-{name}"}
    sys.stdout.flush()
    os.execvp("unshare", ["unshare", "--net", "sh", "-c", ENTER, "sh", sys.executable, *sys.orig_argv[1:]])
