"""Writing to a folder so that a killed process, or a node without power, leaves either the old state or the new one."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
from pathlib import Path

RESERVE_SHARE, RESERVE_BYTES = 0.05, 64 * 1024 * 1024  # of the disk, kept free for answers: the larger of the two


class FolderInUse(RuntimeError):
    """Another process works in the folder."""


def lock(folder: Path) -> int:
    """Take the folder for this process until its end; returns the lock's descriptor. Raises FolderInUse."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise FolderInUse(f"another batches server works in {folder}: two would answer each line twice") from error
    return descriptor


def new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(12)}"


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write(file: Path, data: bytes) -> None:
    """Replace a file as a whole."""
    temporary = file.with_name(file.name + ".new")
    try:
        with temporary.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(file)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(file.parent)


def is_full(error: OSError) -> bool:
    """Whether a write found no room: on the disk, or within the quota."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def free_bytes(folder: Path) -> int:
    """Return what uploads may still take: the disk's free bytes less the reserve."""
    usage = shutil.disk_usage(folder)
    return usage.free - max(RESERVE_BYTES, int(usage.total * RESERVE_SHARE))
