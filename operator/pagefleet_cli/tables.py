"""InferenceServices as tables for people. Pure: documents in, rich tables out."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import Any

from rich.table import Table

Document = Mapping[str, Any]
LAST_DECISIONS = 8


def condition(service: Document, kind: str) -> Document:
    found = [c for c in (service.get("status") or {}).get("conditions") or () if c["type"] == kind]
    return found[0] if found else {"status": "Unknown", "reason": "", "message": ""}


def services(items: Iterable[Document], now: datetime.datetime) -> Table:
    table = Table("NAMESPACE", "NAME", "READY", "STABLE", "CANARY", "WEIGHT", "VERDICT", "REPLICAS", "AGE", box=None)
    for item in items:
        metadata, status = item["metadata"], item.get("status") or {}
        canary = status.get("canary", "")
        weight = next((t["weight"] for t in status.get("traffic") or () if t["revision"] == canary), "")
        verdict = ((status.get("rollout") or {}).get("verdict") or {}).get("outcome", "")
        cells = (
            metadata["namespace"], metadata["name"], condition(item, "Ready")["status"], status.get("stable", ""), canary,
            weight, verdict, status.get("replicas", 0), age(metadata["creationTimestamp"], now),
        )  # fmt: skip
        table.add_row(*map(str, cells))
    return table


def details(service: Document) -> list[Table]:
    """Conditions, traffic, the verdict's numbers, rejected revisions, the latest decisions."""
    status = service.get("status") or {}
    conditions = Table("CONDITION", "STATUS", "REASON", "MESSAGE", box=None, title="", title_justify="left")
    for entry in status.get("conditions") or ():
        conditions.add_row(entry["type"], entry["status"], entry.get("reason", ""), entry.get("message", ""))
    traffic = Table("REVISION", "ROLE", "WEIGHT", "READY", "DESIRED", box=None)
    weights = {entry["revision"]: entry["weight"] for entry in status.get("traffic") or ()}
    for entry in status.get("revisions") or ():
        name = entry["hash"]
        role = "stable" if name == status.get("stable") else "canary" if name == status.get("canary") else ""
        if role or entry.get("desired") or entry.get("ready"):
            traffic.add_row(
                name, role, f"{weights.get(name, 0)} %", str(entry.get("ready", 0)), str(entry.get("desired", 0))
            )
    tables = [conditions, traffic]
    verdict = (status.get("rollout") or {}).get("verdict")
    if verdict:
        table = Table("VERDICT", "", box=None)
        for name, value in verdict.items():
            table.add_row(name, f"{value:.4g}" if isinstance(value, float) else str(value))
        tables.append(table)
    if status.get("rejected"):
        table = Table("REJECTED", "REASON", "MESSAGE", "TIME", box=None)
        for entry in status["rejected"]:
            table.add_row(entry["hash"], entry["reason"], entry.get("message", ""), entry.get("time", ""))
        tables.append(table)
    decisions = Table("TIME", "DECISION", "MESSAGE", box=None)
    for entry in (status.get("decisions") or [])[-LAST_DECISIONS:]:
        decisions.add_row(entry["time"][:19], entry["kind"], entry["message"])
    return [*tables, decisions]


def age(created: str, now: datetime.datetime) -> str:
    """As kubectl shows it: 45s, 12m, 3h, 5d."""
    seconds = max(0, int((now - datetime.datetime.fromisoformat(created)).total_seconds()))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
