"""GET /openapi.json: an OpenAPI 3.1 document made from the tables that bodies are read with. Pure but for the version.

https://spec.openapis.org/oas/v3.1.0
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from pagefleet_contract.names import IS_SLEEPING_PATH, SLEEP_PATH, WAKE_PATH
from pagefleet_engine.api.parameters import others, pins
from pagefleet_engine.api.parameters.body import TIMEOUT_HEADER
from pagefleet_engine.api.parameters.fields import Table
from pagefleet_engine.api.parameters.generation import CHAT, COMPLETION, MAX_TIMEOUT_SECONDS, NOT_SUPPORTED
from pagefleet_engine.api.protocols import message_request, response_request

Json = dict[str, Any]
ERROR: Json = {
    "type": "object", "required": ["error"],
    "properties": {"error": {
        "type": "object", "required": ["message", "type", "param", "code"],
        "properties": {"message": {"type": "string"}, "type": {"type": "string"},
                       "param": {"type": ["string", "null"]}, "code": {"type": ["string", "null"]}},
    }},
}  # fmt: skip
USAGE: Json = {
    "type": "object", "required": ["prompt_tokens", "total_tokens"],
    "properties": {name: {"type": "integer"} for name in ("prompt_tokens", "completion_tokens", "total_tokens")},
}  # fmt: skip
MODEL: Json = {
    "type": "object", "required": ["id", "object", "created", "owned_by"],
    "properties": {"id": {"type": "string"}, "object": {"const": "model"}, "created": {"type": "integer"},
                   "owned_by": {"type": "string"}, "parent": {"type": ["string", "null"]},
                   "max_model_len": {"type": ["integer", "null"]}},
}  # fmt: skip
RESPONSE: Json = {
    "type": "object", "required": ["id", "object", "status", "model", "output"],
    "properties": {"object": {"const": "response"}, "status": {"enum": ["completed", "incomplete"]},
                   "output": {"type": "array", "items": {"type": "object", "required": ["id", "type"]}}},
}  # fmt: skip
MESSAGE: Json = {
    "type": "object", "required": ["id", "type", "role", "model", "content", "stop_reason", "usage"],
    "properties": {"type": {"const": "message"}, "content": {"type": "array", "items": {"type": "object"}}},
}  # fmt: skip
PIN: Json = {
    "type": "object", "required": ["id", "object", "model", "tokens", "pages", "pinned_tokens", "expires_at"],
    "properties": {"id": {"type": "string"}, "object": {"const": "cache.pin"}, "model": {"type": "string"},
                   **{name: {"type": "integer"} for name in ("tokens", "pages", "pinned_tokens", "expires_at")}},
}  # fmt: skip
ANTHROPIC_ERROR: Json = {
    "type": "object", "required": ["type", "error"],
    "properties": {"type": {"const": "error"}, "error": {
        "type": "object", "required": ["type", "message"],
        "properties": {"type": {"type": "string"}, "message": {"type": "string"}}}},
}  # fmt: skip
EMBEDDINGS: Json = {
    "type": "object", "required": ["object", "data", "model", "usage"],
    "properties": {"object": {"const": "list"}, "usage": USAGE, "model": {"type": "string"}, "data": {
        "type": "array", "items": {"type": "object", "required": ["object", "index", "embedding"]}}},
}  # fmt: skip
# The schema of each event of a stream: OpenAPI has `itemSchema` for that only from 3.2 on.
EVENT: Json = {
    "type": "object", "required": ["data"],
    "properties": {"data": {"type": "string", "description": "A JSON object with a delta of the answer; [DONE] at the end"}},
}  # fmt: skip
TEXTS = {
    400: "A parameter is wrong; `param` names it", 401: "An API key is needed", 403: "Not allowed on this server",
    404: "There is no such model", 408: "The body did not come in time", 409: "Not possible now",
    413: "The body is too large", 429: "The queue is full", 500: "The engine could not compute it", 503: "Not ready",
    504: "The request's time is over",
}  # fmt: skip
GENERATES = (400, 401, 404, 408, 413, 429, 500, 503, 504)
READS = (400, 401, 404, 408, 413, 503)


def document(models: Sequence[str]) -> Json:
    """`models`: the names that requests may use now."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "Pagefleet engine", "version": version("pagefleet")},
        "components": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"key": []}],
        "paths": {**_inference(models), **_models(models), **_administration(), **_observation()},
    }


def _inference(models: Sequence[str]) -> Json:
    usage_choices = {"choices": {"type": "array", "items": {"type": "object"}}, "usage": USAGE}
    answer = {"type": "object", "required": ["id", "object", "choices", "usage"], "properties": usage_choices}
    streams = {"text/event-stream": {"schema": EVENT}}
    prompt, messages = {"prompt": "Once upon a time"}, {"messages": [{"role": "user", "content": "Hello"}]}
    tokens = _object(["tokens", "count", "max_model_len"])
    tokenize = {"anyOf": [_body(table, {}, models) for table in (others.TOKENIZE_PROMPT, others.TOKENIZE_CHAT)]}
    header = {"name": TIMEOUT_HEADER, "in": "header", "description": "Seconds", "required": False,
              "schema": {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_TIMEOUT_SECONDS}}  # fmt: skip
    paths: Json = {}
    for path, table, refused, schema, streaming, asked in (
        ("/v1/completions", COMPLETION, NOT_SUPPORTED, answer, streams, prompt),
        ("/v1/chat/completions", CHAT, NOT_SUPPORTED, answer, streams, messages),
        (
            "/v1/responses",
            response_request.TABLE,
            response_request.NOT_SUPPORTED,
            RESPONSE,
            streams,
            {"input": "Hello"},
        ),
        (
            "/v1/messages",
            message_request.TABLE,
            message_request.NOT_SUPPORTED,
            MESSAGE,
            streams,
            {**messages, "max_tokens": 8},
        ),
        (
            "/v1/messages/count_tokens",
            message_request.TABLE,
            message_request.NOT_SUPPORTED,
            _object(["input_tokens"]),
            {},
            messages,
        ),
        ("/v1/embeddings", others.EMBEDDING, others.EMBEDDING_NOT_SUPPORTED, EMBEDDINGS, {}, {"input": "Hello"}),
        (
            "/v1/rerank",
            others.RERANK,
            others.SCORE_NOT_SUPPORTED,
            _object(["id", "model", "results", "usage"]),
            {},
            {"query": "Hello", "documents": ["Hi"]},
        ),
        (
            "/v1/score",
            others.SCORE,
            others.SCORE_NOT_SUPPORTED,
            _object(["id", "data", "usage"]),
            {},
            {"text_1": "Hello", "text_2": "Hi"},
        ),
    ):
        operation = _operation(schema, GENERATES, _body(table, refused, models), more=streaming)
        if models:
            whole = {"model": models[0], **asked}
            examples = {
                "whole": {"value": whole},
                **({"stream": {"value": {**whole, "stream": True}}} if streaming else {}),
            }
            operation["requestBody"]["content"]["application/json"]["examples"] = examples
        if path.startswith("/v1/messages"):
            for status in GENERATES:
                operation["responses"][str(status)]["content"]["application/json"]["schema"] = ANTHROPIC_ERROR
        paths[path] = {"post": {**operation, "parameters": [header]}}
    paths |= _stored_responses()
    pinned = {"anyOf": [_body(table, {}, models) for table in (pins.PIN_PROMPT, pins.PIN_CHAT)]}
    paths["/v1/cache/pin"] = {"post": {**_operation(PIN, (*GENERATES, 403, 409), pinned), "parameters": [header]}}
    paths |= _pins()
    paths["/tokenize"] = {"post": _operation(tokens, READS, tokenize)}
    paths["/detokenize"] = {"post": _operation(_object(["prompt"]), READS, _body(others.DETOKENIZE, {}, models))}
    return paths


def _stored_responses() -> Json:
    named = {
        "parameters": [
            {"name": "response", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        ]
    }
    return {
        "/v1/responses/{response}": {
            "get": {**_operation(RESPONSE, (401, 404)), **named},
            "delete": {**_operation(_object(["id", "deleted"]), (401, 404)), **named},
        },
        "/v1/responses/{response}/input_items": {
            "get": {**_operation(_object(["object", "data"]), (401, 404)), **named},
        },
    }


def _pins() -> Json:
    named = {
        "parameters": [{"name": "pin", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}]
    }
    several = {"type": "object", "required": ["object", "data"],
               "properties": {"object": {"const": "list"}, "data": {"type": "array", "items": PIN}}}  # fmt: skip
    return {
        "/v1/cache/pins": {"get": _operation(several, (401,))},
        "/v1/cache/pins/{pin}": {"delete": {**_operation(_object(["id", "deleted"]), (401, 404)), **named}},
    }


def _models(models: Sequence[str]) -> Json:
    several = {"type": "object", "required": ["object", "data"],
               "properties": {"object": {"const": "list"}, "data": {"type": "array", "items": MODEL}}}  # fmt: skip
    parameter = {"name": "model", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    if models:
        parameter["example"] = models[0]
    return {
        "/v1/models": {"get": _operation(several, (401,))},
        "/v1/models/{model}": {"get": {**_operation(MODEL, (401, 404)), "parameters": [parameter]}},
    }


def _administration() -> Json:
    allowed = (400, 401, 403, 404, 408, 409, 413, 503)
    refused = others.ADAPTER_NOT_SUPPORTED
    level = {"name": "level", "in": "query", "required": False, "schema": {"type": "integer", "enum": [1, 2]}}
    asleep, status = _object(["is_sleeping"]), _object(["status"])
    return {
        "/v1/load_lora_adapter": {"post": _operation(MODEL, allowed, _body(others.LOAD_ADAPTER, refused, ()))},
        "/v1/unload_lora_adapter": {
            "post": _operation(_object(["id", "deleted"]), allowed, _body(others.UNLOAD_ADAPTER, refused, ()))
        },
        SLEEP_PATH: {"post": {**_operation(asleep, (400, 401, 409, 503)), "parameters": [level]}},
        WAKE_PATH: {"post": _operation(asleep, (401, 503))},
        IS_SLEEPING_PATH: {"get": _operation(asleep, (401,))},
        "/drain": {"post": _operation(status, (401,), success=202)},
    }


def _observation() -> Json:
    status = _object(["status"])
    metrics = _operation(None, ())
    metrics["responses"]["200"]["content"] = {"text/plain": {"schema": {"type": "string"}}}
    return {
        "/health": {"get": _operation(status, (503,))},
        "/ready": {"get": _operation(status, (503,))},
        "/metrics": {"get": metrics},
        "/version": {"get": _operation(_object(["version"]), (401,))},
    }


def _operation(
    schema: Json | None, errors: Sequence[int], request: Json | None = None, *, success: int = 200,
    more: Mapping[str, Any] | None = None,
) -> Json:  # fmt: skip
    content = {**({"application/json": {"schema": schema}} if schema else {}), **(more or {})}
    answers: Json = {str(success): {"description": "OK", "content": content}}
    for status in errors:
        answers[str(status)] = {"description": TEXTS[status], "content": {"application/json": {"schema": ERROR}}}
    operation: Json = {"responses": answers}
    if request is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": request}}}
    return operation


def _body(table: Table, not_supported: Mapping[str, tuple[Any, ...]], models: Sequence[str]) -> Json:
    properties = {name: dict(field.schema) for name, field in table.items()}
    if models and "model" in properties:
        properties["model"] = {"enum": list(models)}
    properties |= {name: {"enum": list(unused)} for name, unused in not_supported.items()}
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name, field in table.items() if field.required],
        "additionalProperties": False,
    }


def _object(required: Sequence[str]) -> Json:
    return {"type": "object", "required": list(required)}
