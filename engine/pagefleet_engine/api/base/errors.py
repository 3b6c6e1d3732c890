"""Errors in OpenAI's shape."""

from __future__ import annotations

import json
from collections.abc import Mapping

from aiohttp import web

from pagefleet_contract.headers import ENGINE_DIED, ENGINE_FULL, ERROR_HEADER


class ApiError(Exception):
    """An answer other than 200: `param` names the request's field, `code` is OpenAI's machine-readable name."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.retry_after = (
            status,
            message,
            param,
            code,
            retry_after,
        )

    def document(self) -> dict[str, object]:
        kinds = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
        kind = kinds.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self, document: Mapping[str, object] | None = None) -> web.Response:
        """`document`: the error in another protocol's form."""
        headers = {"Retry-After": str(self.retry_after)} if self.retry_after is not None else {}
        if self.code is not None and (self.status >= 500 or self.code == ENGINE_FULL):
            headers[ERROR_HEADER] = self.code
        return web.Response(
            status=self.status,
            text=json.dumps(document or self.document()),
            content_type="application/json",
            headers=headers,
        )


def last_attempt(error: ApiError, attempt: str) -> ApiError:
    """The error of an engine's end as a 500, which the gateway does not send on, where this was a retry; else as it is.

    So a request that ends engines meets two pods and no third.
    """
    if error.code == ENGINE_DIED and attempt.isascii() and attempt.isdigit() and int(attempt) > 1:
        return ApiError(500, error.message, code=error.code)
    return error


def invalid(param: str, message: str, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)
