"""Handles Alertmanager's webhook: checks the token, stores each alert in its service's status, then answers 200."""

from __future__ import annotations

import hmac
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from pagefleet_operator.alerts.coalesce import Coalescer
from pagefleet_operator.alerts.payload import Alert, PayloadError, merge, parse
from pagefleet_operator.domain.rollout.alerts import labels_of, matches
from pagefleet_operator.domain.spec import parse as spec
from pagefleet_operator.domain.spec.parse import Spec
from pagefleet_operator.domain.status import codec
from pagefleet_operator.domain.status.status import AlertRecord

MAX_BYTES = 1 << 20
ATTEMPTS = 8
Document = dict[str, Any]
log = logging.getLogger(__name__)


class ConflictError(Exception):
    """The object has changed since it was read."""


class Intake:
    """Stores alerts. `find` reads an InferenceService, `store` writes its status under its resourceVersion (and raises
    ConflictError), `wake` asks for a decision at once."""

    def __init__(
        self,
        token_file: Path,
        find: Callable[[str, str], Awaitable[Document | None]],
        store: Callable[[Document], Awaitable[None]],
        wake: Callable[[str, str], None],
    ) -> None:
        self._token_file, self._find, self._store, self._wake = token_file, find, store, wake
        self._coalescer = Coalescer(self._keep)

    async def handle(self, request: web.Request) -> web.Response:
        if not self._authorised(request.headers.get("Authorization", "")):
            return web.json_response({"error": "a valid bearer token is required"}, status=401)
        if request.headers.get("Content-Encoding", "identity") != "identity":
            return web.json_response({"error": "Content-Encoding is not accepted"}, status=415)
        try:
            alerts = parse(json.loads(await request.read()), time.time())
        except (PayloadError, ValueError, RecursionError) as error:
            return web.json_response({"error": str(error)[:500]}, status=400)
        groups: dict[tuple[str, str], list[Alert]] = {}
        for alert in alerts:
            groups.setdefault((alert.namespace, alert.service), []).append(alert)
        for (namespace, service), group in groups.items():
            await self._coalescer.add(namespace, service, [alert.record for alert in group])
        return web.json_response({"read": len(alerts)})

    async def _keep(self, namespace: str, service: str, alerts: list[AlertRecord]) -> int:
        """Store alerts in a service's status and return how many it holds of them. Raises ConflictError when others keep
        writing the object."""
        for _ in range(ATTEMPTS):
            document = await self._find(namespace, service)
            labels = _labels(document) if document else None
            if document is None or labels is None:
                return 0
            records = [alert for alert in alerts if matches(alert.labels, labels)]
            before = codec.load(document.get("status"))
            after = merge(before, records)
            if after != before:
                try:
                    await self._store({**document, "status": codec.dump(after)})
                except ConflictError:
                    continue
                log.info("stored %d alerts for %s/%s", len(records), namespace, service)
            self._wake(namespace, service)
            return len(records)
        raise ConflictError(f"{namespace}/{service} changed {ATTEMPTS} times while an alert was stored")

    def _authorised(self, header: str) -> bool:
        try:
            token = self._token_file.read_text().strip()
        except OSError:
            return False
        return bool(token) and hmac.compare_digest(header.encode(), f"Bearer {token}".encode())


def _labels(document: Document) -> Mapping[str, str] | None:
    """The labels an alert must carry for this service; None when it takes no alerts."""
    parsed = spec.parse(document.get("spec") or {})
    return parsed.rollout.alert_labels if isinstance(parsed, Spec) else labels_of(document.get("spec"))
