"""The few requests the operator makes of the API server: JSON over HTTPS, errors as exceptions, nothing cached.

The Kubernetes client library reads the credentials and authenticates. The requests themselves are made here for two
reasons. Objects stay the plain dictionaries that the API server sent, with fields that no generated model knows. And
server-side apply is sent as YAML, for which some characters of JSON must be escaped (see `written`).
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import re
import socket
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakSet

import aiohttp
from aiohttp import AddrInfoType
from aiohttp.abc import AbstractStreamWriter
from kubernetes.aio import client
from kubernetes.aio.client.rest import RESTClientObject
from kubernetes.aio.config import ConfigException

from pagefleet_operator.domain.base.json_text import json_text, loads
from pagefleet_operator.kube import credentials, paths

Document = dict[str, Any]
Fence = Callable[[], float]  # raises where a write may not begin; otherwise the seconds within which it must be over
REQUEST_SECONDS = 15.0
MAX_CONNECTIONS, MAX_RESERVED = 32, 2
UNAUTHORIZED, REFUSALS, UNDECLARED = 401, (400, 403, 422), "field not declared in schema"
MAX_POLLS, POLL_SECONDS = 500, 0.002  # for sockets to close
JSON, MERGE_PATCH, APPLY_PATCH = "application/json", "application/merge-patch+json", "application/apply-patch+yaml"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
# What YAML does not take as it is (yaml.org, 1.2.2, section 5.1); other characters it does not take as JSON's pairs of escapes.
_ESCAPED = re.compile("[\\x7f-\\x9f\\u2028\\u2029\\ud800-\\udfff\\ufeff\\ufffe\\uffff]")


class ApiError(Exception):
    """The API server answered with an error. `status` is its HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status, self.message = status, message

    @property
    def is_refusal(self) -> bool:
        """Whether a user has to fix it: the object's content, an admission webhook or a quota. An older server answers with
        500 when its kinds lack a field."""
        return self.status in REFUSALS or UNDECLARED in self.message


# What a request raises where it is not carried out, or nobody says whether it was.
FAILURES = (ApiError, aiohttp.ClientError, TimeoutError)


class Api:
    """`async with Api(kubeconfig)`; None for the pod's own service account."""

    def __init__(self, kubeconfig: str | None) -> None:
        self._kubeconfig = kubeconfig
        self._settings: client.Configuration | None = None
        self._session: aiohttp.ClientSession | None = None
        self._reserved: aiohttp.ClientSession | None = None
        self._sockets = Sockets()
        self._fence: Fence | None = None

    def fenced(self, fence: Fence) -> Api:
        """Return this Api, in use already, with writes that `fence` allows. It is asked when a write begins and again when
        the write goes out: between the two lies the wait for a connection, and perhaps a time in which the process was
        frozen.
        """
        other = copy.copy(self)
        other._fence = fence
        return other

    def reserved(self) -> Api:
        """Return this Api, in use already, with connections of its own: MAX_CONNECTIONS requests that hang delay none of its requests."""
        other = copy.copy(self)
        other._session = self._reserved
        return other

    async def __aenter__(self) -> Api:
        self._settings = await credentials.load(self._kubeconfig)
        context = RESTClientObject(self._settings).ssl_context
        self._session, self._reserved = (
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=context, limit=limit, socket_factory=self._sockets),
                timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS),
            )
            for limit in (MAX_CONNECTIONS, MAX_RESERVED)
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        for session in (self._session, self._reserved):
            if session is not None:
                await session.close()
        await self._sockets.closed()

    async def get(self, path: str, **query: str) -> Document:
        return await self._request("GET", path, query)

    async def find(self, path: str) -> Document | None:
        """An object, or None when it does not exist."""
        try:
            return await self.get(path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def create(self, path: str, body: Mapping[str, Any], **query: str) -> Document:
        return await self._request("POST", path, query, body, JSON)

    async def apply(self, path: str, body: Mapping[str, Any], manager: str) -> Document:
        """Server-side apply: our fields become as `body` has them, everyone else's stay."""
        return await self._request("PATCH", path, {"fieldManager": manager, "force": "true"}, body, APPLY_PATCH)

    async def merge(self, path: str, body: Mapping[str, Any], manager: str = "") -> Document:
        """A JSON merge patch: only the fields in it change. They belong to the field manager `manager`, where it is given."""
        return await self._request("PATCH", path, {"fieldManager": manager} if manager else {}, body, MERGE_PATCH)

    async def merge_lists(self, path: str, body: Mapping[str, Any]) -> Document:
        """A strategic merge patch: of a list, too, only the named entries change (a condition, by its type)."""
        return await self._request("PATCH", path, {}, body, STRATEGIC_PATCH)

    async def replace(self, path: str, body: Mapping[str, Any]) -> Document:
        """PUT; the body's resourceVersion makes it fail with 409 when the object has moved on."""
        return await self._request("PUT", path, {}, body, JSON)

    async def delete(self, path: str, uid: str) -> None:
        """Delete this very object (by uid) and what it owns. Already gone is fine."""
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background",
                   "preconditions": {"uid": uid}}  # fmt: skip
        try:
            await self._request("DELETE", path, {}, options, JSON)
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    async def _request(
        self, method: str, path: str, query: Mapping[str, str], body: Mapping[str, Any] | None = None, kind: str = JSON
    ) -> Document:
        if not paths.is_path(path):
            raise paths.PathError(f"{path[:200]!r} is not a path of the API")
        data = None if body is None else written(body)
        try:
            return await self._send(method, path, query, data, kind)
        except ApiError as error:
            if error.status != UNAUTHORIZED:
                raise
            # A kubeconfig's token has expired. The request was not carried out: it is sent once more with new credentials.
            try:
                self._settings = await credentials.load(self._kubeconfig)
            except ConfigException as unread:
                raise ApiError(UNAUTHORIZED, f"the credentials cannot be read again: {unread}") from error
        return await self._send(method, path, query, data, kind)

    async def _send(self, method: str, path: str, query: Mapping[str, str], data: bytes | None, kind: str) -> Document:
        session, settings = self._session, self._settings
        if session is None or settings is None:
            raise RuntimeError("Api is used outside its `async with` block")
        headers = {"Content-Type": kind, **await credentials.authorization(settings)}
        fence = None if data is None else self._fence
        seconds = REQUEST_SECONDS if fence is None else min(REQUEST_SECONDS, fence())
        async with session.request(
            method,
            settings.host + path,
            params=query,
            data=data if data is None or fence is None else _FencedBody(data, fence),
            headers=headers,
            proxy=settings.proxy,
            server_hostname=settings.tls_server_name,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=seconds),
        ) as response:
            text = await response.text(errors="replace")  # a proxy's page of an error may be in any encoding
            try:
                document = loads(text)
            except (ValueError, RecursionError):
                document = None
            if response.status >= 300:
                message = document.get("message") if isinstance(document, dict) else None
                raise ApiError(response.status, str(message or text)[:500])
            if not isinstance(document, dict):
                raise ApiError(502, "the API server's answer is not an object")
            return document


class _FencedBody(aiohttp.BytesPayload):
    """A body that goes out only while its fence allows it. Without its whole body the API server carries nothing out."""

    def __init__(self, data: bytes, fence: Fence) -> None:
        super().__init__(data)
        self._fence = fence

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        self._fence()
        await super().write_with_length(writer, content_length)


def written(body: Mapping[str, Any]) -> bytes:
    """JSON that is YAML too, which is what server-side apply is read as: it knows no surrogate pairs."""
    plain = json_text(body)
    if plain is not None and plain.isascii() and b"\x7f" not in plain:
        return plain
    text = json.dumps(body, ensure_ascii=False)
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text).encode()


class Sockets:
    """Makes a connector's sockets, `aiohttp.TCPConnector(socket_factory=Sockets())`, and waits until the last is closed.

    aiohttp forgets a TLS connection whose request was given up and closes it in the background. An event loop that ends
    meanwhile would leave it open.
    """

    def __init__(self) -> None:
        self._sockets: WeakSet[socket.socket] = WeakSet()

    def __call__(self, info: AddrInfoType) -> socket.socket:
        family, kind, protocol, _, _ = info
        opened = socket.socket(family, kind, protocol)
        self._sockets.add(opened)
        return opened

    async def closed(self) -> None:
        """Call it after the session is closed. It returns when every transport is gone, or after about a second."""
        for one in self._open():
            with contextlib.suppress(OSError):  # not connected yet, or no longer
                one.shutdown(socket.SHUT_RDWR)
        for _ in range(MAX_POLLS):
            if not self._open():
                return
            await asyncio.sleep(POLL_SECONDS)

    def _open(self) -> list[socket.socket]:
        return [one for one in self._sockets if one.fileno() >= 0]
