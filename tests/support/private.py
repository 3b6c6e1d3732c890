"""A private network: a program that brings a control plane up starts again in a network namespace, with folders of its
own, so that it and other runs on the machine do not affect each other. Reaches nothing outside the namespace."""

from __future__ import annotations

import os
import sys

MARK = "PAGEFLEET_PRIVATE"
ENTER = 'ip link set lo up && exec "$@"'


def alone(name: str) -> None:
    """Replace this process by itself inside a namespace, once. Its downloads must be in the cache already. Needs root."""
    if os.environ.get(MARK) == name:
        return
    os.environ |= {MARK: name, "PAGEFLEET_TEST_STATE": f"/var/lib/pagefleet-{name}"}
    sys.stdout.flush()
    os.execvp("unshare", ["unshare", "--net", "sh", "-c", ENTER, "sh", sys.executable, *sys.orig_argv[1:]])
