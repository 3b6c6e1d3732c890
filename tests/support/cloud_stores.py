"""What Google's and Microsoft's stores have of their own, for tests: Azure's lists and signatures, and the places where a pod of GKE or AKS gets a
token. Written from their published protocols; the objects, ranges, conditions and faults are those of s3_store.

Sources: https://learn.microsoft.com/rest/api/storageservices/authorize-with-shared-key, list-blobs and
https://learn.microsoft.com/entra/identity-platform/v2-oauth2-client-creds-grant-flow (a request with a federated credential);
https://cloud.google.com/compute/docs/access/authenticate-workloads for the server of metadata;
https://developers.google.com/identity/protocols/oauth2/service-account#jwt-auth for a key that signs its own token.
"""

from __future__ import annotations

import base64
import hmac
import json
import time
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from support.s3_store import BUCKET, PAGE, Store, send

ACCOUNT = "fleetmodels"
ASSERTION = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
LINE = ("Content-Encoding", "Content-Language", "Content-Length", "Content-MD5", "Content-Type", "Date", "If-Modified-Since", "If-Match",
        "If-None-Match", "If-Unmodified-Since", "Range")  # fmt: skip


def shared_key(key: bytes, method: str, target: str, headers: Message) -> str:
    """The signature of a request to Blob Storage with the account's key. `target` is path and query as sent; `headers` finds names in any
    case."""
    parts = urlsplit(target)
    own = sorted(
        (name.lower(), " ".join(value.split())) for name, value in headers.items() if name.lower().startswith("x-ms-")
    )
    length = {"Content-Length": ""} if headers.get("Content-Length") == "0" else {}
    query = sorted((name.lower(), ",".join(sorted(values))) for name, values in parse_qs(parts.query).items())
    text = "\n".join(
        [method, *(length.get(name, headers.get(name) or "") for name in LINE), *(f"{n}:{v}" for n, v in own)]
    )
    text += f"\n/{ACCOUNT}{parts.path}" + "".join(f"\n{name}:{value}" for name, value in query)
    return base64.b64encode(hmac.digest(key, text.encode(), "sha256")).decode()


@dataclass
class Blobs(Store):
    """A container of Azure Blob Storage. `key` is the account's; `signature` that of a shared access signature; `bearer` judges tokens; without
    all three any request that is not signed is answered."""

    key: bytes = b""
    signature: str = ""

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        given, query = handler.headers, {name: one[0] for name, one in parse_qs(urlsplit(handler.path).query).items()}
        self.asked.append((handler.path, given.get("Range", "")))
        scheme, _, token = given.get("Authorization", "").partition(" ")
        if self.key:
            signed = (scheme, token) == (
                "SharedKey",
                f"{ACCOUNT}:{shared_key(self.key, handler.command, handler.path, given)}",
            )
        elif self.signature:
            signed = query.get("sig") == self.signature
        elif self.bearer is not None:
            signed = scheme == "Bearer" and self.bearer(token)
        else:
            signed = not scheme
        if self.statuses:
            send(handler, self.statuses.pop(0), b"<Error><Code>Told")
        elif not signed:
            send(handler, 403, b"<Error><Code>AuthenticationFailed</Code></Error>")
        else:
            self.serve(handler, unquote(urlsplit(handler.path).path), query)

    def page(self, query: dict[str, str]) -> bytes:
        keys = sorted(key for key in self.objects if key.startswith(query.get("prefix", "")))
        start = int(query.get("marker", "0"))
        rows = [
            f"<Blob><Name>{escape(key)}</Name><Properties><Last-Modified>Wed, 12 Oct 2022 17:50:00 GMT</Last-Modified>"
            f"<Etag>{escape(self.etag(key))}</Etag><Content-Length>{len(self.objects[key])}</Content-Length>"
            "<Content-Type>application/octet-stream</Content-Type><BlobType>BlockBlob</BlobType></Properties></Blob>"
            for key in keys[start : start + PAGE]
        ]
        more = start + PAGE if start + PAGE < len(keys) else ""
        told = f"<Blobs>{''.join(rows)}</Blobs><NextMarker>{more}</NextMarker>"
        return f'<?xml version="1.0"?><EnumerationResults ContainerName="{BUCKET}">{told}</EnumerationResults>'.encode()


@dataclass
class Tokens:
    """Gives `token`, for the moment of a metadata server's request, or for `assertion` of the client of a tenant."""

    token: str
    assertion: str = ""
    client: str = "11111111-2222-3333-4444-555555555555"
    tenant: str = "99999999-8888-7777-6666-555555555555"
    asked: list[str] = field(default_factory=list)
    url: str = ""

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        path = urlsplit(handler.path).path
        self.asked.append(path)
        if handler.command == "POST":
            form = parse_qs(handler.rfile.read(int(handler.headers.get("Content-Length", "0"))).decode())
            wanted = {
                "client_id": self.client, "client_assertion": self.assertion, "client_assertion_type": ASSERTION,
                "grant_type": "client_credentials", "scope": "https://storage.azure.com/.default",
            }  # fmt: skip
            right = path == f"/{self.tenant}/oauth2/v2.0/token" and all(
                form.get(name) == [one] for name, one in wanted.items()
            )
        else:
            right = path == "/computeMetadata/v1/instance/service-accounts/default/token" and bool(
                handler.headers.get("Metadata-Flavor") == "Google"
            )
        told = {"access_token": self.token, "expires_in": 3600, "token_type": "Bearer"}
        send(handler, 200, json.dumps(told).encode()) if right else send(handler, 401, b'{"error": "invalid_client"}')


@dataclass
class ServiceAccount:
    """A key of Google's, and who judges the tokens that it signs."""

    email: str = "models@project.iam.gserviceaccount.com"
    key: rsa.RSAPrivateKey = field(default_factory=lambda: rsa.generate_private_key(65537, 2048))

    @property
    def file(self) -> str:
        """The JSON that Google gives for a key."""
        pem = self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        told = {
            "type": "service_account",
            "private_key": pem.decode(),
            "private_key_id": "k1",
            "client_email": self.email,
        }
        return json.dumps(told)

    def judges(self, token: str) -> bool:
        """Whether a JWT is signed with the key, of this account, for storage, and valid now."""
        try:
            head, claims, signature = token.split(".")
            self.key.public_key().verify(
                _decoded(signature), f"{head}.{claims}".encode(), padding.PKCS1v15(), hashes.SHA256()
            )
            stated = json.loads(_decoded(claims))
        except (ValueError, InvalidSignature):
            return False
        scoped = str(stated["scope"]).startswith("https://www.googleapis.com/auth/")
        return (
            scoped
            and stated["iss"] == stated["sub"] == self.email
            and stated["iat"] - 60 <= time.time() < stated["exp"]
        )


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
