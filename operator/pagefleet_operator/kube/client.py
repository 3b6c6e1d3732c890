"""The few requests the operator makes of the API server: JSON over HTTPS, errors as exceptions, nothing cached."""

from __future__ import annotations

import json
import re
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from kubernetes.aio import client, config

from pagefleet_operator.kube.sockets import Sockets

Document = dict[str, Any]
SERVICE_ACCOUNT_TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
TOKEN_SECONDS = 60.0  # the kubelet renews the token in place
REQUEST_SECONDS = 15.0
JSON, MERGE_PATCH, APPLY_PATCH = "application/json", "application/merge-patch+json", "application/apply-patch+yaml"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
# What YAML does not take as it is (yaml.org, 1.2.2, section 5.1); other characters it does not take as JSON's pairs of escapes.
_ESCAPED = re.compile("[\\x7f-\\x9f\\u2028\\u2029\\ud800-\\udfff\\ufeff\\ufffe\\uffff]")


class ApiError(Exception):
    """The API server answered with an error. `status` is its HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status, self.message = status, message


@dataclass
class _Token:
    value: str = ""
    read: float = 0.0


class Api:
    """`async with Api(kubeconfig)`; None for the pod's own service account."""

    def __init__(self, kubeconfig: str | None) -> None:
        self._kubeconfig, self._token = kubeconfig, _Token()
        self._session: aiohttp.ClientSession | None = None
        self._sockets, self._host = Sockets(), ""

    async def __aenter__(self) -> Api:
        settings = client.Configuration()
        if self._kubeconfig:
            await config.load_kube_config(self._kubeconfig, client_configuration=settings)
        else:
            config.load_incluster_config(client_configuration=settings)
        context = ssl.create_default_context(cafile=settings.ssl_ca_cert)
        if settings.cert_file:
            context.load_cert_chain(settings.cert_file, settings.key_file)
        self._host = settings.host
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context, limit=32, socket_factory=self._sockets),
            timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()
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

    async def create(self, path: str, body: Mapping[str, Any]) -> Document:
        return await self._request("POST", path, {}, body, JSON)

    async def apply(self, path: str, body: Mapping[str, Any], manager: str) -> Document:
        """Server-side apply: our fields become as `body` has them, everyone else's stay."""
        return await self._request("PATCH", path, {"fieldManager": manager, "force": "true"}, body, APPLY_PATCH)

    async def merge(self, path: str, body: Mapping[str, Any]) -> Document:
        """A JSON merge patch: only the fields in it change."""
        return await self._request("PATCH", path, {}, body, MERGE_PATCH)

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
        if self._session is None:
            raise RuntimeError("Api is used outside its `async with` block")
        headers = {"Content-Type": kind, **self._authorization()}
        data = None if body is None else written(body)
        async with self._session.request(
            method, self._host + path, params=query, data=data, headers=headers
        ) as response:
            text = await response.text()
            try:
                document = json.loads(text)
            except ValueError:
                document = {}
            if response.status >= 300:
                raise ApiError(response.status, str(document.get("message") or text)[:500])
            if not isinstance(document, dict):
                raise ApiError(502, "the API server's answer is not an object")
            return document

    def _authorization(self) -> dict[str, str]:
        if self._kubeconfig:
            return {}
        if time.monotonic() - self._token.read > TOKEN_SECONDS or not self._token.value:
            self._token = _Token(SERVICE_ACCOUNT_TOKEN.read_text().strip(), time.monotonic())
        return {"Authorization": f"Bearer {self._token.value}"}


def written(body: Mapping[str, Any]) -> bytes:
    """JSON that is YAML too, which is what server-side apply is read as: it knows no surrogate pairs."""
    text = json.dumps(body, ensure_ascii=False)
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text).encode()
