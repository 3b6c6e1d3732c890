"""Which service a request means, from its path or its body's `model`. Never chooses a revision or a pod."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from pagefleet_gateway.cluster.state import Service, ServiceKey, Snapshot

PATH = re.compile(r"^/(?:(?P<namespace>[^/]+)/(?P<service>[^/]+)/)?v1(?P<rest>/[^?#]*)(?:[?#].*)?$")


@dataclass(frozen=True)
class Refusal:
    """An answer the gateway gives itself, in OpenAI's error shape."""

    status: int
    kind: str  # OpenAI's `type`
    code: str
    message: str
    param: str | None = None
    retry_after: int | None = None  # seconds
    service: ServiceKey | None = None  # whose requests it is counted with
    key: str = ""  # name of the API key that asked

    def body(self) -> bytes:
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return json.dumps({"error": error}).encode()


def route(snapshot: Snapshot, method: str, path: str, body: bytes) -> Service | Refusal:
    """The service that `path` names, or the only one that serves the body's `model`."""
    match = PATH.match(path)
    if match is None:
        return _not_found("there is no such path; use /<namespace>/<service>/v1/... or /v1/...", "path_not_found")
    if match["namespace"]:
        service = snapshot.services.get((match["namespace"], match["service"]))
        if service is None:
            name = f"{match['namespace']}/{match['service']}"
            return _not_found(f"there is no InferenceService {name}", "service_not_found")
        return service
    return _by_model(snapshot, method, match["rest"], body)


def _by_model(snapshot: Snapshot, method: str, rest: str, body: bytes) -> Service | Refusal:
    if rest.startswith("/models/"):
        model: object = rest.removeprefix("/models/")
    elif method == "GET" and not body:
        if len(snapshot.by_model) != 1:
            return _bad_request(
                f"{len(snapshot.by_model)} models are served here; use /<namespace>/<service>/v1{rest}",
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
        return _bad_request("`model` must be a string that names a served model", "model_required")
    keys = snapshot.by_model.get(model, ())
    if not keys:
        return _not_found(f"the model {model[:200]!r} is not served here", "model_not_found", "model")
    if len(keys) > 1:
        names = ", ".join("/".join(key) for key in keys[:5])
        return _bad_request(
            f"{len(keys)} services serve {model!r} ({names}); use /<namespace>/<service>/v1{rest}",
            "model_ambiguous",
        )
    return snapshot.services[keys[0]]


def _not_found(message: str, code: str, param: str | None = None) -> Refusal:
    return Refusal(404, "not_found_error", code, message, param)


def _bad_request(message: str, code: str, param: str | None = "model") -> Refusal:
    return Refusal(400, "invalid_request_error", code, message, param)
