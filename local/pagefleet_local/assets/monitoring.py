"""Prometheus and Alertmanager: those on PATH, else Debian's packages, unpacked into the cache."""

from __future__ import annotations

import os
import shutil

from pagefleet_local.assets import debian

Command = list[str]


def to_be_had() -> bool:
    """Whether both can run here. Debian's Alertmanager wants root (its templates have a fixed path)."""
    on_path = shutil.which("prometheus") and shutil.which("alertmanager")
    return bool(on_path or (shutil.which("apt-get") and os.geteuid() == 0))


def prometheus() -> Command:
    return [shutil.which("prometheus") or str(debian.tool("prometheus"))]


def alertmanager() -> Command:
    """Debian's has its templates at a fixed path: a mount namespace of its own puts them there."""
    if own := shutil.which("alertmanager"):
        return [own]
    share = debian.unpacked("prometheus-alertmanager") / "usr/share"
    mounted = f'mount -t overlay overlay -o lowerdir={share}:/usr/share /usr/share && exec "$@"'
    return [
        "/usr/bin/unshare",
        "--mount",
        "/bin/sh",
        "-c",
        mounted,
        "alertmanager",
        str(debian.tool("prometheus-alertmanager")),
    ]
