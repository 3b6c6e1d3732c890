"""Models of an object store: S3 and what speaks its protocol, Google Cloud Storage, Azure Blob Storage. obstore lists, signs and reads.

A file SHA256SUMS beside the model's (as sha256sum writes it) has their checksums. Without one only sizes are compared, because an ETag is
no checksum of large or encrypted objects.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import BaseError

from pagefleet_fetch import azure, gcs, s3
from pagefleet_fetch.files import SOURCE, Fault, Interrupted, Model, RemoteFile, chosen
from pagefleet_fetch.place import ENV, Place

if TYPE_CHECKING:
    from obstore import GetOptions

PLACES: Mapping[str, Callable[[str, Mapping[str, str]], Place]] = {
    s3.SCHEME: s3.locate,
    gcs.SCHEME: gcs.locate,
    azure.SCHEME: azure.locate,
}
SCHEMES = tuple(PLACES)
SUMS = "SHA256SUMS"
MAX_SUMS, MAX_FILES, PAGE = 16 << 20, 100_000, 1000
CHUNK = 64 << 10  # bytes; what is lost of a chunk when a connection breaks comes again
# The status of an answer is in obstore's words only.
STATUS, WRONG_HOST = re.compile(r"status code: (\d{3})"), "redirect without LOCATION"
STORE = re.compile(r"^Generic \w+ error: ")
PASSING = frozenset({408, 425, 429})


class Bucket:
    """The objects below one prefix of a bucket. `environment` has the variables of the store's own tools. Raises Fault for what cannot
    be."""

    def __init__(self, uri: str, environment: Mapping[str, str]) -> None:
        self._uri = uri
        try:
            self._place = PLACES[f"{uri.partition('://')[0]}://"](uri, environment)
        except (BaseError, ValueError, OSError) as error:
            raise Fault(ENV, f"{uri}: {_line(error)}") from error
        self._store, self._prefix = self._place.store, self._place.prefix

    @property
    def folder(self) -> str:
        """The model's folder in a cache, without its version."""
        return self._place.folder

    @property
    def pinned(self) -> str:
        """Objects can change: only the store knows the version."""
        return ""

    def model(self) -> Model:
        objects = list(self._objects())
        sums = self._sums() if any(name == SUMS for name, _, _ in objects) else {}
        files = [RemoteFile(name, size, sums.get(name, ""), version=etag) for name, size, etag in objects]
        wanted = chosen(self._uri, files)
        if sums and (missing := next((file.name for file in wanted if not file.sha256), "")):
            raise Fault(SOURCE, f"{self._uri}: {SUMS} has no checksum of {missing}")
        told = "\n".join(f"{file.name} {file.size} {file.checksum or file.version}" for file in wanted)
        return Model(hashlib.sha256(told.encode()).hexdigest()[:40], wanted)

    def read(self, file: RemoteFile, offset: int) -> Iterator[bytes]:
        options: GetOptions = {}
        if offset:
            options["range"] = {"offset": offset}
        if file.version:  # another object of the name since the list was read
            options["if_match"] = file.version
        with self._told(f"{self._uri}: {file.name}"):
            answer = obstore.get(self._store, self._prefix + file.name, options=options)
            yield from answer.stream(CHUNK)

    def _objects(self) -> Iterator[tuple[str, int, str]]:
        """Name below the prefix, size and ETag of every object."""
        number = 0
        with self._told(self._uri):
            for page in obstore.list(self._store, self._prefix.rstrip("/") or None, chunk_size=PAGE):
                if (number := number + len(page)) > MAX_FILES:
                    message = f"{self._uri} has more than {MAX_FILES} objects: give it the prefix of one model"
                    raise Fault(SOURCE, message)
                for one in page:
                    if one["path"].startswith(self._prefix):
                        yield one["path"].removeprefix(self._prefix), one["size"], one["e_tag"] or ""

    def _sums(self) -> dict[str, str]:
        content = bytearray()
        for chunk in self.read(RemoteFile(SUMS, 0), 0):
            content += chunk
            if len(content) > MAX_SUMS:
                raise Fault(SOURCE, f"{self._uri}: {SUMS} has more than {MAX_SUMS >> 20} MiB")
        return checksums(content.decode(errors="replace"))

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        """Turns obstore's errors into Fault and Interrupted."""
        try:
            yield
        except (BaseError, FileNotFoundError) as error:
            line = _line(error)
            status = int(found[1]) if (found := STATUS.search(line)) else 0
            match status:
                case 401 | 403:
                    raise Fault(SOURCE, f"{what}: {self._place.asker} may not read it: {line}") from error
                case 404:
                    raise Fault(SOURCE, f"{what}: the store has no such bucket or object (404)") from error
                case 412:
                    raise Interrupted(f"{what} was replaced while it was read") from error
                case _ if WRONG_HOST in line or (status // 100 == 4 and status not in PASSING):
                    raise Fault(
                        SOURCE, f"{what}: asked with {self._place.asker}, {self._place.check} {line}"
                    ) from error
                case _:
                    raise Interrupted(f"{what}: {line}") from error


def checksums(text: str) -> dict[str, str]:
    """SHA-256 by name, of sha256sum's output."""
    lines = re.findall(r"^([0-9a-f]{64}) [ *](?:\./)?(.+)$", text, re.MULTILINE)
    return {name.strip(): digest for digest, name in lines}


def _line(error: Exception) -> str:
    """The first line of obstore's message; the others repeat it as Rust prints it."""
    return STORE.sub("", str(error).strip().partition("\n")[0])[:600]
