"""What a person asks of a rollout, as the annotation that the operator answers (docs/reference/contract/tools.md).

Writes the annotation and waits for `.status.action` of the same id; never a spec.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pagefleet_cli.base.cluster import Cluster
from pagefleet_cli.rollout.why import pending
from pagefleet_contract.names import ACTION_ANNOTATION

POLL_SECONDS = 0.4
Document = Mapping[str, Any]


class Action(StrEnum):
    PROMOTE = "promote"
    SKIP = "skip"
    PAUSE = "pause"
    RESUME = "resume"
    ABORT = "abort"
    RETRY = "retry"
    UNDO = "undo"


@dataclass(frozen=True)
class Asked:
    """An action that was written. `replaced` describes one that was still waiting, "" when none was."""

    id: str
    action: Action
    replaced: str


@dataclass(frozen=True)
class Answer:
    done: bool
    message: str


def annotation(action: Action, identity: str, by: str, revision: str | None = None) -> str:
    """The annotation's value."""
    document = {"id": identity, "action": action.value, "by": by}
    return json.dumps({**document, **({"revision": revision} if revision else {})}, separators=(",", ":"))


def ask(cluster: Cluster, service: Document, action: Action, revision: str | None = None) -> Asked:
    """Write the action. Raises Fault."""
    waiting, identity = pending(service), uuid.uuid4().hex[:12]
    replaced = f"{waiting.get('action')} (asked by {waiting.get('by', 'somebody')})" if waiting else ""
    cluster.annotate(
        service["metadata"]["name"], ACTION_ANNOTATION, annotation(action, identity, cluster.user, revision)
    )
    return Asked(identity, action, replaced)


def answer(service: Document, identity: str) -> Answer | None:
    """What the operator says became of the action; None while it has not spoken."""
    found = (service.get("status") or {}).get("action") or {}
    if found.get("id") != identity:
        return None
    return Answer(found.get("outcome") == "Done", str(found.get("message", "")))


def await_answer(cluster: Cluster, name: str, asked: Asked, timeout: float) -> Answer | None:
    """The operator's answer; None when there is none within `timeout` seconds. Raises Fault."""
    until = time.monotonic() + timeout
    while (found := answer(cluster.service(name), asked.id)) is None and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
    return found
