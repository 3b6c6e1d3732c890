"""docs/reference/http.md: what the engine (its own OpenAPI document), the gateway, the batches server and the operator answer over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pagefleet_contract.disaggregation import OUTCOMES
from pagefleet_contract.headers import (
    ERROR_HEADER,
    FALLBACK_HEADER,
    OUTPUT_TOKENS_HEADER,
    PEAK_HEADER,
    PREFILLED_HEADER,
    PROMPT_TOKENS_HEADER,
    REQUEST_ID_HEADER,
    REVISION_HEADER,
    TRACEPARENT_HEADER,
)
from pagefleet_contract.names import GATEWAY_INTERNAL_PORT
from pagefleet_engine.api.endpoints.openapi import document
from pagefleet_reference.markdown import cell, code, table

Json = Mapping[str, Any]
Path = tuple[str, str]  # method, path

INTRODUCTION = """\
# HTTP interfaces

Clients talk to the **gateway**, at `http://<gateway>/<namespace>/<service>/v1`, or `http://<gateway>/v1` with the body's
`model` equal to exactly one service's `servedName`; the rest of this page is for operators and tools. Errors have OpenAI's
shape, `{"error": {"message", "type", "param", "code"}}`; every 429 and 503 has `Retry-After`.
"""
CLIENTS = (
    (
        "POST",
        "/<namespace>/<service>/v1/chat/completions",
        "and every other path below `/v1/`, such as `/v1/responses` and `/v1/messages`: passed to a pod",
    ),
    ("GET", "/<namespace>/<service>/v1/models", "the models of the service"),
    ("POST", "/v1/...", "the same; the body's `model` selects the service"),
    ("any", "/v1/files..., /v1/batches...", "the batches server (below), where one is installed; else 404"),
)
GATEWAY: dict[Path, str] = {
    ("GET", "/healthz"): "200 while the process works",
    ("GET", "/readyz"): "200 when it has the objects and its Envoy; else 503 with the reason",
    ("GET", "/metrics"): "[metrics](metrics.md)",
    ("GET", "/windows"): "`?namespace=N&service=S[&since=UNIX]`: the measurements of this pod, in closed slices of 2 s",
    ("GET", "/held"): "`{held: {namespace/service: count}}`: requests that wait for a pod",
}
BATCHES: dict[Path, str] = {
    ("POST", "/v1/files"): "multipart `file`, `purpose` (`batch`) and `expires_after`: the file",
    ("GET", "/v1/files"): "`?purpose=&order=&limit=&after=`: the client's files",
    ("GET", "/v1/files/{id}"): "the file",
    ("GET", "/v1/files/{id}/content"): "its bytes",
    ("DELETE", "/v1/files/{id}"): "removes it; 409 while a batch reads it",
    (
        "POST",
        "/v1/batches",
    ): "`input_file_id`, `endpoint`, `completion_window` (`24h`), `metadata`, `output_expires_after`: the batch",
    ("GET", "/v1/batches"): "`?limit=&after=`: the client's batches, the newest first",
    ("GET", "/v1/batches/{id}"): "the batch",
    ("POST", "/v1/batches/{id}/cancel"): "the batch; 409 when it has ended",
}
OPERATOR: dict[Path, str] = {
    ("GET", "/healthz"): "200 while the event loop turns, with `lastBeatSecondsAgo`; else 503",
    ("GET", "/readyz"): "200 once it watches; else 503",
    ("GET", "/metrics"): "[metrics](metrics.md)",
    ("POST", "/alerts"): "Alertmanager's webhook, version 4, with the bearer token ([alerts](../rollouts.md#alerts))",
    ("GET", "/ui"): "to `/ui/`",
    ("GET", "/ui/"): "[the status page](../status-page.md)",
    ("GET", "/ui/login"): "its form",
    ("POST", "/ui/login"): "its sign-in",
    ("GET", "/ui/static/{name}"): "its files",
    ("GET", "/ui/api/services"): "one row per service; cookie or bearer token, as all below",
    ("GET", "/ui/api/services/{namespace}/{name}"): "everything that a service's page shows",
    ("GET", "/ui/events"): "server-sent events: `fleet`, then `rows`; with `?service=namespace/name` `service`",
}
HEADERS = (
    (REVISION_HEADER, "answer", "the revision that answered"),
    (REQUEST_ID_HEADER, "answer", "made by the gateway for each request, in place of a client's; in its log lines"),
    (PEAK_HEADER, "answer", "the cap that `spec.traffic.peak` set to the answer's new tokens"),
    (PREFILLED_HEADER, "answer", f"of a request for which a prefill pod was named, what became of its prefill leg: {', '.join(map(code, OUTCOMES))}"),
    (FALLBACK_HEADER, "answer", "`namespace/service` that answered in another's place"),
    (OUTPUT_TOKENS_HEADER, "answer or trailer", "output tokens; a trailer of streams for clients with `TE: trailers`"),
    (PROMPT_TOKENS_HEADER, "answer", "tokens of the request's prompts"),
    (ERROR_HEADER, "answer or trailer", "of an engine's 5xx, and of the 429 of a full queue, the error's `code`; of a stream that an error ended a trailer"),
    (TRACEPARENT_HEADER, "request", "W3C trace context: passed on, begun (not sampled) where there is none"),
    ("retry-after", "answer", "of every 429 and 503: seconds"),
)  # fmt: skip


def page() -> str:
    parts = [
        INTRODUCTION,
        f"## Gateway, for clients (port 8080; 8443 with TLS)\n\n{table(('method', 'path', ''), _rows(CLIENTS))}",
        f"Headers:\n\n{table(('header', 'of', 'meaning'), ((code(n), of, text) for n, of, text in HEADERS))}",
        f"## Gateway, inside (port {GATEWAY_INTERNAL_PORT})\n\n{_routes(GATEWAY)}",
        "## Batches server (through the gateway)\n\nAlso below `/<namespace>/<service>`. Shapes are OpenAI's"
        f" ([how to](../howto/batches.md)).\n\n{_routes(BATCHES)}",
        f"## Operator (port 8080; 8443 with TLS)\n\n{_routes(OPERATOR)}",
        "## Engine (port 8000)\n\nFrom its own `GET /openapi.json`. With API keys all but `/health`, `/ready` and"
        " `/metrics` ask for one.\n",
        *_engine(),
    ]
    return "\n".join(parts)


def _rows(rows: tuple[tuple[str, str, str], ...]) -> Iterator[tuple[str, str, str]]:
    return ((method, code(path), text) for method, path, text in rows)


def _routes(routes: Mapping[Path, str]) -> str:
    return table(("method", "path", "answer"), ((method, code(path), text) for (method, path), text in routes.items()))


def _engine() -> Iterator[str]:
    for path, methods in document(())["paths"].items():
        for method, operation in methods.items():
            yield f"### {method.upper()} {path}\n"
            answers = [(status, cell(answer["description"])) for status, answer in operation["responses"].items()]
            fields = [*_parameters(operation), *_fields(operation)]
            if fields:
                yield table(("parameter", "in", "type", "allowed"), fields)
            yield table(("status", ""), answers)


def _parameters(operation: Json) -> Iterator[tuple[str, ...]]:
    for one in operation.get("parameters", ()):
        yield code(one["name"]), one["in"], _type(one["schema"]), _allowed(one["schema"])


def _fields(operation: Json) -> Iterator[tuple[str, ...]]:
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    for variant in body.get("anyOf", [body]):
        for name, schema in variant.get("properties", {}).items():
            shown = f"**{code(name)}**" if name in variant.get("required", ()) else code(name)
            yield shown, "body", _type(schema), _allowed(schema)


def _type(schema: Json) -> str:
    if "anyOf" in schema or "oneOf" in schema:
        return " or ".join(dict.fromkeys(_type(one) for one in schema.get("anyOf", schema.get("oneOf", ()))))
    kind = schema.get("type", "")
    return " or ".join(kind) if isinstance(kind, list) else str(kind or "-")


def _allowed(schema: Json) -> str:
    if "enum" in schema:
        return ", ".join(code(json.dumps(value)) for value in schema["enum"])
    limits = []
    low, high = schema.get("minimum", schema.get("exclusiveMinimum")), schema.get("maximum")
    if low is not None or high is not None:
        above = "above " if "exclusiveMinimum" in schema else ""
        limits.append(f"{above}{low if low is not None else 'any'} to {high if high is not None else 'any'}")
    limits += [f"at most {schema[key]}" for key in ("maxItems", "maxLength", "maxProperties") if key in schema]
    if isinstance(values := schema.get("additionalProperties"), dict) and "maximum" in values:
        limits.append(f"values {_allowed(values)}")
    return "; ".join(limits) or "-"
