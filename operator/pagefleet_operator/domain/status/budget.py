"""The size of a status. Snapshots of revisions, alerts and decisions share 256 KiB; etcd refuses an object of 1.5 MiB.

A status that would be larger loses parts, those first that nobody decides by, and its condition `StatusTrimmed` names them. So
every decision can be written down. Pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

from pagefleet_operator.domain.base.frozen import replace
from pagefleet_operator.domain.base.stored_size import size
from pagefleet_operator.domain.status import codec
from pagefleet_operator.domain.status.condition import TRUE, with_transition_time
from pagefleet_operator.domain.status.status import Condition, RevisionRecord, Status

MAX_BYTES = 256 << 10
NEAR_BYTES = MAX_BYTES * 3 // 4  # above it the condition stays, so that it does not come and go with each decision
RESERVED_BYTES = 2 << 10  # for the condition itself
TRIMMED, MESSAGE = "StatusTrimmed", "message"
FEW_DECISIONS, FEW_ALERTS = 10, 5
SHORT = 160  # characters of a message: its beginning names the field, and no name is longer than 128
MAX_ALERT_BYTES = 8 << 10  # twice what a service can require an alert to carry


@dataclass(frozen=True)
class Fitted:
    """A status within the budget, and the JSON of it."""

    status: Status
    document: dict[str, Any]


def fit(status: Status, before: Collection[Condition], now: float, parts: codec.Parts | None = None) -> Fitted:
    """Bring the status within the budget. `before` are the conditions of the stored status, `parts` those of the service."""
    known = next((condition for condition in before if condition.type == TRIMMED), None)
    status = replace(status, conditions=tuple(entry for entry in status.conditions if entry.type != TRIMMED))
    document = codec.dump(status, parts)
    bytes_now = bytes_before = size(document)
    dropped: list[str] = []
    for part, trim in _STEPS:
        excess = bytes_now + RESERVED_BYTES - MAX_BYTES
        if excess <= 0:
            break
        trimmed, names = trim(status, excess)
        if trimmed != status:
            dropped.append(part.format(names))
            status, bytes_now = trimmed, size(codec.dump(trimmed))
    if dropped:
        status = _stating(status, known, now, _message(bytes_before, dropped))
    elif known is not None and bytes_now > NEAR_BYTES:
        status = replace(status, conditions=(*status.conditions, known))
    else:
        return Fitted(status, document)
    return Fitted(status, codec.dump(status))


def _message(bytes_before: int, dropped: Collection[str]) -> str:
    return (
        f"the status would have {bytes_before >> 10} KiB, of which {MAX_BYTES >> 10} KiB are stored; dropped: {', '.join(dropped)}; "
        "make the spec smaller or lower spec.rollout.historyLimit"
    )


def _stating(status: Status, known: Condition | None, now: float, message: str) -> Status:
    new = with_transition_time((TRIMMED, TRUE, "OverBudget", message), known, status.observed_generation, now)
    return replace(status, conditions=(*status.conditions, new))


def _decisions(status: Status, _: int) -> tuple[Status, str]:
    return replace(status, decisions=status.decisions[-FEW_DECISIONS:]), ""


def _evidence(status: Status, _: int) -> tuple[Status, str]:
    return replace(status, rejected=tuple(replace(one, verdict=None) for one in status.rejected)), ""


def _load_tests(status: Status, _: int) -> tuple[Status, str]:
    return replace(status, revisions=tuple(replace(one, load_test={}) for one in status.revisions)), ""


def _baselines(status: Status, _: int) -> tuple[Status, str]:
    return replace(status, baseline=()), ""


def _times(status: Status, _: int) -> tuple[Status, str]:
    evidence = tuple(replace(one, times=()) for one in status.rollout.evidence)
    return replace(status, rollout=replace(status.rollout, evidence=evidence)), ""


def _alerts(status: Status, _: int) -> tuple[Status, str]:
    """Those first that fire and are about a revision in use."""
    in_use = ("", status.stable, status.canary)
    usual = [one for one in status.alerts if size(dict(one.labels)) <= MAX_ALERT_BYTES]
    chosen = sorted(usual, key=lambda one: (one.resolved, one.revision not in in_use, one.received))[:FEW_ALERTS]
    return replace(status, alerts=tuple(one for one in status.alerts if one in chosen)), ""


def _texts(status: Status, _: int) -> tuple[Status, str]:
    changes = {
        entry.name: _short(getattr(status, entry.name))
        for entry in dataclasses.fields(status)
        if entry.name
        not in ("revisions", "alerts", "selector", "slo", "spending", "capacity_plan")  # whose names are keys
    }
    return replace(status, **changes), ""


def _short(value: Any, name: str = "") -> Any:
    """The value with every message in it cut to SHORT characters. Other texts are names and keys, by which decisions know things again."""
    if name == MESSAGE and isinstance(value, str):
        return value[:SHORT]
    if isinstance(value, tuple):
        return tuple(_short(item) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {entry.name: _short(getattr(value, entry.name), entry.name) for entry in dataclasses.fields(value)}
        return replace(value, **fields)
    return value


def _snapshots(idle: bool) -> Callable[[Status, int], tuple[Status, str]]:
    """Drop snapshots, the oldest first, until enough is freed: of `idle` revisions, or of all but stable and canary."""

    def trim(status: Status, excess: int) -> tuple[Status, str]:
        previous = status.previous.revision if status.previous is not None else ""
        in_use = {status.stable, status.canary, *((previous,) if idle else ())}
        gone: list[str] = []
        for record in _by_age(status):
            if excess > 0 and record.spec and record.hash not in in_use and not (idle and record.desired):
                gone.append(record.hash)
                excess -= size(dict(record.spec))
        kept = tuple(replace(one, spec={}) if one.hash in gone else one for one in status.revisions)
        return replace(status, revisions=kept), ", ".join(gone)

    return trim


def _by_age(status: Status) -> Iterator[RevisionRecord]:
    """The revisions, the oldest first and the previous one last."""
    previous = status.previous.revision if status.previous is not None else ""
    return iter(sorted(status.revisions, key=lambda record: (record.hash == previous, record.created)))


# What nobody decides by comes first. {} stands for names.
_STEPS: tuple[tuple[str, Callable[[Status, int], tuple[Status, str]]], ...] = (
    (f"all but the newest {FEW_DECISIONS} decisions", _decisions),
    ("the specs of the revisions {}, which cannot be gone back to", _snapshots(idle=True)),
    ("the evidence of rejected revisions", _evidence),
    ("the results of load tests", _load_tests),
    ("the ends of long texts", _texts),
    (f"all but {FEW_ALERTS} alerts", _alerts),
    ("the previous revision's histograms", _baselines),
    ("the canary's times so far", _times),
    ("the specs of the revisions {}, whose pods stay as they are", _snapshots(idle=False)),
)
