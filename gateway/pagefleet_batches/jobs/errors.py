"""The API's errors, in OpenAI's shape. A message names the field or object, what is allowed, and the next step."""

from __future__ import annotations

from collections.abc import Mapping


class ApiError(Exception):
    """An answer with an error: HTTP status, OpenAI's `code` and `type`, and the field (`param`) that caused it."""

    def __init__(self, status: int, code: str, message: str, param: str | None = None, retry_after: int = 0) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.param = status, code, message, param
        self.retry_after = retry_after  # seconds; 0: no such header

    @property
    def type(self) -> str:
        if self.status >= 500:
            return "server_error"
        return {403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}.get(
            self.status, "invalid_request_error"
        )

    def document(self) -> dict[str, Mapping[str, str | None]]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


def invalid(param: str, message: str, code: str = "invalid_value") -> ApiError:
    """Return the error for a field with a value that is not allowed."""
    return ApiError(400, code, f"`{param}` {message}", param)


def not_found(kind: str, name: str) -> ApiError:
    """Return the error for an object that is not there, or is another client's: nobody learns which of the two."""
    return ApiError(404, f"{kind}_not_found", f"there is no {kind} {name[:100]!r}", f"{kind}_id")
