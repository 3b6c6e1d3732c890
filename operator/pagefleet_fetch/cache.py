"""The folder that fetched models are kept in: a folder for each version of a model, a lock so that pods that share a claim fetch it once,
and a size in which the models that were not used for longest give way."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pagefleet_fetch.files import CACHE, Fault, Model
from pagefleet_fetch.transfer import on_disk

COMPLETE, PLANNED, LEAVING = ".complete.json", ".planned.json", ".leaving.json"
LOCKS = ".locks"
LOCK_SECONDS = 1.0  # between tries to take a lock
ROOM = 64 << 20  # bytes that stay free on the volume
SIZES = ".sizes"  # the lock of who makes room
log = logging.getLogger("pagefleet-fetch")


@dataclass(frozen=True)
class Kept:
    """One version of a model in the cache: the bytes that it has or will have, and when it was last used (UNIX seconds)."""

    folder: Path
    size: int
    used: float


def leaving(kept: Iterable[Kept], needed: int, size: int) -> list[Kept]:
    """The versions that give way, in this order, so that `needed` bytes more are within `size`: the longest unused first. Not all of
    them need to be there: who lets one go asks again."""
    ordered = sorted(kept, key=lambda one: (one.used, str(one.folder)))
    over, chosen = sum(one.size for one in ordered) + needed - size, []
    for one in ordered:
        if over <= 0:
            break
        chosen.append(one)
        over -= one.size
    return chosen


class Cache:
    """The models below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._own: set[Path] = set()  # versions that this process has brought or found: its engine needs all of them

    def folder(self, place: str, version: str) -> Path:
        return self.root / place / version

    @contextmanager
    def locked(self, place: str) -> Iterator[None]:
        """Wait until no other pod fetches a version of this model."""
        with self._lock_file(place).open("w") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    time.sleep(LOCK_SECONDS)
                else:
                    break
            yield

    def _lock_file(self, place: str) -> Path:
        path = self.root / LOCKS / f"{place.replace('/', '--')}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    @contextmanager
    def _lock_now(self, place: str) -> Iterator[bool]:
        """Whether the model's lock could be taken: nobody fetches it or starts with it."""
        with self._lock_file(place).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True

    def plan(self, folder: Path, model: Model, size: int | None) -> None:
        """Make room for the version within `size` bytes (None: no limit), and count it from now on. Raises Fault where it is larger by
        itself."""
        if size is not None and model.size > size:
            message = f"the model has {model.size / 1e9:.1f} GB, and the cache may have {size / 1e9:.1f} GB"
            raise Fault(f"{CACHE}.size", message)
        with self.locked(SIZES):
            if size is not None:
                self._make_room(folder, model.size, size)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / PLANNED).write_text(json.dumps({"bytes": model.size}))

    def _make_room(self, folder: Path, needed: int, size: int) -> None:
        busy = set(self._own)
        together = needed + sum(one.size for one in self.kept() if one.folder in self._own - {folder})
        if together > size:
            message = f"the models of this pod have {together / 1e9:.1f} GB together, and the cache may have {size / 1e9:.1f} GB"
            raise Fault(f"{CACHE}.size", message)
        while True:
            kept = [one for one in self.kept() if one.folder != folder]
            staying = sum(one.size for one in kept if one.folder in busy)
            chosen = leaving([one for one in kept if one.folder not in busy], needed + staying, size)
            if not chosen:
                break
            first = chosen[0].folder
            with self._lock_now(str(first.parent.relative_to(self.root))) as free:
                # Another version of the model that is fetched now has this process's own lock.
                if (free or first.parent == folder.parent) and _unmarked(chosen[0]):
                    log.info("%s gives way: it was not used for longest", first.relative_to(self.root))
                    shutil.rmtree(first)
                else:
                    busy.add(first)
        if sum(one.size for one in kept) + needed > size:
            others = len(busy - self._own)
            log.warning("the cache is larger than it may be: %d of its models are being fetched", others)

    def kept(self) -> list[Kept]:
        """Every version in the cache, complete or not."""
        found = []
        for folder in self.root.glob("*/*/*"):
            for name in (COMPLETE, PLANNED):
                with suppress(OSError, ValueError, KeyError):
                    noted = json.loads((folder / name).read_text())
                    found.append(Kept(folder, int(noted["bytes"]), (folder / name).stat().st_mtime))
                    break
        return found

    def complete(self, folder: Path) -> bool:
        return (folder / COMPLETE).is_file()

    def versions(self, place: str, uri: str) -> list[Path]:
        """The complete versions of a model that this URI has named, the one that was used last first. Another revision's is another model."""
        found = [mark.parent for mark in (self.root / place).glob(f"*/{COMPLETE}") if uri in _sources(mark)]
        return sorted(found, key=lambda folder: -used(folder))

    def note(self, folder: Path, uri: str) -> None:
        """This URI names the complete version too: while its source does not answer, the version may be used for it."""
        mark, partial = folder / COMPLETE, folder / f"{COMPLETE}.new"
        known = _sources(mark)
        if known and uri not in known:
            partial.write_text(json.dumps({**json.loads(mark.read_text()), "also": [*known[1:], uri]}))
            partial.replace(mark)

    def use(self, folder: Path) -> Path:
        """The version is used now, and gives way to no other one of this process. Raises FileNotFoundError where it has just given way."""
        touch(folder)
        self._own.add(folder)
        return folder

    def check_room(self, folder: Path, model: Model) -> None:
        """Raises Fault where the volume has no room for what is missing."""
        missing, free = model.room - on_disk(folder, model.files), shutil.disk_usage(self.root).free
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


def _unmarked(kept: Kept) -> bool:
    """Take the mark of a complete version away. False where a pod has started with it since it was looked at: who starts with a version
    touches its mark, and finds none from now on."""
    mark, leaving = kept.folder / COMPLETE, kept.folder / LEAVING
    try:
        mark.rename(leaving)
    except FileNotFoundError:  # it was never complete
        return True
    if leaving.stat().st_mtime != kept.used:
        leaving.rename(mark)
        return False
    return True


def touch(folder: Path) -> None:
    """The version is used now."""
    os.utime(folder / COMPLETE)


def _sources(mark: Path) -> list[str]:
    """The URIs that have named a complete version; none where it is gone."""
    with suppress(OSError, ValueError, KeyError):
        noted = json.loads(mark.read_text())
        return [noted["source"], *noted.get("also", ())]
    return []


def used(folder: Path) -> float:
    """When a pod last started with the version, in UNIX seconds; 0 where it is gone."""
    try:
        return (folder / COMPLETE).stat().st_mtime
    except OSError:
        return 0.0
