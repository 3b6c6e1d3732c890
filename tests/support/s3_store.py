"""A server with the layout of an S3-compatible store, which Google Cloud Storage has too: pages of a list, ranges, conditions, errors as XML. It
refuses what is not signed with keys that it has given or knows. Beside it are the two places where a pod of EKS gets such keys: STS, over TLS, for a ServiceAccount's token,
and the agent of Pod Identity. It breaks connections and replaces objects as a test asks."""

from __future__ import annotations

import hashlib
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Protocol, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit, urlunsplit
from xml.sax.saxutils import escape

from support.sigv4 import Keys, accepts

from pagefleet_local.base.certificates import Pair

REGION, BUCKET = "eu-west-1", "models"
PAGE = 2  # objects of a list


class Answers(Protocol):
    """A server of these tests."""

    url: str

    def answer(self, handler: BaseHTTPRequestHandler) -> None: ...


Server = TypeVar("Server", bound=Answers)
NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
STS = "https://sts.amazonaws.com/doc/2011-06-15/"
MISSING = "<Error><Code>NoSuchKey</Code><Message>The specified key does not exist.</Message></Error>"


@dataclass
class Store:
    """The objects of the bucket by key. `keys` are accepted, None: any request without a signature. `bearer` judges tokens in place of
    keys. `replaced` is an object that changes
    after the list was read. `breaks` has the bytes of an answer of weights after which the connection is closed, each used once. `statuses`
    are those of the next answers."""

    objects: dict[str, bytes]
    keys: Keys | None = field(default_factory=lambda: Keys("access", "secret"))
    bearer: Callable[[str], bool] | None = None
    replaced: str = ""
    breaks: list[int] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    asked: list[tuple[str, str]] = field(default_factory=list)  # path with query, Range
    held: threading.Event | None = None  # waited for before each answer after the first `free` ones
    free: int = 0
    url: str = ""

    def etag(self, key: str) -> str:
        changed = b"changed" if key == self.replaced else b""
        return f'"{hashlib.md5(self.objects[key] + changed, usedforsecurity=False).hexdigest()}"'

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        parts, given = urlsplit(handler.path), handler.headers
        self.asked.append((handler.path, given.get("Range", "")))
        if self.held is not None and len(self.asked) > self.free:
            self.held.wait()
        target = urlunsplit(("", "", parts.path, parts.query, ""))  # without the host that a proxy is given
        signed = accepts(self.keys, REGION, target, given) if self.keys else "Authorization" not in given
        if self.bearer is not None:
            scheme, _, token = given.get("Authorization", "").partition(" ")
            signed = scheme == "Bearer" and self.bearer(token)
        if self.statuses:
            send(handler, self.statuses.pop(0), b"<Error><Code>Told")
        elif not signed:
            send(handler, 403, b"<Error><Code>SignatureDoesNotMatch</Code></Error>")
        else:
            self.serve(handler, unquote(parts.path), {name: one[0] for name, one in parse_qs(parts.query).items()})

    def serve(self, handler: BaseHTTPRequestHandler, path: str, query: dict[str, str]) -> None:
        if path.rstrip("/") == f"/{BUCKET}":
            send(handler, 200, self.page(query))
        else:
            self.object(handler, path.removeprefix(f"/{BUCKET}/"))

    def object(self, handler: BaseHTTPRequestHandler, key: str) -> None:
        data = self.objects.get(key)
        if data is None:
            return send(handler, 404, MISSING.encode())
        if handler.headers.get("If-Match", self.etag(key)) != self.etag(key):
            return send(handler, 412, b"<Error><Code>PreconditionFailed</Code></Error>")
        start = int(handler.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        end = start + self.breaks.pop(0) if self.breaks and key.endswith(".safetensors") else len(data)
        more = {"ETag": self.etag(key), "Last-Modified": "Wed, 12 Oct 2022 17:50:00 GMT"}
        if "Range" in handler.headers:
            more["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        return send(handler, 206 if "Range" in handler.headers else 200, data[start:end], len(data) - start, more)

    def page(self, query: dict[str, str]) -> bytes:
        keys = sorted(key for key in self.objects if key.startswith(query.get("prefix", "")))
        start = int(query.get("continuation-token", "0"))
        rows = [
            f"<Contents><Key>{escape(key)}</Key><LastModified>2022-10-12T17:50:00.000Z</LastModified>"
            f"<Size>{len(self.objects[key])}</Size><ETag>{escape(self.etag(key))}</ETag></Contents>"
            for key in keys[start : start + PAGE]
        ]
        more = start + PAGE < len(keys)
        end = f"<NextContinuationToken>{start + PAGE}</NextContinuationToken>" if more else ""
        told = f"<IsTruncated>{str(more).lower()}</IsTruncated>{end}"
        return f'<ListBucketResult xmlns="{NAMESPACE}">{"".join(rows)}{told}</ListBucketResult>'.encode()


@dataclass
class Issuer:
    """Gives `keys` for `token`: as STS for the role, in a query over TLS, and as the agent of Pod Identity, in the header
    Authorization. Keys are valid for `seconds`."""

    keys: Keys
    token: str
    role: str = "arn:aws:iam::123456789012:role/models"
    seconds: float = 3600
    asked: int = 0
    url: str = ""

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.asked += 1
        if handler.command == "POST":
            given = {name: one[0] for name, one in parse_qs(urlsplit(handler.path).query).items()}
            wanted = {"Action": "AssumeRoleWithWebIdentity", "RoleArn": self.role, "WebIdentityToken": self.token}
            right = all(given.get(name) == value for name, value in wanted.items()) and "RoleSessionName" in given
            return send(handler, 200, self.sts()) if right else send(handler, 403, self.refusal())
        if handler.headers.get("Authorization") != self.token:
            return send(handler, 401, b'{"message": "the token is not valid"}')
        told = {
            "AccessKeyId": self.keys.access, "SecretAccessKey": self.keys.secret, "Token": self.keys.token,
            "Expiration": self.expiration(), "AccountId": "123456789012",
        }  # fmt: skip
        return send(handler, 200, json.dumps(told).encode())

    def expiration(self) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + self.seconds))

    def sts(self) -> bytes:
        keys = (
            f"<AccessKeyId>{self.keys.access}</AccessKeyId><SecretAccessKey>{self.keys.secret}</SecretAccessKey>"
            f"<SessionToken>{self.keys.token}</SessionToken><Expiration>{self.expiration()}</Expiration>"
        )
        result = f"<AssumeRoleWithWebIdentityResult><Credentials>{keys}</Credentials></AssumeRoleWithWebIdentityResult>"
        return f'<AssumeRoleWithWebIdentityResponse xmlns="{STS}">{result}</AssumeRoleWithWebIdentityResponse>'.encode()

    def refusal(self) -> bytes:
        told = "<Code>AccessDenied</Code><Message>Not authorized to perform sts:AssumeRoleWithWebIdentity</Message>"
        return f'<ErrorResponse xmlns="{STS}"><Error><Type>Sender</Type>{told}</Error></ErrorResponse>'.encode()


def send(
    handler: BaseHTTPRequestHandler,
    status: int,
    body: bytes,
    length: int | None = None,
    more: dict[str, str] | None = None,
) -> None:
    """An answer; one that is shorter than its length breaks the connection."""
    handler.send_response(status)
    for name, value in (more or {}).items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(body) if length is None else length))
    handler.end_headers()
    handler.wfile.write(body)
    handler.close_connection = length is not None and length > len(body)


@contextmanager
def served(one: Server, certificate: Pair | None = None) -> Iterator[Server]:
    """Serve it on a free port of this machine, over TLS where a certificate is given."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            one.answer(self)

        do_POST = do_GET

        def handle(self) -> None:
            try:
                super().handle()
            except OSError:  # of a client that has gone, or that does not trust the certificate
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            """Tests look at `asked`."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate.certificate, certificate.key)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    one.url = f"{'https' if certificate else 'http'}://127.0.0.1:{server.server_address[1]}"
    try:
        yield one
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
