"""The requests of an account in the audit log, beside the grants of its shipped Roles. Decides nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

MANIFESTS = Path(__file__).resolve().parents[2] / "manifests"
Grant = tuple[str, str, str]  # API group, resource or resource/subresource, verb


@dataclass(frozen=True)
class RoleUse:
    used: frozenset[Grant]
    forbidden: frozenset[str]  # verb and URI
    requests: int


def granted(*files: str) -> frozenset[Grant]:
    """Return the grants of the Roles and ClusterRoles in `files` (below manifests/)."""
    documents = [one for file in files for one in yaml.safe_load_all((MANIFESTS / file).read_text())]
    rules = [rule for one in documents if one["kind"] in ("Role", "ClusterRole") for rule in one["rules"]]
    return frozenset(
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    )


def events(folder: Path, naming: str = "") -> Iterator[Mapping[str, Any]]:
    """Yield the events of audit.log in `folder` and of its rotated files whose text has `naming`; the line that is being written is
    left out."""
    for file in sorted(folder.glob("audit*.log")):
        with file.open() as lines:
            yield from (json.loads(line) for line in lines if naming in line and line.endswith("\n"))


def role_use(audit: Iterable[Mapping[str, Any]], user: str, allowed: frozenset[Grant]) -> RoleUse:
    """A PATCH that made an object (status 201) needs `create` as well: server-side apply. `forbidden` are refusals of what
    `allowed` does not name: a 403 for what it does name is admission's (a namespace that is being deleted, a quota)."""
    used, forbidden, count = set(), set(), 0
    for event in audit:
        reference = event.get("objectRef") or {}
        if event["user"].get("username") != user or "resource" not in reference:
            continue
        count += 1
        code = (event.get("responseStatus") or {}).get("code")
        resource = "/".join(filter(None, (reference["resource"], reference.get("subresource"))))
        group = reference.get("apiGroup", "")
        if code == 403:
            if (group, resource, event["verb"]) not in allowed:
                forbidden.add(f"{event['verb']} {event['requestURI'].partition('?')[0]}")
            continue
        used.add((group, resource, event["verb"]))
        if event["verb"] == "patch" and code == 201:
            used.add((group, resource, "create"))
    return RoleUse(frozenset(used), frozenset(forbidden), count)
