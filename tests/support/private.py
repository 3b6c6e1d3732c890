"""A private network: a program that brings a control plane up runs in a network namespace, with folders of its own, so that it
and other runs on the machine do not affect each other. Reaches nothing outside the namespace."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

MARK = "PAGEFLEET_PRIVATE"
ENTER = 'ip link set lo up && exec "$@"'


def command(name: str, words: Sequence[str]) -> list[str]:
    """Return the command that runs `words` in a namespace; the control plane's folders get this name. Its downloads must be in
    the cache already. Needs root."""
    own = (f"{MARK}={name}", f"PAGEFLEET_TEST_STATE=/var/lib/pagefleet-{name}")
    return ["unshare", "--net", "sh", "-c", ENTER, "sh", "env", *own, *words]


def alone(name: str) -> None:
    """Replace this process by itself inside a namespace, once, as `command` has it."""
    if os.environ.get(MARK) == name:
        return
    sys.stdout.flush()
    words = command(name, [sys.executable, *sys.orig_argv[1:]])
    os.execvp(words[0], words)
