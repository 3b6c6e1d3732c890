"""The files of clients: each a folder with its content and what is known of it. Knows all of them, and reads none into memory."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from pagefleet_batches.storage import disk

BATCH, BATCH_OUTPUT = "batch", "batch_output"  # purposes


class FileInfo(msgspec.Struct, frozen=True):
    """Times are Unix seconds."""

    id: str
    client: str
    filename: str
    purpose: str
    bytes: int
    created_at: int
    expires_at: int

    def document(self) -> dict[str, object]:
        """Return OpenAI's file object."""
        known = {
            name: getattr(self, name) for name in ("id", "bytes", "created_at", "expires_at", "filename", "purpose")
        }
        return {"object": "file", "status": "processed", "status_details": None, **known}


@dataclass
class Incoming:
    """A file that is being written: in a folder of its own until it is whole."""

    folder: Path
    stream: BinaryIO
    size: int = 0

    def write(self, data: bytes) -> None:
        self.stream.write(data)
        self.size += len(data)

    def drop(self) -> None:
        with contextlib.suppress(OSError):  # a full disk has no room for what is still buffered either
            self.stream.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Files:
    """All files, by id. Methods that write do so at once, and may run in a thread beside those that read."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._incoming = folder / "files", folder / "incoming"
        shutil.rmtree(self._incoming, ignore_errors=True)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._incoming.mkdir()
        self._known: dict[str, FileInfo] = {}
        for path in self._folder.iterdir():
            info = msgspec.json.decode((path / "file.json").read_bytes(), type=FileInfo)
            self._known[info.id] = info

    def __iter__(self) -> Iterator[FileInfo]:
        return iter(sorted(self._known.values(), key=lambda file: (file.created_at, file.id)))

    def get(self, client: str, name: str) -> FileInfo | None:
        """Return a client's file; None where there is none of this client."""
        file = self._known.get(name)
        return file if file is not None and file.client == client else None

    def bytes_of(self, client: str) -> int:
        return sum(file.bytes for file in tuple(self._known.values()) if file.client == client)

    def content(self, name: str) -> Path:
        return self._folder / name / "content"

    def incoming(self) -> Incoming:
        folder = self._incoming / disk.new_id("incoming")
        folder.mkdir()
        return Incoming(folder, (folder / "content").open("wb"))

    def keep(self, incoming: Incoming, info: FileInfo) -> FileInfo:
        """Make a whole file of what was written. One with the same id is replaced."""
        incoming.stream.flush()
        os.fsync(incoming.stream.fileno())
        incoming.stream.close()
        disk.write(incoming.folder / "file.json", msgspec.json.encode(info))
        self.remove(info.id)
        incoming.folder.rename(self._folder / info.id)
        disk.sync_folder(self._folder)
        self._known[info.id] = info
        return info

    def write(self, info: FileInfo, parts: Iterable[bytes]) -> FileInfo | None:
        """Write a file from its parts; none where they are empty. `info.bytes` is replaced by the size."""
        incoming = self.incoming()
        try:
            for part in parts:
                incoming.write(part)
            if not incoming.size:
                incoming.drop()
                return None
            return self.keep(incoming, msgspec.structs.replace(info, bytes=incoming.size))
        except BaseException:
            incoming.drop()
            raise

    def remove(self, name: str) -> None:
        self._known.pop(name, None)
        path = self._folder / name
        if path.exists():
            gone = self._incoming / disk.new_id("gone")
            path.rename(gone)  # a folder that is removed in part would have no file.json
            shutil.rmtree(gone, ignore_errors=True)
