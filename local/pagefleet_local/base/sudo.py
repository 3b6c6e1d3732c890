"""Who called sudo: the fleet needs root, and its kubeconfig is for the person who starts it."""

from __future__ import annotations

import os
from pathlib import Path


def give(path: Path) -> None:
    """Make a file belong to who called sudo. Without sudo it stays root's."""
    user, group = os.environ.get("SUDO_UID", ""), os.environ.get("SUDO_GID", "")
    if user.isdecimal() and group.isdecimal() and os.geteuid() == 0:
        os.chown(path, int(user), int(group))
