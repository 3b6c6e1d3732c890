"""Reads a request's body and its time limit: bounded in bytes, values, depth and time."""

from __future__ import annotations

import asyncio
import math
import re
from typing import Any

import msgspec
from aiohttp import web

from pagefleet_engine.api.base.errors import ApiError, invalid
from pagefleet_engine.api.parameters.generation import LONGEST_TIMEOUT

BODY_SECONDS = 20.0
MAX_DEPTH = 100
# Lists and objects of one body, and values: decoding and looking through so many takes some 30 ms.
MAX_CONTAINERS, MAX_VALUES = 50_000, 200_000
TIMEOUT_HEADER = "x-request-timeout"
# A string, or what an unclosed one leaves: each byte is looked at once.
STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)


async def document(request: web.Request) -> Any:
    """The JSON value of the body. Raises ApiError: 400, 408 when it does not come in time, 415 when it is compressed."""
    if request.headers.get("Content-Encoding", "identity") != "identity":
        raise ApiError(415, "compressed request bodies are not supported", code="unsupported_encoding")
    try:
        async with asyncio.timeout(BODY_SECONDS):
            data = await request.read()
    except TimeoutError:
        raise ApiError(408, f"the request body did not come within {BODY_SECONDS:g} s", code="body_timeout") from None
    return decode(data)


def decode(data: bytes) -> Any:
    """Raises ApiError (400)."""
    if _large(data) and _large(STRING.sub(b"", data)):  # a prompt that is code or a table may hold many of them
        most = f"{MAX_VALUES} values or {MAX_CONTAINERS} lists and objects"
        raise invalid("body", f"the request body has more than {most}", "invalid_json")
    try:
        value = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise invalid("body", f"the request body is not valid JSON: {str(error)[:200]}", "invalid_json") from error
    except RecursionError:
        raise _too_deep() from None
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            inner
            for node in level
            if isinstance(node, dict | list)
            for inner in (node.values() if isinstance(node, dict) else node)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return value
    raise _too_deep()


def timeout(request: web.Request) -> float | None:
    """Seconds that the header x-request-timeout allows. Raises ApiError (400)."""
    text = request.headers.get(TIMEOUT_HEADER)
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= LONGEST_TIMEOUT:
        raise invalid(TIMEOUT_HEADER, f"{TIMEOUT_HEADER} must be a number of seconds above 0 to {LONGEST_TIMEOUT:g}")
    return seconds


def _large(data: bytes) -> bool:
    return data.count(b"[") + data.count(b"{") > MAX_CONTAINERS or data.count(b",") > MAX_VALUES


def _too_deep() -> ApiError:
    return invalid("body", f"the request body is nested more than {MAX_DEPTH} levels deep", "invalid_json")
