"""A real registry (Debian's docker-registry, the reference implementation of the distribution specification), what is pushed to it, and what stands
between it and its clients: a server that breaks connections and changes bytes as a test asks, and one that gives tokens."""

from __future__ import annotations

import base64
import gzip
import hashlib
import http.client
import io
import json
import subprocess
import tarfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from support.engine.api_process import free_port
from support.s3_store import send

from pagefleet_local.assets import debian
from pagefleet_local.base.certificates import Authority, Pair

NAME, PASSWORD = "models", "models-password"
HTPASSWD = f"{NAME}:$2y$04$abcdefghijklmnopqrstuuAzpm4lMPZ/fqqPcde5FjVptTBACkRgO\n"  # bcrypt of PASSWORD
MANIFEST, CONFIG = "application/vnd.oci.image.manifest.v1+json", "application/vnd.oci.image.config.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
SERVICE, ISSUER = "registry of models", "tokens of models"


@dataclass
class Registry:
    """`host` is its name and port. What is pushed is named by its digest."""

    host: str

    def blob(self, repository: str, data: bytes) -> str:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        place = self._send("POST", f"/v2/{repository}/blobs/uploads/", b"")
        parts = urlsplit(place)
        self._send("PUT", f"{parts.path}?{parts.query}&digest={digest}", data, "application/octet-stream")
        return digest

    def layer(
        self, repository: str, media: str, data: bytes, annotations: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        told = {"annotations": dict(annotations)} if annotations else {}
        return {"mediaType": media, "digest": self.blob(repository, data), "size": len(data), **told}

    def manifest(self, repository: str, layers: list[dict[str, Any]], **more: Any) -> str:
        config = self.layer(repository, CONFIG, b"{}")
        return self.document(repository, MANIFEST, {"config": config, "layers": layers, **more})

    def document(self, repository: str, media: str, content: dict[str, Any]) -> str:
        data = json.dumps({"schemaVersion": 2, "mediaType": media, **content}).encode()
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        self._send("PUT", f"/v2/{repository}/manifests/{digest}", data, media)
        return digest

    def _send(self, method: str, path: str, data: bytes, media: str = "") -> str:
        request = urllib.request.Request(f"http://{self.host}{path}", data, {"Content-Type": media}, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return str(answer.headers["Location"])


def packed(files: Mapping[str, bytes], compressed: bool = False, *more: tarfile.TarInfo) -> bytes:
    """An archive of these files, and of more members without content."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        for member in more:
            archive.addfile(member)
    return gzip.compress(buffer.getvalue()) if compressed else buffer.getvalue()


@contextmanager
def registry(
    folder: Path, auth: dict[str, Any] | None = None, certificate: Pair | None = None, address: str = "127.0.0.1"
) -> Iterator[Registry]:
    """Run a registry whose content is below `folder`. Several may share it."""
    host = f"{address}:{free_port()}"
    tls = {"tls": {"certificate": str(certificate.certificate), "key": str(certificate.key)}} if certificate else {}
    settings = {
        "version": 0.1,
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "registry")}},
        "http": {"addr": host, "secret": "one", **tls},
        **({"auth": auth} if auth else {}),
    }
    path = folder / f"registry-{host.rpartition(':')[2]}.yaml"
    path.write_text(yaml.safe_dump(settings))
    with path.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen(
            [debian.tool("docker-registry"), "serve", str(path)],
            env={"OTEL_TRACES_EXPORTER": "none"},
            stdout=log,
            stderr=log,
        )
    try:
        _answering(host, process)
        yield Registry(host)
    finally:
        process.terminate()
        process.wait()


def _answering(host: str, process: subprocess.Popen[bytes]) -> None:
    name, _, port = host.partition(":")
    end = time.monotonic() + 60
    while True:
        connection = http.client.HTTPConnection(name, int(port), timeout=5)
        try:
            connection.connect()
        except OSError:
            if process.poll() is not None or time.monotonic() > end:
                raise
            time.sleep(0.02)
        else:
            return
        finally:
            connection.close()


def basic(folder: Path) -> dict[str, Any]:
    """The setting of a registry that wants NAME and PASSWORD."""
    (folder / "htpasswd").write_text(HTPASSWD)
    return {"htpasswd": {"realm": "models", "path": str(folder / "htpasswd")}}


def pull_secret(folder: Path, host: str, password: str = PASSWORD) -> None:
    """Put the credentials into the folder of pull secrets, as kubectl writes them."""
    folder.mkdir(exist_ok=True)
    auth = base64.b64encode(f"{NAME}:{password}".encode()).decode()
    document = {"auths": {host: {"username": NAME, "password": password, "auth": auth}}}
    (folder / "0.json").write_text(json.dumps(document))


@dataclass
class Front:
    """Passes requests on to the registry `upstream`. `breaks` are the bytes after which answers of blobs break, each used once; `changed` changes the
    bytes of an answer, by its path; without `ranges` all bytes come; the next `ended` requests for blobs come without their token. `asked` has paths
    and ranges."""

    upstream: str
    breaks: list[int] = field(default_factory=list)
    changed: Callable[[str, bytes], bytes] | None = None
    ranges: bool = True
    ended: int = 0
    asked: list[tuple[str, str]] = field(default_factory=list)
    url: str = ""

    @property
    def host(self) -> str:
        return self.url.partition("://")[2]

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.asked.append((handler.path, handler.headers.get("Range", "")))
        given = {name: value for name, value in handler.headers.items() if self.ranges or name != "Range"}
        if self.ended and "/blobs/" in handler.path:
            self.ended -= 1
            given.pop("Authorization", None)
        connection = http.client.HTTPConnection(self.upstream, timeout=30)
        connection.request("GET", handler.path, headers=given)
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        if self.changed:
            data = self.changed(handler.path, data)
        end = self.breaks.pop(0) if self.breaks and "/blobs/" in handler.path else len(data)
        kept = ("Content-Range", "Content-Type", "Www-Authenticate", "Docker-Content-Digest")
        more = {name: answer.headers[name] for name in kept if name in answer.headers}
        send(handler, answer.status, data[:end], len(data), more)


@dataclass
class Tokens:
    """Gives tokens for a registry with the settings `auth` to who proves to be NAME, or with `anonymous` to everybody."""

    authority: Authority
    anonymous: bool = False
    given: int = 0
    url: str = ""

    @property
    def auth(self) -> dict[str, Any]:
        bundle = str(self.authority.pair.certificate)
        return {"token": {"realm": f"{self.url}/token", "service": SERVICE, "issuer": ISSUER, "rootcertbundle": bundle}}

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        asked = {name: one[0] for name, one in parse_qs(urlsplit(handler.path).query).items()}
        proof = base64.b64encode(f"{NAME}:{PASSWORD}".encode()).decode()
        known = handler.headers.get("Authorization", "")
        if asked.get("service") != SERVICE or not (self.anonymous or known == f"Basic {proof}"):
            return send(handler, 401, b'{"errors": [{"code": "UNAUTHORIZED"}]}')
        self.given += 1
        kind, name, actions = asked["scope"].split(":")
        return send(handler, 200, json.dumps({"token": self.token(kind, name, actions.split(","))}).encode())

    def token(self, kind: str, name: str, actions: list[str]) -> str:
        """A JWT (ES256), as the registry's own documentation describes it."""
        pair = self.authority.issue("tokens", "tokens")
        certificate = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
        key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        now = int(time.time())
        chain = [base64.b64encode(certificate.public_bytes(serialization.Encoding.DER)).decode()]
        head = {"typ": "JWT", "alg": "ES256", "x5c": chain}
        claims = {
            "iss": ISSUER, "sub": NAME, "aud": SERVICE, "exp": now + 300, "nbf": now - 60, "iat": now, "jti": str(now),
            "access": [{"type": kind, "name": name, "actions": actions}],
        }  # fmt: skip
        signed = ".".join(_encoded(json.dumps(part).encode()) for part in (head, claims))
        r, s = decode_dss_signature(key.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
        return f"{signed}.{_encoded(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
