"""The HTTP server of clients: `/v1/files` and `/v1/batches`, also below `/<namespace>/<service>`, in OpenAI's shape."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from aiohttp import BodyPartReader, web
from aiohttp.http_exceptions import HttpProcessingError

from pagefleet_batches.access import Access
from pagefleet_batches.jobs.batch import WINDOWS, Batch
from pagefleet_batches.jobs.errors import ApiError, invalid, not_found
from pagefleet_batches.jobs.lines import ENDPOINTS
from pagefleet_batches.manager import Manager
from pagefleet_batches.settings import DAY, Settings
from pagefleet_batches.storage import disk
from pagefleet_batches.storage.files import BATCH, FileInfo, Incoming
from pagefleet_gateway.limits.api_keys import APIKey

MAX_BODY_BYTES = 64 * 1024  # of a request that is no upload
MAX_FIELD_BYTES, MAX_FIELDS = 1024, 8
CHUNK_BYTES = 1024 * 1024
LEAST_SECONDS, MOST_SECONDS = 3600, 30 * DAY  # of expires_after and output_expires_after, as OpenAI has them
MAX_PAIRS, MAX_KEY, MAX_VALUE = 16, 64, 512  # of metadata
BATCH_FIELDS = {"input_file_id", "endpoint", "completion_window", "metadata", "output_expires_after"}
PREFIX = "/{namespace:[^/]+}/{service:[^/]+}"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Api:
    """The handlers. `clock` returns Unix seconds."""

    def __init__(
        self, settings: Settings, access: Access, manager: Manager, clock: Callable[[], float] = time.time
    ) -> None:
        self._settings, self._access, self._manager, self._clock = settings, access, manager, clock
        self._arriving: Counter[str] = Counter()  # bytes of uploads under way, by client

    def application(self) -> web.Application:
        app = web.Application(middlewares=[errors], client_max_size=MAX_BODY_BYTES)
        routes = (
            ("POST", "/v1/files", self.upload),
            ("GET", "/v1/files", self.list_files),
            ("GET", "/v1/files/{id}", self.file),
            ("GET", "/v1/files/{id}/content", self.content),
            ("DELETE", "/v1/files/{id}", self.delete_file),
            ("POST", "/v1/batches", self.create_batch),
            ("GET", "/v1/batches", self.list_batches),
            ("GET", "/v1/batches/{id}", self.batch),
            ("POST", "/v1/batches/{id}/cancel", self.cancel_batch),
        )
        for method, path, handler in routes:
            app.router.add_route(method, path, handler)
            app.router.add_route(method, PREFIX + path, handler)
        return app

    # Files.

    async def upload(self, request: web.Request) -> web.Response:
        client = self._client(request)
        if not request.content_type.startswith("multipart/"):
            raise ApiError(
                400, "invalid_content_type", "an upload is multipart/form-data with the fields `file` and `purpose`"
            )
        fields: dict[str, str] = {}
        incoming, filename, kept = None, "", None
        try:
            async for part in await request.multipart():
                if not isinstance(part, BodyPartReader) or part.name is None:
                    raise ApiError(400, "invalid_multipart", "each part must be a field with a name")
                if part.name != "file":
                    if len(fields) == MAX_FIELDS:
                        raise ApiError(
                            400, "too_many_fields", f"an upload has at most {MAX_FIELDS} fields beside `file`"
                        )
                    fields[part.name] = await _text(part, part.name)
                elif incoming is not None:
                    raise invalid("file", "may be given once")
                else:
                    incoming, filename = self._manager.files.incoming(), _readable(part.filename or "file.jsonl")[:255]
                    await self._receive(part, incoming, _name(client))
            if incoming is None or not incoming.size:
                raise invalid("file", "is missing or empty", "missing_required_parameter")
            info = self._file_info(_name(client), filename, fields, incoming.size)
            kept = await asyncio.to_thread(self._manager.files.keep, incoming, info)
        except ValueError as error:  # aiohttp's, for a body that is no multipart
            raise ApiError(400, "invalid_multipart", f"the body is no multipart/form-data: {error}") from None
        finally:
            if incoming is not None:
                self._arriving[_name(client)] -= incoming.size
                if kept is None:
                    await asyncio.to_thread(incoming.drop)
        return _json(kept.document())

    async def _receive(self, part: BodyPartReader, incoming: Incoming, client: str) -> None:
        most = self._settings.max_file_bytes
        while data := await part.read_chunk(CHUNK_BYTES):
            incoming.write(data)
            self._arriving[client] += len(data)
            if incoming.size > most:
                raise ApiError(413, "file_too_large", f"the file is larger than {most} bytes, the limit", "file")
            if self._manager.files.bytes_of(client) + self._arriving[client] > self._settings.max_client_bytes:
                raise ApiError(
                    413, "client_storage_full", f"all files of a client may have {self._settings.max_client_bytes} bytes: delete some",
                    "file",
                )  # fmt: skip
            if disk.free_bytes(self._settings.folder) < 0:
                raise _storage_full("file")

    def _file_info(self, client: str, filename: str, fields: dict[str, str], size: int) -> FileInfo:
        if fields.pop("purpose", None) != BATCH:
            raise invalid("purpose", f"must be {BATCH!r}: this server has files of batches only")
        anchor, seconds = fields.pop("expires_after[anchor]", None), fields.pop("expires_after[seconds]", None)
        if fields:
            raise ApiError(400, "unknown_parameter", f"`{min(fields)}` is no field of an upload", min(fields))
        kept = self._settings.retention_seconds
        if anchor is not None or seconds is not None:
            number = int(seconds) if seconds is not None and seconds.isdecimal() else None
            kept = min(kept, _expiry({"anchor": anchor, "seconds": number}, "expires_after"))
        now = int(self._clock())
        return FileInfo(disk.new_id("file"), client, filename, BATCH, size, now, now + kept)

    async def list_files(self, request: web.Request) -> web.Response:
        client, purpose = _name(self._client(request)), request.query.get("purpose")
        files = [one for one in self._manager.files if one.client == client and purpose in (None, one.purpose)]
        order = request.query.get("order", "desc")
        if order not in ("asc", "desc"):
            raise invalid("order", "must be asc or desc")
        files = files if order == "asc" else files[::-1]
        return _page(request, [(one.id, one.document()) for one in files], 10_000, 10_000)

    async def file(self, request: web.Request) -> web.Response:
        return _json(self._file(request).document())

    async def content(self, request: web.Request) -> web.StreamResponse:
        file = self._file(request)
        headers = {"content-type": "application/octet-stream", "x-content-type-options": "nosniff"}
        return web.FileResponse(self._manager.files.content(file.id), headers=headers)

    async def delete_file(self, request: web.Request) -> web.Response:
        file = self._file(request)
        if batch := self._manager.using(file):
            raise ApiError(
                409, "file_in_use", f"{batch} reads the file: cancel the batch, or wait for its end", "file_id"
            )
        await asyncio.to_thread(self._manager.files.remove, file.id)
        return _json({"id": file.id, "object": "file", "deleted": True})

    def _file(self, request: web.Request) -> FileInfo:
        client, name = _name(self._client(request)), request.match_info["id"]
        file = self._manager.files.get(client, name)
        if file is None:
            raise not_found("file", name)
        return file

    # Batches.

    async def create_batch(self, request: web.Request) -> web.Response:
        key, fields = self._client(request), await _object(request)
        service = "/".join(request.match_info[part] for part in ("namespace", "service") if part in request.match_info)
        if key is not None and service:
            namespace, _, name = service.partition("/")
            if not key.allows((namespace, name)):
                raise ApiError(403, "service_not_allowed", f"the API key {key.name!r} is not allowed to use {service}")
        if unknown := sorted(set(fields) - BATCH_FIELDS):
            raise ApiError(400, "unknown_parameter", f"`{unknown[0]}` is no field of a batch", unknown[0])
        if fields.get("endpoint") not in ENDPOINTS:
            raise invalid("endpoint", f"must be one of {', '.join(ENDPOINTS)}")
        if fields.get("completion_window") not in tuple(WINDOWS):  # a list or an object cannot be looked up
            raise invalid("completion_window", f"must be {', '.join(WINDOWS)}")
        file_id = fields.get("input_file_id")
        if not isinstance(file_id, str):
            raise invalid("input_file_id", "must be the id of a file", "missing_required_parameter")
        file = self._manager.files.get(_name(key), file_id)
        if file is None:
            raise ApiError(404, "file_not_found", f"there is no file {file_id[:100]!r}", "input_file_id")
        if file.purpose != BATCH:
            raise invalid(
                "input_file_id", f"must be a file with the purpose {BATCH!r}, and this one has {file.purpose!r}"
            )
        options: dict[str, object] = {
            "completion_window": fields["completion_window"],
            "metadata": _metadata(fields.get("metadata")),
        }
        if fields.get("output_expires_after") is not None:
            options["output_seconds"] = _expiry(fields["output_expires_after"], "output_expires_after")
        return _json(self._manager.create(_name(key), service, str(fields["endpoint"]), file, options).document())

    async def list_batches(self, request: web.Request) -> web.Response:
        batches = self._manager.all(_name(self._client(request)))[::-1]
        return _page(request, [(one.id, one.document()) for one in batches], 20, 100)

    async def batch(self, request: web.Request) -> web.Response:
        return _json(self._batch(request).document())

    async def cancel_batch(self, request: web.Request) -> web.Response:
        batch = self._batch(request)
        if batch.ended:
            raise ApiError(409, "batch_ended", f"{batch.id} is {batch.status} and cannot be cancelled", "batch_id")
        return _json(self._manager.cancel(batch).document())

    def _batch(self, request: web.Request) -> Batch:
        client, name = _name(self._client(request)), request.match_info["id"]
        batch = self._manager.get(client, name)
        if batch is None:
            raise not_found("batch", name)
        return batch

    def _client(self, request: web.Request) -> APIKey | None:
        return self._access.client({name.lower(): value for name, value in request.headers.items()})


@web.middleware
async def errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer every error in OpenAI's shape."""
    try:
        return await handler(request)
    except ApiError as error:
        found = error
    except web.HTTPRequestEntityTooLarge:
        found = ApiError(413, "request_too_large", f"the body has more than {MAX_BODY_BYTES} bytes, the limit")
    except (web.RequestPayloadError, HttpProcessingError):
        found = ApiError(
            400, "invalid_body", "the body is not encoded as its headers say, or a part's headers are no headers"
        )
    except web.HTTPException as error:
        code = (
            "path_not_found"
            if error.status == 404
            else "method_not_allowed"
            if error.status == 405
            else "invalid_request"
        )
        found = ApiError(error.status, code, f"{request.method} {request.path[:200]}: {error.reason}")
    except OSError as error:
        if not disk.is_full(error):
            raise
        found = _storage_full()
    headers = {"retry-after": str(found.retry_after)} if found.retry_after else {}
    if found.status == 401:
        headers["www-authenticate"] = "Bearer"
    return web.json_response(found.document(), status=found.status, headers=headers)


def _storage_full(param: str | None = None) -> ApiError:
    return ApiError(507, "storage_full", "the server's disk is full; its operator must make room", param)


def _name(key: APIKey | None) -> str:
    return "" if key is None else key.name


def _json(document: dict[str, object]) -> web.Response:
    return web.Response(body=msgspec.json.encode(document), content_type="application/json")


def _page(request: web.Request, all_: Sequence[tuple[str, dict[str, object]]], default: int, most: int) -> web.Response:
    """Answer with the objects behind `after`, at most `limit`."""
    text, after = request.query.get("limit", str(default)), request.query.get("after")
    if not re.fullmatch(r"\d{1,6}", text) or not 1 <= int(text) <= most:
        raise invalid("limit", f"must be from 1 to {most}")
    names = [name for name, _ in all_]
    if after is not None and after not in names:
        raise invalid("after", f"{after[:100]!r} is no object of this list")
    start = 0 if after is None else names.index(after) + 1
    shown = all_[start : start + int(text)]
    return _json(
        {
            "object": "list",
            "data": [document for _, document in shown],
            "first_id": shown[0][0] if shown else None,
            "last_id": shown[-1][0] if shown else None,
            "has_more": start + len(shown) < len(all_),
        }
    )


def _readable(text: str) -> str:
    """Return a text from a header as UTF-8 can write it: aiohttp keeps other bytes as lone surrogates."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


async def _text(part: BodyPartReader, name: str) -> str:
    data = bytearray()
    while chunk := await part.read_chunk(MAX_FIELD_BYTES):
        data += chunk
        if len(data) > MAX_FIELD_BYTES:
            raise invalid(name[:100], f"has more than {MAX_FIELD_BYTES} bytes")
    return data.decode("utf-8", "replace")


async def _object(request: web.Request) -> dict[str, object]:
    try:
        return msgspec.json.decode(await request.read(), type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ApiError(400, "invalid_json", "the body must be a JSON object") from None


def _metadata(value: object) -> dict[str, str] | None:
    if value is None:
        return None
    if (
        not isinstance(value, dict)
        or len(value) > MAX_PAIRS
        or not all(
            isinstance(text, str) and len(key) <= MAX_KEY and len(text) <= MAX_VALUE for key, text in value.items()
        )
    ):
        raise invalid(
            "metadata", f"must be an object of {MAX_PAIRS} texts at most, with keys up to {MAX_KEY} and values up to {MAX_VALUE} characters"
        )  # fmt: skip
    return value


def _expiry(value: object, name: str) -> int:
    """Read `{"anchor": "created_at", "seconds": N}`."""
    fields = value if isinstance(value, dict) else {}
    if fields.get("anchor") != "created_at":
        raise invalid(f"{name}.anchor", "must be created_at")
    seconds = fields.get("seconds")
    if not isinstance(seconds, int) or isinstance(seconds, bool) or not LEAST_SECONDS <= seconds <= MOST_SECONDS:
        raise invalid(f"{name}.seconds", f"must be from {LEAST_SECONDS} to {MOST_SECONDS}")
    return seconds
