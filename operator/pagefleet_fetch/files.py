"""The files of a model: which of them are fetched, and what their bytes must be. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import PurePosixPath
from typing import Protocol

SOURCE, CACHE = "spec.model.source", "spec.model.cache"
# No format that carries code: no pickles, no Python.
WANTED = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")
# Mistral's and Meta's repositories hold the weights a second time in layouts of their own.
UNWANTED = ("*consolidated*", "original/*", "metal/*")
WEIGHTS = ".safetensors"
MAX_NAME = 512


class Fault(Exception):
    """The model cannot be fetched as the spec has it. `field` is the field to fix."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field, self.message = field, message


class Interrupted(Exception):
    """The transfer ended early for a cause that passes: the next start goes on where it ended."""


@dataclass(frozen=True)
class RemoteFile:
    """`name` is its path below the model. `sha256` and `git_blob` (Git's SHA-1 of a blob) are hexadecimal, "" where the source tells
    none. `version` distinguishes contents of the same name where there is no checksum."""

    name: str
    size: int
    sha256: str = ""
    git_blob: str = ""
    version: str = ""

    @property
    def identity(self) -> str:
        """Differs where the content does."""
        return (self.sha256 or self.git_blob or self.version)[:16] or "0"

    @property
    def checksum(self) -> str:
        return self.sha256 or self.git_blob

    def hasher(self) -> Hasher:
        """A hash whose digest must be `checksum` after all bytes."""
        if self.git_blob and not self.sha256:
            return hashlib.sha1(b"blob %d\0" % self.size, usedforsecurity=False)
        return hashlib.sha256()


class Hasher(Protocol):
    def update(self, data: bytes, /) -> None: ...

    def hexdigest(self) -> str: ...


@dataclass(frozen=True)
class Model:
    """The files of one version of a model; `version` is a name for it that can be part of a path. `archives` are the names of those files that
    are unpacked one after the other when all are there, and `inside` is the model's folder in them, with a slash at its end, or ""."""

    version: str
    files: tuple[RemoteFile, ...]
    archives: tuple[str, ...] = ()
    inside: str = ""

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def room(self) -> int:
        """Bytes that the volume needs: an archive is there beside what is unpacked from it."""
        return self.size + sum(file.size for file in self.files if file.name in self.archives)


class Source(Protocol):
    """Where a model comes from. Both methods raise Fault or Interrupted."""

    @property
    def folder(self) -> str:
        """The model's folder in a cache, without its version."""
        ...

    @property
    def pinned(self) -> str:
        """The version where the URI names one; "" where only the source knows it."""
        ...

    def model(self) -> Model: ...

    def read(self, file: RemoteFile, offset: int) -> Iterator[bytes]:
        """The file's bytes from `offset` on."""
        ...


def chosen(uri: str, files: Iterable[RemoteFile], complete: bool = True) -> tuple[RemoteFile, ...]:
    """The files to fetch. Raises Fault for a name that leads out of the model's folder, and where files that are all (`complete`) hold no
    weights."""
    wanted = tuple(file for file in files if is_wanted(file.name))
    for file in wanted:
        parts = PurePosixPath(file.name).parts
        if not parts or parts[0] == "/" or ".." in parts or len(file.name) > MAX_NAME or "\0" in file.name:
            raise Fault(SOURCE, f"{uri} lists the file {file.name[:80]!r}, which is no path below the model")
    if complete and not any(file.name.endswith(WEIGHTS) for file in wanted):
        raise Fault(SOURCE, f"{uri} holds no *.safetensors; other formats of weights can carry code")
    return wanted


def is_wanted(name: str) -> bool:
    """Whether a file of this name is part of a model that can be fetched."""
    hidden = any(part.startswith(".") and part != ".." for part in name.split("/"))
    return (
        not hidden
        and any(fnmatch(name, pattern) for pattern in WANTED)
        and not any(fnmatch(name, pattern) for pattern in UNWANTED)
    )
