"""The lines of an input file: one request each, `{"custom_id", "method", "url", "body"}` in JSON. Pure.

Input format of OpenAI's Batch API. A body is kept as the bytes that the client wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import msgspec

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
FIELDS = ("custom_id", "method", "url", "body")
MAX_ID_CHARACTERS = 512
MAX_PROBLEMS = 100  # of one file that are reported


@dataclass(frozen=True)
class Line:
    """One request. `number` counts from 1."""

    number: int
    custom_id: str
    model: str
    body: bytes  # JSON


@dataclass(frozen=True)
class Problem:
    """Why an input file is refused: OpenAI's fields of a batch's `errors.data`."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None

    def document(self) -> dict[str, object]:
        return {"code": self.code, "message": self.message, "line": self.line, "param": self.param}


class _Invalid(Exception):
    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param


@dataclass(frozen=True)
class Checked:
    """A whole file: its number of lines and their model, or what is wrong with it."""

    total: int
    model: str
    problems: tuple[Problem, ...]


def bounded(stream: BinaryIO, most: int) -> Iterator[bytes]:
    """Yield a file's lines. Of one that is longer than `most` bytes only the beginning, which is too long too, is in memory."""
    while line := stream.readline(most + 1):
        yield line
        while len(line) > most and not line.endswith(b"\n"):
            line = stream.readline(most + 1)


def numbered(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield each line that is not blank with its number, from 1."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield number, line


def check(lines: Iterable[bytes], endpoint: str, max_lines: int, max_line_bytes: int) -> Checked:
    """Check a whole input file for a batch of `endpoint`. Reads no further than `MAX_PROBLEMS` problems."""
    ids: set[str] = set()
    problems: list[Problem] = []
    total, model = 0, ""
    for number, text in numbered(lines):
        total += 1
        if total > max_lines:
            problems.append(Problem("too_many_lines", f"a file may have {max_lines} lines with requests", number))
            break
        try:
            line = parse(number, text, endpoint, max_line_bytes)
            if line.custom_id in ids:
                raise _Invalid(
                    "duplicate_custom_id", f"`custom_id` {line.custom_id[:100]!r} is an earlier line's too", "custom_id"
                )
            ids.add(line.custom_id)
            model = model or line.model
            if line.model != model:
                raise _Invalid(
                    "mismatched_model",
                    f"`body.model` is {line.model[:100]!r}, and the lines before have {model[:100]!r}: a batch has one model",
                    "body.model",
                )
        except _Invalid as error:
            problems.append(Problem(error.code, error.message, number, error.param))
            if len(problems) == MAX_PROBLEMS:
                break
    if not total:
        problems.append(Problem("empty_file", "the file has no line with a request"))
    return Checked(total, model, tuple(problems))


def parse(number: int, text: bytes, endpoint: str, max_line_bytes: int) -> Line:
    """Read one line. Raises an error that names the field for a line that cannot be sent."""
    if len(text) > max_line_bytes:
        raise _Invalid("line_too_large", f"the line has {len(text)} bytes, and {max_line_bytes} are allowed")
    try:
        fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _Invalid("invalid_json_line", f"the line is no JSON object with {', '.join(FIELDS)}") from None
    for name in FIELDS:
        if name not in fields:
            raise _Invalid("missing_required_parameter", f"`{name}` is missing", name)
    if unknown := sorted(set(fields) - set(FIELDS)):
        raise _Invalid(
            "unknown_parameter", f"`{unknown[0]}` is no field of a line; allowed are {', '.join(FIELDS)}", unknown[0]
        )
    custom_id = _value(fields["custom_id"])
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_ID_CHARACTERS:
        raise _Invalid(
            "invalid_custom_id", f"`custom_id` must be a text of 1 to {MAX_ID_CHARACTERS} characters", "custom_id"
        )
    if _value(fields["method"]) != "POST":
        raise _Invalid("invalid_method", "`method` must be POST", "method")
    if _value(fields["url"]) != endpoint:
        raise _Invalid("invalid_url", f"`url` must be {endpoint}, the endpoint of the batch", "url")
    return Line(number, custom_id, _model(fields["body"]), bytes(fields["body"]))


def _model(raw: msgspec.Raw) -> str:
    """Check a body as far as it must be the same for each endpoint. The engine checks the rest."""
    try:
        body = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _Invalid("invalid_body", "`body` must be a JSON object", "body") from None
    model = _value(body["model"]) if "model" in body else None
    if not isinstance(model, str) or not model:
        raise _Invalid("invalid_model", "`body.model` must be the name of a model", "body.model")
    for name in ("stream", "background"):
        if name in body and _value(body[name]) not in (False, None):
            raise _Invalid(f"invalid_{name}", f"`body.{name}` must be false or absent in a batch", f"body.{name}")
    return model


def _value(raw: msgspec.Raw) -> Any:
    """Decode one field. Raises _Invalid for what msgspec's first pass lets through, such as lone surrogates."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _Invalid("invalid_json_line", "the line is no JSON") from None
