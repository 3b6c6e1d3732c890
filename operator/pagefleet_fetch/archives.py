"""Unpacks the archives that layers of a registry are: regular files that a model has, and nothing else. What an earlier layer has and a later one
takes away is gone, as in an image."""

from __future__ import annotations

import os
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from pagefleet_fetch.files import SOURCE, Fault, Model, RemoteFile, chosen, is_wanted

PACKED, UNPACKED = ".layers", ".unpacked"  # folders of a version while it is fetched
REMOVED, EMPTIED = ".wh.", ".wh..wh..opq"  # of the image specification
# What an archive may hold, in its own bytes: weights hardly shrink, and a system's files do so threefold.
MOST, LEAST = 20, 64 << 20
READABLE = 0o644
ZSTD = bytes.fromhex("28b52ffd")


def name(digest: str) -> str:
    """Where an archive is while it is fetched, below its version."""
    return f"{PACKED}/{digest}"


def unpack(uri: str, folder: Path, model: Model) -> Model:
    """Put the files of the archives beside the others, and remove the archives. Returns the model of the files that are there then. Raises Fault
    for what no model has, and OSError."""
    staging = folder / UNPACKED
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()
    for one in model.archives:
        try:
            _unpack(folder / one, staging, model.inside)
        except (tarfile.TarError, EOFError, zlib.error) as error:
            raise Fault(SOURCE, f"{uri}: its layer {one.rpartition('/')[2]} cannot be unpacked: {error}") from error
    there = [RemoteFile(str(path.relative_to(staging)), path.stat().st_size) for path in _files(staging)]
    replaced = {file.name for file in there}
    files = [*there, *(one for one in model.files if one.name not in {*model.archives, *replaced})]
    wanted = chosen(uri, files)
    for file in there:
        path = folder / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        _flush(staging / file.name)
        (staging / file.name).replace(path)
    shutil.rmtree(staging)
    shutil.rmtree(folder / PACKED)
    return Model(model.version, wanted)


def _unpack(archive: Path, staging: Path, inside: str) -> None:
    """One layer over the earlier ones. Raises Fault and tarfile's errors."""
    with archive.open("rb") as opened:
        if opened.read(len(ZSTD)) == ZSTD:
            raise Fault(SOURCE, "a layer is compressed with zstd: push it as tar or tar+gzip")
    most, size = max(LEAST, MOST * archive.stat().st_size), 0
    written: set[Path] = set()
    with tarfile.open(archive, "r|*") as members:
        for member in members:
            size += member.size
            if size > most:
                raise Fault(SOURCE, f"a layer of {archive.stat().st_size} bytes holds more than {most} bytes")
            parts = PurePosixPath(member.name).parts
            if ".." in parts or "\0" in member.name:
                raise Fault(SOURCE, f"a layer has the file {member.name[:80]!r}, which leads out of it")
            path = "/".join(part for part in parts if part not in ("/", "."))
            if not path.startswith(inside):
                if _takes_away(path, inside):
                    _remove(staging / EMPTIED, written)
                continue
            path = path.removeprefix(inside)
            target = staging / path
            if target.name.startswith(REMOVED):
                _remove(target, written)
            elif is_wanted(path) and not member.isdir():
                if not member.isreg():
                    raise Fault(
                        SOURCE, f"a layer has {path[:80]!r} as a link or a device; a model's files are regular ones"
                    )
                _clear(target, staging)
                members.extract(member.replace(name=path, mode=READABLE, deep=False), staging, filter="data")
                written.add(target)


def _takes_away(path: str, folder: str) -> bool:
    """Whether a member of a layer is a mark that takes away the folder (with a slash at its end), or one above it."""
    above, _, name = path.rpartition("/")
    hidden = name.removeprefix(REMOVED)
    if hidden in ("", name):
        return False
    gone = above if name == EMPTIED else f"{above}/{hidden}".lstrip("/")
    return not gone or folder.startswith(f"{gone}/")


def _clear(target: Path, staging: Path) -> None:
    """A layer's file takes the place of an earlier layer's folder, and its folder that of a file."""
    for above in target.parents:
        if above == staging:
            break
        if above.is_file():
            above.unlink()
    if target.is_dir():
        shutil.rmtree(target)


def _remove(mark: Path, written: set[Path]) -> None:
    """Take away what the mark names, or all that is beside it, but for what this layer has written."""
    hidden = mark.name.removeprefix(REMOVED)
    if hidden in ("", ".", ".."):
        raise Fault(SOURCE, f"a layer has the mark {mark.name!r}, which names no file")
    gone = mark.parent if mark.name == EMPTIED else mark.parent / hidden
    for path in [gone] if gone.is_file() else list(_files(gone)):
        if path not in written:
            path.unlink()


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def _flush(path: Path) -> None:
    with path.open("rb") as written:
        os.fsync(written.fileno())
