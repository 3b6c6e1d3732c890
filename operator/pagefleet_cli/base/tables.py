"""InferenceServices as tables for people. Pure: documents in, rich tables out."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from pagefleet_operator.domain.base.revision_spec import revision_spec

Document = Mapping[str, Any]
LAST_DECISIONS = 8


def condition(service: Document, kind: str) -> Document:
    matches = [c for c in (service.get("status") or {}).get("conditions") or () if c["type"] == kind]
    return matches[0] if matches else {"status": "Unknown", "reason": "", "message": ""}


def services(items: Iterable[Document], now: datetime.datetime, wide: bool = False) -> Table:
    """One line for each service; `wide` adds the phase, model, source, runtime and the reason of a service that is not Ready."""
    columns = [
        "NAMESPACE",
        "NAME",
        "READY",
        "STABLE",
        "CANARY",
        "WEIGHT",
        "VERDICT",
        "GUARDED",
        "SLO",
        "REPLICAS",
        "AGE",
    ]
    table = Table(*columns, *(("PHASE", "MODEL", "SOURCE", "RUNTIME", "REASON") if wide else ()), box=None)
    for item in items:
        metadata, status, pods = item["metadata"], item.get("status") or {}, revision_spec(item.get("spec"))
        canary, ready = status.get("canary", ""), condition(item, "Ready")
        weight = next((t["weight"] for t in status.get("traffic") or () if t["revision"] == canary), "")
        rollout = status.get("rollout") or {}
        cells = [
            metadata["namespace"], metadata["name"], ready["status"], status.get("stable", ""), canary, weight,
            (rollout.get("verdict") or {}).get("outcome", ""),
            condition(item, "Guarded")["status"], (status.get("slo") or {}).get("left", ""), status.get("replicas", 0),
            age(metadata["creationTimestamp"], now),
        ]  # fmt: skip
        if wide:
            cells += [
                rollout.get("phase", ""),
                pods.model.served_name,
                pods.model.source,
                pods.engine.runtime,
            ]
            cells.append("" if ready["status"] == "True" else ready.get("reason", ""))
        table.add_row(*map(text, cells))
    return table


def text(value: object) -> Text:
    """Make a cell without rich's markup: names and messages may have brackets."""
    return Text(str(value))


def details(service: Document) -> list[Table]:
    """Conditions, traffic, the verdict's numbers, rejected revisions, the latest decisions."""
    status = service.get("status") or {}
    conditions = Table("CONDITION", "STATUS", "REASON", "MESSAGE", box=None, title="", title_justify="left")
    for entry in status.get("conditions") or ():
        cells = (entry["type"], entry["status"], entry.get("reason", ""), entry.get("message", ""))
        conditions.add_row(*map(text, cells))
    traffic = Table("REVISION", "ROLE", "WEIGHT", "READY", "DESIRED", box=None)
    weights = {entry["revision"]: entry["weight"] for entry in status.get("traffic") or ()}
    for entry in status.get("revisions") or ():
        name = entry["hash"]
        role = "stable" if name == status.get("stable") else "canary" if name == status.get("canary") else ""
        if role or entry.get("desired") or entry.get("ready"):
            traffic.add_row(name, role, f"{weights.get(name, 0)} %", *map(str, ready_and_desired(entry)))
        prefill = entry.get("prefill")
        if prefill:
            traffic.add_row(name, "prefill pods", "", *map(str, ready_and_desired(prefill)))
    spares = status.get("spares")
    if spares:
        role = f"spares, {spares.get('asleep', 0)} asleep"
        awake, desired = (str(spares.get(which, 0)) for which in ("awake", "desired"))
        traffic.add_row(text(spares.get("revision", "")), role, "", awake, desired)
    tables = [conditions, traffic]
    objectives = (status.get("slo") or {}).get("objectives")
    if objectives:
        table = Table("OBJECTIVE", "PROMISE", "BUDGET LEFT", "PACE", "MISSED", box=None)
        for entry in objectives:
            left, burn = entry.get("left"), entry.get("burn")
            missed = f"{entry.get('missed', 0)} of {entry.get('requests', 0)}"
            shares = (f"{left:.1%}" if left is not None else "", f"{burn:g}x" if burn is not None else "")
            table.add_row(*map(text, (entry["name"], entry.get("promise", ""), *shares, missed)))
        tables.append(table)
    planned = (status.get("capacityPlan") or {}).get("assumptions")
    if planned:
        tables.append(_capacity_plan(planned))
    verdict = (status.get("rollout") or {}).get("verdict")
    if verdict:
        table = Table("VERDICT", "", box=None)
        for name, value in verdict.items():
            table.add_row(name, text(f"{value:.4g}" if isinstance(value, float) else value))
        tables.append(table)
    if status.get("rejected"):
        table = Table("REJECTED", "REASON", "MESSAGE", "TIME", box=None)
        for entry in status["rejected"]:
            cells = (entry["hash"], entry["reason"], entry.get("message", ""), entry.get("time", "")[:19])
            table.add_row(*map(text, cells))
        tables.append(table)
    decisions = Table("TIME", "DECISION", "MESSAGE", box=None)
    for entry in (status.get("decisions") or [])[-LAST_DECISIONS:]:
        decisions.add_row(*map(text, (entry["time"][:19], entry["kind"], entry["message"])))
    return [*tables, decisions]


def ready_and_desired(pods: Document) -> tuple[int, int]:
    """A revision's ready and desired replicas, or prefill pods."""
    return int(pods.get("ready", 0)), int(pods.get("desired", 0))


def _capacity_plan(assumptions: Iterable[Document]) -> Table:
    """The numbers of spec.capacityPlan beside what is measured, by revision."""
    table = Table("CAPACITY PLAN", "REVISION", "PLANNED", "MEASURED", "BETWEEN", "FINDING", box=None)
    for one in assumptions:
        low, high = one.get("low"), one.get("high")
        between = "" if low is None else f"{low:,g} and {high:,g}" if high is not None else f"{low:,g} and any"
        measured = "" if one.get("measured") is None else f"{one['measured']:,g}"
        cells = (one["name"], one.get("revision", ""), f"{one['planned']:,g}", measured, between)
        table.add_row(*map(text, (*cells, one.get("finding") or "too little data")))
    return table


def age(created: str, now: datetime.datetime) -> str:
    """As kubectl shows it: 45s, 12m, 3h, 5d."""
    seconds = max(0, int((now - datetime.datetime.fromisoformat(created)).total_seconds()))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
