"""A person's action on a rollout, as the annotation that the operator answers (docs/reference/contract/tools.md).

Writes the annotation and waits for `.status.action` of the same id; never a spec.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pagefleet_cli.base.cluster import Cluster
from pagefleet_cli.base.errors import PassingError
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
class Written:
    """An action that was written. `replaced` describes the unanswered action before it, "" when there was none."""

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


def ask(cluster: Cluster, service: Document, action: Action, revision: str | None = None) -> Written:
    """Write the action. Raises CommandError."""
    waiting, identity = pending(service), uuid.uuid4().hex[:12]
    replaced = f"{waiting.get('action')} (asked by {waiting.get('by', 'somebody')})" if waiting else ""
    cluster.annotate(
        service["metadata"]["name"], ACTION_ANNOTATION, annotation(action, identity, cluster.user, revision)
    )
    return Written(identity, action, replaced)


def answer(service: Document, identity: str) -> Answer | None:
    """The operator's answer to the action; None before there is one."""
    action = (service.get("status") or {}).get("action") or {}
    if action.get("id") != identity:
        return None
    return Answer(action.get("outcome") == "Done", str(action.get("message", "")))


def await_answer(cluster: Cluster, name: str, written: Written, timeout: float) -> Answer | None:
    """The operator's answer; None when there is none within `timeout` seconds. The action is written, so an API server that is away for
    a moment is asked again. Raises CommandError."""
    until = time.monotonic() + timeout
    while True:
        with contextlib.suppress(PassingError):
            if (outcome := answer(cluster.service(name), written.id)) is not None:
                return outcome
        if time.monotonic() >= until:
            return None
        time.sleep(POLL_SECONDS)
