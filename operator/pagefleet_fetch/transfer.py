"""Brings files into a folder. A broken transfer goes on where it ended, in this process or in another one, and a file has its own name
only when all its bytes are there and have the checksum that the source tells."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event

from pagefleet_fetch.files import SOURCE, Fault, Hasher, Interrupted, RemoteFile, Source

WORKERS = 8
PARTIAL = ".partial"
BLOCK = 8 << 20
# Tries in a row that bring no new byte, and the pauses before the next one, in seconds.
PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0)


def fetch_all(source: Source, files: Iterable[RemoteFile], folder: Path) -> None:
    """All files, several at a time, large ones first. Raises the first Fault or Interrupted after the others have stopped."""
    ended = Event()
    with ThreadPoolExecutor(WORKERS) as pool:
        ordered = sorted(files, key=lambda file: -file.size)
        running = [pool.submit(fetch, source, file, folder, ended) for file in ordered]
        done, _ = wait(running, return_when=FIRST_EXCEPTION)
        failed = next((error for one in done if (error := one.exception())), None)
        if failed is not None:
            ended.set()
            for one in running:
                one.cancel()
            raise failed


def fetch(
    source: Source, file: RemoteFile, folder: Path, ended: Event, pause: Callable[[float], object] = time.sleep
) -> None:
    """One file. Bytes whose checksum is wrong are fetched once more from the beginning: an unclean end of a node can leave
    zeros in a partial file. Raises Fault where they are wrong again."""
    target = folder / file.name
    if target.is_file() and target.stat().st_size == file.size:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = partial_of(folder, file)
    for _ in range(2):
        found = _transfer(source, file, partial, ended, pause)
        if not file.checksum or found == file.checksum:
            partial.replace(target)
            return
        partial.unlink()
    kind = "SHA-256" if file.sha256 else "Git hash"
    raise Fault(SOURCE, f"{file.name} arrives with the {kind} {found}, and its source tells {file.checksum}")


def partial_of(folder: Path, file: RemoteFile) -> Path:
    """Where the bytes of an unfinished file are."""
    return folder / f"{file.name}.{file.identity}{PARTIAL}"


def on_disk(folder: Path, files: Iterable[RemoteFile]) -> int:
    """Bytes of the files that are there, whoever brings them."""
    return sum(_size(folder / file.name) or _size(partial_of(folder, file)) for file in files)


def _transfer(source: Source, file: RemoteFile, partial: Path, ended: Event, pause: Callable[[float], object]) -> str:
    """Complete `partial` and return its digest."""
    with partial.open("ab") as written:
        if written.tell() > file.size:
            written.truncate(0)
        digest, fruitless = file.hasher(), 0
        offset = _known(partial, digest)
        while offset < file.size:
            before = offset
            try:
                for chunk in source.read(file, offset):
                    if ended.is_set():
                        raise Interrupted("another file failed")
                    fitting = chunk[: file.size - offset]
                    written.write(fitting)
                    digest.update(fitting)
                    offset += len(fitting)
                    if len(fitting) < len(chunk):
                        raise Fault(SOURCE, f"{file.name} is longer than the {file.size} bytes that its source tells")
                if offset < file.size:
                    raise Interrupted(f"{file.name} ends after {offset} of {file.size} bytes")
            except Interrupted:
                written.flush()
                fruitless = fruitless + 1 if offset == before else 0
                if ended.is_set() or fruitless > len(PAUSES):
                    raise
                pause(PAUSES[max(0, fruitless - 1)])
        written.flush()
        os.fsync(written.fileno())
    return digest.hexdigest()


def _known(partial: Path, digest: Hasher) -> int:
    """Put the bytes of an earlier transfer into the digest, and return their number."""
    size = 0
    with partial.open("rb") as earlier:
        while block := earlier.read(BLOCK):
            digest.update(block)
            size += len(block)
    return size


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
