"""Reads Alertmanager's webhook payload (version 4) into alerts, and adds them to a status. Pure."""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pagefleet_contract.names import MAX_NAMESPACE, MAX_OBJECT_NAME, is_namespace, is_object_name
from pagefleet_operator.domain.base.stored_size import size
from pagefleet_operator.domain.status.status import AlertRecord, Status

MAX_ALERTS, MAX_STORED, MAX_LABELS = 1000, 20, 64
MAX_TEXT = 253  # characters of a label's value
MAX_STORED_BYTES = 1 << 10  # of an alert's labels, without those that a service requires
FIRST_LABELS = ("alertname", "severity", "namespace", "service", "inferenceservice", "revision")
SERVICE_LABELS = ("service", "inferenceservice")


class PayloadError(ValueError):
    """The payload is not one of Alertmanager's version 4. The message names the field."""


@dataclass(frozen=True)
class Alert:
    """One alert that names a namespace and a service."""

    namespace: str
    service: str
    record: AlertRecord


@dataclass(frozen=True)
class Payload:
    """The alerts of one payload: those that name a service, the reasons of those that are refused, and the number of those
    that name no service."""

    alerts: tuple[Alert, ...] = ()
    refusals: tuple[str, ...] = ()
    unaddressed: int = 0


class _RefusedError(ValueError):
    """One alert is refused. The others of its payload are not concerned."""


def parse(payload: object, received: float) -> Payload:
    """Sort the alerts of a payload. Raises PayloadError."""
    if not isinstance(payload, Mapping):
        raise PayloadError("the body must be a JSON object")
    if payload.get("version") != "4":
        raise PayloadError(f"version must be '4', not {payload.get('version')!r}")
    alerts = payload.get("alerts")
    if not isinstance(alerts, list) or len(alerts) > MAX_ALERTS:
        raise PayloadError(f"alerts must be a list of at most {MAX_ALERTS}")
    accepted, refusals, unaddressed = list[Alert](), list[str](), 0
    for index, raw in enumerate(alerts):
        try:
            alert = _alert(raw, f"alerts[{index}]", received)
        except _RefusedError as refusal:
            refusals.append(str(refusal))
            continue
        if alert is None:
            unaddressed += 1
        else:
            accepted.append(alert)
    return Payload(tuple(accepted), tuple(refusals), unaddressed)


def _alert(raw: Any, where: str, received: float) -> Alert | None:
    if not isinstance(raw, Mapping):
        raise PayloadError(f"{where} must be an object")
    if raw.get("status") not in ("firing", "resolved"):
        raise PayloadError(f"{where}.status must be firing or resolved, not {raw.get('status')!r}")
    labels = raw.get("labels")
    if not isinstance(labels, Mapping) or not all(isinstance(value, str) for value in labels.values()):
        raise PayloadError(f"{where}.labels must be an object of strings")
    starts_at = _time(raw.get("startsAt"), f"{where}.startsAt")
    label = next((name for name in SERVICE_LABELS if labels.get(name)), "")
    service, namespace, revision = labels.get(label, ""), labels.get("namespace", ""), labels.get("revision", "")
    if not service or not namespace:
        return None
    if len(labels) > MAX_LABELS:
        raise _RefusedError(f"{where}.labels must be at most {MAX_LABELS}, not {len(labels)}")
    _require(is_namespace(namespace), f"{where}.labels.namespace", namespace, f"a namespace's name {_LABEL}")
    _require(is_object_name(service), f"{where}.labels.{label}", service, f"an InferenceService's name {_NAME}")
    _require(
        not revision or is_object_name(revision), f"{where}.labels.revision", revision, f"a revision's name {_NAME}"
    )
    canonical = json.dumps(dict(labels), sort_keys=True).encode()
    fingerprint = raw.get("fingerprint") or hashlib.sha256(canonical).hexdigest()[:16]
    if not isinstance(fingerprint, str):
        raise PayloadError(f"{where}.fingerprint must be a string")
    record = AlertRecord(
        fingerprint=fingerprint[:64],
        name=labels.get("alertname", "unnamed")[:MAX_TEXT],
        starts_at=starts_at,
        revision=revision,
        received=received,
        labels={str(name): value[:MAX_TEXT] for name, value in labels.items() if len(str(name)) <= MAX_TEXT},
        resolved=raw["status"] == "resolved",
    )
    return Alert(namespace, service, record)


_LABEL = f"(letters a-z, digits and -, at most {MAX_NAMESPACE})"
_NAME = f"(letters a-z, digits, - and ., at most {MAX_OBJECT_NAME})"


def _require(usable: bool, where: str, value: str, needed: str) -> None:
    """Refuse an alert whose label is to name an object and is no name. It would become part of an API path."""
    if not usable:
        raise _RefusedError(f"{where} must be {needed}, not {value[:80]!r}")


def bounded(record: AlertRecord, required: Mapping[str, str]) -> AlertRecord:
    """The record with the labels that are `required` and as many others as have MAX_STORED_BYTES together."""
    labels, room = {name: record.labels[name] for name in required}, MAX_STORED_BYTES
    for name in sorted(record.labels, key=lambda name: (name not in FIRST_LABELS, name)):
        room -= size({name: record.labels[name]})
        if room >= 0:
            labels[name] = record.labels[name]
    return replace(record, labels=labels)


def merge(status: Status, records: list[AlertRecord]) -> Status:
    """The status with `records` in it: one entry per fingerprint and start, `resolved` taken over.

    At most MAX_STORED are kept, those first that may decide something: they fire, are about a revision in use and came
    in this rollout. Of the same importance the earlier stay, so that a storm fills the list once and is then no change.
    """
    stored = {(record.fingerprint, record.starts_at): record for record in status.alerts}
    in_use = ("", status.stable, status.canary)
    for record in records:
        key = (record.fingerprint, record.starts_at)
        before = stored.get(key)
        counts = not record.resolved or record.revision in in_use  # an end may come before its beginning
        if before is None and counts:
            stored[key] = record
        elif before is not None and record.resolved and not before.resolved:
            stored[key] = replace(before, resolved=True)

    def importance(record: AlertRecord) -> tuple[bool, bool, float, str]:
        idle = record.revision not in in_use or record.received < status.rollout.started
        return record.resolved, idle, record.received, record.fingerprint

    chosen = sorted(stored.values(), key=importance)[:MAX_STORED]
    return replace(status, alerts=tuple(sorted(chosen, key=lambda record: (record.received, record.fingerprint))))


def _time(value: Any, where: str) -> float:
    try:
        return datetime.datetime.fromisoformat(str(value)).timestamp()
    except (ValueError, OverflowError, OSError) as error:
        raise PayloadError(f"{where} must be an RFC 3339 time, not {value!r}") from error
