"""Models of an S3-compatible store: AWS, MinIO, Ceph and others. The variables are those of AWS' own tools.

Source: https://docs.aws.amazon.com/AmazonS3/latest/API: ListObjectsV2 and GetObject. A file SHA256SUMS beside the model's (as sha256sum
writes it) has their checksums. Without one only sizes are compared, because an ETag is no checksum of large or encrypted objects.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterator, Mapping
from urllib.parse import quote, urlencode
from xml.etree import ElementTree

from pagefleet_fetch import web
from pagefleet_fetch.files import SOURCE, Fault, Interrupted, Model, RemoteFile, chosen
from pagefleet_fetch.signing import Keys, signed

SCHEME = "s3://"
ENV = "spec.engine.env"
ENDPOINTS, REGIONS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"), ("AWS_REGION", "AWS_DEFAULT_REGION")
ACCESS, SECRET, TOKEN = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"
DEFAULT_REGION = "us-east-1"
NAME = re.compile(r"[a-z0-9][-a-z0-9.]{1,61}[a-z0-9]")
SUMS = "SHA256SUMS"
MAX_LISTING, MAX_FILES = 16 << 20, 100_000


class Bucket:
    """The objects below one prefix of a bucket. `environment` has AWS' variables; without keys the bucket is asked anonymously. Raises
    Fault for what cannot be."""

    def __init__(self, uri: str, environment: Mapping[str, str]) -> None:
        self._uri = uri
        self._bucket, _, prefix = uri.removeprefix(SCHEME).partition("/")
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        if not NAME.fullmatch(self._bucket):
            raise Fault(SOURCE, f"{uri} must be s3://bucket[/prefix]")
        self._region = _first(environment, REGIONS) or DEFAULT_REGION
        endpoint = _first(environment, ENDPOINTS).rstrip("/")
        if endpoint and not endpoint.startswith(("https://", "http://")):
            raise Fault(ENV, f"{ENDPOINTS[1]} must begin with https:// or http://")
        hosted = not endpoint and "." not in self._bucket
        host = f"https://{f'{self._bucket}.' if hosted else ''}s3.{self._region}.amazonaws.com"
        self._root = f"{endpoint or host}{'' if hosted else f'/{self._bucket}'}"
        access, secret = environment.get(ACCESS, ""), environment.get(SECRET, "")
        if bool(access) is not bool(secret):
            raise Fault(ENV, f"{ACCESS} and {SECRET} go together")
        self._keys = Keys(access.strip(), secret.strip(), environment.get(TOKEN, "").strip()) if access else None
        self._web = web.Web(self._root)

    @property
    def folder(self) -> str:
        """The model's folder in a cache, without its version."""
        return f"s3/{self._bucket}--{self._prefix.rstrip('/').replace('/', '--')}"

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
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        if file.version:  # another object of the name since the list was read
            headers["If-Match"] = file.version
        answer, url = self._get(self._prefix + file.name, "", headers)
        skip = offset if answer.status == 200 else 0
        for chunk in web.body(answer, url):
            if skip >= len(chunk):
                skip -= len(chunk)
                continue
            yield chunk[skip:] if skip else chunk
            skip = 0

    def _objects(self) -> Iterator[tuple[str, int, str]]:
        """Name below the prefix, size and ETag of every object."""
        more, number = "", 0
        while True:
            query = {"list-type": "2", "prefix": self._prefix, **({"continuation-token": more} if more else {})}
            answer, url = self._get("", urlencode(sorted(query.items()), quote_via=quote), {})
            names, more = listed(_read(answer, url))
            for name, size, etag in names:
                number += 1
                if number > MAX_FILES:
                    raise Fault(
                        SOURCE, f"{self._uri} has more than {MAX_FILES} objects: give it the prefix of one model"
                    )
                if name.startswith(self._prefix) and not name.endswith("/"):
                    yield name.removeprefix(self._prefix), size, etag
            if not more:
                return

    def _sums(self) -> dict[str, str]:
        answer, url = self._get(self._prefix + SUMS, "", {})
        return checksums(_read(answer, url).decode(errors="replace"))

    def _get(self, key: str, query: str, headers: Mapping[str, str]) -> tuple[web.Response, str]:
        url = f"{self._root}/{quote(key, safe='-_.~/')}{f'?{query}' if query else ''}"
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        sent = signed(url, headers, self._keys, self._region, stamp) if self._keys else dict(headers)
        answer = self._web.get(url, sent)
        if answer.status in (200, 206):
            return answer, url
        answer.close()
        what = f"{self._uri}: {key.removeprefix(self._prefix)}" if key else self._uri
        match answer.status:
            case 401 | 403:
                hint = "" if self._keys else f"; {ENV} has no {ACCESS}"
                raise Fault(
                    SOURCE, f"{what}: the store answers {answer.status}: these credentials may not read it{hint}"
                )
            case 404:
                raise Fault(SOURCE, f"{what}: the store has no such bucket or object (404)")
            case 412:
                raise Interrupted(f"{what} was replaced while it was read")
            case status:
                raise Fault(SOURCE, f"{what}: the store answers {status}; is {REGIONS[0]} right ({self._region})?")


def listed(document: bytes) -> tuple[list[tuple[str, int, str]], str]:
    """Key, size and ETag of the objects of a ListBucketResult, and the token for more, "" at the end. Raises Interrupted."""
    try:
        root = ElementTree.fromstring(document)  # noqa: S314 - the pod's own source; expat bounds the expansion of entities
        found = [
            (_text(one, "Key"), int(_text(one, "Size")), _text(one, "ETag")) for one in root.iterfind("{*}Contents")
        ]
        more = _text(root, "NextContinuationToken") if root.findtext("{*}IsTruncated") == "true" else ""
    except (ElementTree.ParseError, ValueError) as error:
        raise Interrupted("the store answers with what is no list of objects") from error
    return found, more


def checksums(text: str) -> dict[str, str]:
    """SHA-256 by name, of sha256sum's output."""
    lines = re.findall(r"^([0-9a-f]{64}) [ *](?:\./)?(.+)$", text, re.MULTILINE)
    return {name.strip(): digest for digest, name in lines}


def _text(element: ElementTree.Element, name: str) -> str:
    text = element.findtext(f"{{*}}{name}")
    if text is None:
        raise ValueError(f"no {name}")
    return text


def _read(answer: web.Response, url: str) -> bytes:
    content = bytearray()
    for chunk in web.body(answer, url):
        content += chunk
        if len(content) > MAX_LISTING:
            raise Fault(SOURCE, "the store answers with a list that is too long")
    return bytes(content)


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((value for name in names if (value := environment.get(name, "").strip())), "")
