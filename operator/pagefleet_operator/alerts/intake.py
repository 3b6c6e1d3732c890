"""Handles Alertmanager's webhook: checks the token, stores each alert in its service's status, then answers 200 with the
numbers of alerts that were accepted, refused and unmatched."""

from __future__ import annotations

import hmac
import json
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from aiohttp import web

from pagefleet_operator.alerts.coalesce import Coalescer, Identity, identity
from pagefleet_operator.alerts.payload import Alert, PayloadError, bounded, merge, parse
from pagefleet_operator.domain.rollout.alerts import counts_without_revision, labels_of, matches
from pagefleet_operator.domain.spec import parse as spec
from pagefleet_operator.domain.spec.parse import Spec
from pagefleet_operator.domain.status import budget, codec
from pagefleet_operator.domain.status.status import AlertRecord, Status

MAX_BYTES = 1 << 20
ATTEMPTS = 8
MAX_REASONS = 10  # that one answer has
Document = dict[str, Any]
log = logging.getLogger(__name__)


class ConflictError(Exception):
    """The object has changed since it was read."""


class Outcome(StrEnum):
    """What became of one alert.

    REFUSED: a label that is to name an object is no name. UNMATCHED: it names no service, or a service that does not
    exist, takes no alerts or asks for other labels, or it names no revision where the service needs one. FAILED: it could
    not be stored, and Alertmanager sends it again.
    """

    ACCEPTED = "accepted"
    REFUSED = "refused"
    UNMATCHED = "unmatched"
    FAILED = "failed"


class Intake:
    """Stores alerts. `find` reads an InferenceService, `store` writes its status under its resourceVersion (and raises
    ConflictError), `wake` asks for a decision at once, `count` is called with the number of alerts of an outcome."""

    def __init__(
        self,
        token_file: Path,
        find: Callable[[str, str], Awaitable[Document | None]],
        store: Callable[[Document], Awaitable[None]],
        wake: Callable[[str, str], None],
        count: Callable[[str, int], None] = lambda _, __: None,
    ) -> None:
        self._token_file, self._find, self._store, self._wake, self._count = token_file, find, store, wake, count
        self._coalescer = Coalescer(self._keep)

    async def handle(self, request: web.Request) -> web.Response:
        if not self._authorised(request.headers.get("Authorization", "")):
            return web.json_response({"error": "a valid bearer token is required"}, status=401)
        if request.headers.get("Content-Encoding", "identity") != "identity":
            return web.json_response({"error": "Content-Encoding is not accepted"}, status=415)
        try:
            payload = parse(json.loads(await request.read()), time.time())
        except (PayloadError, ValueError, RecursionError) as error:
            return web.json_response({"error": str(error)[:500]}, status=400)
        outcomes, reasons = await self._sort(payload.alerts)
        outcomes[Outcome.REFUSED] += len(payload.refusals)
        outcomes[Outcome.UNMATCHED] += payload.unaddressed
        for reason in payload.refusals[:MAX_REASONS]:
            log.warning("an alert is refused: %s", reason)
        for outcome in Outcome:
            self._count(outcome, outcomes[outcome])
        body = {outcome.value: outcomes[outcome] for outcome in Outcome}
        return web.json_response(
            {**body, "reasons": [*payload.refusals, *reasons][:MAX_REASONS]},
            status=500 if outcomes[Outcome.FAILED] else 200,
        )

    async def _sort(self, alerts: Iterable[Alert]) -> tuple[Counter[Outcome], list[str]]:
        """Store alerts with their services. Returns how many had which outcome, and the reasons of failures: one service
        whose status cannot be written keeps no other service's alerts away."""
        groups: dict[tuple[str, str], list[AlertRecord]] = {}
        for alert in alerts:
            groups.setdefault((alert.namespace, alert.service), []).append(alert.record)
        outcomes, reasons = Counter[Outcome](), list[str]()
        for (namespace, service), group in groups.items():
            try:
                stored = await self._coalescer.add(namespace, service, group)
            except Exception as error:
                log.exception("%d alerts for %s/%s are not stored", len(group), namespace, service)
                outcomes[Outcome.FAILED] += len(group)
                reasons.append(f"{namespace}/{service}: the status cannot be written ({type(error).__name__})")
                continue
            outcomes[Outcome.ACCEPTED] += stored
            outcomes[Outcome.UNMATCHED] += len(group) - stored
            if stored < len(group) and (unnamed := sum(not alert.revision for alert in group)):
                reasons.append(
                    f"{namespace}/{service}: {unnamed} alerts have no label revision; such an alert counts only with "
                    "spec.rollout.alerts.withoutRevision: act"
                )
        return outcomes, reasons

    async def _keep(self, namespace: str, service: str, alerts: list[AlertRecord]) -> frozenset[Identity]:
        """Store alerts in a service's status, and return those that concern it. Raises ConflictError when others keep
        writing the object."""
        for _ in range(ATTEMPTS):
            document = await self._find(namespace, service)
            if document is None:
                return frozenset()
            before = codec.load(document.get("status"))
            records = _concerning(document.get("spec"), before, alerts)
            if not records:
                return frozenset()
            after = merge(before, records)
            if after != before:
                fitted = budget.fit(after, before.conditions, time.time())
                try:
                    await self._store({**document, "status": fitted.document})
                except ConflictError:
                    continue
                log.info("stored %d alerts for %s/%s", len(records), namespace, service)
            self._wake(namespace, service)
            return frozenset(map(identity, records))
        raise ConflictError(f"{namespace}/{service} changed {ATTEMPTS} times while an alert was stored")

    def _authorised(self, header: str) -> bool:
        try:
            token = self._token_file.read_text().strip()
        except (OSError, UnicodeDecodeError):
            return False
        given = header.encode(errors="surrogatepass")  # bytes that are no UTF-8 arrive as lone surrogates
        return bool(token) and hmac.compare_digest(given, f"Bearer {token}".encode())


def _concerning(raw: Any, status: Status, alerts: Iterable[AlertRecord]) -> list[AlertRecord]:
    """The alerts that a service with the spec `raw` takes, as they are stored.

    The end of a stored alert is taken under any spec, because Alertmanager sends it once: the alert may pause the rollout of an
    earlier spec, or of one that is invalid now.
    """
    labels, any_revision = _accepted(raw)
    firing = {(one.fingerprint, one.starts_at) for one in status.alerts if not one.resolved}
    records = []
    for alert in alerts:
        named = alert.revision or any_revision or alert.resolved
        if labels is not None and named and matches(alert.labels, labels):
            records.append(bounded(alert, labels))
        elif alert.resolved and (alert.fingerprint, alert.starts_at) in firing:
            records.append(bounded(alert, {}))
    return records


def _accepted(raw: Any) -> tuple[Mapping[str, str] | None, bool]:
    """The labels an alert must carry for this service, None when it takes no alerts, and whether it may name no revision."""
    parsed = spec.parse(raw or {})
    if isinstance(parsed, Spec):
        return parsed.rollout.alert_labels, parsed.rollout.alerts_without_revision
    return labels_of(raw), counts_without_revision(raw)
