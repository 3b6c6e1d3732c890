"""The service of a request, from its path or its body's `model`. Never chooses a revision or a pod."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from pagefleet_gateway.cluster.state import Service, ServiceKey, Snapshot

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


def route(snapshot: Snapshot, method: str, path: str, body: bytes) -> Service | Refusal:
    """Return the service that `path` names, or the only one that serves the body's `model`."""
    match = PATH.match(path)
    if match is None:
        return _not_found("there is no such path; use /<namespace>/<service>/v1/... or /v1/...", "path_not_found")
    if match["namespace"]:
        service = snapshot.services.get((match["namespace"], match["service"]))
        if service is None:
            name = f"{match['namespace']}/{match['service']}"
            return _not_found(f"there is no InferenceService {name}", "service_not_found")
        return service
    return _by_model(snapshot, method, match["endpoint"], body)


def _by_model(snapshot: Snapshot, method: str, endpoint: str, body: bytes) -> Service | Refusal:
    if endpoint.startswith("/models/"):
        model: object = endpoint.removeprefix("/models/")
    elif method == "GET" and not body:
        if len(snapshot.by_model) != 1:
            return _bad_request(
                f"this gateway serves {len(snapshot.by_model)} models, so the path must name a service; use /<namespace>/<service>/v1{endpoint}",
                "model_ambiguous",
            )
        model = next(iter(snapshot.by_model))
    else:
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            return _bad_request("the request's body is not valid JSON", "invalid_json", None)
        model = document.get("model") if isinstance(document, dict) else None
    if not isinstance(model, str) or not model:
        return _bad_request("`model` must be a string: the name of a model that this gateway serves", "model_required")
    keys = snapshot.by_model.get(model, ())
    if not keys:
        return _not_found(f"no service of this gateway serves the model {model[:200]!r}", "model_not_found", "model")
    if len(keys) > 1:
        names = ", ".join("/".join(key) for key in keys[:5])
        return _bad_request(
            f"{len(keys)} services serve {model!r} ({names}); use /<namespace>/<service>/v1{endpoint}",
            "model_ambiguous",
        )
    return snapshot.services[keys[0]]


def _not_found(message: str, code: str, param: str | None = None) -> Refusal:
    return Refusal(404, "not_found_error", code, message, param)


def _bad_request(message: str, code: str, param: str | None = "model") -> Refusal:
    return Refusal(400, "invalid_request_error", code, message, param)
