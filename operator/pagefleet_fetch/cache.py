"""The folder that fetched models are kept in: a folder for each version of a model, and a lock so that pods that share a claim fetch it
once."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pagefleet_fetch.files import CACHE, Fault, Model
from pagefleet_fetch.transfer import on_disk

COMPLETE = ".complete.json"
LOCKS = ".locks"
LOCK_SECONDS = 1.0  # between tries to take a lock
ROOM = 64 << 20  # bytes that stay free on the volume


class Cache:
    """The models below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, place: str, version: str) -> Path:
        return self.root / place / version

    @contextmanager
    def locked(self, place: str) -> Iterator[None]:
        """Wait until no other pod fetches a version of this model."""
        path = self.root / LOCKS / f"{place.replace('/', '--')}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    time.sleep(LOCK_SECONDS)
                else:
                    break
            yield

    def complete(self, folder: Path) -> bool:
        return (folder / COMPLETE).is_file()

    def versions(self, place: str) -> list[Path]:
        """The complete versions of a model, the one that was used last first."""
        found = [mark.parent for mark in (self.root / place).glob(f"*/{COMPLETE}")]
        return sorted(found, key=lambda folder: -used(folder))

    def check_room(self, folder: Path, model: Model) -> None:
        """Raises Fault where the volume has no room for what is missing."""
        missing, free = model.size - on_disk(folder, model.files), shutil.disk_usage(self.root).free
        if missing > free - ROOM:
            raise Fault(
                CACHE,
                f"the model needs {missing / 1e9:.1f} GB more and the volume has {free / 1e9:.1f} GB free; give "
                "spec.model.cache a larger claim, or the node more ephemeral storage",
            )

    def keep(self, folder: Path, uri: str, model: Model) -> None:
        """All files of the version are there."""
        partial = folder / f"{COMPLETE}.new"
        partial.write_text(json.dumps({"source": uri, "version": model.version, "bytes": model.size}))
        partial.replace(folder / COMPLETE)


def touch(folder: Path) -> None:
    """The version is used now."""
    os.utime(folder / COMPLETE)


def used(folder: Path) -> float:
    """When a pod last started with the version, in UNIX seconds; 0 where it is gone."""
    try:
        return (folder / COMPLETE).stat().st_mtime
    except OSError:
        return 0.0
