"""A Debian base image with Python, made by debootstrap from the machine's own Debian mirror, stored in the cache."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from pagefleet_local.assets import debian
from pagefleet_local.base import paths
from pagefleet_local.base.console import stage

SUITE, PYTHON = "bookworm", (3, 11)
DEFAULT_MIRROR = "http://deb.debian.org/debian"


def rootfs() -> Path:
    """The base's root file system as a tar in the cache, made on first use. Raises AssetError."""
    if sys.version_info[:2] != PYTHON:
        running = ".".join(map(str, sys.version_info[:2]))
        raise debian.AssetError(
            f"the images' Python is Debian {SUITE}'s {PYTHON[0]}.{PYTHON[1]} and takes wheels built by this Python, which is "
            f"{running}: run with Python {PYTHON[0]}.{PYTHON[1]}"
        )
    target = paths.cache() / f"base-{SUITE}.tar"
    if target.exists():
        return target
    _tools()
    work = paths.cache() / "base.partial"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    with debian.locked("base"), stage(f"base image: debootstrap {SUITE} (about a minute, once)"):
        command = ["debootstrap", "--variant=minbase", "--include=python3,python3-venv,ca-certificates"]
        result = subprocess.run([*command, SUITE, str(work), mirror()], capture_output=True, text=True, check=False)
        if result.returncode:
            raise debian.AssetError(f"debootstrap: {(result.stdout + result.stderr)[-600:]}")
        for folder in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale"):
            shutil.rmtree(work / folder, ignore_errors=True)
        partial = target.with_suffix(".partial")
        subprocess.run(["tar", "-C", str(work), "--exclude=./dev/*", "-cf", str(partial), "."], check=True)
        partial.rename(target)
    shutil.rmtree(work, ignore_errors=True)
    return target


def mirror() -> str:
    """The Debian mirror that this machine's apt is configured with."""
    for path in [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]:
        if not path.is_file():
            continue
        for line in path.read_text().splitlines():
            match = re.search(r"^(?:deb\s+(?:\[.*\]\s+)?|URIs:\s*)(\S*/debian/?)(?:\s|$)", line)
            if match:
                return match.group(1)
    return DEFAULT_MIRROR


def _tools() -> None:
    missing = [name for name in ("debootstrap", "buildah") if shutil.which(name) is None]
    if missing:
        with stage(f"apt-get install {' '.join(missing)}"):
            debian.apt("update")
            debian.apt("install", "-y", "--no-install-recommends", *missing)
