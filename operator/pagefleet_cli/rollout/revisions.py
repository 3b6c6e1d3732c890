"""The revisions stored in a status: their history, and the diff of two. Pure."""

from __future__ import annotations

import datetime
import difflib
from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from rich.table import Table
from rich.text import Text

from pagefleet_cli.base.errors import CommandError
from pagefleet_cli.base.tables import age, text

Document = Mapping[str, Any]
STYLES = {"+": "green", "-": "red", "@": "cyan"}
MAX_CHANGES = 4


def revisions(service: Document) -> list[Document]:
    """Oldest first."""
    entries = (service.get("status") or {}).get("revisions") or ()
    return sorted(entries, key=lambda entry: str(entry.get("created", "")))


def history(service: Document, now: datetime.datetime, wide: bool = False) -> Table:
    """Oldest first: role, pods, and the fields that differ from the revision before."""
    table = Table("REVISION", "AGE", "ROLE", "WEIGHT", "READY", "DESIRED", "CHANGES", box=None)
    status = service.get("status") or {}
    weights = {entry["revision"]: entry["weight"] for entry in status.get("traffic") or ()}
    before: Document | None = None
    for entry in revisions(service):
        changed = [] if before is None else changes(before.get("spec") or {}, entry.get("spec") or {})
        shown = changed if wide or len(changed) <= MAX_CHANGES else [*changed[:MAX_CHANGES], "..."]
        created = age(entry["created"], now) if entry.get("created") else ""
        name = entry["hash"]
        cells = (
            name, created, role(status, name), f"{weights.get(name, 0)} %", entry.get("ready", 0),
            entry.get("desired", 0), ", ".join(shown),
        )  # fmt: skip
        table.add_row(*map(text, cells))
        before = entry
    return table


def role(status: Document, name: str) -> str:
    if name in (status.get("stable"), status.get("canary")):
        return "stable" if name == status.get("stable") else "canary"
    if name == (status.get("previous") or {}).get("revision"):
        return "previous"
    rejected = next((entry for entry in status.get("rejected") or () if entry["hash"] == name), None)
    return f"rejected ({rejected['reason']})" if rejected else ""


def changes(old: Document, new: Document) -> list[str]:
    """`path: old -> new` for each leaf that differs."""
    before, after = dict(_leaves(old, "")), dict(_leaves(new, ""))
    paths = sorted({*before, *after})
    return [
        f"{path}: {before.get(path, 'unset')} -> {after.get(path, 'unset')}"
        for path in paths
        if before.get(path) != after.get(path)
    ]


def pair(service: Document, first: str | None, second: str | None) -> tuple[Document, Document]:
    """The revisions to compare. None given: stable and canary, or the last two; one given: it and the stable."""
    status, known = service.get("status") or {}, revisions(service)
    stable, canary = status.get("stable"), status.get("canary")
    if first is None:
        if stable and canary:
            return chosen(known, stable), chosen(known, canary)
        if len(known) < 2:
            raise CommandError(f"there are no two revisions to compare: {len(known)} is stored")
        return known[-2], known[-1]
    other = second or stable
    if not other:
        raise CommandError("there is no stable revision to compare with: name two")
    return chosen(known, first), chosen(known, other)


def chosen(known: list[Document], prefix: str) -> Document:
    """The revision whose hash begins with `prefix`."""
    matches = [entry for entry in known if entry["hash"].startswith(prefix)]
    if len(matches) == 1:
        return matches[0]
    names = ", ".join(entry["hash"] for entry in matches or known) or "none"
    raise CommandError(f"{prefix!r} is {'several revisions' if matches else 'no stored revision'}: {names}")


def difference(old: Document, new: Document) -> list[str]:
    """A unified diff of the two snapshots as YAML; empty when they are the same."""
    before, after = (yaml.safe_dump(dict(entry.get("spec") or {}), sort_keys=True).splitlines() for entry in (old, new))
    return list(difflib.unified_diff(before, after, str(old["hash"]), str(new["hash"]), lineterm=""))


def coloured(lines: list[str]) -> Text:
    """A unified diff as git colours it."""
    whole = Text()
    for number, line in enumerate(lines):
        head = line.startswith(("---", "+++"))
        whole.append(("\n" if number else "") + line, "bold" if head else STYLES.get(line[:1], ""))
    return whole


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and value and any(isinstance(item, Mapping) for item in value):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}[{index}]")
    else:
        yield path, value
