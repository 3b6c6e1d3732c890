"""The client of a request, from its API key, and the service, from its path or its body's `model`. Never chooses a revision or a pod.

A model name belongs to one service among those that the client's API key may ask: the one to which the operator granted it,
else the oldest. Nobody is refused because another service has the same name, and nobody learns of services that the key may
not ask.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from urllib.parse import unquote

from pagefleet_contract import model_name
from pagefleet_contract.headers import ACTS_FOR_HEADER
from pagefleet_gateway.bodies.fields import BodyError, document
from pagefleet_gateway.cluster.service import Service, ServiceKey
from pagefleet_gateway.cluster.state import Snapshot
from pagefleet_gateway.limits.api_keys import AUTHORIZATION, X_API_KEY, APIKey, APIKeys

# They change what an engine serves to everybody. Our engine and vLLM have them when they allow adapters at run time.
ADAPTER_ENDPOINTS = ("/load_lora_adapter", "/unload_lora_adapter")
SEND_KEY = "send it as `Authorization: Bearer <key>`, or as `x-api-key: <key>` without `Authorization`"
PATH = re.compile(r"^/(?:(?P<namespace>[^/]+)/(?P<service>[^/]+)/)?v1(?P<endpoint>/[^?#]*)(?:[?#].*)?$")


@dataclass(frozen=True)
class Refusal:
    """An error that the gateway itself answers with, in OpenAI's shape."""

    status: int
    error_type: str  # OpenAI's `type`
    code: str
    message: str
    param: str | None = None
    retry_after: int | None = None  # seconds
    service: ServiceKey | None = None  # the service whose metrics count it
    api_key: str = ""  # the name of the client's API key
    bucket: tuple[str, bytes] | None = None  # of a rate limit: the scope and name of the bucket that was too low

    def body(self) -> bytes:
        error = {"message": self.message, "type": self.error_type, "param": self.param, "code": self.code}
        return json.dumps({"error": error}).encode()


def route(snapshot: Snapshot, method: str, path: str, body: bytes, key: APIKey | None = None) -> Service | Refusal:
    """Return the service that `path` names, or the one that owns the body's `model`. `key` sees only its own services."""
    match = PATH.match(path)
    if match is None:
        return _not_found("there is no such path; use /<namespace>/<service>/v1/... or /v1/...", "path_not_found")
    # Whatever the path begins with: a gateway in front of the endpoint picker may rewrite it.
    if unquote(match["endpoint"]).rstrip("/").endswith(ADAPTER_ENDPOINTS) and not (key and key.manage_adapters):
        message = (
            "adapters are loaded and unloaded only with an API key that has `manageAdapters: true` at this gateway"
        )
        return Refusal(403, "permission_error", "path_not_allowed", message)
    if match["namespace"]:
        named = (match["namespace"], match["service"])
        service = snapshot.services.get(named)
        if key is not None and not key.allows(named):
            # The same answer where there is no such service. A metric's label must be no name that a client made up.
            return replace(_not_allowed(named, key.name), service=named if service is not None else None)
        if service is None:
            return _not_found(f"there is no InferenceService {'/'.join(named)}", "service_not_found")
        return service
    return _by_model(snapshot, method, match["endpoint"], body, key)


def _by_model(snapshot: Snapshot, method: str, endpoint: str, body: bytes, key: APIKey | None) -> Service | Refusal:
    if endpoint.startswith("/models/"):
        model: object = endpoint.removeprefix("/models/")
    elif method in ("GET", "DELETE") and not body:
        models = [name for name in snapshot.by_model if _owners(snapshot, name, key)]
        if len(models) != 1:
            return _bad_request(
                f"{len(models)} models of this gateway can be meant, so the path must name a service; use /<namespace>/<service>/v1{endpoint}",
                "model_ambiguous",
            )
        model = models[0]
    else:
        try:
            fields = document(body)
        except BodyError as error:
            return _bad_request(str(error), "invalid_json", None)
        model = None if fields is None else fields.get("model")
    if not isinstance(model, str) or not model:
        return _bad_request("`model` must be a string: the name of a model that this gateway serves", "model_required")
    owners = _owners(snapshot, model, key)
    if owners:
        return snapshot.services[owners[0]]
    message = f"no service of this gateway serves the model {model[:200]!r}"
    others = [other for other in snapshot.by_model.get(model, ()) if key is None or key.allows(other)]
    if others:
        paths = ", ".join(f"/{namespace}/{name}/v1{endpoint}" for namespace, name in others[:5])
        message = f"no service owns the model name {model[:200]!r} now; name a service by its path: {paths}"
    return _not_found(message, "model_not_found", "model")


def _owners(snapshot: Snapshot, model: str, key: APIKey | None) -> list[ServiceKey]:
    """Return the services that the key may ask for a model, the owner of its name first.

    A service that lost the name is asked only by a key of its own namespace that never saw the owner, which was in another.
    """
    seen = [other for other in snapshot.by_model.get(model, ()) if key is None or key.allows(other)]
    owners = [other for other in seen if not snapshot.services[other].name_lost]
    if owners or key is None:
        return owners
    home = key.only_namespace
    return [
        other
        for other in seen
        if other[0] == home and snapshot.services[other].name_lost.endswith(model_name.ELSEWHERE)
    ]


def client_key(keys: APIKeys | None, headers: Mapping[str, str]) -> APIKey | Refusal | None:
    """Return the API key whose services and limits are in force; None where the gateway demands none (`keys` is None).

    The key that a request shows is its client's own, or one that acts for clients and names the client's.
    """
    if keys is None:
        return None
    key = keys.find(headers)
    if key is None or not key.acts_for_clients:
        return key or _wrong_api_key(headers)
    name = headers.get(ACTS_FOR_HEADER, "")
    return keys.named(name) or _client_unknown(name)


def _wrong_api_key(headers: Mapping[str, str]) -> Refusal:
    sent = next((header for header in (AUTHORIZATION, X_API_KEY) if header in headers), None)
    message = (
        f"this gateway does not know the API key in `{sent}`: check the key and {SEND_KEY}"
        if sent
        else f"this gateway demands an API key: {SEND_KEY}"
    )
    return Refusal(401, "invalid_request_error", "invalid_api_key", message)


def _client_unknown(name: str) -> Refusal:
    """The key that was sent acts for clients, and the header names none whose key is in force."""
    message = (
        f"`{ACTS_FOR_HEADER}` names no client of this gateway ({name[:63]!r}): its key was removed, or acts for clients itself"
        if name
        else f"this API key acts for clients, so `{ACTS_FOR_HEADER}` must name the client's key"
    )
    return Refusal(403, "permission_error", "client_unknown", message)


def _not_allowed(named: ServiceKey, api_key: str) -> Refusal:
    message = f"the API key {api_key!r} is not allowed to use {'/'.join(named)}; ask the gateway's operator to allow it"
    return Refusal(403, "permission_error", "service_not_allowed", message, api_key=api_key)


def _not_found(message: str, code: str, param: str | None = None) -> Refusal:
    return Refusal(404, "not_found_error", code, message, param)


def _bad_request(message: str, code: str, param: str | None = "model") -> Refusal:
    return Refusal(400, "invalid_request_error", code, message, param)
