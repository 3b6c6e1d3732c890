"""The engines' own API keys, which the gateway presents to them where its clients have keys of the gateway.

A pod names the Secret of its engine's key (`spec.engine.apiKeySecretRef`). The gateway reads exactly these Secrets, again every
30 s, and needs the right to `get` each of them by name. Decides nothing about a request.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import time
from collections.abc import Awaitable, Callable, Mapping

import aiohttp
from kubernetes.aio import client

from pagefleet_gateway.cluster.state import Pod, State

log = logging.getLogger(__name__)

PERIOD_SECONDS = 0.5
REFRESH_SECONDS, RETRY_SECONDS = 30.0, 5.0
MAX_READS = 16  # at once

SecretKey = tuple[str, str, str]  # namespace, name, key
Read = Callable[[str, str], Awaitable[Mapping[str, bytes]]]  # of a Secret: namespace, name. Raises ReadError


class ReadError(RuntimeError):
    """A Secret cannot be read. The message holds none of it."""


class EngineKeys:
    """The keys in force, by Secret. A key stays while its Secret cannot be read, and while its text still lists it."""

    def __init__(self) -> None:
        self._keys: dict[SecretKey, str] = {}
        self._tried: dict[SecretKey, float] = {}  # when it was read last, with or without success
        self._failed: set[SecretKey] = set()

    def of(self, pod: Pod) -> str | None:
        """Return the key that the pod's engine demands, "" when it demands none, None when it is not known."""
        secret = _secret(pod)
        return "" if secret is None else self._keys.get(secret)

    def untried(self, state: State) -> bool:
        """Return whether a pod's Secret was not asked for yet."""
        return any(secret not in self._tried for pod in state.pods if (secret := _secret(pod)) is not None)

    async def follow(self, state: State, read: Read) -> None:
        """Read the Secrets that the pods name until cancelled."""
        slots = asyncio.Semaphore(MAX_READS)
        while True:
            named = {secret for pod in state.pods if (secret := _secret(pod)) is not None}
            self._keys = {secret: key for secret, key in self._keys.items() if secret in named}
            self._tried = {secret: at for secret, at in self._tried.items() if secret in named}
            self._failed &= named
            now = time.monotonic()
            await asyncio.gather(*(self._read(secret, read, slots) for secret in named if self._due(secret, now)))
            await asyncio.sleep(PERIOD_SECONDS)

    def _due(self, secret: SecretKey, now: float) -> bool:
        age = now - self._tried.get(secret, -REFRESH_SECONDS)
        return age >= (RETRY_SECONDS if secret in self._failed else REFRESH_SECONDS)

    async def _read(self, secret: SecretKey, read: Read, slots: asyncio.Semaphore) -> None:
        namespace, name, field = secret
        try:
            async with slots:
                text = (await read(namespace, name)).get(field, b"").decode("utf-8", "replace")
            known = self._keys.get(secret, "")
            key = chosen(text, known)
            if not key:
                raise ReadError(f"it has no key {field!r} with an API key")
            self._keys[secret] = key
            self._failed.discard(secret)
        except ReadError as error:
            if secret not in self._failed:
                log.error("the engines' key in the Secret %s/%s cannot be read: %s", namespace, name, error)
            self._failed.add(secret)
        self._tried[secret] = time.monotonic()


def chosen(text: str, known: str) -> str:
    """Return the known key while the text still lists it, else the first one; "" when there is none.

    So a key can be replaced without a refusal: add the new one as a second line, and remove the first when the engines know both.
    """
    keys = [line.strip() for line in text.splitlines() if line.strip()]
    usable = [key for key in keys if key.isascii() and key.isprintable()]
    return known if known in usable else next(iter(usable), "")


def secrets_of(api: client.ApiClient) -> Read:
    """Return the reader of the API server's Secrets."""
    core = client.CoreV1Api(api)

    async def read(namespace: str, name: str) -> Mapping[str, bytes]:
        try:
            secret = await core.read_namespaced_secret(name, namespace)
        except client.ApiException as error:
            hint = "; allow it as docs/gateway.md describes" if error.status == 403 else ""
            raise ReadError(f"the API server answered {error.status} {error.reason}{hint}") from None
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise ReadError(f"the API server cannot be reached: {type(error).__name__}") from None
        return {field: base64.b64decode(value) for field, value in (secret.data or {}).items()}

    return read


def _secret(pod: Pod) -> SecretKey | None:
    return None if pod.key_secret is None else (pod.namespace, *pod.key_secret)
