"""The official release of Kubernetes for a pinned version: fetched once into the cache, each program compared with the checksum beside it
(https://kubernetes.io/docs/tasks/tools/install-kubectl-linux: `/release/VERSION/bin/linux/ARCH/PROGRAM` and `PROGRAM.sha256`).

A transfer that ends early goes on at its last byte, in the next run too. PAGEFLEET_KUBERNETES_RELEASES names a mirror of the same layout.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import platform
import re
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from pagefleet_local.assets.debian import AssetError
from pagefleet_local.base import paths
from pagefleet_local.base.console import Report, stage

VERSION = "1.36.2"
DEFAULT, MIRROR = "https://dl.k8s.io", "PAGEFLEET_KUBERNETES_RELEASES"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
SECONDS = 10.0  # for a connection, and without a byte
TRIES = 5  # in a row without a new byte
BLOCK = 1 << 20
PARTIAL_CONTENT, RANGE_NOT_SATISFIABLE = 206, 416
SHA256 = re.compile(r"[0-9a-f]{64}")


class Unreachable(Exception):
    """The release cannot be had here; something else has to do."""


def folder() -> Path:
    """Where the programs of the release are: complete or absent."""
    return paths.cache() / f"kubernetes-release-{VERSION}"


def fetch(programs: Sequence[str]) -> None:
    """Bring the programs into `folder()`. Raises Unreachable, and AssetError for bytes that stay wrong."""
    architecture = ARCHITECTURES.get(platform.machine())
    if architecture is None:
        raise Unreachable(f"there is no official release of Kubernetes for {platform.machine()} here")
    root = (os.environ.get(MIRROR) or DEFAULT).rstrip("/")
    base = f"{root}/release/v{VERSION}/bin/linux/{architecture}"
    work = folder().with_name(f".{folder().name}.partial")
    with stage(f"Kubernetes {VERSION}: the official release") as report:
        work.mkdir(parents=True, exist_ok=True)
        for number, name in enumerate(programs, 1):
            _program(f"{base}/{name}", work / name, _prefixed(report, f"{name}, {number} of {len(programs)}"))
        work.rename(folder())


def _prefixed(report: Report, what: str) -> Report:
    return lambda text: report(f"{what}: {text}")


def _program(url: str, target: Path, report: Report) -> None:
    if target.is_file():
        return
    told = _text(f"{url}.sha256").split()
    if not told or not SHA256.fullmatch(told[0]):
        raise Unreachable(f"{url}.sha256 holds no checksum")
    partial = target.with_name(f"{target.name}.{told[0][:16]}.partial")
    for _ in range(2):  # an unclean end of the machine can leave zeros in a partial file
        _transfer(url, partial, report)
        found = _digest(partial)
        if found == told[0]:
            partial.chmod(0o755)
            partial.rename(target)
            return
        partial.unlink()
    raise AssetError(f"{url} arrives with the SHA-256 {found}, and {told[0]} is told beside it")


def _text(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=SECONDS) as answer:  # noqa: S310 - the official host, or the mirror that is set
            return str(answer.read(1024).decode(errors="replace"))
    except (OSError, http.client.HTTPException) as error:
        raise Unreachable(f"the official release cannot be fetched ({url}: {error})") from error


def _transfer(url: str, partial: Path, report: Report) -> None:
    """Complete `partial`."""
    fruitless = 0
    while True:
        before = partial.stat().st_size if partial.exists() else 0
        try:
            if _append(url, partial, report):
                return
            error: Exception = ConnectionError("the connection ended early")
        except (OSError, http.client.HTTPException) as broken:
            error = broken
        fruitless = fruitless + 1 if (partial.stat().st_size if partial.exists() else 0) <= before else 0
        if fruitless >= TRIES:
            raise Unreachable(f"the official release cannot be fetched ({url}: {error}); what has arrived is kept")


def _append(url: str, partial: Path, report: Report) -> bool:
    """Put what is missing behind what is there. Whether that is the whole file."""
    offset = partial.stat().st_size if partial.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={offset}-"} if offset else {})  # noqa: S310
    try:
        answer = urllib.request.urlopen(request, timeout=SECONDS)  # noqa: S310
    except urllib.error.HTTPError as refused:
        refused.close()
        if (
            refused.code == RANGE_NOT_SATISFIABLE
        ):  # nothing is missing, or what is there is of another file: the checksum tells
            return True
        raise
    with answer:
        resumed = answer.status == PARTIAL_CONTENT
        left = int(answer.headers.get("Content-Length") or -1)
        size = left + (offset if resumed else 0)
        with partial.open("ab" if resumed else "wb") as written:
            while block := answer.read(BLOCK):
                written.write(block)
                left -= len(block)
                report(f"{written.tell() >> 20} of {size >> 20} MiB")
    return left <= 0


def _digest(path: Path) -> str:
    with path.open("rb") as read:
        return hashlib.file_digest(read, "sha256").hexdigest()
