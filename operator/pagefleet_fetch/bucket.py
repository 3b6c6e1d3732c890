"""Models of an S3-compatible store: AWS, MinIO, Ceph and others. obstore (Apache Arrow's object_store) lists, signs and reads; the
variables are those of AWS' own tools.

A file SHA256SUMS beside the model's (as sha256sum writes it) has their checksums. Without one only sizes are compared, because an ETag is
no checksum of large or encrypted objects.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import certifi
import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

from pagefleet_fetch.files import SOURCE, Fault, Interrupted, Model, RemoteFile, chosen

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import ClientConfig, RetryConfig, S3Config

SCHEME = "s3://"
ENV, ACCOUNT = "spec.engine.env", "spec.pod.serviceAccountName"
ENDPOINTS, REGIONS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"), ("AWS_REGION", "AWS_DEFAULT_REGION")
ACCESS, SECRET, TOKEN = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"
# What EKS puts into the pods of a ServiceAccount with a role: a token for STS, or the address of its Pod Identity agent.
ROLE, ROLE_TOKEN = "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE"
AGENT, AGENT_TOKEN = "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"
DEFAULT_REGION = "us-east-1"
NAME = re.compile(r"[a-z0-9][-a-z0-9.]{1,61}[a-z0-9]")
SUMS = "SHA256SUMS"
MAX_SUMS, MAX_FILES, PAGE = 16 << 20, 100_000, 1000
CHUNK = 64 << 10  # bytes; what is lost of a chunk when a connection breaks comes again
CONNECT, READ = timedelta(seconds=10), timedelta(seconds=30)  # to connect, and without a byte
NEVER = timedelta(days=30)  # how long a whole file may take; obstore has a limit of 30 s otherwise
# The status of an answer is in obstore's words only.
STATUS, WRONG_HOST = re.compile(r"status code: (\d{3})"), "redirect without LOCATION"
PASSING = frozenset({408, 425, 429})


@dataclass(frozen=True)
class Identity:
    """Who asks the store: in words, and as obstore's settings."""

    named: str
    config: S3Config


class Bucket:
    """The objects below one prefix of a bucket. `environment` has AWS' variables; without an identity the bucket is asked anonymously.
    Raises Fault for what cannot be."""

    def __init__(self, uri: str, environment: Mapping[str, str]) -> None:
        self._uri = uri
        self._bucket, _, prefix = uri.removeprefix(SCHEME).partition("/")
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        if not NAME.fullmatch(self._bucket):
            raise Fault(SOURCE, f"{uri} must be s3://bucket[/prefix]")
        self._region = _first(environment, REGIONS) or DEFAULT_REGION
        self._identity = identity(environment)
        client: ClientConfig = {
            "allow_http": True,  # of an endpoint in the cluster
            "connect_timeout": CONNECT,
            "read_timeout": READ,
            "timeout": NEVER,
            "root_certificate": Path(environment.get("SSL_CERT_FILE") or certifi.where()).read_bytes(),
        }
        retries: RetryConfig = {"max_retries": 2, "retry_timeout": timedelta(minutes=1)}
        config = settings(self._bucket, self._region, environment) | self._identity.config
        try:
            self._store = S3Store(self._bucket, config=config, client_options=client, retry_config=retries)
        except (BaseError, ValueError) as error:
            raise Fault(ENV, f"{uri}: {error}") from error

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
            line = str(error).strip().partition("\n")[0].removeprefix("Generic S3 error: ")[:600]
            status = int(found[1]) if (found := STATUS.search(line)) else 0
            match status:
                case 401 | 403:
                    raise Fault(SOURCE, f"{what}: {self._identity.named} may not read it: {line}") from error
                case 404:
                    raise Fault(SOURCE, f"{what}: the store has no such bucket or object (404)") from error
                case 412:
                    raise Interrupted(f"{what} was replaced while it was read") from error
                case _ if WRONG_HOST in line or (status // 100 == 4 and status not in PASSING):
                    hint = f"is {REGIONS[0]} right ({self._region})?"
                    raise Fault(SOURCE, f"{what}: asked with {self._identity.named}, {hint} {line}") from error
                case _:
                    raise Interrupted(f"{what}: {line}") from error


def identity(environment: Mapping[str, str]) -> Identity:
    """The first in AWS' order that the pod has. A node's own identity is not the pod's, and is never asked for. Raises Fault for half
    a pair of keys."""
    given = {name: value.strip() for name, value in environment.items() if value.strip()}
    if (ACCESS in given) is not (SECRET in given):
        raise Fault(ENV, f"{ACCESS} and {SECRET} go together")
    if ACCESS in given:
        keys: S3Config = {"access_key_id": given[ACCESS], "secret_access_key": given[SECRET]}
        return Identity(f"the keys of {ENV}", keys | ({"session_token": given[TOKEN]} if TOKEN in given else {}))
    if ROLE in given and ROLE_TOKEN in given:
        return Identity(
            f"the role {given[ROLE]} of the pod's ServiceAccount",
            {"role_arn": given[ROLE], "web_identity_token_file": given[ROLE_TOKEN]},
        )
    if AGENT in given and AGENT_TOKEN in given:
        return Identity(
            "the pod identity of the pod's ServiceAccount",
            {"container_credentials_full_uri": given[AGENT], "container_authorization_token_file": given[AGENT_TOKEN]},
        )
    nobody = f"{ENV} has no {ACCESS}, and {ACCOUNT} names no account with a role"
    return Identity(f"a request without a signature ({nobody})", {"skip_signature": True})


def settings(bucket: str, region: str, environment: Mapping[str, str]) -> S3Config:
    """obstore's settings of the bucket's address: the host's name is the one that AWS prefers, and that of an endpoint stays as it is.
    Raises Fault."""
    endpoint = _first(environment, ENDPOINTS).rstrip("/")
    if endpoint and not endpoint.startswith(("https://", "http://")):
        raise Fault(ENV, f"{ENDPOINTS[1]} must begin with https:// or http://")
    if endpoint:
        return {"region": region, "aws_endpoint_url_s3": endpoint}
    # A certificate for *.s3.REGION.amazonaws.com does not cover a name with dots.
    return {"region": region, "virtual_hosted_style_request": "." not in bucket}


def checksums(text: str) -> dict[str, str]:
    """SHA-256 by name, of sha256sum's output."""
    lines = re.findall(r"^([0-9a-f]{64}) [ *](?:\./)?(.+)$", text, re.MULTILINE)
    return {name.strip(): digest for digest, name in lines}


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((value for name in names if (value := environment.get(name, "").strip())), "")
