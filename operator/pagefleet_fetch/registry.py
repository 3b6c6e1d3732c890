"""Models of a registry: artifacts of ModelPack and KitOps, what `oras push` has pushed, and images with a model in their layers. oras asks
the registry, and proves who asks as the registry wants it (anonymous or basic, or for a bearer token).

A manifest is compared with the digest of the URI, and a layer with the digest in the manifest.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import os
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import certifi
import requests
from oras.auth.token import TokenAuth
from oras.auth.utils import parse_auth_header
from oras.provider import Registry
from requests.adapters import HTTPAdapter

from pagefleet_fetch import archives, web
from pagefleet_fetch.files import SOURCE, Fault, Interrupted, Model, RemoteFile, chosen
from pagefleet_fetch.oci import manifest, reference
from pagefleet_fetch.oci.credentials import Credential, credential
from pagefleet_fetch.oci.manifest import Layer
from pagefleet_fetch.oci.reference import SCHEME, Reference

__all__ = ["SCHEME", "Artifact"]
MIRRORS = "OCI_MIRRORS"
SECRETS = "spec.pod.imagePullSecrets"
MAX_MANIFEST = 4 << 20  # bytes that a registry has to take, of the distribution specification
# oras repeats what is refused too, for two minutes; transfer.py repeats what passes.
_asked_once = inspect.unwrap(Registry.do_request)
log = logging.getLogger("pagefleet-fetch")


class Artifact:
    """One artifact or image. `environment` may have OCI_MIRRORS, and `secrets` is the folder of the pod's pull secrets. Raises Fault for what
    cannot be."""

    def __init__(self, uri: str, environment: Mapping[str, str], secrets: Path | None) -> None:
        self._uri = uri
        try:
            self._reference = reference.parse(uri)
            places = list(reference.mirrored(self._reference, environment.get(MIRRORS, "")))
        except ValueError as error:
            raise Fault(SOURCE if str(error).startswith(uri) else "spec.engine.env", f"{error}") from error
        known = list(_documents(secrets))
        self._servers = [_Server(place, credential(place, known)) for place in places]
        self._server = self._servers[-1]

    @property
    def folder(self) -> str:
        """The model's folder in a cache, without its version."""
        named = (self._reference.registry, self._reference.repository, self._reference.path.rstrip("/"))
        return f"oci/{'--'.join(filter(None, named)).replace('/', '--').replace(':', '-')}"

    @property
    def pinned(self) -> str:
        return self._reference.digest

    def model(self) -> Model:
        faults: list[Fault | Interrupted] = []
        for server in self._servers:
            self._server = server
            try:
                return self._model(server)
            except (Fault, Interrupted) as error:
                log.warning("%s", error)
                faults.append(error)
        raise next((one for one in faults if isinstance(one, Interrupted)), faults[-1])

    def _model(self, server: _Server) -> Model:
        try:
            document = server.manifest(self._reference.digest)
            if inner := manifest.of_platform(document, platform.machine()):
                document = server.manifest(inner)
            found = manifest.layers(document)
        except ValueError as error:
            raise Fault(SOURCE, f"{self._uri}: {error}") from error
        packed = dict.fromkeys(_file(one, archives.name(one.digest)) for one in found if not one.name)
        plain = [
            _file(one, one.name.removeprefix(self._reference.path))
            for one in found
            if one.name and one.name.startswith(self._reference.path)
        ]
        wanted = chosen(self._uri, plain, complete=not packed)
        if len({file.name for file in wanted}) < len(wanted):
            raise Fault(SOURCE, f"{self._uri} lists a file twice")
        order = tuple(archives.name(one.digest) for one in found if not one.name)
        return Model(self._reference.digest, (*wanted, *packed), order, self._reference.path)

    def read(self, file: RemoteFile, offset: int) -> Iterator[bytes]:
        return self._server.blob(file, offset)


class _Server:
    """One repository of a registry or of a mirror, asked with a credential or anonymously. Raises Fault and Interrupted."""

    def __init__(self, place: Reference, known: Credential | None) -> None:
        self._place, self._known = place, known
        trusted = os.environ.get("SSL_CERT_FILE") or certifi.where()
        plain = place.base.startswith("http://")
        self._registry = Registry(place.registry, insecure=plain, tls_verify=trusted)
        self._registry.auth = _Identity(known, self._registry)
        session: requests.Session = self._registry.session
        session.adapters.clear()  # neither a redirect nor the place of a token leads to a server without TLS
        for scheme in ("https://", "http://") if plain else ("https://",):
            session.mount(scheme, _Patient(pool_maxsize=16))

    def manifest(self, digest: str) -> Any:
        """The document of this digest (hexadecimal). Raises ValueError where it is no JSON."""
        accepted = ", ".join((*manifest.MANIFESTS, *manifest.INDEXES))
        url = f"{self._place.base}/manifests/sha256:{digest}"
        text = b""
        for chunk in web.body(self._get(url, {"Accept": accepted}, "the manifest"), url):
            text += chunk
            if len(text) > MAX_MANIFEST:
                raise Fault(
                    SOURCE, f"{self._place.registry} answers with a manifest of more than {MAX_MANIFEST >> 20} MiB"
                )
        if (found := hashlib.sha256(text).hexdigest()) != digest:
            raise Fault(SOURCE, f"{self._place.registry} answers with a manifest of digest {found} for {digest}")
        return json.loads(text)

    def blob(self, file: RemoteFile, offset: int) -> Iterator[bytes]:
        url = f"{self._place.base}/blobs/sha256:{file.sha256}"
        answer = self._get(url, {"Range": f"bytes={offset}-"} if offset else {}, file.name)
        return web.rest(answer, url, offset)

    def _get(self, url: str, headers: Mapping[str, str], what: str) -> web.Response:
        """The head of an answer that has what was asked for."""
        try:
            answer = _asked_once(self._registry, url, headers={"Accept-Encoding": "identity", **headers}, stream=True)
        except requests.exceptions.InvalidSchema as error:
            message = f"{self._place.registry} leads to a server without TLS: {error}"
            raise Fault(SOURCE, message[:600]) from error
        except requests.RequestException as error:
            raise Interrupted(f"{self._place.registry} does not answer: {web.cause(error)}") from error
        except ValueError as error:  # of oras: nothing proves who asks
            raise self._refused(what) from error
        status, raw = answer.status_code, answer.raw
        if status in (200, 206):
            return raw  # type: ignore[no-any-return]
        answer.close()
        if status in (401, 403):
            raise self._refused(what)
        known = " has no such artifact or layer (404)" if status == 404 else f" answers {status}"
        raise Fault(SOURCE, f"{self._place.registry}/{self._place.repository}: {what}: the registry{known}")

    def _refused(self, what: str) -> Fault:
        who = (
            f"the credentials of {SECRETS} ({self._known[0]})"
            if self._known
            else f"a request without credentials ({SECRETS} has none for it)"
        )
        message = f"{self._place.registry}/{self._place.repository}: {who} may not read {what}"
        return Fault(SOURCE, message)


class _Identity(TokenAuth):  # type: ignore[misc]
    """Proves who asks: with a name and a password where the registry wants those, else with a token, which is asked for anew when it has
    ended. Threads may do this at the same time."""

    def __init__(self, known: Credential | None, registry: Any) -> None:
        super().__init__()
        self.session, self.prefix, self._tls_verify = registry.session, registry.prefix, registry._tls_verify
        if known:
            self.set_basic_auth(*known)

    def authenticate_request(
        self, original: requests.Response, headers: dict[str, str], refresh: bool = False
    ) -> tuple[dict[str, str], bool]:
        original.close()
        challenge = original.headers.get("Www-Authenticate", "")
        if challenge.lower().startswith("basic"):
            proof = getattr(self, "_basic_auth", "")
            return ({**headers, "Authorization": f"Basic {proof}"}, True) if proof else (headers, False)
        where = parse_auth_header(challenge)
        token = self.request_token(where) if where.realm else None
        if not token:
            return headers, False
        self.token = token
        return {**headers, "Authorization": f"Bearer {token}"}, True


class _Patient(HTTPAdapter):
    """Requests with limits of time, of which oras has none. A server that may answer later interrupts."""

    def send(self, request: requests.PreparedRequest, *args: Any, **more: Any) -> requests.Response:
        more["timeout"] = (web.CONNECT_SECONDS, web.READ_SECONDS)
        answer = super().send(request, *args, **more)
        if answer.status_code in web.PASSING:
            answer.close()
            raise Interrupted(f"{web.named(request.url or '')} answers {answer.status_code}")
        return answer


def _documents(secrets: Path | None) -> Iterator[Any]:
    """The pull secrets. One that is no JSON is none, as for the kubelet."""
    for path in sorted(secrets.glob("*.json")) if secrets else ():
        try:
            yield json.loads(path.read_text())
        except ValueError:
            log.warning("a pull secret is no JSON")


def _file(layer: Layer, name: str) -> RemoteFile:
    return RemoteFile(name, layer.size, layer.digest)
